"""What a client releases of its records, and what the moderator makes of it.

Who stands in, and when, belongs in absence/; noise and its accounting in privacy/.
"""
