"""What stands in for a missing client."""
