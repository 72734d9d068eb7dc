"""`holdfast forget`: a run without a member that withdraws."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from holdfast.cli.screen import screen
from holdfast.core.errors import HoldfastError


def forget(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    site: Annotated[str | None, typer.Option(help="The member that withdraws, by its name.")] = None,
    request: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A site's signed request, in place of --site.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The sites' public keys, SITE.pub, that a request is held to.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="KEY", help="Sign the receipt for a request with it.")] = None,
    replay: Annotated[bool, typer.Option("--replay", help="Play the rounds again without it, if need be all.")] = False,
) -> None:
    """Delete what a run keeps of a member that withdraws, and train or play its model again without it."""
    if (site is None) == (request is None):
        raise HoldfastError("forget: say who withdraws, by --site NAME or by --request FILE.")
    if (request is None) != (keys is None):
        raise HoldfastError("forget: --request and --keys go together: a request counts if its site's key signed it.")
    if key is not None and request is None:
        raise HoldfastError("forget: --key signs the receipt for a --request.")
    from holdfast.play import forget as forget_site

    console = screen(wrap=True)
    if request is None or keys is None:
        done = forget_site(run, str(site), replay)
    else:
        from holdfast.core.signatures import public_half
        from holdfast.flower.deploy.withdrawal_request import read_request, write_receipt
        from holdfast.runs.store import Run

        wanted = read_request(request, keys, Run.open(run).experiment)
        if key is not None:
            public_half(key)  # a key that cannot sign is found out before anything is done
        done = forget_site(run, wanted.site, replay)
        receipt = write_receipt(run, request, wanted, done, key)
        console.print(f"Receipt for {escape(wanted.site)}: [bold]{escape(str(receipt))}[/]")
    console.print(done.sentence, markup=False)
    if done.model == "still knows":
        console.print("Play it again without that member: add --replay.")
