"""Readers of files and pictures, one for each source; each refuses what is not what it says.

What a task is belongs in data/task.py.
"""
