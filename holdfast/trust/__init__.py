"""How much weight each update deserves."""

from __future__ import annotations

from holdfast.trust.fedtest import FedTest
from holdfast.trust.weights import BySamples, Judgement, Trust, Uniform

TRUSTS: dict[str, type[Trust]] = {"samples": BySamples, "uniform": Uniform, "fedtest": FedTest}

__all__ = ["TRUSTS", "BySamples", "Judgement", "Trust", "Uniform"]
