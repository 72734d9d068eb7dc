"""`holdfast report`, `watch`, `export` and `predict`: what people look at, and what they take away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from holdfast.cli.screen import screen

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders of runs as `holdfast compare` leaves them.")
]

Modules = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where the model's own code lies, if it has some and you trust it.")
]


def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="The page \\[default: report.html in the first RUN].")] = None,
    png: Annotated[Path | None, typer.Option(help="Save a figure for papers as well.")] = None,
    pdf: Annotated[Path | None, typer.Option(help="The same as PDF.")] = None,
    svg: Annotated[Path | None, typer.Option(help="The same as SVG.")] = None,
) -> None:
    """Show what happened in runs: one HTML page that opens from disk, and figures for papers."""
    from holdfast.report import save_report

    console = screen(wrap=True)
    figures = [path for path in (png, pdf, svg) if path is not None]
    out = out or (None if figures else runs[0] / "report.html")
    for sentence in save_report(runs, out, figures):
        console.print(sentence, markup=False)
    written = [str(path) for path in (out, *figures) if path is not None]
    console.print(f"Written: [bold]{escape(', '.join(written))}[/]")


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run that is going on, or a folder of runs.")],
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0: a free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Watch a run in the browser while it goes on; ends when the run does."""
    from holdfast.core.errors import HoldfastError
    from holdfast.report.watch import Folder, serve, wait_until_finished
    from holdfast.runs.store import refuse_file

    console = screen(wrap=True)
    refuse_file(run)
    folder = Folder(run)
    if not folder.runs():
        raise HoldfastError(f"{run} holds no run yet; start one with `holdfast run FILE.toml --out {run}`.")
    if folder.finished():
        raise HoldfastError(f"{run} is finished; `holdfast report {run}` shows it.")
    with serve(run, browser, port) as address:
        console.print(f"Watching [bold]{escape(str(run))}[/] at {address} (Ctrl-C ends watching, not the run)")
        wait_until_finished(run)
    console.print(f"The run is finished; `holdfast report {run}` keeps the page.")


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run.")],
    safetensors: Annotated[Path | None, typer.Option(help="The final model, as one safetensors file.")] = None,
    onnx: Annotated[Path | None, typer.Option(help="The same with encoder and softmax, as ONNX.")] = None,
    tensorboard: Annotated[Path | None, typer.Option(metavar="DIR", help="Event files for TensorBoard.")] = None,
    mlflow: Annotated[str | None, typer.Option(metavar="URI", help="An MLflow store, as sqlite:///mlflow.db.")] = None,
    modules: Modules = None,
) -> None:
    """Take a run's final model, or its numbers, to other tools."""
    from holdfast.core.errors import HoldfastError
    from holdfast.report.logs import write_mlflow, write_tensorboard
    from holdfast.report.run_data import read_story
    from holdfast.runs.export import export_onnx, export_safetensors

    console = screen(wrap=True)
    if not any((safetensors, onnx, tensorboard, mlflow)):
        raise HoldfastError("Say what to export: --safetensors FILE, --onnx FILE, --tensorboard DIR or --mlflow URI.")
    story = read_story(run)
    if safetensors:
        export_safetensors(run, safetensors)
        console.print(f"Written: [bold]{escape(str(safetensors))}[/]")
    if onnx:
        export_onnx(run, onnx, modules)
        console.print(f"Written: [bold]{escape(str(onnx))}[/]")
    if tensorboard:
        write_tensorboard(story, tensorboard)
        console.print(
            f"Written: [bold]{escape(str(tensorboard))}[/]; look at it with tensorboard --logdir {tensorboard}"
        )
    if mlflow:
        console.print(f"MLflow run {write_mlflow(story, mlflow)} in the experiment holdfast at {mlflow}")


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A finished run, or its model.safetensors alone.")],
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="Samples x, and y if known, in an npz; or a table of the model's schema."),
    ],
    out: Annotated[Path | None, typer.Option(help="Save what the model says as .npz or .csv.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")] = False,
    most: Annotated[int, typer.Option(help="How many samples to list.", min=0)] = 20,
    modules: Modules = None,
) -> None:
    """Use a trained model: the class of each sample and its probability, and the accuracy if labels are there."""
    from holdfast.cli.predicting import predict_file

    predict_file(model, data, out, json, most, modules)
