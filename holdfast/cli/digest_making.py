"""A client's digest from its own samples: `holdfast digest make`."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from holdfast.absence import ABSENCES
from holdfast.absence.feddig import COMPACT
from holdfast.audit.target import claim_of_digest, options_of
from holdfast.context import About
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.core.files import make_folder, write_file
from holdfast.data.named import DATA_SETS, EMBEDDED, HEART, load_task
from holdfast.data.sources.arrays import Array, inputs
from holdfast.data.sources.npz import names_in, read_arrays
from holdfast.data.task import Samples, Task, evenly
from holdfast.digests.digest import digest_bytes, make_digest
from holdfast.digests.mixing import Laplace, read_weights
from holdfast.digests.moment_wire import open_moments
from holdfast.digests.origin import Origin, addressed, check_site, expiry, load_key
from holdfast.digests.release import make_release
from holdfast.digests.release_options import check_features, check_kind
from holdfast.encoders import Encoder, make_encoder, never_negative, resolved
from holdfast.privacy.claim import Claim
from holdfast.privacy.gate import LEDGER, House, beside, check_delta, house_of, let_out
from holdfast.privacy.noise import system
from holdfast.privacy.patients import whose_of
from holdfast.runs.new_samples import read_labels

log = logging.getLogger("holdfast")
SAMPLE_KEYS = (("x", "y"), ("x_train", "y_train"))
UNUSED = {  # options that a mode does not have; those with a promise that mix records: size and remainder
    "paper": ("delta",),
    "moments": ("spd", "strategy", "weights", "remainder", "size", "bits"),
    "sums": ("spd", "strategy", "weights", "remainder", "size", "bits", "epsilon", "delta"),
}


@dataclass(frozen=True)
class Sender:
    """Who sends a digest, with which key it is signed, and for how many days it may be used."""

    site: str
    key: Path | None = None
    days: int | None = None


@dataclass(frozen=True)
class Recipe:
    """How a digest is to be made, as the user says it."""

    task: str
    data: Path | None = None
    samples_of: Path | None = None
    encoder: str = "auto"
    spd: int = 4
    strategy: str = "within"
    weights: str = "balanced"
    remainder: str = "drop"
    epsilon: float | None = None
    size: int = 20_000
    bits: str = "8"
    mode: str = "paper"
    delta: float = 1e-5
    target_range: str | None = None


def make(
    recipe: Recipe, out: Path, policy: Path | None = None, large_delta: bool = False, sender: Sender | None = None
) -> int:
    """Write the digest of a recipe, and say how many bytes it has; the order of mixing is the system's chance."""
    if out.exists():
        raise HoldfastError(f"{out} exists; remove it, or name another file with --out.")
    if recipe.bits not in COMPACT:
        raise HoldfastError(f"digest bits: {recipe.bits!r} is not known; say {', '.join(COMPACT)}.")
    refuse_unused(recipe)
    sender = sender or Sender(out.stem)
    last, site = expiry(sender.days), check_site(sender.site)
    if sender.key is not None:  # before anything is spent
        load_key(sender.key)
    whole = samples_for(recipe)
    samples, shape = whole.train, tuple(whole.train.inputs[0].shape[1:])
    if recipe.encoder == "auto":  # which may mean another one where the digest is read
        recipe = replace(recipe, encoder=str(resolved(Choice("auto"), samples.inputs[0], whole.schema)))
    encoder = make_encoder(recipe.encoder, shape, schema=whole.schema)
    prepare = mix if recipe.mode == "paper" else release
    content, claim = prepare(recipe, whole, encoder)
    today = date.today().isoformat()
    origin = Origin(site, today, last, whole.name, recipe.encoder, shape, whole.kind.spec, whole.class_names)
    content = addressed(content, origin, sender.key)
    if recipe.mode != "sums" and not large_delta:
        check_delta(claim.delta, len(samples), "--delta", "--large-delta")
    house = keep_policy(claim, f"digest of {whole.name}, file {out.name}", out, policy)
    if recipe.mode == "moments" and whole.kind.has_classes:
        refuse_useless(content, claim, house)
    make_folder(out.parent)
    write_file(out, content)
    return len(content)


def refuse_unused(recipe: Recipe) -> None:
    """Refuse what the mode would not heed: who asks for it believes that it does something."""
    for name in UNUSED.get(recipe.mode, ("size", "remainder")):
        if getattr(recipe, name) != getattr(Recipe, name):
            raise HoldfastError(f"--{name}: mode {recipe.mode!r} has no use for it; leave it out.")


def mix(recipe: Recipe, whole: Task, encoder: Encoder) -> tuple[bytes, Claim]:
    """The published digest: no promise."""
    if not whole.kind.has_classes:
        raise HoldfastError(
            f"--mode: 'paper' mixes records of classes, and task {whole.name!r} is of kind {whole.kind.name!r}; say "
            "--mode moments, or --mode sums without a promise."
        )
    if whole.train.weights is not None:
        raise HoldfastError(
            "--mode: the rows of 'paper' all count alike, and these records have weights; say --mode sums."
        )
    noise = None if recipe.epsilon is None else Laplace(recipe.epsilon, recipe.size)
    digest = make_digest(
        encoder.encode(whole.train.inputs[0]),
        whole.train.labels,
        whole.classes,
        generator=torch.Generator().manual_seed(secrets.randbits(63)),
        spd=recipe.spd,
        weights=read_weights(recipe.weights),
        strategy=recipe.strategy,  # type: ignore[arg-type]  # checked by the mixing itself, with a sentence
        remainder=recipe.remainder,  # type: ignore[arg-type]
        noise=noise,
        task=whole.name,
        encoder=encoder.fingerprint,
        signed=not never_negative(recipe.encoder),
    )
    claim = claim_of_digest(
        digest, options_of(digest, None, "digest")
    )  # the very claim that its file will be shown with
    return digest_bytes(digest, COMPACT[recipe.bits]), claim


def release(recipe: Recipe, whole: Task, encoder: Encoder) -> tuple[bytes, Claim]:
    """A digest with a promise, as a client of a run would make it."""
    wanted = {"mode": recipe.mode, "spd": recipe.spd, "strategy": recipe.strategy, "weights": recipe.weights}
    wanted |= {"delta": recipe.delta, "bits": recipe.bits, "epsilon": recipe.epsilon}
    wanted |= {} if recipe.target_range is None else {"target_range": recipe.target_range}
    options = choose(ABSENCES, Choice("feddig", wanted), "digest")
    about = About(whole.name, whole.classes, encoder.fingerprint, encoder.feature_shape, kind=whole.kind.spec)
    check_features(options, about)
    check_kind(options, about)
    generator = torch.Generator().manual_seed(secrets.randbits(63))
    records = evenly(whole.train)
    features, whose = encoder.encode(records.inputs[0]), whose_of(records, whole.person)
    sealed, claim = make_release(options, about, features, records.labels, generator, system(), records.weights, whose)
    return safetensors.torch.save(sealed), claim


def keep_policy(claim: Claim, what: str, out: Path, policy: Path | None) -> House:
    """Enter the digest in the house's ledger, or refuse it; that lies beside the policy, else beside the digest."""
    house = beside(policy or house_of(out.parent).policy)
    if house.policy is None:
        house = House(None, out.absolute().parent / LEDGER)
        log.warning("No policy says what may leave, so everything may; what does is entered in %s.", house.ledger)
    let_out(house, claim, what)
    return house


def refuse_useless(content: bytes, claim: Claim, house: House) -> None:
    """Write no moments from which nothing can be drawn; to have seen that they are so was a release."""
    try:
        open_moments(safetensors.torch.load(content), where="moment digest")
    except HoldfastError as error:
        spent = f"epsilon {claim.epsilon_total:.4g} was spent"
        where = f"and is entered in {house.ledger}"
        raise HoldfastError(f"{error} No file was written, but {spent} on finding this out, {where}.") from None


def samples_for(recipe: Recipe) -> Task:
    """The task, with the samples to be digested for its training set."""
    if recipe.data is not None and recipe.task in (EMBEDDED, HEART):
        raise HoldfastError(
            f"--data: the records of task {recipe.task!r} come with Holdfast, so none of yours would be in the digest; "
            "give yours with --samples-of FILE.npz, or name a task of your own with --task."
        )
    if recipe.samples_of is None:
        whole = load_task(recipe.task, recipe.data)
        if recipe.task not in DATA_SETS and len(whole.test):
            log.warning(
                "The digest is made of %s records; %s more are the data's test part, for trying the model.",
                f"{len(whole.train):,}", f"{len(whole.test):,}",
            )  # fmt: skip
        return whole
    if (
        recipe.task in DATA_SETS and recipe.task != HEART
    ):  # a client need not have the whole data set to know its shape and classes
        known = DATA_SETS[recipe.task]
        nothing = Samples((torch.zeros(0, *known.shape),), torch.zeros(0).long())
        whole = Task(recipe.task, nothing, nothing, known.class_names)
    else:
        whole = load_task(recipe.task, recipe.data)
    arrays = read_samples(recipe.samples_of)
    values, targets = inputs(arrays[0]), read_labels(arrays[1], whole.kind, whole.classes)
    if len(values) != len(targets):
        raise HoldfastError(
            f"{recipe.samples_of}: {len(targets)} labels for {len(values)} samples; there must be one for each."
        )
    if tuple(values.shape[1:]) != whole.shape:
        raise HoldfastError(
            f"{recipe.samples_of}: its samples have shape {tuple(values.shape[1:])}, those of task {whole.name!r} "
            f"have {whole.shape}; both must be alike."
        )
    return replace(whole, train=Samples((values,), targets))


def read_samples(path: Path) -> tuple[Any, Any]:
    """The arrays x and y (or x_train and y_train) of a client's own npz file."""
    found = read_arrays(path, [key for keys in SAMPLE_KEYS for key in keys], "the keys x and y")
    keys = next((keys for keys in SAMPLE_KEYS if all(key in found for key in keys)), None)
    if keys is None:
        holds = ", ".join(names_in(path)) or "nothing"
        raise HoldfastError(f"{path} needs the keys x and y, or x_train and y_train; it holds {holds}.")
    x, y = (Array(found[key], f"{path}, key {key}") for key in keys)
    return x, y
