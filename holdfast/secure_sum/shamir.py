"""Shamir's secret sharing (1979) of 16 bytes in the field of the prime 2^130 - 5: any `threshold` shares give it back.

Fewer say nothing: every secret fits them equally well.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

from holdfast.core.failures import Refusal

PRIME = 2**130 - 5
SECRET, SHARE = 16, 17  # bytes


def split(secret: bytes, places: Sequence[int], threshold: int) -> dict[int, bytes]:
    """A share for each place (a number from 1 on): the values there of a random polynomial whose value at 0 it is.

    >>> shares = split(b"sixteen bytes ok", [1, 2, 3, 4], 3)
    >>> join({place: shares[place] for place in (1, 3, 4)})
    b'sixteen bytes ok'
    """
    assert len(secret) == SECRET
    assert 1 <= threshold <= len(places) == len({*places} - {0})
    terms = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    values = {x: sum(a * pow(x, power, PRIME) for power, a in enumerate(terms)) % PRIME for x in places}
    return {x: value.to_bytes(SHARE, "big") for x, value in values.items()}


def value_at(shares: Mapping[int, bytes], where: int) -> int:
    """The value of the polynomial through these shares (Lagrange)."""
    total = 0
    for x, share in shares.items():
        above = below = 1
        for other in shares:
            if other != x:
                above, below = above * (where - other) % PRIME, below * (x - other) % PRIME
        inverse: int = pow(below, -1, PRIME)
        total += int.from_bytes(share, "big") * above * inverse
    return total % PRIME


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret of as many shares as the threshold; some number without meaning where a share is wrong."""
    secret = value_at(shares, 0) & ((1 << 8 * SECRET) - 1)
    return secret.to_bytes(SECRET, "big")


def recover(shares: Mapping[int, bytes], threshold: int, right: Callable[[bytes], bool]) -> tuple[bytes, list[int]]:
    """The secret that is known to be right, and the places whose shares are wrong."""
    places = sorted(place for place, share in shares.items() if len(share) == SHARE)
    for start in range(len(places) if len(places) >= threshold else 0):
        some = {p: shares[p] for p in [*places[start:], *places[:start]][:threshold]}
        if right(secret := join(some)):
            found = {p: value_at(some, p) for p in places}
            return secret, [p for p, one in shares.items() if found.get(p) != int.from_bytes(one, "big")]
    raise Refusal("sum", f"secure sum: {len(places)} shares do not give back a secret that needs {threshold}.")
