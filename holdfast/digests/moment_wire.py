"""The moment digest on its way: whole numbers in steps near the noise, zlib, a manifest, SHA-256; and what is refused.

Rounding numbers that carry their noise already costs no privacy, and steps of half the noise's deviation add 2 % to its
variance. 10 classes and k = 128 fit in 11 kB at any number of records: where large counts make the shared second moment
long, its steps are doubled until it fits, which is then far below what so many records leave uncertain.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError
from holdfast.core.tensors import bytes_of
from holdfast.core.types import Tensors
from holdfast.digests.compact import sha256_of
from holdfast.digests.moments import COUNT_STEP, MOST_IN_ALL, MomentDigest, fewest
from holdfast.privacy import moment_noise as moments
from holdfast.privacy.claim import Claim
from holdfast.privacy.noise import Whole

SCHEMA = "holdfast-moments/3"
OLD = ("holdfast-moments/1", "holdfast-moments/2")
PARTS = ("counts", "means", "radii", "owner", "strong", "shared")
BEYOND = 10.0  # deviations of the noise: an honest client is refused less often than once in 10^20 digests
MOST_NUMBERS = 1 << 24  # in a moment digest: room for 4,000 features
AGAIN = "ask the client to make it again"
LIMIT, UP_TO = 10_900, 128  # bytes of a release with so many features; of more, by the square of their number
LEAST_SHARED = 2_500  # bytes that the shared second moment may always take
RADIUS_STEP, STRONG_STEP = 2.0**-10, 2.0**-7


def seal_moments(digest: MomentDigest, task: str, encoder: str) -> Tensors:
    """The digest as named tensors; the manifest travels as JSON in one of them."""
    classes, k = digest.means.shape
    trusted = digest.trusted
    row, column = np.triu_indices(k)
    shared = digest.shared[row, column]
    noise = digest.mean_noise[trusted].min(initial=1.0)
    steps = {
        "counts": COUNT_STEP,
        "means": max(2.0**-14, _power(noise / 2)),
        "radii": RADIUS_STEP,
        "owner": 1.0,
        "strong": STRONG_STEP,
        "shared": _power(digest.scales.of_shared / math.sqrt(8)),  # half the noise off the diagonal
    }
    values = {
        "counts": digest.counts,
        "means": digest.means[trusted],
        "radii": digest.radii,
        "owner": digest.owner,
        "strong": digest.strong,
    }
    tensors = {name: squeeze(np.rint(part / steps[name]).astype(np.int64)) for name, part in values.items()}
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "task": task,
        "encoder": encoder,
        "classes": classes,
        "features": k,
        "trusted": np.flatnonzero(trusted).tolist(),
        "directions": len(digest.owner),
        "claim": digest.claim.as_json(),
    }
    limit = int(LIMIT * max(1.0, (k / UP_TO) ** 2))
    room = limit - sum(map(len, tensors.values())) - len(_text({**manifest, "steps": steps})) - 100  # SHA-256 and name
    while True:
        tensors["shared"] = squeeze(np.rint(shared / steps["shared"]).astype(np.int64))
        if len(tensors["shared"]) <= max(room, LEAST_SHARED):
            break
        steps["shared"] *= 2
    manifest["steps"] = steps
    text = _text({**manifest, "sha256": sha256_of(tensors, manifest)})
    return {**tensors, "manifest": torch.frombuffer(bytearray(text), dtype=torch.uint8)}


def open_moments(tensors: Tensors, expected: Mapping[str, Any] | None = None, where: str = "digest") -> MomentDigest:
    """The digest that seal_moments sealed; one that is damaged, absurd or not as `expected` is refused.

    expected: task, encoder, classes, features, and the run's epsilon and delta. Of noise the manifest is not believed:
    what epsilon and delta need is computed here.
    """
    content = dict(tensors)
    manifest = read_manifest(content.pop("manifest", torch.empty(0)), where)
    claim = _claim(manifest, where)
    said = {**manifest, "epsilon": claim.epsilon_nominal, "delta": claim.delta}
    for name, wanted in (expected or {}).items():
        if said.get(name) != wanted:
            raise HoldfastError(f"{where}: it was made for {name} {said.get(name)!r}, but this run has {wanted!r}.")
    classes, k, trusted, directions = _sizes(manifest, where)
    if content.keys() != set(PARTS) or sha256_of(content, manifest) != manifest.get("sha256"):
        raise HoldfastError(f"{where}: it is damaged, its content does not match its SHA-256; {AGAIN}.")
    steps: Any = manifest.get("steps")
    fine = isinstance(steps, Mapping) and all(
        isinstance(steps.get(name), float) and 0 < steps[name] < 1e12 for name in PARTS
    )
    if not fine:
        raise HoldfastError(f"{where}: its manifest has no proper steps; {AGAIN}.")
    shapes: dict[str, tuple[int, ...]] = {
        "counts": (classes,),
        "means": (len(trusted), k),
        "radii": (classes,),
        "owner": (directions,),
        "strong": (directions, k),
        "shared": (k * (k + 1) // 2,),
    }
    part = {name: unsqueeze(content[name], shapes[name], where) * steps[name] for name in PARTS}
    means = np.zeros((classes, k))
    means[trusted] = part["means"]
    digest = MomentDigest(
        part["counts"],
        means,
        part["radii"],
        part["owner"].astype(np.int64),
        part["strong"],
        moments.square(part["shared"], k),
        moments.scales_for(claim.epsilon_nominal, claim.delta, k)[0],
        claim,
    )
    if set(np.flatnonzero(digest.trusted)) != set(trusted) or not set(digest.owner) <= set(trusted):
        raise HoldfastError(f"{where}: the classes it trusts are not those with enough records; {AGAIN}.")
    check_moments(digest, where)
    return digest


def check_moments(digest: MomentDigest, where: str, records: int | None = None) -> None:
    """Refuse moments that no records with |z| <= 1 can have, ten deviations of the noise allowed.

    n_c >= 0, |mean| <= 1, 0 < R <= 1, a class's strong directions and the shared second moment no larger than the
    records they sum over; and n as large as the client says (`records`). The noise of a mean stays below its deviation
    times (sqrt k + 10) with all but the probability of ten deviations, and moves with that of the count.
    """
    classes, k = digest.means.shape
    scales, trusted = digest.scales, digest.trusted
    one = scales.of_count()
    total = float(digest.counts.sum())
    slack = BEYOND * one * math.sqrt(classes) + COUNT_STEP * classes
    loose = digest.mean_noise * (math.sqrt(k) + BEYOND) + BEYOND * one / np.maximum(digest.counts, 1.0)
    lengths = np.sqrt((digest.means**2).sum(1))
    strengths = np.bincount(digest.owner, (digest.strong**2).sum(1), minlength=classes)
    room = slack + BEYOND * scales.of_shared + 0.1 * abs(total)  # of each number of the shared second moment
    uneven = BEYOND * scales.of_classwise * math.sqrt(k) / np.maximum(digest.counts, 1.0)
    faults = {
        "negative counts": bool((digest.counts < -BEYOND * one - COUNT_STEP).any()),
        "class means longer than any record": bool((lengths > 1.1 + loose)[trusted].any()),
        "radii beyond 0 to 1": bool(((digest.radii < moments.LEAST_RADIUS - 0.01) | (digest.radii > 1)).any()),
        "strong directions larger than their records": bool((strengths > 1.1 + uneven).any()),
        "a shared second moment larger than its records": float(np.trace(digest.shared))
        > total + slack + BEYOND * scales.of_shared * math.sqrt(k) + 0.1 * abs(total),
        "a shared second moment that is no sum of squares": bool(np.diag(digest.shared).min() < -room)
        or float(np.abs(digest.shared).max()) > abs(total) + room,
        f"counts of {total:.0f} records in all where the client trains on {records}": records is not None
        and abs(total - records) > slack,
    }
    if wrong := [fault for fault, found in faults.items() if found]:
        raise HoldfastError(f"{where}: it has {wrong[0]}, which noise does not explain; {AGAIN}.")
    if not trusted.any():
        raise HoldfastError(
            f"{where}: no class has as many records as its noise needs ({fewest(scales):.0f}), so nothing can be "
            "drawn from it; raise epsilon."
        )


def squeeze(values: Whole) -> torch.Tensor:
    """Whole numbers of at most 32 bits as bytes: all lowest bytes, then all second ones and so on, zlib over each.

    >>> unsqueeze(squeeze(np.array([[1, -70000]])), (1, 2), "digest").tolist()
    [[1, -70000]]
    """
    if values.size and int(np.abs(values).max()) >= 1 << 31:
        raise HoldfastError("moment digest: a number is too large to be sent; nothing was released.")
    folded = np.where(values < 0, -2 * values - 1, 2 * values).astype("<u4")  # 0, -1, 1, -2, ...: small stays small
    planes = np.ascontiguousarray(folded.ravel()).view(np.uint8).reshape(-1, 4).T
    machine = zlib.compressobj(9, strategy=zlib.Z_FILTERED)
    content = machine.compress(planes.tobytes()) + machine.flush()
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def unsqueeze(content: torch.Tensor, shape: tuple[int, ...], where: str) -> NDArray[np.int64]:
    """The opposite of squeeze; its size is known beforehand, so a small packet cannot grow without bound."""
    count = math.prod(shape)
    machine = zlib.decompressobj()
    try:
        raw = machine.decompress(bytes_of(content), 4 * count + 1) if content.dtype == torch.uint8 else b""
    except zlib.error:
        raw = b""
    if len(raw) != 4 * count or (count and not machine.eof):
        raise HoldfastError(f"{where}: its content does not unpack to the shape {shape}; {AGAIN}.")
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(4, count).T
    folded = np.ascontiguousarray(planes).view("<u4").ravel().astype(np.int64)
    return np.asarray(np.where(folded % 2 == 1, -(folded + 1) // 2, folded // 2).reshape(shape))


def read_manifest(text: torch.Tensor, where: str) -> dict[str, Any]:
    """The manifest in a tensor of bytes."""
    try:
        manifest = json.loads(bytes_of(text))
    except (ValueError, RecursionError):
        manifest = None
    if isinstance(manifest, dict) and manifest.get("schema") in OLD:
        raise HoldfastError(f"{where}: it is a moment digest of an earlier form, which is no longer read; {AGAIN}.")
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise HoldfastError(f"{where}: it has no manifest of schema {SCHEMA!r}; {AGAIN}.")
    if not all(isinstance(manifest.get(name), str) for name in ("task", "encoder", "sha256")):
        raise HoldfastError(f"{where}: its manifest does not say what it was made for; {AGAIN}.")
    return manifest


def is_moments(tensors: Tensors) -> bool:
    """Whether these are a moment digest's tensors, whatever their state or form."""
    try:
        manifest = json.loads(bytes_of(tensors.get("manifest", torch.empty(0))))
    except (ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("schema") in (SCHEMA, *OLD)


def _sizes(manifest: Mapping[str, Any], where: str) -> tuple[int, int, list[int], int]:
    """Classes, features, the classes that it trusts, and strong directions, as the manifest has them."""
    classes, k, trusted, directions = (manifest.get(n) for n in ("classes", "features", "trusted", "directions"))
    if not (type(classes) is int and type(k) is int and classes > 0 and k > 0 and k * (k + classes) <= MOST_NUMBERS):
        raise HoldfastError(f"{where}: its manifest has no proper numbers of classes and features; {AGAIN}.")
    if not isinstance(trusted, list) or trusted != sorted({c for c in trusted if type(c) is int and 0 <= c < classes}):
        raise HoldfastError(f"{where}: its manifest does not say which classes it trusts; {AGAIN}.")
    if type(directions) is not int or not 0 <= directions <= MOST_IN_ALL:
        raise HoldfastError(f"{where}: its manifest has no proper number of directions; {AGAIN}.")
    return classes, k, trusted, directions


def _claim(manifest: Mapping[str, Any], where: str) -> Claim:
    try:
        claim = Claim.from_json(manifest["claim"])
        fine = claim.mode == "moments" and 0 < claim.epsilon_nominal < math.inf and 0 < claim.delta < 1
    except (HoldfastError, KeyError, TypeError, AttributeError, ValueError):
        fine = False
    if not fine:
        raise HoldfastError(f"{where}: its manifest has no proper claim; {AGAIN}.")
    return claim


def _text(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()


def _power(value: float) -> float:
    """The power of two at or below the value.

    >>> _power(0.3)
    0.25
    """
    return 2.0 ** math.floor(math.log2(value))
