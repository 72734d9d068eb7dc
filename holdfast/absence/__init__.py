"""What stands in for a missing client: nothing, or (FedDig) its digest."""

from __future__ import annotations

from holdfast.absence.feddig import FedDig
from holdfast.absence.nothing import Nothing

ABSENCES: dict[str, type[Nothing]] = {"none": Nothing, "feddig": FedDig}

__all__ = ["ABSENCES", "FedDig", "Nothing"]
