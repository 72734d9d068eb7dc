"""Methods for comparison only, one short file each: what the papers cite, and FedDig's and the jury's rivals.

Nothing of the house imports them: an experiment names one (`absence = "memory"`), and `core/rivals.py` knows where it
is. They are algorithms and absences as any others, in the same grid. What was measured of each: docs/methods.md.
"""
