"""The field's robust rules: aggregates of rows of numbers, and the trust rules made of them.

Rules that ask clients belong in trust/.
"""
