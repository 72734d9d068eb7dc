"""The sum digest: joint sums of features and targets (privacy/sum_noise.py), exact or with noise.

Exact sums (mode `sums`) promise nothing: a sum over few records tells much of each. With noise (mode `moments`) they
are differentially private, and a regression's targets need a public range.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.tensors import bytes_of
from holdfast.core.types import Tensors
from holdfast.data.contract import Kind
from holdfast.data.kinds import Classes, Counts, Hazards, Labels, Regression, Survival, kind_of
from holdfast.data.survival import interval_targets
from holdfast.digests.compact import sha256_of
from holdfast.privacy.claim import Claim, only_mixing
from holdfast.privacy.grid import Floats, check_features
from holdfast.privacy.moment_noise import STEPS, square
from holdfast.privacy.noise import Source
from holdfast.privacy.sum_noise import Bounds, Sums, exact_sums, noisy_sums, scales_for, sums_claim

SCHEMA = "holdfast-sums/1"
PARTS = ("cells", "second", "squares")
MOST_NUMBERS, MOST_RECORDS = 1 << 24, 2**48
BEYOND = 10.0  # deviations of the noise
NUMBERS = (Regression.name, Counts.name)
AGAIN = "ask the client to make it again"
Range = tuple[float, float]
UNIT: Range = (-1.0, 1.0)  # no scaling


@dataclass(frozen=True)
class SumDigest:
    """What a client releases once, and the facts that say how it was made."""

    sums: Sums
    kind: str  # as kind_of reads it
    classes: int  # names of classes or labels; 0: there are none
    records: int
    range: Range  # of a regression's targets: -1 and 1 stand for these
    noise: float  # deviation of the noise in a cell; 0: none
    claim: Claim

    @property
    def width(self) -> int:
        return len(self.sums.second)

    @property
    def bounded(self) -> bool:
        """Whether targets lie in [-1, 1]; exact sums of numbers without a public range have them as they are."""
        return not (self.kind in NUMBERS and self.range == UNIT)


def bounds_of(kind: Kind, classes: int) -> Bounds:
    """What is public of a kind's targets; a kind that has no sums is refused with the reason."""
    if isinstance(kind, Hazards):
        return Bounds(2 * len(kind.cuts), float(len(kind.cuts)), False)
    if isinstance(kind, Classes):
        return Bounds(classes, 1.0, False)
    if isinstance(kind, Labels):
        return Bounds(1 + classes, 1.0 + classes, False)
    if isinstance(kind, Regression | Counts):
        return Bounds(2, 2.0, True)
    reason = "this kind has none"
    if isinstance(kind, Survival):
        reason = (
            "Cox's partial likelihood compares each event with all records at risk, so it is no sum over records; "
            "discrete-time hazards are: choose the kind 'hazards' with public cuts"
        )
    raise HoldfastError(f"digest: sums of kind {kind.name!r}: {reason}.")


def targets_of(kind: Kind, labels: Tensor, classes: int, range: Range) -> Floats:
    """t of each record, as the head of sum_noise.py has it.

    >>> targets_of(Regression(), torch.tensor([[0.0], [50.0], [100.0]]), 0, (0.0, 100.0)).tolist()
    [[1.0, -1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    if isinstance(kind, Hazards):
        return np.asarray(torch.cat(interval_targets(labels, kind.cuts), dim=1).double().numpy())
    if isinstance(kind, Classes):
        return np.asarray(torch.nn.functional.one_hot(labels.long(), classes).double().numpy())
    y = labels.double().numpy()
    if isinstance(kind, Regression | Counts):
        low, high = range
        y = (2 * y - low - high) / (high - low)
    return np.concatenate([np.ones((len(y), 1)), y], axis=1)


def make_sums(
    kind: Kind,
    classes: int,
    z: Floats,
    labels: Tensor,
    range: Range,
    noise: tuple[float, float] | None,
    source: Source,
    weights: Floats | None = None,
) -> SumDigest:
    """A client's sums; `noise` is (epsilon, delta), none for exact ones, in which records may have weights."""
    check_features(z)
    bounds = bounds_of(kind, classes)
    targets = targets_of(kind, labels, classes, range)
    claim = claim_of_sums(kind, classes, z.shape[1], noise, source)
    if noise is None:
        return SumDigest(exact_sums(z, targets, bounds, weights), kind.spec, classes, len(z), range, 0.0, claim)
    sums = noisy_sums(z, targets, bounds, *noise, source)
    scale = float(scales_for(*noise, z.shape[1], bounds)[0][0]) / STEPS**2
    return SumDigest(sums, kind.spec, classes, len(z), range, scale, claim)


def claim_of_sums(kind: Kind, classes: int, k: int, noise: tuple[float, float] | None, source: Source) -> Claim:
    """What sums promise: nothing without noise."""
    if noise is not None:
        return sums_claim(*noise, k, bounds_of(kind, classes), source)
    exact = only_mixing(k, 1)
    notes = (
        "There is no noise, so there is no differential privacy of any epsilon.",
        "Sums are over all records of a client: who knows all but one knows the last one.",
    )
    return Claim(**{**vars(exact), "mode": "sums", "spd": 0, "notes": notes})


def seal_sums(digest: SumDigest, task: str, encoder: str) -> Tensors:
    """The digest as named tensors; the manifest travels as JSON in one of them."""
    row, column = np.triu_indices(digest.width)
    tensors = {
        "cells": torch.from_numpy(np.ascontiguousarray(digest.sums.cells)),
        "second": torch.from_numpy(digest.sums.second[row, column]),
        "squares": torch.tensor([digest.sums.squares], dtype=torch.float64),
    }
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "task": task,
        "encoder": encoder,
        "kind": digest.kind,
        "classes": digest.classes,
        "features": digest.width,
        "records": digest.records,
        "range": list(digest.range),
        "claim": digest.claim.as_json(),
    }
    text = json.dumps({**manifest, "sha256": sha256_of(tensors, manifest)}, sort_keys=True).encode()
    return {**tensors, "manifest": torch.frombuffer(bytearray(text), dtype=torch.uint8)}


def is_sums(tensors: Tensors) -> bool:
    """Whether these are a sum digest's tensors, whatever their state."""
    try:
        manifest = json.loads(bytes_of(tensors.get("manifest", torch.empty(0))))
    except (ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("schema") == SCHEMA


def open_sums(tensors: Tensors, expected: Mapping[str, Any] | None = None, where: str = "digest") -> SumDigest:
    """The digest that seal_sums sealed; one that is damaged, absurd or not as `expected` is refused."""
    content = dict(tensors)
    manifest = read_sums_manifest(content.pop("manifest", torch.empty(0)), where)
    for name, wanted in (expected or {}).items():
        if manifest.get(name) != wanted:
            raise HoldfastError(f"{where}: it was made for {name} {manifest.get(name)!r}, but this run has {wanted!r}.")
    kind, classes, k = kind_of(manifest["kind"], where), manifest["classes"], manifest["features"]
    bounds = bounds_of(kind, classes)
    shapes = {"cells": (bounds.targets, 1 + k), "second": (k * (k + 1) // 2,), "squares": (1,)}
    found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in content.items()}
    if found != {name: (shape, torch.float64) for name, shape in shapes.items()}:
        raise HoldfastError(f"{where}: its sums are not of the shapes that its kind and features have; {AGAIN}.")
    if sha256_of(content, manifest) != manifest["sha256"]:
        raise HoldfastError(f"{where}: it is damaged, its content does not match its SHA-256; {AGAIN}.")
    values = {name: tensor.numpy() for name, tensor in content.items()}
    sums = Sums(values["cells"], square(values["second"], k), float(values["squares"][0]))
    claim = Claim.from_json(manifest["claim"])
    noise = 0.0
    if claim.mode == "moments":  # what epsilon and delta need is computed here, not read
        noise = float(scales_for(claim.epsilon_nominal, claim.delta, k, bounds)[0][0]) / STEPS**2
    low, high = manifest["range"]
    digest = SumDigest(sums, kind.spec, classes, manifest["records"], (low, high), noise, claim)
    check_sums(digest, where)
    return digest


def read_sums_manifest(text: Tensor, where: str) -> dict[str, Any]:
    """The manifest, with all that it must say in the right kinds."""
    try:
        found = json.loads(bytes_of(text))
        texts = all(isinstance(found[name], str) for name in ("task", "encoder", "kind", "sha256"))
        numbers = all(type(found[name]) is int and 0 <= found[name] <= MOST_RECORDS for name in ("classes", "records"))
        k, (low, high) = found["features"], found["range"]
        size = type(k) is int and k > 0 and k * (k + 2 * found["classes"] + 2) <= MOST_NUMBERS and found["records"] > 0
        fine = found["schema"] == SCHEMA and texts and numbers and size
        fine = fine and isinstance(low, float) and isinstance(high, float) and -math.inf < low < high < math.inf
        claim = Claim.from_json(found["claim"])
        noisy = 0 < claim.epsilon_nominal < math.inf and 0 < claim.delta < 1
        if fine and (claim.mode == "sums" or (claim.mode == "moments" and noisy)):
            return dict(found)
    except (HoldfastError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        pass
    raise HoldfastError(f"{where}: it has no proper manifest of schema {SCHEMA!r}; {AGAIN}.")


def scaled_sums(digest: SumDigest, most: int) -> SumDigest:
    """The sums of a share of the records, where more are claimed than count."""
    share = most / digest.records
    if share >= 1:
        return digest
    sums = Sums(digest.sums.cells * share, digest.sums.second * share, digest.sums.squares * share)
    return replace(digest, sums=sums, records=most, noise=digest.noise * share)


def check_sums(digest: SumDigest, where: str, records: int | None = None) -> None:
    """Refuse sums that no records with |z| <= 1 and such targets can have, ten deviations of the noise allowed."""
    sums, n, k = digest.sums, digest.records, digest.width
    slack = BEYOND * digest.noise + 1e-6 * n
    counts, cells = sums.cells[:, 0], sums.cells[:, 1:]
    longest = slack * math.sqrt(k)
    bound = slice(None) if digest.bounded else slice(1)  # of targets without a range nothing is known
    faults = {
        "numbers that are not finite": not all(np.isfinite(part).all() for part in (sums.cells, sums.second)),
        f"{n} records where the client has {records}": records is not None and n > records,
        "counts above its records": bool((np.abs(counts) > n + slack)[bound].any()),
        "sums longer than its records": bool((np.sqrt((cells**2).sum(1)) > n + longest)[bound].any()),
        "a second moment larger than its records": float(np.trace(sums.second)) > n + longest,
        "squares larger than its records": not -slack <= sums.squares <= (n + slack if digest.bounded else math.inf),
        "negative counts": digest.kind not in NUMBERS and bool((counts < -slack).any()),
    }
    if wrong := [fault for fault, found in faults.items() if found]:
        raise HoldfastError(f"{where}: it has {wrong[0]}, which no honest client's records have; {AGAIN}.")
