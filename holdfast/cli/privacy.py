"""`holdfast privacy report` and `plan`: what leaves the house, what that promises, and what a promise costs."""

from __future__ import annotations

import json as json_text
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from holdfast.cli.screen import FAILED, screen
from holdfast.core.errors import HoldfastError

if TYPE_CHECKING:  # torch is imported by what needs it, not for --help
    from holdfast.audit.planning import Setting
    from holdfast.runs.experiment import Experiment

privacy_app = typer.Typer(
    help="What leaves a client, what is promised about it, and what attacks make of it.", no_args_is_help=True
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")]


@privacy_app.command("report")
def report_command(
    subject: Annotated[Path, typer.Argument(metavar="DIGEST|RUN|EXPERIMENT", help="What the report is about.")],
    json: Json = False,
    out: Annotated[
        list[Path] | None,
        typer.Option(metavar="PAGE.html|PAGE.pdf", help="Save the page, with the owner's pictures; may be repeated."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="SITE.key", help="Sign each page with the site's key, in PAGE.sig beside it.")
    ] = None,
    client: Annotated[int, typer.Option(help="Whose records are attacked, where they are on this machine.")] = 0,
    trials: Annotated[int, typer.Option(help="Canaries of an audit, each tried both ways.", min=20)] = 500,
    site: Annotated[
        str | None, typer.Option(help="At a real site: its name; the report is of its own records, policy and ledger.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Of a site: its folder, with the ledger.")] = None,
    table: Annotated[Path | None, typer.Option(help="Of a site: its own table, where the task is a schema.")] = None,
    records: Annotated[
        Path | None, typer.Option("--images", "--series", "--text", help="Of a site: its own records.")
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Of a site: its policy. Of a digest's file: that with its ledger \\[default: the nearest].",
        ),
    ] = None,
    set: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change an experiment's key.")
    ] = None,
) -> None:
    """Tell what leaves a client truly promises, and attack it. Nothing is sent, and nothing is entered in a ledger.

    The exit code is 0 for PASS alone.
    """
    from holdfast.audit.findings import as_json, examine
    from holdfast.audit.target import subject_of
    from holdfast.cli.site_page import page_files, subject_at_site
    from holdfast.play import one_thread
    from holdfast.privacy.noise import system
    from holdfast.report.privacy_page import as_text

    pages = page_files(out or [], key)
    if site is None and (folder or table or records):
        raise HoldfastError("--folder, --table and --images are of a site; name it, as in --site site-0.")
    with one_thread():
        if site is None:
            about = subject_of(subject, client, policy, set or [])
        else:
            about, client = subject_at_site(subject, site, folder, table, records, policy, set or [])
        findings = examine(about, system(), client, trials)
    written = pages(findings)
    if json:
        typer.echo(json_text.dumps(as_json(findings), allow_nan=False))
    else:
        typer.echo(as_text(findings), nl=False)
        for path in written:
            screen(wrap=True).print(f"Written: [bold]{escape(str(path))}[/]")
    if findings.verdict != "PASS":
        raise typer.Exit(FAILED)


@privacy_app.command("verify")
def verify_command(
    page: Annotated[Path, typer.Argument(metavar="PAGE", help="A page that a site signed, or a receipt of `forget`.")],
    key: Annotated[Path, typer.Option(metavar="SITE.pub", help="The site's public key, as you got it from the site.")],
) -> None:
    """Say whether a page is, to the last byte, what the owner of this key signed; exit code 3 if not."""
    from holdfast.core.signatures import fault_of, fingerprint, public_key

    known = public_key(key)
    fault = fault_of(page, known)
    console = screen(wrap=True)
    if fault:
        console.print(f"[bold red]NOT VERIFIED[/] {escape(str(page))}: {escape(fault)}. Do not rely on it.")
        raise typer.Exit(FAILED)
    console.print(
        f"[bold green]VERIFIED[/] {escape(str(page))} is what {escape(key.stem)} signed ({fingerprint(known)})."
    )


@privacy_app.command("plan")
def plan_command(
    epsilon: Annotated[float, typer.Option(help="The target: true epsilon over all releases.")] = 3.0,
    delta: Annotated[float, typer.Option(help="The target's delta.")] = 1e-5,
    releases: Annotated[int, typer.Option(help="How often each client releases a digest.")] = 1,
    file: Annotated[Path | None, typer.Option(metavar="FILE.toml", help="The experiment to try settings on.")] = None,
    set: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of it.")] = None,
    curve: Annotated[str, typer.Option(help="True epsilons of the curve, comma-separated.")] = "0.5,1,3,10",
    try_out: Annotated[bool, typer.Option("--try/--no-try", help="Train on the digests to see the accuracy.")] = True,
    records: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...", help="Plan on so many made-up records of each member, drawn by the task's schema alone."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Which settings meet a target of privacy, and what they cost: the curve of accuracy against true epsilon."""
    import tempfile

    from holdfast.cli.stand_in import on_stand_in
    from holdfast.runs.experiment import from_changes, load

    changes = set or []
    experiment = load(file, changes) if file else from_changes(["absence=feddig", "lr=0.05", *changes])
    try:
        epsilons = [float(value) for value in curve.split(",")]
    except ValueError:
        raise HoldfastError(f"--curve {curve!r}: expected numbers such as 1,3,10.") from None
    with tempfile.TemporaryDirectory() as folder:
        experiment, made_up = on_stand_in(experiment, records, Path(folder))
        if experiment.protect.name == "dp-sgd":
            show_splits(experiment, epsilon, delta, json, made_up)
        else:
            show_settings(experiment, epsilon, delta, releases, epsilons if try_out else [], json, made_up)


def show_settings(
    experiment: Experiment,
    epsilon: float,
    delta: float,
    releases: int,
    epsilons: Sequence[float],
    json: bool,
    made_up: str,
) -> None:
    """Settings of digests that meet a target; with epsilons of a curve, tried out."""
    from holdfast.audit.planning import Workshop, settings_for, too_small
    from holdfast.play import one_thread
    from holdfast.runs.build import make_plan

    with one_thread():
        plan = make_plan(experiment)
        if not plan.task.kind.has_classes:
            raise HoldfastError(
                f"privacy plan: it tries digests of classes, and this task is of kind {plan.task.kind.name!r}, of "
                "which noisy sums leave: set absence.mode = 'moments' and its epsilon, which is what they cost."
            )
        about = plan.method.bench.about
        settings = settings_for(epsilon, delta, releases, about.feature_shape, about.classes)
        warning = too_small(plan, settings)
        line: list[Setting] = []
        if epsilons:
            workshop = Workshop(plan)
            settings = sorted(map(workshop.trial, settings), key=lambda s: -(s.accuracy or 0.0))
            line = workshop.curve(epsilons, delta)
    if json:
        found = {"settings": [row(s) for s in settings], "curve": [row(s) for s in line], "warning": warning}
        found |= {"made_up": made_up} if made_up else {}
        typer.echo(json_text.dumps(found))
        return
    console = screen()
    total = f"epsilon {epsilon:g} at delta {delta:g} over {releases} release{'s' if releases > 1 else ''} a client"
    console.print(table(f"Settings that meet {total}", settings))
    if warning:
        console.print(f"[yellow]![/] {escape(warning)}")
    if line:
        console.print(table("What privacy costs: accuracy against true epsilon", line))
        console.print("Accuracy of a model trained on the digests alone; with some clients present a run does better.")
    if made_up:
        console.print(escape(made_up))


def show_splits(experiment: Experiment, epsilon: float, delta: float, json: bool, made_up: str) -> None:
    """How to divide the budget between digests and protected updates, tried on the experiment's data."""
    from dataclasses import asdict

    from holdfast.audit.budget import try_splits
    from holdfast.audit.planning import settings_for, too_small
    from holdfast.play import one_thread
    from holdfast.runs.build import make_plan

    with one_thread():
        splits = try_splits(experiment, epsilon, delta)
        plan = make_plan(experiment)
        about = plan.method.bench.about
        best = settings_for(splits[0].digest, delta, 1, about.feature_shape, about.classes)
        warning = too_small(plan, best)
    if json:
        found = {"splits": [asdict(split) for split in splits], "warning": warning}
        typer.echo(json_text.dumps({**found, "made_up": made_up} if made_up else found))
        return
    view = Table(title=f"Epsilon {epsilon:g} at delta {delta:g}, divided", title_justify="left")
    for name in ("setting", "for the digest", "both together", "accuracy"):
        view.add_column(name)
    for split in splits:
        view.add_row(split.words, f"{split.share:.0%}", f"{split.total:.4g}", f"{split.accuracy:.1%}")
    console = screen()
    console.print(view)
    if warning:
        console.print(f"[yellow]![/] {escape(warning)}")
    public = "The experiment was run on its data, on two seeds for each row; only public data may be looked at so."
    console.print(escape(made_up or public))


def row(setting: Setting) -> dict[str, Any]:
    """A setting for a machine."""
    import math

    claim = setting.claim
    values = {
        "absence": setting.words,
        "mode": claim.mode,
        "adjacency": claim.adjacency,
        "epsilon_release": claim.epsilon_total,
        "epsilon_total": setting.epsilon_total,
        "delta": claim.delta,
        "noise": claim.noise,
        "accuracy": setting.accuracy,
        "bytes": setting.size,
    }
    return {name: "infinite" if value == math.inf else value for name, value in values.items()}


def table(title: str, settings: Sequence[Setting]) -> Table:
    """Settings by mode, and what each gives; the adjacency, which is the mode's, stands below."""
    view = Table(title=title, title_justify="left", caption_justify="left")
    for name in ("mode", "options"):
        view.add_column(name)
    for name in ("true epsilon", "accuracy", "bytes a client"):
        view.add_column(name, justify="right")
    for setting in settings:
        accuracy = "-" if setting.accuracy is None else f"{setting.accuracy:.1%}"
        bytes_ = "-" if setting.size is None else f"{setting.size:,}"
        epsilon = f"{setting.epsilon_total:.4g}".replace("inf", "infinite")
        view.add_row(setting.options.mode, setting.choices, epsilon, accuracy, bytes_)
    modes: dict[str, dict[str, None]] = {}  # by adjacency, each once
    for setting in settings:
        modes.setdefault(setting.claim.adjacency, {})[setting.options.mode] = None
    view.caption = "\n".join(f"Adjacency of {', '.join(those)}: {words}." for words, those in modes.items())
    return view
