"""`holdfast privacy report` and `plan`: what leaves the house, what that promises, and what a promise costs."""

from __future__ import annotations

import json as json_text
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from holdfast.cli.screen import screen
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
        Path | None, typer.Option(metavar="PAGE.html", help="Save the page, with the owner's pictures.")
    ] = None,
    client: Annotated[int, typer.Option(help="Whose records are attacked, where they are on this machine.")] = 0,
    trials: Annotated[int, typer.Option(help="Canaries of an audit, each tried both ways.", min=20)] = 500,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of a digest's file: the policy with its ledger \\[default: the nearest]."),
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
    from holdfast.cli.running import FAILED
    from holdfast.core.files import write_file
    from holdfast.play import one_thread
    from holdfast.privacy.noise import system
    from holdfast.report.privacy_page import as_html, as_text

    if out is not None and not out.parent.is_dir():
        raise HoldfastError(f"{out.parent} does not exist; make that folder first, or name another file.")
    with one_thread():
        findings = examine(subject_of(subject, client, policy, set or []), system(), client, trials)
    if out is not None:
        write_file(out, as_html(findings).encode())
    if json:
        typer.echo(json_text.dumps(as_json(findings), allow_nan=False))
    else:
        typer.echo(as_text(findings), nl=False)
        if out is not None:
            screen(wrap=True).print(f"Written: [bold]{escape(str(out))}[/]")
    if findings.verdict != "PASS":
        raise typer.Exit(FAILED)


@privacy_app.command("plan")
def plan_command(
    epsilon: Annotated[float, typer.Option(help="The target: true epsilon over all releases.")] = 3.0,
    delta: Annotated[float, typer.Option(help="The target's delta.")] = 1e-5,
    releases: Annotated[int, typer.Option(help="How often each client releases a digest.")] = 1,
    file: Annotated[Path | None, typer.Option(metavar="FILE.toml", help="The experiment to try settings on.")] = None,
    set: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of it.")] = None,
    curve: Annotated[str, typer.Option(help="True epsilons of the curve, comma-separated.")] = "0.5,1,3,10",
    try_out: Annotated[bool, typer.Option("--try/--no-try", help="Train on the digests to see the accuracy.")] = True,
    json: Json = False,
) -> None:
    """Which settings meet a target of privacy, and what they cost: the curve of accuracy against true epsilon."""
    from holdfast.audit.planning import Workshop, settings_for, too_small
    from holdfast.play import one_thread
    from holdfast.runs.build import make_plan
    from holdfast.runs.experiment import from_changes, load

    changes = set or []
    experiment = load(file, changes) if file else from_changes(["absence=feddig", "lr=0.05", *changes])
    try:
        epsilons = [float(value) for value in curve.split(",")]
    except ValueError:
        raise HoldfastError(f"--curve {curve!r}: expected numbers such as 1,3,10.") from None
    if experiment.protect.name == "dp-sgd":
        show_splits(experiment, epsilon, delta, json)
        return
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
        if try_out:
            workshop = Workshop(plan)
            settings = sorted(map(workshop.trial, settings), key=lambda s: -(s.accuracy or 0.0))
            line = workshop.curve(epsilons, delta)
    if json:
        found = {"settings": [row(s) for s in settings], "curve": [row(s) for s in line], "warning": warning}
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


def show_splits(experiment: Experiment, epsilon: float, delta: float, json: bool) -> None:
    """How to divide the budget between digests and protected updates, tried on the experiment's data."""
    from dataclasses import asdict

    from holdfast.audit.budget import try_splits
    from holdfast.play import one_thread

    with one_thread():
        splits = try_splits(experiment, epsilon, delta)
    if json:
        typer.echo(json_text.dumps({"splits": [asdict(split) for split in splits]}))
        return
    view = Table(title=f"Epsilon {epsilon:g} at delta {delta:g}, divided", title_justify="left")
    for name in ("setting", "for the digest", "both together", "accuracy"):
        view.add_column(name)
    for split in splits:
        view.add_row(split.words, f"{split.share:.0%}", f"{split.total:.4g}", f"{split.accuracy:.1%}")
    console = screen()
    console.print(view)
    console.print(
        "The experiment was run on its data, on two seeds for each row; only public data may be looked at so."
    )


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
