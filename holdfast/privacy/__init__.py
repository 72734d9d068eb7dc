"""Exact noise, honest accounting, and audits that try to break them."""
