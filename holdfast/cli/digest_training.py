"""`holdfast digest train`: a model from digests alone."""

from __future__ import annotations

import json as json_text
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from holdfast.by_post import Outcome, model_bytes, train
from holdfast.cli.screen import screen
from holdfast.core.errors import HoldfastError, plain
from holdfast.core.files import Store
from holdfast.digests.origin import known_keys
from holdfast.play import one_thread
from holdfast.report.post_page import privacy_page, report_json, report_page, report_sections


def train_files(
    files: Sequence[Path], out: Path, head: str, keys: Path | None, schema: Path | None, as_json: bool
) -> None:
    """Train, write model and pages, and show the report."""
    if out.exists():
        raise HoldfastError(f"{out} exists; remove it, or name another folder with --out.")
    with one_thread():
        outcome = train(files, head, None if keys is None else known_keys(keys), schema=schema)
    facts = report_json(outcome)
    store = Store(out)
    store.write("report.json", json_text.dumps(facts, indent=1, allow_nan=False).encode())
    store.write("report.html", report_page(outcome).encode())
    store.write("privacy.html", privacy_page(outcome).encode())
    store.write("model.safetensors", model_bytes(outcome))
    if as_json:
        typer.echo(json_text.dumps({**facts, "out": str(out)}, allow_nan=False))
        return
    show(outcome)
    screen(wrap=True).print(f"Written: [bold]{out}[/] (model, report.html, privacy.html)")


def show(outcome: Outcome) -> None:
    console = screen()
    for heading, rows, sentence in report_sections(outcome):
        console.print(f"[bold]{heading}[/]")
        wide = len(rows[0]) > 2
        grid = Table(*map(escape, rows[0])) if wide else Table.grid(padding=(0, 2))
        for row in rows[1:] if wide else rows:
            grid.add_row(*(escape(plain(cell, 200)) for cell in row))
        console.print(grid)
        if sentence:
            console.print(sentence, style="dim", soft_wrap=True)
        console.print()
