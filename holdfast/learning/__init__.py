"""How a step is taken: local optimisers and their schedule at a client, server optimisers at the moderator.

What is added to a gradient, and how updates are averaged, belongs in algorithms/.
"""
