"""`holdfast predict`: what a trained model says of new samples."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from holdfast.cli.running import print_json
from holdfast.errors import HoldfastError
from holdfast.export import load_model, read_samples
from holdfast.files import write_file


def predict_file(source: Path, data: Path, out: Path | None, as_json: bool, most: int) -> None:
    """Predict, show, and save if asked."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    if out is not None and out.suffix != ".npz":
        raise HoldfastError(f"{out} must end in .npz: predictions are saved as arrays.")
    model = load_model(source)
    x, labels = read_samples(data)
    if labels is not None and labels.max() >= len(model.class_names):
        raise HoldfastError(
            f"{data}: label {labels.max()} is out of range; {len(model.class_names)} classes are known."
        )
    probabilities = model.predict(x, str(data))
    classes = probabilities.argmax(1)
    sure = probabilities.max(1)
    accuracy = None if labels is None else float((classes == labels).mean())
    if out is not None:
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer, classes=classes, probabilities=probabilities, class_names=np.array(model.class_names)
        )
        write_file(out, buffer.getvalue())
    if as_json:
        names = [model.class_names[c] for c in classes]
        rows = [{"class": n, "probability": round(float(p), 6)} for n, p in zip(names, sure, strict=True)]
        print_json({"accuracy": accuracy, "predictions": rows})
        return
    view = Table("sample", "class", "probability", *([] if labels is None else ["label"]))
    for i in range(min(most, len(classes))):
        known = [] if labels is None else [model.class_names[labels[i]]]
        view.add_row(str(i), model.class_names[classes[i]], f"{sure[i]:.1%}", *known)
    if most:
        console.print(view)
    more = f"{len(classes)} samples" + (f", {most} of them shown" if 0 < most < len(classes) else "")
    console.print(more + (f"; accuracy [bold]{accuracy:.1%}[/]" if accuracy is not None else "; no labels to check"))
    if out is not None:
        console.print(f"Written: [bold]{out}[/]")
