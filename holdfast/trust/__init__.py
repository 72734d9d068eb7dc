"""How much weight each update deserves."""

from __future__ import annotations

from holdfast.trust.weights import BySamples, Judgement, Trust, Uniform

TRUSTS: dict[str, type[Trust]] = {"samples": BySamples, "uniform": Uniform}

__all__ = ["TRUSTS", "BySamples", "Judgement", "Trust", "Uniform"]
