"""FedDig and FedTest as strategies and mods for Flower apps of one's own.

Holdfast's own engine belongs in flower/engine/.
"""
