"""`holdfast predict`: what a trained model says of new samples."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table

from holdfast.cli.running import print_json
from holdfast.cli.screen import screen
from holdfast.core.errors import HoldfastError
from holdfast.core.files import write_file
from holdfast.core.names import plural
from holdfast.runs.export import Trained, load_model


def predict_file(
    source: Path, data: Path, out: Path | None, as_json: bool, most: int, modules: Path | None = None
) -> None:
    """Predict, show, and save if asked."""
    console = screen(stderr=as_json, wrap=True)
    if out is not None and out.suffix not in (".npz", ".csv"):
        raise HoldfastError(f"{out} must end in .npz or .csv: predictions are saved as arrays or as a table.")
    model = load_model(source, modules=modules)
    x, labels, names = model.read(data)
    if labels is not None and model.kind.has_classes and labels.max() >= len(model.class_names):
        raise HoldfastError(
            f"{data}: label {labels.max()} is out of range; {len(model.class_names)} classes are known."
        )
    outputs = model.outputs(x, str(data))
    answers = model.kind.readout(torch.from_numpy(outputs)).numpy()
    rows, metrics = rows_of(model, answers), {}
    if names:
        rows = [{"file": name, **row} for name, row in zip(names, rows, strict=True)]
    if out is not None:
        write_file(out, table_of(rows) if out.suffix == ".csv" else saved(arrays_of(model, answers)))
    if labels is not None:
        metrics = model.measure(outputs, labels)
    if as_json:
        told = {"accuracy": metrics.get("accuracy")} if model.kind.has_classes else {}
        print_json({**told, "metrics": metrics, "predictions": rows})
        return
    view = Table("sample", *rows[0], *([] if labels is None else ["label"]))
    for i, row in enumerate(rows[:most]):
        view.add_row(str(i), *texts_of(row), *([] if labels is None else [label_text(model, labels[i])]))
    if most:
        console.print(view)
    more = plural(len(rows), "sample") + (f", {most} of them shown" if 0 < most < len(rows) else "")
    console.print(more + (f"; {verdict(model, metrics)}" if labels is not None else "; no labels to check"))
    if out is not None:
        console.print(f"Written: [bold]{escape(str(out))}[/]")


def table_of(rows: list[dict[str, Any]]) -> bytes:
    """Predictions as a table, in the order of the samples."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["sample", *rows[0]])
    writer.writeheader()
    writer.writerows({"sample": number, **row} for number, row in enumerate(rows))
    return text.getvalue().encode()


def saved(arrays: dict[str, NDArray[Any]]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # names of arrays
    return buffer.getvalue()


def arrays_of(model: Trained, answers: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """What is saved."""
    if not model.kind.has_classes:
        return {model.kind.answer: answers, "columns": np.array(model.kind.columns(model.class_names))}
    names = np.array(model.class_names)
    return {"classes": answers.argmax(1), model.kind.answer: answers, "class_names": names}


def rows_of(model: Trained, answers: NDArray[np.float32]) -> list[dict[str, Any]]:
    """One row for each sample, as --json prints it."""
    if not model.kind.has_classes:
        columns = model.kind.columns(model.class_names)
        return [dict(zip(columns, map(float, row), strict=True)) for row in answers]
    most = zip(answers.argmax(1), answers.max(1), strict=True)
    return [{"class": model.class_names[c], "probability": round(float(p), 6)} for c, p in most]


def texts_of(row: dict[str, Any]) -> list[str]:
    """The cells of a row as they are shown."""
    forms = {"probability": ".1%"}
    return [escape(one) if isinstance(one, str) else f"{one:{forms.get(key, '.6g')}}" for key, one in row.items()]


def label_text(model: Trained, label: NDArray[Any]) -> str:
    if model.kind.has_classes:
        return escape(model.class_names[int(label)])
    return ", ".join(f"{value:.6g}" for value in label.ravel())


def verdict(model: Trained, metrics: dict[str, float]) -> str:
    """The metrics of these samples, the leading one first."""
    texts = []
    for measure in (metric.measure for metric in model.metrics):
        value = metrics.get(measure.name)
        texts.append(f"{measure.words} [bold]{'unknown' if value is None else measure.text(value)}[/]")
    return ", ".join(texts)
