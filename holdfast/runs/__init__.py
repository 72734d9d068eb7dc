"""From an experiment's file to a finished run's folder: build, play, store, judge the outcome, export.

One round is holdfast/round.py; what people look at is report/.
"""
