"""How much weight each update deserves."""
