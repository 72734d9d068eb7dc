"""What a digest's file is, and what it would reveal: printed for its owner, and for a machine."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape
from rich.table import Table

from holdfast.cli.screen import screen
from holdfast.core.errors import plain

if TYPE_CHECKING:  # torch is imported by what needs it, not for --help
    from holdfast.audit.target import Subject
    from holdfast.digests.digest import Digest
    from holdfast.privacy.claim import Claim


def show(path: Path, as_json: bool) -> None:
    """Print what a digest is."""
    from dataclasses import asdict

    from holdfast.audit.target import subject_of_file
    from holdfast.digests.origin import read_origin

    subject = subject_of_file(path)
    published = subject.digest if subject.claim.mode == "paper" else None
    facts = strict_facts(subject) if published is None else facts_of(published, subject.claim, path)
    origin = read_origin(path.read_bytes(), f"digest file {path}")
    facts["origin"] = None if origin is None else asdict(origin)
    if as_json:
        typer.echo(json_text.dumps(facts, allow_nan=False))
        return
    console = screen()
    rows = strict_rows(facts) if published is None else published_rows(facts)
    if origin is not None:
        until = f"until {origin.expires}" if origin.expires else "without an end"
        signed = f"signed with key {origin.key[:16]}" if origin.key else "not signed"
        rows.add_row("from", escape(f"{origin.site}, made on {origin.made}, good {until}; {signed}"))
    console.print(rows)
    console.print("\nWhat it would reveal to whoever holds it:")
    for sentence in facts["reveals"]:
        console.print(f"  - {plain(sentence)}", soft_wrap=True, markup=False)


def published_rows(facts: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_row("digest", f"{facts['digests']:,} of {'x'.join(map(str, facts['feature_shape']))} features, "
                 f"{facts['classes']} classes")  # fmt: skip
    grid.add_row("samples", f"{facts['used']:,} of {facts['samples']:,} are in it, each once"
                 + (f"; {facts['dropped']} were left over" if facts["dropped"] else ""))  # fmt: skip
    grid.add_row("protection", escape(plain(f"{facts['mode']}: SpD {facts['spd']}, {facts['strategy']} classes, "
                 f"weights {facts['weights']}, noise {facts['noise']}")))  # fmt: skip
    grid.add_row("promise", f"{facts['guarantee']}; adjacency: {facts['adjacency']}")
    grid.add_row("guessing index", index_words(facts["guessing_index"]))
    grid.add_row("made for", escape(plain(f"task {facts['task']}, encoder {facts['encoder'][:16]}", 200)))
    grid.add_row("size", f"{facts['bytes']:,} bytes, {facts['bytes_per_digest']:.1f} for each digest "
                 f"({facts['features_as']}); as published it would be {facts['bytes_published']:,}")  # fmt: skip
    return grid


def strict_rows(facts: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_row("digest", f"{facts['mode']}, {'x'.join(map(str, facts['feature_shape']))} features, "
                 f"{facts['classes']} classes")  # fmt: skip
    if "digests" in facts:
        fewer = f"; remainders are mixed with as few as {facts['fewest_mixed']}"
        grid.add_row("samples", f"{facts['samples']:,} in {facts['digests']:,} digests: SpD {facts['spd']}, "
                     f"{facts['strategy']} classes{fewer if facts['fewest_mixed'] < facts['spd'] else ''}")  # fmt: skip
    grid.add_row("promise", facts["guarantee"])
    grid.add_row("noise", f"{facts['noise']}, scale {facts['scale']:.4g} for a sensitivity of "
                 f"{facts['sensitivity']:.4g} steps; grid {facts['grid']}")  # fmt: skip
    grid.add_row("made for", escape(plain(f"task {facts['task']}, encoder {facts['encoder'][:16]}", 200)))
    grid.add_row("size", f"{facts['bytes']:,} bytes")
    return grid


def strict_facts(subject: Subject) -> dict[str, Any]:
    """What a digest with a promise promises; recomputed from its settings, not read from the file."""
    claim, digest, mixed = subject.claim, subject.digest, {}
    if digest is not None:
        mixed = {name: getattr(digest, name) for name in ("spd", "strategy", "samples", "used")}
        mixed |= {"digests": len(digest), "fewest_mixed": claim.spd}
    return {
        "file": subject.name,
        "task": subject.task,
        "encoder": subject.encoder,
        "classes": subject.classes,
        "feature_shape": list(subject.feature_shape),
        "bytes": subject.size,
        "guarantee": claim.guarantee,
        **{name: value for name, value in claim.as_json().items() if name != "notes"},
        **mixed,
        "reveals": [
            f"What (epsilon, delta) = ({claim.epsilon_total:.4g}, {claim.delta:g}) lets through of a single record "
            f"({claim.adjacency}), and what all records have in common: that is what it is for.",
            "Whether noise was truly added cannot be seen in a file, only at the client that made it.",
            *claim.notes,
        ],
    }


def facts_of(digest: Digest, claim: Claim, path: Path) -> dict[str, Any]:
    """All that is known of a digest, as --json prints it."""
    import math

    import safetensors.torch

    from holdfast.audit.findings import guessing_index
    from holdfast.core.files import read_metadata
    from holdfast.core.tensors import bytes_of

    content = path.read_bytes()
    manifest = read_metadata(content).get("digest")  # or in a tensor, as digests travel
    compact = json_text.loads(manifest or bytes_of(safetensors.torch.load(content)["manifest"]))["compact"]
    shares = digest.labels.double().mean(0).tolist()
    names = ("task", "encoder", "spd", "mode", "strategy", "weights", "noise", "samples", "used", "dropped", "classes")
    return {
        "file": str(path),
        **{name: getattr(digest, name) for name in names},
        "digests": len(digest),
        "fewest_mixed": claim.spd,
        "feature_shape": list(digest.feature_shape),
        "bytes": len(content),
        "bytes_per_digest": len(content) / len(digest),
        "bytes_published": 4 * (math.prod(digest.feature_shape) + digest.classes),  # float32 features and labels
        "features_as": compact["features"] + (", compressed" if compact["compress"] else ""),
        "class_shares": [round(share, 6) for share in shares],
        "adjacency": claim.adjacency,
        "guarantee": claim.guarantee,
        "guessing_index": guessing_index(digest.spd, digest.feature_shape, digest.features, claim.spd),
        "reveals": reveals(digest, claim),
    }


def index_words(index: dict[str, Any]) -> str:
    """log10 of the chance to split a digest by blind guessing, in a line."""
    from holdfast.audit.findings import bound_words

    each = f"; here easiest {index['worst']:.1f}, median {index['median']:.1f}" if "worst" in index else ""
    return f"log10 {index['average']} on average{each}; {bound_words(index)}"


def reveals(digest: Digest, claim: Claim) -> list[str]:
    """What a digest tells of a client's samples, in sentences without comfort."""
    import math

    from holdfast.audit.guessing import log10_mean

    count = f"That there are {digest.samples:,} samples, and"
    if digest.spd == 1:
        sentences = [
            f"{count} the class of each: labels are not hidden.",
            "The features of every single sample: nothing is mixed.",
        ]
    else:
        index = log10_mean(digest.spd, 2**32, elements=math.prod(digest.feature_shape))
        sentences = [
            f"{count} which classes those in each digest have: labels are mixed, not hidden.",
            f"{mixture_words(digest, claim)} Who guesses blindly splits a mean of {digest.spd} with chance "
            f"10^{index:.0f}, but this is an index, not a guarantee: who knows all samples of a digest but one knows "
            "the last one.",
        ]
    if digest.strategy == "within" and digest.spd > 1:
        sentences.append("Samples of one class are mixed with each other, so a digest shows what its class looks like.")
    return [*sentences, *claim.notes]


def mixture_words(digest: Digest, claim: Claim) -> str:
    """How many samples a digest truly mixes: remainders are fewer than SpD, and weights may favour one."""
    if claim.spd == digest.spd:
        return f"The mean features of {digest.spd} samples, never one alone."
    why = f"weights {digest.weights}" if digest.fewest == digest.spd else "remainders are mixed with fewer"
    if claim.spd > 1:
        return f"The mean features of {digest.spd} samples, in some digests of as few as {claim.spd} ({why})."
    return (
        f"The mean features of {digest.spd} samples, but some digest may show the features of a SINGLE sample, or "
        f"nearly so ({why})."
    )
