"""The privacy report: what leaves, what attacks find, what to plan for.

Mechanisms that protect belong in privacy/.
"""
