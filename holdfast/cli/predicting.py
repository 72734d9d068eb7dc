"""`holdfast predict`: what a trained model says of new samples."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from holdfast.cli.running import print_json
from holdfast.core.errors import HoldfastError
from holdfast.core.files import write_file
from holdfast.data.metrics import values_of
from holdfast.runs.export import Trained, load_model, read_samples


def predict_file(
    source: Path, data: Path, out: Path | None, as_json: bool, most: int, modules: Path | None = None
) -> None:
    """Predict, show, and save if asked."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    if out is not None and out.suffix != ".npz":
        raise HoldfastError(f"{out} must end in .npz: predictions are saved as arrays.")
    model = load_model(source, modules=modules)
    x, labels = read_samples(data, model.kind)
    if labels is not None and model.kind.has_classes and labels.max() >= len(model.class_names):
        raise HoldfastError(
            f"{data}: label {labels.max()} is out of range; {len(model.class_names)} classes are known."
        )
    answers = model.predict(x, str(data))
    if out is not None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays_of(model, answers))  # type: ignore[arg-type]  # names of arrays
        write_file(out, buffer.getvalue())
    rows, metrics = rows_of(model, answers), {}
    if labels is not None:
        metrics = values_of(model.kind.metrics, torch.from_numpy(answers), torch.from_numpy(labels))
    if as_json:
        told = {"accuracy": metrics.get("accuracy")} if model.kind.has_classes else {}
        print_json({**told, "metrics": metrics, "predictions": rows})
        return
    view = Table("sample", *rows[0], *([] if labels is None else ["label"]))
    for i, row in enumerate(rows[:most]):
        view.add_row(str(i), *texts_of(row), *([] if labels is None else [label_text(model, labels[i])]))
    if most:
        console.print(view)
    more = f"{len(rows)} samples" + (f", {most} of them shown" if 0 < most < len(rows) else "")
    console.print(more + (f"; {verdict(model, metrics)}" if labels is not None else "; no labels to check"))
    if out is not None:
        console.print(f"Written: [bold]{out}[/]")


def arrays_of(model: Trained, answers: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """What is saved."""
    if not model.kind.has_classes:
        return {model.kind.answer: answers}
    names = np.array(model.class_names)
    return {"classes": answers.argmax(1), model.kind.answer: answers, "class_names": names}


def rows_of(model: Trained, answers: NDArray[np.float32]) -> list[dict[str, Any]]:
    """One row for each sample, as --json prints it."""
    if not model.kind.has_classes:
        return [{"value": float(row[0])} for row in answers]
    most = zip(answers.argmax(1), answers.max(1), strict=True)
    return [{"class": model.class_names[c], "probability": round(float(p), 6)} for c, p in most]


def texts_of(row: dict[str, Any]) -> list[str]:
    return [f"{row['value']:.6g}"] if "value" in row else [row["class"], f"{row['probability']:.1%}"]


def label_text(model: Trained, label: NDArray[Any]) -> str:
    return model.class_names[int(label)] if model.kind.has_classes else f"{label.item():.6g}"


def verdict(model: Trained, metrics: dict[str, float]) -> str:
    """The leading metric of these samples."""
    leading = model.kind.metrics[0].measure
    value = metrics.get(leading.name)
    return f"{leading.name} [bold]{'unknown' if value is None else leading.text(value)}[/]"
