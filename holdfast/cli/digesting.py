"""`holdfast digest make` and `show`: a client's digest from its own data, without a federation."""

from __future__ import annotations

import json as json_text
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from holdfast.errors import HoldfastError

if TYPE_CHECKING:  # torch is imported by what needs it, not for --help
    from holdfast.digests import Digest
    from holdfast.mixing import Laplace, Weights
    from holdfast.tasks import Samples

digest_app = typer.Typer(
    help="Make and look at digests, which stand in for a client that is away.", no_args_is_help=True
)

PAPER_BYTES = 1272  # the paper: 8 x 8 x 4 features and 62 label values, as float32
SAMPLE_KEYS = (("x", "y"), ("x_train", "y_train"))
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")]


@digest_app.command("make")
def make_command(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The digest's file, safetensors.")],
    task: Annotated[str, typer.Option(help="The federation's task, see `holdfast tasks`.")] = "fashion-mini",
    data: Annotated[Path | None, typer.Option(help="Folder with the task's files.")] = None,
    samples_of: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz", help="The client's own samples: x and y \\[default: the task's training set]."
        ),
    ] = None,
    encoder: Annotated[str, typer.Option(help="The federation's public encoder.")] = "scattering",
    spd: Annotated[int, typer.Option(help="Samples per digest; 1: no mixing.")] = 4,
    strategy: Annotated[str, typer.Option(help="Mix 'within' a class or 'across' classes.")] = "within",
    weights: Annotated[str, typer.Option(help="'balanced', 'random', or numbers as in 0.7/0.3.")] = "balanced",
    remainder: Annotated[str, typer.Option(help="Samples left over: 'drop' or 'mix' fewer.")] = "drop",
    epsilon: Annotated[float | None, typer.Option(help="The paper's nominal epsilon \\[default: no noise].")] = None,
    size: Annotated[int, typer.Option(help="The paper's S, in the noise scale tau / (S epsilon).")] = 20_000,
    bits: Annotated[str, typer.Option(help="Of each feature: 32, 16, 8, 6 or 4.")] = "8",
    json: Json = False,
) -> None:
    """Make a digest of a client's samples. Nothing but this file needs to leave the house."""
    recipe = Recipe(task, data, samples_of, encoder, spd, strategy, weights, remainder, epsilon, size, bits)
    make(recipe, out)
    show(out, json)


@digest_app.command("show")
def show_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A digest's file.")],
    json: Json = False,
) -> None:
    """Say what a digest is, how large it is, and what it would reveal."""
    show(file, json)


@dataclass(frozen=True)
class Recipe:
    """How a digest is to be made, as the user says it."""

    task: str
    data: Path | None = None
    samples_of: Path | None = None
    encoder: str = "scattering"
    spd: int = 4
    strategy: str = "within"
    weights: str = "balanced"
    remainder: str = "drop"
    epsilon: float | None = None
    size: int = 20_000
    bits: str = "8"


def make(recipe: Recipe, out: Path) -> int:
    """Write the digest of a recipe, and say how many bytes it has; the order of mixing is the system's chance."""
    import secrets

    import torch

    from holdfast.absence.feddig import COMPACT
    from holdfast.digests import make_digest, save_digest
    from holdfast.encoders import make_encoder
    from holdfast.files import make_folder
    from holdfast.mixing import Laplace

    if out.exists():
        raise HoldfastError(f"{out} exists; remove it, or name another file with --out.")
    if recipe.bits not in COMPACT:
        raise HoldfastError(f"digest bits: {recipe.bits!r} is not known; say {', '.join(COMPACT)}.")
    weights = read_weights(recipe.weights)
    noise = None if recipe.epsilon is None else Laplace(recipe.epsilon, recipe.size)
    name, classes, samples = samples_for(recipe)
    encoder = make_encoder(recipe.encoder, tuple(samples.inputs[0].shape[1:]))
    digest = make_digest(
        encoder.encode(samples.inputs[0]),
        samples.labels,
        classes,
        generator=torch.Generator().manual_seed(secrets.randbits(63)),
        spd=recipe.spd,
        weights=weights,
        strategy=recipe.strategy,  # type: ignore[arg-type]  # checked by the mixing itself, with a sentence
        remainder=recipe.remainder,  # type: ignore[arg-type]
        noise=noise,
        task=name,
        encoder=encoder.fingerprint,
    )
    keep_policy(digest, noise, out)
    make_folder(out.parent)
    return save_digest(out, digest, COMPACT[recipe.bits])


def keep_policy(digest: Digest, noise: Laplace | None, out: Path) -> None:
    """Where the house has a policy (the nearest privacy.toml), the digest is entered in its ledger, or refused."""
    import math

    from holdfast.privacy.claim import only_mixing, paper
    from holdfast.privacy.house import house_of, let_out

    width = math.prod(digest.feature_shape)
    house = house_of(out.parent)
    if house.policy is not None:
        mixing = only_mixing(width, digest.spd)
        claim = mixing if noise is None else paper(width, digest.spd, noise.samples, noise.epsilon)
        let_out(house, claim, f"digest of {digest.task}, file {out.name}")


def read_weights(text: str) -> Weights:
    """Weights of mixing as the user says them.

    >>> read_weights("random"), read_weights("0.75/0.25")
    ('random', (0.75, 0.25))
    """
    if text == "balanced" or text == "random":
        return text  # type: ignore[return-value]  # mypy does not narrow str to the two words
    try:
        return tuple(float(part) for part in text.split("/"))
    except ValueError:
        raise HoldfastError(
            f"digest weights: {text!r} is not known; say 'balanced', 'random' or numbers as in 0.7/0.3."
        ) from None


def samples_for(recipe: Recipe) -> tuple[str, int, Samples]:
    """The task's name and number of classes, and the samples to be digested."""
    from holdfast.tasks import Samples
    from holdfast.tasks.arrays import inputs, labels
    from holdfast.tasks.named import DATA_SETS, load_task

    if recipe.samples_of is None:
        whole = load_task(recipe.task, recipe.data)
        return whole.name, whole.classes, whole.train
    arrays = read_samples(recipe.samples_of)
    images, classes = inputs(arrays[0]), labels(arrays[1])
    if len(images) != len(classes):
        raise HoldfastError(
            f"{recipe.samples_of}: {len(classes)} labels for {len(images)} samples; there must be one for each."
        )
    if recipe.task in DATA_SETS:  # a client need not have the whole data set to know how many classes it has
        return recipe.task, len(DATA_SETS[recipe.task].class_names), Samples((images,), classes)
    whole = load_task(recipe.task, recipe.data)
    if tuple(images.shape[1:]) != whole.shape:
        raise HoldfastError(
            f"{recipe.samples_of}: its samples have shape {tuple(images.shape[1:])}, those of task {whole.name!r} "
            f"have {whole.shape}; both must be alike."
        )
    return whole.name, whole.classes, Samples((images,), classes)


def read_samples(path: Path) -> tuple[Any, Any]:
    """The arrays x and y (or x_train and y_train) of a client's own npz file."""
    import zipfile
    import zlib

    import numpy as np

    from holdfast.tasks.arrays import Array

    if not path.is_file():
        raise HoldfastError(f"{path} does not exist; give an npz file with the keys x and y.")
    unreadable = f"{path} is not a readable npz file of plain numbers; write it with numpy.savez_compressed."
    try:
        file = np.load(path, allow_pickle=False)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile):
        raise HoldfastError(unreadable) from None
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise HoldfastError(f"{path} holds one array only; write it with numpy.savez_compressed(FILE, x=..., y=...).")
    with file:
        keys = next((keys for keys in SAMPLE_KEYS if all(key in file.files for key in keys)), None)
        if keys is None:
            holds = ", ".join(file.files) or "nothing"
            raise HoldfastError(f"{path} needs the keys x and y, or x_train and y_train; it holds {holds}.")
        try:
            found = [Array(file[key], f"{path}, key {key}") for key in keys]
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error):
            raise HoldfastError(unreadable) from None
    return found[0], found[1]


def show(path: Path, as_json: bool) -> None:
    """Print what a digest is."""
    from holdfast.digests import load_digest

    facts = facts_of(load_digest(path), path)
    console = Console(highlight=False)
    if as_json:
        typer.echo(json_text.dumps(facts, allow_nan=False))
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_row("digest", f"{facts['digests']:,} of {'x'.join(map(str, facts['feature_shape']))} features, "
                 f"{facts['classes']} classes")  # fmt: skip
    grid.add_row("samples", f"{facts['used']:,} of {facts['samples']:,} are in it, each once"
                 + (f"; {facts['dropped']} were left over" if facts["dropped"] else ""))  # fmt: skip
    grid.add_row("protection", f"{facts['mode']}: SpD {facts['spd']}, {facts['strategy']} classes, "
                 f"weights {facts['weights']}, noise {facts['noise']}")  # fmt: skip
    grid.add_row("made for", f"task {facts['task']}, encoder {facts['encoder'][:16]}")
    grid.add_row("size", f"{facts['bytes']:,} bytes, {facts['bytes_per_digest']:.1f} for each digest "
                 f"({facts['features_as']}); as published it would be {PAPER_BYTES:,} for each")  # fmt: skip
    console.print(grid)
    console.print("\nWhat it would reveal to whoever holds it:")
    for sentence in facts["reveals"]:
        console.print(f"  - {sentence}", soft_wrap=True)


def facts_of(digest: Digest, path: Path) -> dict[str, Any]:
    """All that is known of a digest, as --json prints it."""
    from holdfast.files import read_metadata

    content = path.read_bytes()
    compact = json_text.loads(read_metadata(content)["digest"])["compact"]
    shares = digest.labels.double().mean(0).tolist()
    names = ("task", "encoder", "spd", "mode", "strategy", "weights", "noise", "samples", "used", "dropped", "classes")
    return {
        "file": str(path),
        **{name: getattr(digest, name) for name in names},
        "digests": len(digest),
        "feature_shape": list(digest.feature_shape),
        "bytes": len(content),
        "bytes_per_digest": len(content) / len(digest),
        "features_as": compact["features"] + (", compressed" if compact["compress"] else ""),
        "class_shares": [round(share, 6) for share in shares],
        "reveals": reveals(digest),
    }


def reveals(digest: Digest) -> list[str]:
    """What a digest tells of a client's samples, in sentences without comfort."""
    import math
    import re

    from holdfast.privacy import claim
    from holdfast.privacy.guessing import log10_mean

    elements = math.prod(digest.feature_shape)
    sentences = [
        f"That there are {digest.samples:,} samples, and which classes the {digest.spd} in each digest have: labels "
        "are mixed, not hidden."
    ]
    if digest.spd == 1:
        sentences.append("The features of every single sample: nothing is mixed.")
    else:
        index = log10_mean(digest.spd, 2**32, elements=elements)
        sentences.append(
            f"The mean features of {digest.spd} samples, never one alone. Who guesses blindly splits a digest with "
            f"chance 10^{index:.0f}, but this is an index, not a guarantee: who knows the other {digest.spd - 1} "
            "samples knows the last one."
        )
    if digest.strategy == "within" and digest.spd > 1:
        sentences.append("Samples of one class are mixed with each other, so a digest shows what its class looks like.")
    found = re.match(r"laplace:epsilon=([\d.e+-]+),samples=(\d+)", digest.noise)
    if found:
        truth = claim.paper(elements, digest.spd, int(found[2]), float(found[1]))
        sentences += truth.notes
    elif digest.noise == "none":
        sentences.append("There is no noise, so there is no differential privacy of any epsilon.")
    return sentences
