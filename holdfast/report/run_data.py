"""What a run's folder tells: read once, from disk, whether the run is over or still going on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors

from holdfast.core.errors import HoldfastError
from holdfast.core.files import read_lines
from holdfast.core.tables import read_table
from holdfast.data.metrics import ACCURACY, Measure
from holdfast.data.named import DATA_SETS
from holdfast.record import Record
from holdfast.report.guidance import guidance_pictures
from holdfast.runs.curves import read_curves
from holdfast.runs.experiment import Experiment
from holdfast.runs.history import History
from holdfast.runs.store import CURVES, Run, refuse_file

TOLD = ("digests", "samples", "spd", "mode", "noise", "feature_shape")  # of a digest's manifest


@dataclass(frozen=True)
class Story:
    """One run as its folder tells it."""

    folder: Path
    experiment: Experiment
    records: Sequence[Record]
    finished: bool
    class_names: Sequence[str]
    environments: Sequence[dict[str, Any]]  # one for each start or resume
    digests: Sequence[dict[str, Any]]  # of each client the newest: bytes, digests, samples, mode ...
    guidance: Sequence[dict[str, str]] = ()
    curves: Mapping[str, Any] = field(default_factory=dict)  # of the final model on the test set

    @property
    def history(self) -> History:
        return History(self.experiment, self.records)

    @property
    def final(self) -> float | None:
        """The leading metric as `holdfast compare` prints it; None before the first test."""
        return self.history.final


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The folders of runs that are meant: each path is a run, or a folder of runs as `holdfast compare` leaves it."""
    found: dict[Path, None] = {}
    for path in paths:
        if is_run(path):
            found[path] = None
            continue
        refuse_file(path)
        inside = sorted(file.parent for file in path.glob("*/experiment.json")) if path.is_dir() else []
        if not inside:
            what = "holds no run" if path.is_dir() else "does not exist"
            raise HoldfastError(
                f"{path} {what}; name the folder of a run, or a folder of runs as `holdfast compare` leaves it."
            )
        found |= dict.fromkeys(inside)
    return list(found)


def is_run(path: Path) -> bool:
    return (path / "experiment.json").is_file()


def read_story(folder: Path) -> Story:
    """Everything a report says of one run."""
    run = Run.open(folder)
    records = run.records()
    names = class_names(run, records)
    digests = list(newest_digests(folder).values())
    return Story(
        folder,
        run.experiment,
        records,
        run.finished,
        names,
        read_lines(folder / "environment.jsonl"),
        [digest_facts(path) for path in digests],
        guidance_pictures(folder, digests, names),
        curves_in(folder / CURVES),
    )


def curves_in(path: Path) -> dict[str, Any]:
    """The figures of the final model; none of a run that is not finished, or is of an earlier version."""
    return read_curves(read_table(path), str(path)) if path.is_file() else {}


def class_names(run: Run, records: Sequence[Record]) -> list[str]:
    """The names in the final model's file; before it is there those of a known task, or else numbers."""
    if run.finished:
        try:
            with safetensors.safe_open(run.folder / "model.safetensors", framework="pt") as file:
                return class_names_in((file.metadata() or {}).get("classes", ""))
        except (OSError, safetensors.SafetensorError):
            raise HoldfastError(
                f"{run.folder / 'model.safetensors'} is damaged; `holdfast resume {run.folder}` writes it again."
            ) from None
    count = next((len(record.by_class) for record in records if record.by_class), 0)
    known = DATA_SETS.get(run.experiment.task)
    return list(known.class_names) if known else [str(number) for number in range(count)]


def class_names_in(text: str) -> list[str]:
    """The class names of a model's file; none of a task without classes."""
    return text.split("\n") if text else []


def same_measure(stories: Sequence[Story]) -> Measure:
    """The measure of runs that are shown together."""
    found = {story.history.measure: None for story in stories if story.history.leading}
    if len(found) > 1:
        names = " and ".join(measure.title for measure in found)
        raise HoldfastError(f"These runs are measured by {names}, which do not compare; report them apart.")
    return next(iter(found), ACCURACY)


def newest_digests(folder: Path) -> dict[int, Path]:
    """The newest digest file of each client; files are called CLIENT-ROUND.safetensors."""
    return {int(path.name.split("-")[0]): path for path in sorted((folder / "digests").glob("*-*.safetensors"))}


def digest_facts(path: Path) -> dict[str, Any]:
    """What a digest says of itself: how many, of how many samples, and how they are protected."""
    client, since = (int(part) for part in path.stem.split("-"))
    releases = len(list(path.parent.glob(f"{client:04d}-*.safetensors")))
    facts: dict[str, Any] = {"client": client, "round": since, "bytes": path.stat().st_size, "releases": releases}
    try:
        with safetensors.safe_open(path, framework="np") as file:
            manifest = json.loads(file.get_tensor("manifest").tobytes()) if "manifest" in file.keys() else {}  # noqa: SIM118
    except (OSError, ValueError, RecursionError, safetensors.SafetensorError):
        manifest = None
    if not isinstance(manifest, dict):
        return {**facts, "mode": "damaged"}
    if "steps" in manifest:  # a moment digest: sums over all samples, none of them mixed with a few others
        return {**facts, "mode": "moments and noise", "feature_shape": [manifest.get("features")]}
    return facts | {key: manifest[key] for key in TOLD if key in manifest}
