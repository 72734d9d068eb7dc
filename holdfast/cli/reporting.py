"""`holdfast report`, `watch`, `export` and `predict`: what people look at, and what they take away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders of runs as `holdfast compare` leaves them.")
]


def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="The page [default: report.html in the first RUN].")] = None,
    png: Annotated[Path | None, typer.Option(help="Save a figure for papers as well.")] = None,
    pdf: Annotated[Path | None, typer.Option(help="The same as PDF.")] = None,
    svg: Annotated[Path | None, typer.Option(help="The same as SVG.")] = None,
) -> None:
    """Show what happened in runs: one HTML page that opens from disk, and figures for papers."""
    from holdfast.report import save_report

    console = Console(highlight=False, soft_wrap=True)
    figures = [path for path in (png, pdf, svg) if path is not None]
    out = out or (None if figures else runs[0] / "report.html")
    for sentence in save_report(runs, out, figures):
        console.print(sentence, markup=False)
    written = [str(path) for path in (out, *figures) if path is not None]
    console.print(f"Written: [bold]{', '.join(written)}[/]")
