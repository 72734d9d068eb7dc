"""The federation over Flower's grid: messages, deadlines, sites known by their keys.

What is started on machines belongs in flower/deploy/.
"""
