"""`holdfast site check`: a site's dry run before it joins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from holdfast.core.errors import HoldfastError

site_app = typer.Typer(help="At a site: look before you join.", no_args_is_help=True)


@site_app.callback()
def site() -> None:
    """At a site: look before you join."""


@site_app.command("check")
def check_command(
    name: Annotated[str, typer.Argument(metavar="SITE", help="This site's name.")],
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The experiment, as the moderator gave it.")],
    table: Annotated[Path | None, typer.Option(help="This site's own table, where the task is a schema.")] = None,
    schema: Annotated[Path | None, typer.Option(help="This site's copy of the schema.")] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            "--images", "--series", "--text", help="This site's own records, where the task is a description."
        ),
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="What may be asked of this site.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the task's files.")] = None,
    superlink: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the SuperLink listens.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The moderator's ca.crt.")] = None,
) -> None:
    """Try all but sending: data, policy, connection, one local step, what would leave; exit code 1 if one fails."""
    from holdfast.flower.deploy.joining import check_address
    from holdfast.flower.deploy.rehearsal import Wish, rehearse_site
    from holdfast.play import one_thread
    from holdfast.runs.experiment import load

    for path in (table, schema, records, policy, data, ca):
        if path is not None and not path.exists():
            raise HoldfastError(f"{path} does not exist.")
    if superlink is not None:
        check_address(superlink)
    console = Console(highlight=False, soft_wrap=True)
    wish = Wish(name, load(file), table, schema, records, policy, data, superlink, ca)
    good = True
    with one_thread():
        for finding in rehearse_site(wish):
            mark = "[green]✓[/]" if finding.good else "[red]✗[/]"
            first, *rest = finding.lines
            console.print(f"{mark} [bold]{finding.what}[/] {escape(first)}")
            for line in rest:
                console.print(f"    {escape(line)}")
            good &= finding.good
    console.print("[green]This site can join.[/] Nothing was sent." if good else "[red]This site cannot join yet.[/]")
    if not good:
        raise typer.Exit(1)
