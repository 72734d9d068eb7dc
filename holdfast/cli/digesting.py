"""`holdfast digest`: make, show, sign and train on digests, without a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.digest_facts import show
from holdfast.cli.screen import screen

digest_app = typer.Typer(
    help="Make digests, which stand in for a client that is away; look at them; train a model of them alone.",
    no_args_is_help=True,
)

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
    encoder: Annotated[str, typer.Option(help="The federation's public encoder.")] = "auto",
    mode: Annotated[
        str, typer.Option(help="'paper', 'sums', or with a promise: 'moments', 'dp-full', 'dp-label-public'.")
    ] = "paper",
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What may leave, its ledger beside it \\[default: the nearest privacy.toml]."
        ),
    ] = None,
    spd: Annotated[int, typer.Option(help="Samples per digest; 1: no mixing.")] = 4,
    strategy: Annotated[str, typer.Option(help="Mix 'within' a class or 'across' classes.")] = "within",
    weights: Annotated[str, typer.Option(help="'balanced', 'random', or numbers as in 0.7/0.3.")] = "balanced",
    remainder: Annotated[str, typer.Option(help="Samples left over: 'drop' or 'mix' fewer.")] = "drop",
    epsilon: Annotated[
        float | None, typer.Option(help="True epsilon \\[default: 3]; mode paper: nominal \\[default: no noise].")
    ] = None,
    delta: Annotated[float, typer.Option(help="Of the modes with a promise; 0: Laplace noise.")] = 1e-5,
    large_delta: Annotated[
        bool, typer.Option("--large-delta", help="Insist on a delta above 1e-3 or 1 / records: it promises little.")
    ] = False,
    size: Annotated[int, typer.Option(help="The paper's S, in the noise scale tau / (S epsilon).")] = 20_000,
    bits: Annotated[str, typer.Option(help="Of each feature: 32, 16, 8, 6 or 4.")] = "8",
    target_range: Annotated[
        str | None, typer.Option(metavar="LOW/HIGH", help="Of a regression's targets: public, needed for noise.")
    ] = None,
    site: Annotated[str | None, typer.Option(metavar="NAME", help="Who sends it \\[default: the file's name].")] = None,
    key: Annotated[Path | None, typer.Option(metavar="SITE.key", help="Sign it; see `holdfast digest key`.")] = None,
    expires: Annotated[int | None, typer.Option(metavar="DAYS", help="It may be used for so many days.")] = None,
    json: Json = False,
) -> None:
    """Make a digest of a client's samples. Nothing but this file needs to leave the house."""
    from holdfast.cli.digest_making import Recipe, Sender, make

    mixing = (spd, strategy, weights, remainder)
    recipe = Recipe(task, data, samples_of, encoder, *mixing, epsilon, size, bits, mode, delta, target_range)
    make(recipe, out, policy, large_delta, Sender(site or out.stem, key, expires))
    show(out, json)


@digest_app.command("show")
def show_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A digest's file.")],
    json: Json = False,
) -> None:
    """Say what a digest is, how large it is, and what it would reveal."""
    show(file, json)


@digest_app.command("train")
def train_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="The members' digests.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the model, the report and the privacy page.")],
    head: Annotated[
        str,
        typer.Option(
            help="'auto', 'nearest-mean', 'lda', 'fedcgs', 'qda', 'ridge', 'ccvr', 'fishermix', 'kernel' or "
            "'server-step'."
        ),
    ] = "auto",
    schema: Annotated[
        Path | None, typer.Option(metavar="SCHEMA.toml", help="Of digests of a table: its schema.")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The sites' public keys, SITE.pub: what is not signed by them is refused."),
    ] = None,
    json: Json = False,
) -> None:
    """Make a model of digests alone: a federation by post, without rounds and without a server."""
    from holdfast.cli.digest_training import train_files

    train_files(files, out, head, keys, schema, json)


@digest_app.command("key")
def key_command(
    site: Annotated[str, typer.Argument(metavar="SITE", help="The site's name.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for SITE.key and SITE.pub.")] = Path(),
) -> None:
    """Make a site's key (SITE.key, which stays there) and its public key (SITE.pub, for whoever trains)."""
    from holdfast.digests.origin import make_key

    for path in make_key(out, site):
        screen(wrap=True).print(f"Written: [bold]{path}[/]")
