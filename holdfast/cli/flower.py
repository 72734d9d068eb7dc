"""`holdfast flower ...`: the same experiment across real sites, on Flower."""

from __future__ import annotations

import logging
import re
import shlex
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

from holdfast.cli.screen import screen
from holdfast.core.errors import HoldfastError
from holdfast.core.logs import tell, wants_json

if TYPE_CHECKING:
    from holdfast.flower.deploy.local import Local
    from holdfast.runs.experiment import Experiment

flower_app = typer.Typer(
    name="flower",
    help="The same experiment across real sites, on Flower.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the experiment.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS and no keys: anybody may read and join.")]
AllowFailures = Annotated[
    bool, typer.Option("--allow-failures", help="Exit code 0 also where nobody trained or the model learnt nothing.")
]
WARNING = "[yellow]insecure[/] no TLS and no keys: whoever reaches the port can read what is sent, and join."


@flower_app.command()
def up(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The experiment.")],
    sites: Annotated[int | None, typer.Option(help="Number of sites \\[default: the experiment's clients].")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for everything \\[default: runs/NAME-flower-TIME].")] = None,
    insecure: Insecure = False,
    enough: Annotated[int, typer.Option(help="Close a round when so many have answered; 0: wait for all.")] = 0,
    half: Annotated[str, typer.Option(help="float16 on the wire: none, updates or both.")] = "none",
    allow_failures: AllowFailures = False,
    set: Set = None,
) -> None:
    """Try an experiment on Flower: SuperLink, SuperNodes and the run on this machine, taken down at the end."""
    from holdfast.cli.running import end_with
    from holdfast.flower.deploy.local import local
    from holdfast.flower.engine.moderator import check_enough, read_settings
    from holdfast.flower.engine.sites import usual_names
    from holdfast.runs.deal import counted
    from holdfast.runs.experiment import load

    console = screen(wrap=True)
    experiment = counted(load(file, [*(set or []), *([f"clients={sites}"] if sites is not None else [])]))
    check_enough(read_settings({"enough": enough, "half": half}), experiment.clients)
    out = (out or Path("runs") / f"{file.stem}-flower-{time.strftime('%Y%m%d-%H%M%S')}").resolve()
    app = app_in(out, experiment)
    if insecure:
        console.print(WARNING)
    end_on_term()
    names = usual_names(experiment.clients)
    tables, sums = tables_in(out, experiment, names), experiment.protect.name == "secure-sum"
    with local(out, names, secure=not insecure, tables=tables, signing=sums) as here:
        console.print(f"{experiment.clients} sites are up; what they log is in {here.home}")
        settings: dict[str, Any] = {"members": str(here.members)} if sums else {}
        here.begin(app, out=str(out / "run"), enough=enough, half=half, sites=",".join(names), **settings)
        failed = follow(console, here, experiment, out / "run")
    console.print("Everything is down again.")
    end_with(failed and not allow_failures)


@flower_app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the app.")],
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE.toml", help="The experiment.")] = None,
    set: Set = None,
) -> None:
    """Write a small Flower app that `flwr run` takes as it is."""
    from holdfast.flower.deploy.app import write_app
    from holdfast.flower.deploy.policy import fingerprint_of
    from holdfast.runs.deal import counted
    from holdfast.runs.experiment import from_changes, is_schema, load

    usual = ["clients=3", "rounds=12", "absence=feddig"]
    experiment = counted(load(file, set or []) if file else from_changes([*usual, *(set or [])]))
    write_app(folder, experiment)
    console = screen(wrap=True)
    console.print(f"The app is in {folder}; its experiment's fingerprint is {fingerprint_of(experiment)}")
    table = is_schema(experiment.task)  # then the app has no data in it
    if not table or experiment.data is not None:
        console.print(f"Try it out: holdfast flower up {shlex.quote(str(file if table else experiment_in(folder)))}")


@flower_app.command()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder for certificates and keys.")],
    sites: Annotated[int, typer.Option(help="Number of sites.")] = 3,
    name: Annotated[list[str] | None, typer.Option(help="A site's name, once each \\[default: site-0, ...].")] = None,
    host: Annotated[list[str] | None, typer.Option(help="A name or address of the moderator's machine.")] = None,
    days: Annotated[int, typer.Option(help="How long the certificates hold.")] = 365,
) -> None:
    """Make a certificate authority, the moderator's certificate, and a key for each site."""
    from holdfast.flower.deploy.keys import make_keys
    from holdfast.flower.engine.sites import usual_names

    names = name or usual_names(sites)
    make_keys(folder, names, host or (), days)
    console = screen(wrap=True)
    console.print(f"Give each site ca.crt and its own .key from {folder}; register its .pub under its name:")
    for site in names:
        console.print(f"  flwr supernode register {shlex.quote(f'{folder / site}.pub')} NAME --name {site}")


@flower_app.command()
def members(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The members' public keys, SITE.pub.")],
) -> None:
    """Show the fingerprints of the members' public keys, for people to compare by telephone."""
    from holdfast.digests.origin import fingerprint_of_key, known_keys

    console = screen(wrap=True)
    for site, key in known_keys(folder).items():
        console.print(f"{fingerprint_of_key(key)}  {site}", highlight=False)
    console.print("Each site compares the line of every other with what that site reads out of its own file.")


@flower_app.command()
def site(
    name: Annotated[str, typer.Argument(metavar="SITE", help="This site's name.")],
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the moderator's SuperLink listens.")],
    folder: Annotated[Path, typer.Option(help="Where this site keeps what it remembers.")],
    app: Annotated[Path | None, typer.Option(help="Run this app, and no code that the moderator sends.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The moderator's ca.crt.")] = None,
    key: Annotated[Path | None, typer.Option(help="This site's private key.")] = None,
    policy: Annotated[Path | None, typer.Option(help="What may be asked of this site.")] = None,
    signing_key: Annotated[Path | None, typer.Option(help="Signs its updates: see `holdfast digest key`.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the task's files.")] = None,
    table: Annotated[Path | None, typer.Option(help="This site's own table, where the task is a schema.")] = None,
    schema: Annotated[
        Path | None, typer.Option(help="This site's copy of the schema, to be sure it is the same.")
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            "--images", "--series", "--text", help="This site's own records, where the task is a description."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where it computes: cpu, cuda:1, ... [the experiment's]")] = None,
    insecure: Insecure = False,
) -> None:
    """Run a site until Ctrl-C: its SuperNode, and the process that works for it."""
    from holdfast.digests.origin import load_key
    from holdfast.flower.deploy.joining import check_address
    from holdfast.flower.deploy.local import Local
    from holdfast.flower.deploy.policy import carry_privacy, draw_token, read_site_policy
    from holdfast.flower.engine.sites import check_names
    from holdfast.learning.device import choose_device

    check_names([name])
    check_address(superlink)
    own = {"policy": policy, "data": data, "table": table, "schema": schema, "records": records}
    given = {word: path for word, path in {**own, "signing-key": signing_key}.items() if path is not None}
    for path in (ca, key, app, *given.values()):
        if path is not None and not path.exists():
            raise HoldfastError(f"{path} does not exist.")
    check_keys(ca, key, insecure)
    if signing_key is not None:
        load_key(signing_key)
    if policy is not None:
        carry_privacy(read_site_policy(policy), folder / "sites" / name)
    if table is not None and schema is not None:
        refuse_misfit(schema, table)
    config = {word: str(path.resolve()) for word, path in given.items()}
    draw_token(folder / "sites" / name)
    if device is not None:
        choose_device(device)
        config["device"] = device
    if insecure:
        screen(wrap=True).print(WARNING)
    end_on_term()
    here = Local(folder.resolve(), secure=not insecure)
    try:
        here.start_node(name, superlink, ca, key, config, app)
        tell_news(here, name, superlink)
    finally:
        here.close()


def check_keys(ca: Path | None, key: Path | None, insecure: bool) -> None:
    """Refuse a site without its key and the moderator's certificate, unless it insists, or with unfit ones."""
    from holdfast.flower.deploy.joining import check_certificate, check_key

    if ca is not None and key is not None:
        check_certificate(ca)
        check_key(key)
    elif not insecure:
        raise HoldfastError("A site needs --ca and --key; or say --insecure, and anybody may read and join.")


def tell_news(here: Local, name: str, superlink: str) -> NoReturn:
    """Say how a site fares for as long as its processes run; that they end by themselves is an error."""
    from holdfast.flower.deploy.joining import News

    console, news = screen(wrap=True), News(here.log(name), name, superlink)
    console.print(f"{name} goes to the SuperLink at {superlink}; it logs to {here.log(name)}. Ctrl-C ends it.")
    while all(process.poll() is None for process in here.processes.values()):
        for sentence in news.read():
            if wants_json():
                tell(logging.getLogger("holdfast"), sentence, event="site", site=name)
            else:
                console.print(sentence, markup=False)
        time.sleep(0.5)
    raise HoldfastError(f"{name} ended by itself: {last_line(here.log(name))}")


def refuse_misfit(schema: Path, table: Path) -> None:
    """Refuse a table that does not follow the site's schema, before the site joins."""
    from holdfast.data.tables.schema import read_schema
    from holdfast.data.tables.source import own_samples

    own_samples(read_schema(schema), table)


@flower_app.command()
def fingerprint(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The experiment.")], set: Set = None
) -> None:
    """Print an experiment's fingerprint, for the policy files of sites."""
    from holdfast.flower.deploy.policy import fingerprint_of
    from holdfast.runs.experiment import load

    screen(wrap=True).print(fingerprint_of(load(file, set or [])))


def tables_in(out: Path, experiment: Experiment, names: list[str]) -> dict[str, Path] | None:
    """Each site's own table, where the experiment has a schema: its file, or its part of the one file, written here."""
    from holdfast.data.tables.schema import read_schema
    from holdfast.data.tables.source import site_tables
    from holdfast.runs.experiment import is_schema

    if not is_schema(experiment.task):
        return None
    if experiment.data is None:
        raise HoldfastError("data: say where the tables are; to try an experiment on one machine they must be here.")
    found = site_tables(read_schema(Path(experiment.task)), Path(experiment.data), out / "tables")
    return {name: found[site] for name, site in zip(names, experiment.names or (), strict=True)}


def end_on_term() -> None:
    """Let SIGTERM end a command as Ctrl-C does, so that it takes down what it started."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)


def app_in(out: Path, experiment: Experiment) -> Path:
    """The app of this try: written, or there from an earlier one of the same experiment."""
    from holdfast.flower.deploy.app import write_app
    from holdfast.flower.deploy.policy import fingerprint_of
    from holdfast.runs.experiment import load

    app = out / "app"
    if not app.exists():
        return write_app(app, experiment)
    there = experiment_in(app)
    if not there.exists() or fingerprint_of(load(there)) != fingerprint_of(experiment):
        raise HoldfastError(f"{out} is of another experiment; name a new folder with --out.")
    return app


def experiment_in(app: Path) -> Path:
    """The experiment's file in an app that was written for it."""
    return next(iter(app.glob("*/experiment.toml")), app / "experiment.toml")


def follow(console: Console, here: Local, experiment: Experiment, folder: Path) -> bool:
    """Show each round as it is written down, until the run ends, and say what it came to; true if it failed."""
    from holdfast.cli.running import Live, conclude
    from holdfast.runs.history import History
    from holdfast.runs.store import Run

    shown, start = 0, time.perf_counter()
    with Live(console, experiment.rounds) as live:
        live.names = experiment.names
        running = True
        while running:
            running = here.goes_on(folder)
            records = Run.open(folder).records() if (folder / "rounds.jsonl").exists() else []
            for record in records[shown:]:
                live.round(experiment.method, record)
            shown = max(shown, len(records))
            time.sleep(0.5 if running else 0)
    if not (folder / "model.safetensors").exists():
        raise HoldfastError(f"The run did not finish: {last_line(here.log('moderator'))}")
    history = History(experiment, Run.open(folder).records())
    conclude(console, history, time.perf_counter() - start, folder)
    return bool(history.failures)


def last_line(log: Path) -> str:
    """The last exception in a log, else its last line that says something went wrong, else its last line."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    raised = [i for i, line in enumerate(lines) if line.startswith("Traceback")]
    ends = [line for line in lines[raised[-1] + 1 :] if not line.startswith(" ")] if raised else []
    if ends:
        return re.sub(r"^holdfast\.[\w.]+: ", "", ends[0])[:500]
    wrong = [line for line in lines if "Error" in line]
    return (wrong or lines or ["it logged nothing"])[-1].strip()[:500]
