"""A federation by post: a model from the digests that members sent, once, and nothing else of them.

Every digest is opened, checked and held against the others; a head is chosen and fitted (heads/choosing.py); what each
adds is told by leaving it out. A digest that is withdrawn is forgotten exactly: the model is made again without it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import torch

from holdfast.audit.target import Subject, subject_of_file
from holdfast.context import About
from holdfast.core.errors import HoldfastError
from holdfast.core.files import load_tensors, read_metadata, save_tensors
from holdfast.core.randomness import rng
from holdfast.core.validate import Sizes
from holdfast.data.kinds import kind_of
from holdfast.data.named import HEART, load_task
from holdfast.data.tables.new_records import as_table
from holdfast.data.tables.schema import Schema, read_schema
from holdfast.digests.cells import Cells, mixed_cells, moment_cells
from holdfast.digests.contradiction import contradicted, disagreements
from holdfast.digests.digest import Digest, load_digest, open_digest
from holdfast.digests.moment_wire import is_moments, open_moments
from holdfast.digests.origin import Origin, read_origin
from holdfast.digests.received import noise_variance, scaled
from holdfast.digests.sums import SumDigest, is_sums, open_sums, scaled_sums
from holdfast.encoders import make_encoder
from holdfast.heads.choosing import Fitted, Noise, Received, choose_head
from holdfast.heads.from_sums import class_evidence
from holdfast.models.networks import buffers_of, weights_of


@dataclass(frozen=True)
class Posted:
    """One member's digest: its file, where it comes from, what it holds and what it promises."""

    file: str
    origin: Origin
    digest: Received
    subject: Subject
    trusted: bool  # signed with a key that is known to be the site's

    @property
    def records(self) -> int:
        """Records that it speaks for, as it says."""
        if isinstance(self.digest, Digest):
            return self.digest.used
        if isinstance(self.digest, SumDigest):
            return self.digest.records
        return max(1, round(float(self.digest.counts.sum())))

    @property
    def signature(self) -> str:
        """What its signature proves, in words."""
        if not self.origin.key:
            return "not signed"
        return "signed by the site" if self.trusted else "signed, by a key that nobody vouches for"


@dataclass(frozen=True)
class Outcome:
    """What the digests gave."""

    posts: Sequence[Posted]
    fitted: Fitted
    counted: Sequence[int]  # records of each that count
    contradicted: dict[str, float]  # sites whose digest the others contradict, with its agreement
    disagreements: Sequence[tuple[str, str, float]]  # (site, other, agreement): pairs that disagree about classes
    schema: Schema | None = None  # of the table that the digests were made of

    @property
    def origin(self) -> Origin:
        return self.posts[0].origin


def open_post(path: Path, today: date, known: dict[str, str] | None = None) -> Posted:
    """A digest's file, checked: whole, not expired, and by a known key where keys are known."""
    where = f"digest file {path}"
    subject = subject_of_file(path)  # refuses what is damaged or no digest
    content = path.read_bytes()
    origin = read_origin(content, where)
    if origin is None:
        raise HoldfastError(f"{where}: it does not say where it comes from; make it again with this version.")
    if origin.expired(today):
        raise HoldfastError(f"{where}: it expired on {origin.expires}; ask {origin.site} for a new one.")
    trusted = known is not None and bool(origin.key) and known.get(origin.site) == origin.key
    if known is not None and not trusted:
        how = "signed by another key than" if origin.key else "not signed by"
        raise HoldfastError(f"{where}: it is {how} the one that is known of {origin.site!r}; ask the site.")
    if origin.task != subject.task:
        raise HoldfastError(f"{where}: it was made for task {subject.task!r}, but says {origin.task!r}; make it again.")
    return Posted(str(path), origin, content_of(path, content), subject, trusted)


def content_of(path: Path, content: bytes) -> Received:
    """The digest in a file that was found to hold one."""
    where, tensors = f"digest file {path}", load_tensors(content)
    if is_moments(tensors):
        return open_moments(tensors, where=where)
    if is_sums(tensors):
        return open_sums(tensors, where=where)
    if "digest" in read_metadata(content):
        return load_digest(path)
    return open_digest({name: tensor for name, tensor in tensors.items() if name != "claim"}, where=where)


def check_together(posts: Sequence[Posted]) -> None:
    """Refuse digests that do not belong together, or that are there twice."""
    first = posts[0]
    for post in posts[1:]:
        for name, one, other in zip(("task", "kind of target", "class names", "encoder", "shape of samples", "mode",
                                     "encoder's fingerprint", "number of features"),
                                    agreed_facts(first), agreed_facts(post), strict=True):  # fmt: skip
            if one != other:
                raise HoldfastError(
                    f"{post.file} and {first.file} do not fit together: the {name} of one is {other!r}, of the other "
                    f"{one!r}; digests of one federation agree on it."
                )
    seen: dict[str, str] = {}
    for post in posts:
        if post.origin.site in seen:
            raise HoldfastError(
                f"{post.file} and {seen[post.origin.site]} are both of site {post.origin.site!r}, whose records would "
                "count twice; leave out the older one."
            )
        seen[post.origin.site] = post.file


def agreed_facts(post: Posted) -> tuple[object, ...]:
    origin, subject = post.origin, post.subject
    public = (origin.task, origin.kind, origin.class_names, origin.encoder, origin.shape)
    return *public, subject.claim.mode, subject.encoder, subject.feature_shape


def train(
    paths: Sequence[Path],
    head: str = "auto",
    known: dict[str, str] | None = None,
    today: date | None = None,
    seed: int = 0,
    schema: Path | None = None,
) -> Outcome:
    """The model of these digests, and what is to be said of it."""
    if not paths:
        raise HoldfastError("digest train: name at least one digest's file.")
    posts = [open_post(path, today or date.today(), known) for path in paths]
    check_together(posts)
    origin, subject = posts[0].origin, posts[0].subject
    table = schema_of(origin, schema)
    encoder = make_encoder(origin.encoder, origin.shape, schema=table)
    if encoder.fingerprint != subject.encoder:
        raise HoldfastError(
            f"{posts[0].file}: its features are of another encoder than the {origin.encoder!r} of this version."
        )
    if len(origin.class_names) != subject.classes:
        raise HoldfastError(f"{posts[0].file}: it names {len(origin.class_names)} of {subject.classes} classes.")
    about = About(origin.task, subject.classes, encoder.fingerprint, encoder.feature_shape, True, encoder.norm_bound)
    counted = Sizes().counted({place: post.records for place, post in enumerate(posts)})
    digests = [limited(post, counted[place], place) for place, post in enumerate(posts)]
    fitted = choose_head(head, digests, noise_of(posts[0], about), seed)
    cells = {place: cells_of(digest) for place, digest in enumerate(digests) if kind_of(origin.kind).has_classes}
    names = [post.origin.site for post in posts]
    return Outcome(
        posts,
        fitted,
        [counted[place] for place in range(len(posts))],
        {names[place]: agreement for place, agreement in contradicted(cells).items()},
        [(names[one], names[other], agreement) for one, other, agreement in disagreements(cells)],
        table,
    )


def schema_of(origin: Origin, path: Path | None) -> Schema | None:
    """The schema of the table that digests were made of, if it is named or comes with Holdfast."""
    if path is not None:
        return read_schema(path)
    if origin.task == HEART:
        return load_task(HEART).schema
    if origin.encoder.split(":")[0] == "table":
        raise HoldfastError(f"digest train: these are digests of a table, {origin.task!r}; give its --schema as well.")
    return None


def limited(post: Posted, most: int, place: int) -> Received:
    """A digest that speaks for no more records than count: what a member says of itself is bounded by the others'."""
    share = min(1.0, most / post.records)
    if share == 1.0:
        return post.digest
    if isinstance(post.digest, SumDigest):
        return scaled_sums(post.digest, most)
    if not isinstance(post.digest, Digest):
        return scaled(post.digest, share)
    digest = post.digest
    kept = torch.randperm(len(digest), generator=rng(0, -1, place, "share of digests"))
    rows = kept[: max(1, math.floor(share * len(digest)))].sort().values
    return replace(digest, features=digest.features[rows], labels=digest.labels[rows], used=most, samples=most)


def noise_of(post: Posted, about: About) -> Noise:
    """What is known of the rows of mixed digests."""
    options, digest = post.subject.options, post.digest
    if options is None or not isinstance(digest, Digest):
        return Noise()
    bound = about.norm_bound if options.mode == "paper" else options.clip
    return Noise(noise_variance(options, about, digest), bound)


def cells_of(digest: Received) -> Cells:
    if isinstance(digest, SumDigest):
        evidence = class_evidence([digest])
        scatter = evidence.within * evidence.counts.sum()
        return Cells(evidence.counts.numpy(), evidence.means.numpy(), scatter.numpy(), float(evidence.counts.sum()))
    return mixed_cells(digest) if isinstance(digest, Digest) else moment_cells(digest)


def model_bytes(outcome: Outcome) -> bytes:
    """The model as `holdfast predict` reads it."""
    origin, network, model = outcome.origin, outcome.fitted.network, outcome.fitted.model
    facts = {
        "task": origin.task,
        "model": model,
        "kind": origin.kind,
        "classes": "\n".join(origin.class_names),
        "shape": json.dumps(list(origin.shape)),
        "recipe": json.dumps({"model": model, "encoder": origin.encoder}),
        "encoder_fingerprint": outcome.posts[0].subject.encoder,
        **({} if outcome.schema is None else {"schema": json.dumps(as_table(outcome.schema))}),
    }
    return save_tensors({**weights_of(network), **buffers_of(network)}, facts)
