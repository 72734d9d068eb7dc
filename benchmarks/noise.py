"""Million exact noise coordinates a second on one core, for scales from 0.5 to a million."""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction

from holdfast.privacy.noise import Source, Whole, gaussian, laplace, scale_at_least, system

SCALES = (Fraction(1, 2), Fraction(3), Fraction(100), Fraction(12345, 7), Fraction(1_000_000))


def slowest(draw: Callable[[int, Fraction, Source], Whole], name: str, count: int = 2_000_000) -> float:
    """The rate at the slowest scale; each scale's table is made before the clock starts."""
    rates = []
    for scale in SCALES:
        scale = scale_at_least(scale)
        draw(1, scale, system())
        start = time.perf_counter()
        draw(count, scale, system())
        rates.append(count / (time.perf_counter() - start) / 1e6)
        print(f"noise_{name}_scale_{float(scale):g} {rates[-1]:.2f}")
    return min(rates)


if __name__ == "__main__":
    print(f"noise_million_per_second_laplace {slowest(laplace, 'laplace'):.2f}")
    print(f"noise_million_per_second_gaussian {slowest(gaussian, 'gaussian'):.2f}")
