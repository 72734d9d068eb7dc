"""The command line. Torch is imported by the commands that need it, not for --help."""

from __future__ import annotations

import logging
import os
import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from holdfast import __version__
from holdfast.cli import forgetting, reporting
from holdfast.cli.digesting import digest_app
from holdfast.cli.flower import AllowFailures, flower_app
from holdfast.cli.privacy import privacy_app
from holdfast.cli.screen import screen
from holdfast.cli.site import site_app
from holdfast.cli.tables import data_app
from holdfast.core.codes import code_of_error
from holdfast.core.errors import HoldfastError, missing_package
from holdfast.core.logs import JSON, PLAIN, WISH, JsonLines, wants_json
from holdfast.engines.forking import begin_ahead

app = typer.Typer(
    name="holdfast",
    help="Federated learning that holds fast when clients go missing or go bad.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the experiment.")]
File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The experiment.")]
RUNS, LOOK, USE = "Run", "Look", "Use"


class LogKind(StrEnum):
    plain = PLAIN
    json = JSON


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and end.", callback=show_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and what workers log.")] = False,
    log: Annotated[
        LogKind,
        typer.Option(envvar=WISH, show_envvar=False, show_default=False, help="What run, resume and flower site tell."),
    ] = LogKind.plain,
) -> None:
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, format="%(message)s", stream=sys.stderr)
    os.environ[WISH] = log.value  # also for the processes that a command starts
    if wants_json():
        logging.getLogger("holdfast").setLevel(logging.DEBUG if debug else logging.INFO)
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines())
    for noisy in ("matplotlib", "PIL"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    if debug:
        os.environ["HOLDFAST_DEBUG"] = "1"


@app.command(rich_help_panel=RUNS)
def run(
    file: File,
    set: Set = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run \\[default: runs/NAME-TIME].")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it live in the browser.")] = False,
    allow_failures: AllowFailures = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout, the rest to stderr.")] = False,
) -> None:
    """Run an experiment and leave a folder with all that it wrote."""
    begin_ahead(file, set or [])
    from holdfast.cli.running import run_file

    run_file(file, set or [], out, json, watch, allow_failures)


@app.command(rich_help_panel=RUNS)
def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run that was stopped.")],
    allow_failures: AllowFailures = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout, the rest to stderr.")] = False,
) -> None:
    """Go on with a run where it stopped; the result is the same to the bit."""
    begin_ahead(folder / "experiment.json")
    from holdfast.cli.running import resume_folder

    resume_folder(folder, json, allow_failures)


@app.command(rich_help_panel=RUNS)
def compare(
    method: Annotated[
        str | None,
        typer.Option(
            help="algorithm\\[+absence]\\[+trust]\\[+protect], comma-separated \\[default: the file's, else fedavg]."
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(help="Who is away when, comma-separated \\[default: the file's, else none,sequential]."),
    ] = None,
    attack: Annotated[
        str | None, typer.Option(help="What hostile clients do, comma-separated \\[default: the file's].")
    ] = None,
    attackers: Annotated[int | None, typer.Option(help="How many are hostile \\[default: the file's].")] = None,
    seed: Annotated[str | None, typer.Option(help="Seeds, comma-separated \\[default: the file's, else 0].")] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Take all other keys from here, but algorithm, absence and trust."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="See `holdfast tasks` \\[default: fashion-mini].")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the task's files.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients \\[default: 4].")] = None,
    partition: Annotated[str | None, typer.Option(help="How data are dealt out \\[default: dirichlet:0.1].")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds \\[default: 24].")] = None,
    set: Set = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs \\[default: runs/compare-TIME].")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout, the rest to stderr.")] = False,
) -> None:
    """Compare methods under scenarios and attacks: mean and deviation over seeds, a table, curves."""
    begin_ahead(file, set or [])
    from holdfast.cli.comparing import Conditions, compare_methods

    given = {"task": task, "data": data, "clients": clients, "partition": partition, "rounds": rounds}
    changes = [f"{key}={value}" for key, value in given.items() if value is not None]
    changes += set or []
    if scenario is None and file is None and not any(change.startswith("scenario") for change in changes):
        scenario = "none,sequential"
    compare_methods(method, Conditions(scenario, attack, attackers, seed), file, changes, out, json)


@app.command(name="attack-search", rich_help_panel=RUNS)
def attack_search(
    file: File,
    attackers: Annotated[int | None, typer.Option(help="How many are hostile \\[default: the file's].")] = None,
    budget: Annotated[int, typer.Option(min=1, help="Attacks to try; each is a run for each seed.")] = 40,
    seeds: Annotated[str | None, typer.Option(help="Seeds, comma-separated \\[default: the file's].")] = None,
    goal: Annotated[str, typer.Option(help="What to harm: the model, or one class.")] = "model",
    draw: Annotated[int, typer.Option(help="The seed of the search itself.")] = 0,
    set: Set = None,
    out: Annotated[Path, typer.Option(help="Folder of the search; one that is there is gone on with.")] = Path(
        "runs/attack-search"
    ),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout, the rest to stderr.")] = False,
) -> None:
    """Search for the attack that harms an experiment most, and so test its trust rule."""
    from holdfast.cli.searching import search_attacks

    search_attacks(file, set or [], attackers, budget, seeds, goal, draw, out, json)


@app.command(rich_help_panel=LOOK)
def check(file: File, set: Set = None) -> None:
    """Check an experiment without running it: what would be learnt, by whom, and who is away when."""
    from holdfast.cli.checking import check_file

    check_file(file, set or [])


@app.command(rich_help_panel=LOOK)
def partition(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE.toml]", help="The experiment.")] = None,
    set: Set = None,
    out: Annotated[Path | None, typer.Option(help="Save the picture (.png, .pdf or .svg) as well.")] = None,
) -> None:
    """Show how the data are dealt out: clients x classes."""
    from holdfast.cli.checking import show_partition

    show_partition(file, set or [], out)


@app.command(rich_help_panel=LOOK)
def tasks() -> None:
    """List the tasks: what can be learnt."""
    from holdfast.cli.checking import list_tasks

    list_tasks()


@app.command(rich_help_panel=LOOK)
def keys() -> None:
    """List the keys of an experiment: type, usual value, meaning."""
    from holdfast.cli.reference import show_keys

    show_keys()


@app.command(rich_help_panel=LOOK)
def methods(
    kind: Annotated[str | None, typer.Argument(help="Only one kind: algorithm, absence, trust, attack, ...")] = None,
) -> None:
    """List algorithms, absences, trusts, scenarios, attacks and the other choices, with their options."""
    from holdfast.cli.checking import list_methods

    list_methods(kind)


app.command(rich_help_panel=RUNS)(forgetting.forget)


@app.command(rich_help_panel=RUNS)
def reproduce(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="feddig-table1, feddig-fig8, fedtest-fig4, tournament, ...")
    ],
    scale: Annotated[
        str, typer.Option(help="small: minutes; paper: the paper's settings and data; full: of the tournament.")
    ] = "small",
    data: Annotated[Path | None, typer.Option(help="Folder with data sets that do not come with Holdfast.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, comma-separated.")] = "0,1,2",
    only: Annotated[
        list[str] | None, typer.Option(metavar="PART", help="Only this row or column (may be repeated).")
    ] = None,
    set: Set = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs \\[default: runs/NAME-SCALE-TIME].")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout, the rest to stderr.")] = False,
) -> None:
    """Reproduce a table or figure of the papers, ours beside theirs, or play the tournament of all methods."""
    if name.startswith("fedtest"):
        from holdfast.cli.reproducing_fedtest import reproduce_fedtest

        reproduce_fedtest(name, scale, data, out, seeds, set or [], json, only or [])
    elif name == "tournament":
        from holdfast.cli.reproducing_tournament import play_tournament

        play_tournament(scale, data, out, seeds, set or [], json, only or [])
    else:
        from holdfast.cli.reproducing import reproduce_paper

        reproduce_paper(name, scale, data, out, seeds, set or [], json, only or [])


app.command(rich_help_panel=LOOK)(reporting.report)
app.command(rich_help_panel=LOOK)(reporting.watch)
app.command(rich_help_panel=USE)(reporting.predict)
app.command(rich_help_panel=USE)(reporting.export)
app.add_typer(digest_app, name="digest", rich_help_panel=USE)
app.add_typer(privacy_app, name="privacy", rich_help_panel=USE)
app.add_typer(data_app, name="data", rich_help_panel=LOOK)
app.add_typer(flower_app, name="flower", rich_help_panel=RUNS)
app.add_typer(site_app, name="site", rich_help_panel=RUNS)


@app.command(rich_help_panel=LOOK)
def explain(code: Annotated[str, typer.Argument(metavar="CODE", help="As an error shows it: HF1203.")]) -> None:
    """Tell what an error's code means: its sentence, cause and cure."""
    from holdfast.cli.codes import explain as lines_of

    if not re.fullmatch(r"HF\d{4}", code.upper()):
        raise HoldfastError(f"{code!r} is no code of an error; they look like HF1203.")
    for line in lines_of(code.upper()):
        typer.echo(line)


def main() -> None:
    """The entry point: an error that is a sentence is shown as one."""
    sys.path.append("")  # the current folder, for users' own parts; last: no file there may hide a module of that name
    try:
        app()
    except (HoldfastError, ModuleNotFoundError) as found:
        error = missing_package(found) if isinstance(found, ModuleNotFoundError) else found
        if error is None or os.environ.get("HOLDFAST_DEBUG"):
            raise
        code = code_of_error(error)
        if wants_json():
            logging.getLogger("holdfast").error("%s", error, extra={"fields": {"event": "error", "code": code}})
            sys.exit(1)
        sentence = Text.assemble(
            ("Error:", "bold red"), f" {error} ", (f"({code})", "dim")
        )  # no markup: strangers' words
        screen(stderr=True, wrap=True).print(sentence)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
