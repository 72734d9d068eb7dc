"""`holdfast reproduce tournament`: every method in every scenario, with ranks; a killed one goes on with --out."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast.cli.reproducing import Wish, experiments_of, play_all, read_seeds, with_data
from holdfast.cli.running import print_json
from holdfast.cli.screen import screen
from holdfast.core.files import make_folder, write_file
from holdfast.reproduce.results import cell_to_json, cells_apart
from holdfast.reproduce.tournament import (
    ENSEMBLE,
    as_markdown,
    as_page,
    cells_of,
    findings,
    ranks_of,
    sections,
    tournament,
)


def play_tournament(
    scale: str, data: Path | None, out: Path | None, seeds: str, changes: list[str], as_json: bool, parts: Sequence[str]
) -> None:
    """Play the tournament, print its ranks, save tables and page."""
    wish = Wish("tournament", scale, data, read_seeds(seeds), tuple(changes))
    console = screen(stderr=as_json, wrap=True)
    wanted, left_out = with_data(tournament(scale, parts), wish)
    places = experiments_of(wanted, wish)
    out = out or Path("runs") / f"tournament-{scale}-{time.strftime('%Y%m%d-%H%M%S')}"
    make_folder(out)
    rounds = sorted({experiment.rounds for made in places.values() for experiment in made})
    what = (
        f"{len(wanted.rows)} methods, {len(wanted.columns)} conditions, seeds {', '.join(map(str, wish.seeds))}; "
        f"{'/'.join(map(str, rounds))} rounds; leading metric of the last round in %, mean and deviation over seeds."
    )
    console.print(f"[bold]{wanted.title}[/]\n{what}")
    try:
        played = play_all(places, out, console)
    except KeyboardInterrupt:
        console.print(f"Interrupted. The same command with --out {out} goes on where it stopped.")
        sys.exit(130)
    cells = cells_of(played)
    apart = [cell for cell in cells_apart(played) if cell.row != ENSEMBLE]  # clients test the global model only
    tables, said = sections(cells, apart), [*findings(cells, played), *left_out]
    found = {
        "title": wanted.title,
        "what": what,
        "seeds": list(wish.seeds),
        "ranks": ranks_of(cells),
        "cells": [cell_to_json(cell) for cell in cells],
        "of_those_away": [cell_to_json(cell) for cell in apart],
        "findings": said,
    }
    write_file(out / "results.json", json.dumps(found, indent=1, allow_nan=False).encode())
    write_file(out / "table.md", as_markdown(wanted.title, what, tables, said).encode())
    write_file(out / "page.html", as_page(wanted.title, what, tables, said).encode())
    if as_json:
        print_json({**found, "folder": str(out)})
        return
    for row, (mean, low, high) in ranks_of(cells).items():
        console.print(f"{mean:5.1f} ({low:.1f} to {high:.1f})  {row}")
    for line in said:
        console.print(f"- {line}")
    console.print(f"table.md, page.html, results.json and all runs are in [bold]{out}[/]")
