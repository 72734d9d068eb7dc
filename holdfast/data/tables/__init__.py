"""Tables at the sites: a public schema, and the reader that makes samples of a CSV or Parquet file by it alone."""
