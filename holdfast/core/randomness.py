"""All randomness of a run comes from here: the same (seed, round, client, purpose) gives the same bits."""

from __future__ import annotations

import hashlib

import torch


def seed_of(seed: int, round: int, client: int, purpose: str) -> int:
    """A 63-bit seed for one purpose of one client in one round.

    >>> seed_of(0, 1, 2, "batches") == seed_of(0, 1, 2, "batches") != seed_of(0, 1, 2, "attack")
    True
    """
    text = f"{seed}/{round}/{client}/{purpose}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def rng(seed: int, round: int, client: int, purpose: str) -> torch.Generator:
    """A generator of its own for one purpose of one client in one round (-1: before the first, or the moderator)."""
    return torch.Generator().manual_seed(seed_of(seed, round, client, purpose))
