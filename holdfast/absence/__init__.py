"""What stands in for a missing client: nothing, or (FedDig) its digest.

Digests themselves belong in digests/.
"""

from __future__ import annotations

from holdfast.absence.base import AbsencePolicy
from holdfast.absence.feddig import FedDig

ABSENCES: dict[str, type[AbsencePolicy]] = {"none": AbsencePolicy, "feddig": FedDig}

__all__ = ["ABSENCES", "AbsencePolicy", "FedDig"]
