"""What a run plays in every round: three independent choices in the run's context."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.absence import AbsencePolicy
from holdfast.context import Context
from holdfast.trust import Trust


@dataclass(frozen=True, kw_only=True)
class Method(Context):
    """Three independent choices, in the run's context: how they learn (`algorithm`), who stands in, whom to believe."""

    absence: AbsencePolicy
    trust: Trust
