"""A digest: mixed and perturbed features D_R with soft labels D_y, which stand in for a client that is away.

    D_R = sum_k w_k r_k + noise,    D_y = sum_k w_k y_k,    sum_k w_k = 1,    k = 1 .. SpD (samples per digest)

Each sample is used at most once. Reference: Hsu et al., "Mitigating data absence in federated learning using
privacy-controllable data digests" (FedDig), Section IV.B.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from holdfast.core.cards import card
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import Refusal
from holdfast.core.files import write_file
from holdfast.core.tensors import bytes_of
from holdfast.core.types import Scalars, Tensors
from holdfast.digests.compact import KINDS, SCALES, Compact, restore, sha256_of, shrink
from holdfast.digests.mixing import Laplace, Remainder, Strategy, Weights, laplace_noise, mixing_plan, mixing_weights

SCHEMA = "holdfast-digest/1"
TEXTS = ("task", "encoder", "strategy", "weights", "noise")
COMPACTS = [Compact(kind, scale, on) for kind in KINDS for scale in SCALES for on in (False, True)]
NUMBERS = ("spd", "samples", "used", "digests", "classes")
MOST, AXES = 2**48, 16  # of any number in a manifest; of a feature's shape


@dataclass(frozen=True)
class Digest:
    """What a client leaves with the moderator, and the facts that say how it was made."""

    features: Tensor  # D_R (m, *feature_shape), float32
    labels: Tensor  # D_y (m, classes), float32, rows that sum to one
    task: str
    encoder: str  # the encoder's fingerprint
    spd: int
    strategy: str
    weights: str
    noise: str  # "none", or the mechanism in words
    samples: int  # the client had so many
    used: int  # so many are mixed into the digest; the others were a remainder
    signed: bool = True  # whether the encoder's features can be negative

    def __len__(self) -> int:
        return len(self.features)

    def _repr_html_(self) -> str:
        rows = [
            ("digests", len(self)),
            ("of samples", f"{self.used} of {self.samples}, {self.spd} mixed in each ({self.strategy})"),
            ("features", "x".join(map(str, self.feature_shape))),
            ("classes", self.classes),
            ("noise", self.noise),
        ]
        return card(f"Digest for {self.task}", rows)

    @property
    def classes(self) -> int:
        return self.labels.shape[1]

    @property
    def feature_shape(self) -> tuple[int, ...]:
        return tuple(self.features.shape[1:])

    @property
    def dropped(self) -> int:
        """Samples that are in no digest."""
        return self.samples - self.used

    @property
    def fewest(self) -> int:
        """Samples that are in every single one of the digests, at least: all empty places may be in one.

        >>> five = torch.ones(5, 1), torch.zeros(5, dtype=torch.long)
        >>> make_digest(*five, 1, spd=4, remainder="mix", generator=torch.Generator()).fewest
        1
        """
        return max(1, self.spd - (len(self) * self.spd - self.used))

    @property
    def mode(self) -> str:
        """Which of the paper's two protections are on."""
        mixed, noisy = self.spd > 1, self.noise != "none"
        return {
            (True, True): "mixing and noise",
            (True, False): "only mixing",
            (False, True): "only noise",
            (False, False): "unprotected",
        }[mixed, noisy]


def make_digest(
    features: Tensor,
    labels: Tensor,
    classes: int,
    *,
    generator: torch.Generator,
    spd: int = 4,
    weights: Weights = "balanced",
    strategy: Strategy = "across",
    remainder: Remainder = "drop",
    noise: Laplace | None = None,
    task: str = "",
    encoder: str = "",
    signed: bool = True,
) -> Digest:
    """Mix a client's features (n, *feature_shape) and whole-number labels (n,) into a digest, then perturb it.

    >>> r, y = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 0])
    >>> made = make_digest(r[:2], y[:2], 2, spd=2, generator=torch.Generator())
    >>> made.features.tolist(), made.labels.tolist(), made.mode
    ([[2.0]], [[1.0, 0.0]], 'only mixing')
    """
    _check_samples(features, labels, classes, spd)
    plan = mixing_plan(labels, spd, strategy, remainder, generator)
    shares = mixing_weights(plan, weights, generator)
    flat = features.reshape(len(features), -1)
    mixed = torch.zeros(len(plan), flat.shape[1], dtype=torch.float64)
    soft = torch.zeros(len(plan), classes, dtype=torch.float64)
    for sample, share in zip(plan.clamp(min=0).unbind(1), shares.unbind(1), strict=True):
        mixed.addcmul_(flat[sample].double(), share[:, None])
        soft.scatter_add_(1, labels[sample].long()[:, None], share[:, None])
    if noise is not None:
        mixed += laplace_noise(noise, float(features.abs().max()), mixed.shape)
    return Digest(
        features=mixed.float().reshape(len(plan), *features.shape[1:]),
        labels=soft.float(),
        task=task,
        encoder=encoder,
        spd=spd,
        strategy=strategy,
        weights=weights if isinstance(weights, str) else "/".join(map(str, weights)),
        noise="none" if noise is None else str(noise),
        samples=len(labels),
        used=int((plan >= 0).sum()),
        signed=signed,
    )


def _check_samples(features: Tensor, labels: Tensor, classes: int, spd: int) -> None:
    if spd < 1:
        raise HoldfastError(f"digest spd: a digest needs at least 1 sample, got {spd}.")
    if len(features) != len(labels) or labels.ndim != 1 or labels.is_floating_point():
        raise HoldfastError(
            f"digest: {len(features)} features need as many whole-number labels, got labels of shape "
            f"{tuple(labels.shape)} and kind {labels.dtype}."
        )
    if len(labels) < spd:
        raise Refusal(
            "few", f"digest spd: {spd} samples per digest are more than the client's {len(labels)} samples; lower spd."
        )
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise HoldfastError(
            f"digest: labels must lie in 0..{classes - 1}, got {int(labels.min())}..{int(labels.max())}."
        )
    if not bool(torch.isfinite(features).all()):
        raise HoldfastError("digest: some features are not finite; look for damaged samples or encoder weights.")


def check_digest(digest: Digest, where: str) -> None:
    """Refuse a digest whose numbers cannot be those of an honest client."""
    count, labels = len(digest), digest.labels
    if not bool(torch.isfinite(digest.features).all()) or not bool(torch.isfinite(labels).all()):
        raise HoldfastError(f"{where}: it holds values that are not finite; make it again.")
    if count == 0 or labels.ndim != 2 or len(labels) != count:
        raise HoldfastError(
            f"{where}: {count} features come with labels of shape {tuple(labels.shape)}; make it again."
        )
    if float(labels.min()) < 0.0 or float(labels.max()) > 1.0 + 1e-5:
        raise HoldfastError(f"{where}: soft labels must lie in [0, 1]; make it again.")
    if float((labels.sum(1) - 1.0).abs().max()) > 1e-4:
        raise HoldfastError(f"{where}: each soft label must sum to one; make it again.")
    if not 1 <= digest.spd <= digest.samples:
        raise HoldfastError(
            f"{where}: {digest.spd} samples per digest are not possible with {digest.samples} samples; make it again."
        )
    if not (count <= digest.used <= min(digest.samples, count * digest.spd)):
        raise HoldfastError(
            f"{where}: {count} digests of {digest.spd} samples cannot use {digest.used} of {digest.samples} samples "
            "once each; make it again."
        )
    if digest.dropped > digest.classes * (digest.spd - 1):  # else a client could claim any weight for its digest
        raise HoldfastError(
            f"{where}: it leaves out {digest.dropped} samples, more than remainders of {digest.classes} classes can "
            "explain; make it again."
        )


def digest_to_tensors(digest: Digest, compact: Compact = Compact()) -> tuple[Tensors, Scalars]:
    """The digest as named tensors and a manifest, to travel in a message or to be saved."""
    check_digest(digest, "digest")
    tensors = shrink(digest.features, digest.labels, digest.spd, compact)
    manifest: Scalars = {
        "schema": SCHEMA,
        **{name: getattr(digest, name) for name in TEXTS},
        "spd": digest.spd,
        "samples": digest.samples,
        "used": digest.used,
        "digests": len(digest),
        "classes": digest.classes,
        "feature_shape": list(digest.feature_shape),
        "mode": digest.mode,
        "compact": asdict(compact),
        "signed": digest.signed,
    }
    return tensors, {**manifest, "sha256": sha256_of(tensors, manifest)}


def digest_from_tensors(
    tensors: Tensors,
    manifest: Mapping[str, Any],
    *,
    where: str = "digest",
    task: str | None = None,
    encoder: str | None = None,
    classes: int | None = None,
    feature_shape: tuple[int, ...] | None = None,
    rows: int | None = None,
) -> Digest:
    """The digest that digest_to_tensors wrote; a damaged one, one made for something else, or of more rows is refused.

    Nothing is unpacked before its size is known to be what these facts, or else the bytes that were sent, allow.
    """
    _check_manifest(manifest, where)
    if rows is not None and manifest["digests"] > rows:
        raise HoldfastError(f"{where}: it has {manifest['digests']} rows where the samples make {rows} at most.")
    expected = (("task", task), ("encoder", encoder), ("classes", classes))
    for name, wanted in (*expected, ("feature_shape", None if feature_shape is None else list(feature_shape))):
        if wanted is not None and manifest[name] != wanted:
            raise HoldfastError(
                f"{where}: it was made for {name.replace('_', ' ')} {manifest[name]!r}, but this run has {wanted!r}; "
                "make it again for this run."
            )
    if sha256_of(tensors, manifest) != manifest["sha256"]:
        raise HoldfastError(f"{where}: it is damaged, its content does not match its SHA-256; fetch or make it again.")
    try:
        shape = (manifest["digests"], *manifest["feature_shape"])
        compact = Compact(**manifest["compact"])
        features, labels = restore(tensors, compact, shape, manifest["spd"], manifest["classes"])
    except HoldfastError as error:
        raise HoldfastError(f"{where}: {error}") from None
    facts = {name: manifest[name] for name in (*TEXTS, "spd", "samples", "used")}
    signed = manifest.get("signed", True)  # a digest from before this was said: what costs more
    digest = Digest(features=features, labels=labels, signed=signed, **facts)
    check_digest(digest, where)
    return digest


def seal_digest(digest: Digest, compact: Compact = Compact()) -> Tensors:
    """The digest as named tensors alone; the manifest travels as JSON in one of them."""
    tensors, manifest = digest_to_tensors(digest, compact)
    text = json.dumps(manifest, sort_keys=True).encode()
    return {**tensors, "manifest": torch.frombuffer(bytearray(text), dtype=torch.uint8)}


def open_digest(
    tensors: Tensors,
    *,
    where: str = "digest",
    task: str | None = None,
    encoder: str | None = None,
    classes: int | None = None,
    feature_shape: tuple[int, ...] | None = None,
    rows: int | None = None,
) -> Digest:
    """The digest that seal_digest sealed; a damaged one, one made for something else, or of more rows is refused."""
    content = dict(tensors)
    text = content.pop("manifest", torch.empty(0))
    try:
        manifest = json.loads(bytes_of(text))
    except (ValueError, RecursionError):
        raise HoldfastError(f"{where}: it has no readable manifest; make it again.") from None
    return digest_from_tensors(
        content,
        manifest,
        where=where,
        task=task,
        encoder=encoder,
        classes=classes,
        feature_shape=feature_shape,
        rows=rows,
    )


def save_digest(path: str | Path, digest: Digest, compact: Compact = Compact()) -> int:
    """Write a digest as one safetensors file, whole or not at all, and say how many bytes it has."""
    content = digest_bytes(digest, compact)
    write_file(Path(path), content)
    return len(content)


def digest_bytes(digest: Digest, compact: Compact = Compact()) -> bytes:
    """A digest as the content of a safetensors file."""
    tensors, manifest = digest_to_tensors(digest, compact)
    return save(tensors, metadata={"digest": json.dumps(manifest, sort_keys=True)})


def load_digest(
    path: str | Path,
    *,
    task: str | None = None,
    encoder: str | None = None,
    classes: int | None = None,
    feature_shape: tuple[int, ...] | None = None,
) -> Digest:
    """Read a digest, and refuse it if it is damaged or not what is expected."""
    where = f"digest file {path}"
    if not Path(path).is_file():
        raise HoldfastError(f"{where}: there is no such file; ask the client for its digest.")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            manifest = json.loads((file.metadata() or {}).get("digest", "null"))
    except (SafetensorError, OSError, ValueError, RecursionError):
        raise HoldfastError(f"{where}: it is damaged or no digest at all; fetch or make it again.") from None
    return digest_from_tensors(
        tensors, manifest, where=where, task=task, encoder=encoder, classes=classes, feature_shape=feature_shape
    )


def _check_manifest(manifest: Mapping[str, Any], where: str) -> None:
    """Refuse a manifest that does not say all it must, in the right kinds."""
    if not isinstance(manifest, Mapping) or manifest.get("schema") != SCHEMA:
        found = manifest.get("schema") if isinstance(manifest, Mapping) else None
        raise HoldfastError(f"{where}: its manifest must have schema {SCHEMA!r}, got {found!r}; make it again.")
    shape, compact = manifest.get("feature_shape"), manifest.get("compact")
    fine = {name: isinstance(manifest.get(name), str) for name in (*TEXTS, "sha256")}
    fine |= {name: type(manifest.get(name)) is int and 0 < manifest[name] <= MOST for name in NUMBERS}
    few = isinstance(shape, list) and len(shape) <= AXES
    fine["feature_shape"] = few and all(type(side) is int and 0 < side <= MOST for side in shape)  # type: ignore[union-attr]
    fine["compact"] = isinstance(compact, Mapping) and any(compact == asdict(known) for known in COMPACTS)
    fine["signed"] = isinstance(manifest.get("signed", True), bool)
    for name, right in fine.items():
        if not right:
            raise HoldfastError(f"{where}: its manifest has no proper {name!r}; make it again.")
