"""What a site writes down for its own people, who look at it in `holdfast site console`; nothing of it leaves.

In the site's folder: `paused.json`, while it is paused. In its folder of an experiment: `asked.json`, the experiment as
it was asked for here; `metrics.jsonl`, how well the model does on the site's own records, by what the site told of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.core.failures import Refusal
from holdfast.core.files import append_line, make_folder, write_file
from holdfast.data.task import Metric
from holdfast.runs.experiment import Experiment

PAUSED, ASKED, METRICS = "paused.json", "asked.json", "metrics.jsonl"
PEOPLE = ("approval", "declined", "paused", "withdrawn")  # codes of what people here have decided: no errors
NODE = ("data", "table", "records", "schema", "device")  # of the node's config: where the site's own records are


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def pause(folder: Path, by: str) -> None:
    """Answer nothing from now on, whichever experiment asks, until the site goes on."""
    make_folder(folder)
    write_file(folder / PAUSED, json.dumps({"by": by, "when": now()}).encode())


def go_on(folder: Path) -> None:
    (folder / PAUSED).unlink(missing_ok=True)


def check_paused(folder: Path) -> None:
    if (folder / PAUSED).exists():
        raise Refusal("paused", f"this site is paused: {folder / PAUSED}; `holdfast site resume` lets it go on.")


def note_asked(folder: Path, experiment: Experiment, config: Mapping[str, Any] | None) -> None:
    """Keep the experiment that asks; without `config` its records are read by code of the app's own."""
    if (folder / ASKED).exists():
        return
    node = None if config is None else {key: str(config[key]) for key in NODE if config.get(key)}
    make_folder(folder)
    told = {"when": now(), "experiment": experiment.as_json(), "node": node}
    write_file(folder / ASKED, json.dumps(told, indent=1).encode())


def note_metrics(folder: Path, metrics: Sequence[Metric], round: int, scalars: Mapping[str, Any]) -> None:
    """Keep what the site told of the model on its own records; the round is counted from 0."""
    told = [
        (metric, metric.value(sums)) for metric in metrics if (sums := scalars["metrics"].get(metric.name)) is not None
    ]
    finite = [(metric, value) for metric, value in told if math.isfinite(value)]
    line = {"round": round + 1, "samples": scalars.get("samples")}
    line["metrics"] = {metric.name: value for metric, value in finite}
    line["text"] = {metric.name: metric.measure.text(value) for metric, value in finite}
    append_line(folder / METRICS, line)
