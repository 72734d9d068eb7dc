"""A site and a moderator as processes: apps, keys, policies, joining.

What travels belongs in flower/engine/.
"""
