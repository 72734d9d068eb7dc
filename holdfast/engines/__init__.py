"""Engines: the embedded one, and Flower."""
