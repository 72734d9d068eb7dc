"""What a client releases, by mode.

paper             mixed features as published, with the nominal noise or none: no guarantee
dp-label-public   mixed features with exact noise; labels and counts are declared public
dp-full           the same with randomised labels
moments           noisy counts, class means and second moments (privacy/moment_noise.py): the recommended private one;
                  of kinds other than classes noisy joint sums of features and targets (privacy/sum_noise.py)
sums              the joint sums themselves, for all kinds (digests/sums.py): no guarantee

A release is entered in the client's ledger before it leaves, and kept beside it: a client that is asked again for the
same release (a lost reply, a run that was killed) answers with the same bytes, which costs nothing.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from holdfast.context import About, Owner
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import Refusal, code_of
from holdfast.core.files import Damaged, Store, load_tensors
from holdfast.core.randomness import rng
from holdfast.core.types import Tensors
from holdfast.data.kinds import kind_of
from holdfast.digests.digest import Digest, make_digest, seal_digest
from holdfast.digests.mixing import Laplace, heaviest_weight, read_weights, surely_mixed
from holdfast.digests.moment_wire import seal_moments
from holdfast.digests.moments import fewest, make, moments_claim
from holdfast.digests.release_options import (
    COMPACT,
    EXACT,
    ReleaseOptions,
    check_features,
    check_weighted,
    noisy,
    sums_leave,
)
from holdfast.digests.sums import UNIT, SumDigest, claim_of_sums, make_sums, seal_sums
from holdfast.encoders.contract import shortened
from holdfast.privacy import claim as claims
from holdfast.privacy.claim import Claim
from holdfast.privacy.gate import check_delta, house_of, let_out, tell_code
from holdfast.privacy.grid import Grid
from holdfast.privacy.mechanisms import MixedDigests, dp_full, dp_label_public
from holdfast.privacy.moment_noise import scales_for
from holdfast.privacy.noise import Source, system
from holdfast.privacy.patients import for_patients, one_each

LONGEST_EXCUSE = 50  # bytes
FEWEST_SUMMED = 10  # records below which no sums leave


def release(
    options: ReleaseOptions,
    owner: Owner,
    features: Tensor,
    labels: Tensor,
    round: int,
    weights: Tensor | None = None,
    whose: Tensor | None = None,
) -> Tensors:
    """Make what leaves the house, enter it in the ledger and keep a copy; a refusal says why in one sentence."""
    folder = owner.memory.folder  # where the client keeps its things; None: it has no disk
    period = round // options.refresh if options.refresh else 0
    house = house_of(folder, options.policy)
    # Asked again, a real site must not mix its records anew: several mixtures of the same records undo each other.
    at_site = house.ledger is not None and house.ledger.parent != folder
    keeps = folder is not None and (noisy(options) or at_site)
    shelf = Shelf(folder / "releases", f"{period:06d}.safetensors") if folder is not None and keeps else None
    if shelf is not None and (kept := shelf.read()):
        return kept
    if options.mode not in EXACT and not options.large_delta:
        units = len(labels) if whose is None else int(whose.max()) + 1
        check_delta(options.delta, units, "absence.delta", "large_delta = true")
    generator = rng(owner.seed, round, owner.id, "digest")
    sealed, claim = make_release(options, owner.about, features, labels, generator, system(), weights, whose)
    what = f"digest of {owner.about.task}, client {owner.id}, round {round + 1}"
    let_out(house, claim, what)
    if shelf is not None:
        shelf.write(sealed)
    return sealed


class Shelf:
    """The copy of a release that a client keeps; a damaged one is as good as none."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name

    def read(self) -> Tensors:
        if not (self._folder / self._name).is_file():
            return {}
        try:
            return load_tensors(Store(self._folder).read(self._name))
        except Damaged:
            return {}

    def write(self, sealed: Tensors) -> None:
        Store(self._folder).write(self._name, safetensors.torch.save(sealed))


def make_release(
    options: ReleaseOptions,
    about: About,
    features: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    source: Source,
    weights: Tensor | None = None,
    whose: Tensor | None = None,
) -> tuple[Tensors, Claim]:
    """The sealed release of these records and its claim; nothing is entered anywhere.

    whose: the patient of each record; a promise is then for a patient (privacy/patients.py).
    """
    check_weighted(options, weighted=weights is not None)
    if options.mode == "paper":
        return paper_release(options, about, features, labels, generator)
    promise = for_record
    if whose is not None and options.mode not in EXACT:
        features, labels = one_each(features, labels, whose, kind_of(about.kind))
        promise = for_patients
    z, y = features.numpy().astype(np.float64), labels.numpy()
    if sums_leave(options, about):
        made_sums = sums_of(options, about, z, labels, source, weights)
        made_sums = dataclasses.replace(made_sums, claim=promise(made_sums.claim))
        return seal_sums(made_sums, about.task, about.encoder), made_sums.claim
    if options.mode == "moments":
        epsilon = options.true_epsilon
        refuse_too_few(len(y), epsilon, options.delta, max(1, z.shape[-1]))
        made = make(z, y, about.classes, epsilon=epsilon, delta=options.delta, source=source)
        made = dataclasses.replace(made, claim=promise(made.claim))
        return seal_moments(made, about.task, about.encoder), made.claim
    if 0 < len(y) < options.spd:
        raise Refusal(
            "few",
            f"digest spd: {options.spd} samples per digest are more than the client's {len(y)} samples; lower spd.",
        )
    mixed = strict_mix(options, z, y, about.classes, generator, source)
    claim = promise(dataclasses.replace(mixed.claim, spd=fewest_mixed(options, mixed)))
    digest = Digest(
        torch.from_numpy(mixed.features).float(),
        torch.from_numpy(mixed.labels).float(),
        task=about.task,
        encoder=about.encoder,
        spd=options.spd,
        strategy=options.strategy,
        weights="balanced",
        noise=f"{claim.noise}, {claim.guarantee}",
        samples=len(y),
        used=len(y),
    )
    text = json.dumps(claim.as_json(), sort_keys=True)
    written = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    return {**seal_digest(digest, COMPACT[options.bits]), "claim": written}, claim


def for_record(claim: Claim) -> Claim:
    """The claim as it is: for a record."""
    return claim


def sums_of(
    options: ReleaseOptions, about: About, z: Any, labels: Tensor, source: Source, weights: Tensor | None = None
) -> SumDigest:
    if len(z) < FEWEST_SUMMED:
        raise Refusal("few", f"digest: sums over {len(z)} records speak of single ones; {FEWEST_SUMMED} are needed.")
    noise = None if options.mode == "sums" else (options.true_epsilon, options.delta)
    z = z / np.maximum(1.0, np.sqrt((z**2).sum(1, keepdims=True)))
    counting = None if weights is None else weights.double().numpy()
    kind, range = kind_of(about.kind), options.target_range or UNIT
    return make_sums(kind, about.classes, z, labels, range, noise, source, counting)


def refuse_too_few(records: int, epsilon: float, delta: float, width: int) -> None:
    """Refuse moments that so few records cannot give, before anything is spent: how many there are is public."""
    needed = math.ceil(fewest(scales_for(epsilon, delta, width)[0]))
    if records < needed:
        raise Refusal(
            "few",
            f"moment digest: {records} records are fewer than its noise needs of a single class ({needed}); nothing "
            "was released or spent: raise epsilon, or choose another mode.",
        )


def fewest_mixed(options: ReleaseOptions, mixed: MixedDigests) -> int:
    """Records that every group of a strict release is sure to have, as far as that is public.

    Where labels are hidden, groups within classes follow from their randomised answers: any may be left with one.
    """
    if options.mode == "dp-full" and options.strategy == "within":
        return 1
    return int(mixed.counts.sum(1).min())


def paper_release(
    options: ReleaseOptions, about: About, features: Tensor, labels: Tensor, generator: torch.Generator
) -> tuple[Tensors, Claim]:
    """Line 3 of the paper's Algorithm 1: mix one's features and perturb them."""
    digest = make_digest(
        features if about.norm_bound is None else shortened(features, about.norm_bound),
        labels,
        about.classes,
        generator=generator,
        spd=options.spd,
        strategy=options.strategy,
        weights=read_weights(options.weights),
        noise=None if options.epsilon is None else Laplace(options.epsilon, options.size),
        task=about.task,
        encoder=about.encoder,
        signed=about.signed,
    )
    return seal_digest(digest, COMPACT[options.bits]), paper_claim(options, digest.feature_shape, about.signed)


def paper_claim(
    options: ReleaseOptions, feature_shape: tuple[int, ...], signed: bool = True, fewest: int | None = None
) -> Claim:
    """The claim of published digests made of `fewest` to SpD records; signed: whether features can be negative."""
    width, sure = math.prod(feature_shape), surely_mixed(options.weights, options.spd, fewest)
    if options.epsilon is None:
        return claims.only_mixing(width, sure)
    heaviest = heaviest_weight(options.weights, options.spd, fewest)
    return claims.paper(width, sure, options.size, options.epsilon, heaviest, signed)


def strict_mix(
    options: ReleaseOptions, z: Any, y: Any, classes: int, generator: torch.Generator, source: Source
) -> MixedDigests:
    """Mixed digests with exact noise: Gaussian on an l2 grid, or at delta 0 Laplace on the l1 grid that holds it."""
    grid = strict_grid(options, z.shape[1])
    epsilon, by_class = options.true_epsilon, options.strategy == "within"
    if options.mode == "dp-label-public":
        return dp_label_public(
            z, y, classes, spd=options.spd, grid=grid, epsilon=epsilon, delta=options.delta, by_class=by_class,
            generator=generator, source=source,
        )  # fmt: skip
    return dp_full(
        z, y, classes, spd=options.spd, grid=grid, epsilon_features=epsilon * (1 - options.label_share),
        epsilon_labels=epsilon * options.label_share, delta=options.delta, by_class=by_class, generator=generator,
        source=source,
    )  # fmt: skip


def strict_grid(options: ReleaseOptions, width: int) -> Grid:
    """An l2 grid for Gaussian noise, or the l1 grid that holds it for Laplace noise."""
    norm_l1 = options.delta == 0
    return Grid("l1" if norm_l1 else "l2", options.clip * (math.sqrt(width) if norm_l1 else 1.0))


def claim_of(
    options: ReleaseOptions, feature_shape: tuple[int, ...], classes: int, signed: bool = True, kind: str = "classes"
) -> Claim:
    """What a release with these options will promise; it does not depend on the records, so zeros will do."""
    if options.mode == "paper":
        return paper_claim(options, feature_shape, signed)
    about = About("", classes, "", feature_shape, kind=kind)
    check_features(options, about)
    if sums_leave(options, about):
        noise = None if options.mode == "sums" else (options.true_epsilon, options.delta)
        return claim_of_sums(kind_of(kind), classes, feature_shape[0], noise, system())
    if options.mode == "moments":
        return moments_claim(options.true_epsilon, options.delta, feature_shape[0], system())
    zeros = torch.zeros(options.spd, *feature_shape), torch.zeros(options.spd, dtype=torch.long)
    return make_release(options, about, *zeros, torch.Generator(), system())[1]


def excuse_of(options: ReleaseOptions, owner: Owner, error: HoldfastError) -> Tensors:
    """What a client sends in place of a digest: the code of why there is none, as far as its policy lets it."""
    try:
        house = house_of(owner.memory.folder, options.policy)
        code = tell_code(None if house.policy is None else house.read_policy(0.0), code_of(error))
    except HoldfastError:  # a policy that cannot be read
        code = "policy"
    return excuse(code)


def excuse(code: str) -> Tensors:
    """What is sent in place of a digest."""
    return {"none": torch.frombuffer(bytearray(code.encode()), dtype=torch.uint8)}
