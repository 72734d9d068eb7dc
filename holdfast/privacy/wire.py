"""The moment digest on its way: three bytes a number, a manifest, a SHA-256; and what the moderator refuses.

10 classes and k = 64: 3 (10 + 640 + 2,080) = 8,190 bytes and a manifest, at any number of records. Rounding numbers
that carry their noise already costs no privacy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.compact import bytes_of, sha256_of
from holdfast.core import Tensors
from holdfast.errors import HoldfastError
from holdfast.privacy import moments
from holdfast.privacy.claim import Claim
from holdfast.privacy.moments import MomentDigest
from holdfast.privacy.sampling import trusted_cells

SCHEMA = "holdfast-moments/1"
PARTS = ("counts", "sums", "second")
BEYOND = 10.0  # deviations of the noise: an honest client is refused less often than once in 10^20 digests
AGAIN = "ask the client to make it again"


def seal_moments(digest: MomentDigest, task: str, encoder: str) -> Tensors:
    """The digest as named tensors; the manifest travels as JSON in one of them."""
    arrays, steps = moments.pack(digest)
    tensors = {name: torch.from_numpy(three_bytes(array)) for name, array in arrays.items()}
    classes, k = digest.sums.shape
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "task": task,
        "encoder": encoder,
        "classes": classes,
        "features": k,
        "steps": steps,
        "claim": digest.claim.as_json(),
    }
    text = json.dumps({**manifest, "sha256": sha256_of(tensors, manifest)}, sort_keys=True, separators=(",", ":"))
    return {**tensors, "manifest": torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)}


def open_moments(
    tensors: Tensors, expected: Mapping[str, Any] | None = None, where: str = "digest", check: bool = True
) -> MomentDigest:
    """The digest that seal_moments sealed; one that is damaged, absurd or not as `expected` is refused.

    expected: task, encoder, classes, features, and the run's epsilon and delta. Of noise the manifest is not believed:
    what epsilon and delta need is computed here. check = False: whatever the numbers are, as for one record alone.
    """
    content = dict(tensors)
    manifest = read_manifest(content.pop("manifest", torch.empty(0)), where)
    claim = _claim(manifest, where)
    said = {**manifest, "epsilon": claim.epsilon_nominal, "delta": claim.delta}
    for name, wanted in (expected or {}).items():
        if said.get(name) != wanted:
            raise HoldfastError(f"{where}: it was made for {name} {said.get(name)!r}, but this run has {wanted!r}.")
    classes, k = manifest.get("classes", 0), manifest.get("features", 0)
    if not all(type(number) is int and 0 < number <= 1 << 16 for number in (classes, k)):
        raise HoldfastError(f"{where}: its manifest has no proper numbers of classes and features; {AGAIN}.")
    if content.keys() != set(PARTS) or sha256_of(content, manifest) != manifest.get("sha256"):
        raise HoldfastError(f"{where}: it is damaged, its content does not match its SHA-256; {AGAIN}.")
    shapes = {"counts": (classes,), "sums": (classes, k), "second": (k * (k + 1) // 2,)}
    arrays = {name: from_three_bytes(content[name], shapes[name], where) for name in PARTS}
    steps = manifest.get("steps")
    fine = isinstance(steps, Mapping) and all(
        isinstance(steps.get(name), float) and 0 < steps[name] < math.inf for name in PARTS
    )
    if not fine:
        raise HoldfastError(f"{where}: its manifest has no proper steps; {AGAIN}.")
    sigma = moments.scales_for(claim.epsilon_nominal, claim.delta, k)[0].sigma
    digest = moments.unpack(arrays, dict(steps), sigma, claim)  # type: ignore[arg-type]
    if check:
        check_moments(digest, where)
    return digest


def check_moments(digest: MomentDigest, where: str, records: int | None = None) -> None:
    """Refuse moments that no records with |z| <= 1 can have, ten deviations of the noise allowed.

    n_c >= 0, |S_c| <= n_c, trace(S2) <= n; and n as large as the client says (`records`). The noise of |S_c| stays
    below sigma (sqrt k + 10) with all but the probability of ten deviations.
    """
    classes, k = digest.sums.shape
    one, sigma = digest.sigma_counts, digest.sigma
    total = float(digest.counts.sum())
    slack = BEYOND * one * math.sqrt(classes)
    lengths = np.sqrt((digest.sums**2).sum(1))
    length_slack = sigma * (math.sqrt(k) + BEYOND) + BEYOND * one
    faults = {
        "negative counts": bool((digest.counts < -BEYOND * one).any()),
        "class sums longer than their counts": bool((lengths > digest.counts + length_slack).any()),
        "a second moment larger than its records": float(np.trace(digest.second))
        > total + slack + BEYOND * sigma * math.sqrt(k),
        f"counts of {total:.0f} records in all where the client trains on {records}": records is not None
        and abs(total - records) > slack,
    }
    if wrong := [fault for fault, found in faults.items() if found]:
        raise HoldfastError(f"{where}: it has {wrong[0]}, which noise does not explain; {AGAIN}.")
    if not trusted_cells(digest).any():
        raise HoldfastError(
            f"{where}: no class has as many records as its noise needs ({max(20.0, 2 * one):.0f}), so nothing can be "
            "drawn from it; raise epsilon."
        )


def three_bytes(values: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Whole numbers of at most 24 bits, three bytes each, the lowest first.

    >>> three_bytes(np.array([1, -2], dtype=np.int32)).tolist()
    [1, 0, 0, 254, 255, 255]
    """
    flat = np.ascontiguousarray(values.ravel().astype("<i4"))
    return np.ascontiguousarray(flat.view(np.uint8).reshape(-1, 4)[:, :3]).ravel()


def from_three_bytes(content: torch.Tensor, shape: tuple[int, ...], where: str) -> NDArray[np.int32]:
    """The opposite of three_bytes.

    >>> from_three_bytes(torch.tensor([1, 0, 0, 254, 255, 255], dtype=torch.uint8), (2,), "digest").tolist()
    [1, -2]
    """
    if content.dtype != torch.uint8 or tuple(content.shape) != (3 * math.prod(shape),):
        raise HoldfastError(f"{where}: its content has the shape {tuple(content.shape)}, not that of {shape}; {AGAIN}.")
    padded = np.zeros((math.prod(shape), 4), dtype=np.uint8)
    padded[:, 1:] = content.numpy().reshape(-1, 3)
    return (padded.reshape(-1).view("<i4") >> 8).reshape(shape).astype(np.int32)


def read_manifest(text: torch.Tensor, where: str) -> dict[str, Any]:
    """The manifest in a tensor of bytes."""
    try:
        manifest = json.loads(bytes_of(text))
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise HoldfastError(f"{where}: it has no manifest of schema {SCHEMA!r}; {AGAIN}.")
    return manifest


def is_moments(tensors: Tensors) -> bool:
    """Whether these are a moment digest's tensors, whatever their state."""
    try:
        read_manifest(tensors.get("manifest", torch.empty(0)), "")
    except HoldfastError:
        return False
    return True


def _claim(manifest: Mapping[str, Any], where: str) -> Claim:
    try:
        claim = Claim.from_json(manifest["claim"])
        fine = claim.mode == "moments" and 0 < claim.epsilon_nominal < math.inf and 0 < claim.delta < 1
    except (HoldfastError, KeyError, TypeError, AttributeError, ValueError):
        fine = False
    if not fine:
        raise HoldfastError(f"{where}: its manifest has no proper claim; {AGAIN}.")
    return claim
