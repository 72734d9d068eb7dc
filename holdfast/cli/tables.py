"""`holdfast data schema` and `data check`: what members agree on about their tables, and whether a file follows it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.cli.screen import screen
from holdfast.core.errors import HoldfastError
from holdfast.core.names import plural

if TYPE_CHECKING:
    from holdfast.data.tables.check import Report
    from holdfast.data.tables.schema import Schema

data_app = typer.Typer(help="Tables: draft a schema, hold a file against it.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(metavar="FILE", help="A table: CSV or Parquet.")]

STUDY = """# Four hospitals learn together who is ill; they leave, one after the other, and their digests stand in.
task = "schema.toml"          # what the columns are: public, the same for all
data = "heart.csv"            # or a folder with one file for each site
scenario = "sequential"
absence = "feddig"
rounds = 20
"""


@data_app.command("schema")
def schema_command(
    file: File,
    target: Annotated[str | None, typer.Option(help="The column to be predicted \\[default: the last].")] = None,
    site: Annotated[str | None, typer.Option(help="The column that says whose record it is.")] = None,
    patient: Annotated[str | None, typer.Option(help="The column that says who it is about.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="SCHEMA.toml", help="Write it there \\[default: print].")] = None,
) -> None:
    """Draft a schema from a file; what was taken from the data, and must be agreed on, is marked."""
    from holdfast.core.files import write_file
    from holdfast.data.tables.draft import draft_schema

    text = draft_schema(file, target, {"site": site, "patient": patient})
    if out is None:
        typer.echo(text, nl=False)
        return
    if out.exists():
        raise HoldfastError(f"{out} is there already; name another file with --out.")
    write_file(out, text.encode())
    marks = text.count("agree on this") - 1
    screen(wrap=True).print(
        f"Wrote {escape(str(out))}. {marks} lines are marked 'agree on this': read them before you share the file."
    )


@data_app.command("check")
def check_command(
    file: File,
    schema: Annotated[Path, typer.Option(metavar="SCHEMA.toml", help="What the members agreed on.")],
    site: Annotated[str | None, typer.Option(help="Whose file it is, where no column says so.")] = None,
) -> None:
    """Say what of a file fits a schema, what looks wrong, and what would leave; exit code 1 if it does not fit."""
    from holdfast.data.tables.check import check_table
    from holdfast.data.tables.schema import read_schema

    agreed = read_schema(schema)
    report = check_table(agreed, file, site)
    show(screen(wrap=True), file, agreed, report)
    if not report.fits:
        raise typer.Exit(1)


@data_app.command("example")
def example_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
) -> None:
    """Write a table of four hospitals, its schema and an experiment, to start from."""
    from holdfast.core.files import make_folder, write_file
    from holdfast.data.named import HEART_FILE

    if folder.exists():
        raise HoldfastError(f"{folder} is there already; name a new folder.")
    make_folder(folder)
    write_file(folder / "heart.csv", HEART_FILE.read_bytes())
    write_file(folder / "schema.toml", HEART_FILE.with_suffix(".toml").read_bytes())
    write_file(folder / "LICENSE.txt", HEART_FILE.with_name("LICENSE-heart.txt").read_bytes())
    write_file(folder / "study.toml", STUDY.encode())
    screen(wrap=True).print(f"Try it: holdfast run {escape(str(folder / 'study.toml'))}")


def show(console: Console, file: Path, schema: Schema, report: Report) -> None:
    title = f"{file.name}: {plural(report.records, 'record')}; schema {schema.name}, version {schema.version}"
    view = Table(box=None, padding=(0, 2, 0, 0), title=escape(title), title_justify="left", title_style="bold")
    for heading in ("column", "agreed", "missing", ""):
        view.add_column(heading)
    for row in report.rows:
        mark = "[green]fits[/]" if row.fits else "[red]does not fit[/]"
        view.add_row(escape(row.column), escape(row.what), f"{row.missing:.0%}" if row.missing else "", mark)
    console.print(view)
    for problem in report.problems:
        console.print(f"[red]✗[/] {escape(problem)}")
    for warning in report.warnings:
        console.print(f"[yellow]![/] {escape(warning)}")
    console.print("\n[bold]What would leave the house[/] in a run, as what model, digest and metrics are made of:")
    console.print(f"  {escape(', '.join([*report.read, *schema.target.columns]))}; and how many records there are.")
    if report.kept:
        console.print(f"  Read, and kept here: {escape(', '.join(report.kept))}.")
    if report.ignored:
        console.print(f"  Never read: {escape(', '.join(report.ignored))}.")
    console.print("  Nothing leaves now. What a run sends, and what protects it: holdfast privacy report EXPERIMENT.")
    if report.fits:
        console.print("[green]This file fits.[/]")
    else:
        console.print("[red]This file does not fit.[/] Mend it, or agree on another schema with the other members.")
