"""What the tests of `holdfast digest` share: a client's own file, and what is asked and told of its digest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from holdfast.audit.target import subject_of_file
from holdfast.cli.digest_facts import facts_of
from holdfast.cli.digest_making import Recipe
from holdfast.data.named import load_task


def own_file(tmp_path: Path) -> Path:
    """Fifty samples of a client's own, all of class 3 or 7."""
    task = load_task("fashion-mini")
    index = ((task.train.labels == 3) | (task.train.labels == 7)).nonzero().flatten()[:50]
    images, labels = task.train.inputs[0][index][:, 0].numpy(), task.train.labels[index].numpy()
    np.savez_compressed(tmp_path / "own.npz", x=images, y=labels)
    return tmp_path / "own.npz"


def recipe(own: Path, **changes: object) -> Recipe:
    usual = {"task": "fashion-mini", "samples_of": own, "encoder": "autoencoder"}
    usual |= {} if changes.get("mode") == "moments" else {"bits": "32"}
    return Recipe(**{**usual, **changes})  # type: ignore[arg-type]


def told(path: Path) -> dict[str, Any]:
    subject = subject_of_file(path)
    assert subject.digest is not None
    return facts_of(subject.digest, subject.claim, path)


def of_one_class(tmp_path: Path, count: int) -> Path:
    """So many samples of one class, in a file."""
    task = load_task("fashion-mini")
    index = (task.train.labels == 3).nonzero().flatten()[:count]
    path = tmp_path / f"{count}.npz"
    np.savez_compressed(path, x=task.train.inputs[0][index][:, 0].numpy(), y=task.train.labels[index].numpy())
    return path
