"""Tables: four hospitals' heart disease records, methods side by side on the same splits.

    python benchmarks/tables.py flamby [SEEDS]             FLamby's columns and split
    python benchmarks/tables.py leaving [SPLITS] [FIRST]   all 920 records, hospitals leave one after the other

Prints lines `name value ...`. A split's number seeds which records are held out, and the run.
"""

from __future__ import annotations

import csv
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from saved import save
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.model_selection import train_test_split

import holdfast
from holdfast.core.tables import read_table
from holdfast.data.named import HEART_FILE
from holdfast.data.tables.schema import read_schema, schema_from
from holdfast.data.tables.source import table_task
from holdfast.data.task import Task
from holdfast.models.networks import fill
from holdfast.play import one_thread
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment

Scores = dict[str, float]
COMMON: dict[str, Any] = {
    "model": "features",
    "encoder": "table",
    "rounds": 60,
    "lr": 0.05,
    "evaluate_every": 1000,
}


def flamby_task() -> Task:
    """FLamby's data: columns 10 to 12 dropped, then rows with missing values, 66 / 34 in each hospital, seed 43."""
    dropped = ("slope", "ca", "thal")
    with open(HEART_FILE) as file:
        table = [{k: v for k, v in row.items() if k not in dropped} for row in csv.DictReader(file)]
    rows: list[dict[str, str]] = []
    for hospital in dict.fromkeys(row["hospital"] for row in table):
        mine = [row for row in table if row["hospital"] == hospital and "?" not in row.values()]
        ill = np.array([row["num"] != "0" for row in mine])
        stratify = ill if min(ill.sum(), (~ill).sum()) > 2 else None
        index = np.arange(len(mine))
        _, test = train_test_split(index, test_size=0.34, train_size=0.66, random_state=43, stratify=stratify)
        held = {*test.tolist()}
        rows += [{**row, "part": "test" if i in held else "train"} for i, row in enumerate(mine)]
    schema = read_table(HEART_FILE.with_suffix(".toml"))
    schema["split"] = "part"
    columns = {name: {**column} for name, column in schema["columns"].items() if name not in dropped}
    for column in columns.values():
        column.pop("missing", None)
    for name in ("chol", "trestbps"):  # 0 is where it was not measured
        columns[name]["missing"] = "indicator"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flamby.csv"
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return table_task(schema_from({**schema, "columns": columns}, "flamby"), path)


def play(task: Task, seed: int, **keys: Any) -> NDArray[np.float64]:
    """The probability of being ill of each of the moderator's test records, after a run."""
    experiment = Experiment(task=task, seed=seed, **{**COMMON, **keys})
    history = holdfast.run(experiment)
    plan = make_plan(experiment)
    model = plan.model()
    assert history.state is not None
    fill(model, history.state.model, history.state.buffers)
    with torch.inference_mode():
        output = model.eval()(*plan.prepare(task.test).inputs)
    return torch.softmax(output, 1)[:, 1].double().numpy()


def scores(task: Task, ill: NDArray[np.float64]) -> Scores:
    """Accuracy, balanced accuracy and AUROC on all records, and the hospitals' mean accuracy."""
    labels, hospitals = task.test.labels.numpy(), task.test.facts["hospital"].numpy()
    right = (ill > 0.5) == labels
    return {
        "accuracy": float(right.mean()),
        "hospitals": float(np.mean([right[hospitals == h].mean() for h in np.unique(hospitals)])),
        "balanced": float(balanced_accuracy_score(labels, ill > 0.5)),
        "auroc": float(roc_auc_score(labels, ill)),
    }


def pooled(task: Task) -> NDArray[np.float64]:
    """Ridge on all hospitals' records in one place."""
    fitted = RidgeClassifier(alpha=1.0).fit(task.train.inputs[0].numpy(), task.train.labels.numpy())
    return 0.5 + np.asarray(fitted.decision_function(task.test.inputs[0].numpy()), float) / 2


def pooled_scaled_apart(task: Task) -> NDArray[np.float64]:
    """The same where each hospital first scales its columns by its own mean and deviation."""
    train, test = task.train.inputs[0].numpy(), task.test.inputs[0].numpy()
    mine, theirs = np.zeros_like(train), np.zeros_like(test)
    for hospital in np.unique(task.train.facts["hospital"].numpy()):
        at, there = (part.facts["hospital"].numpy() == hospital for part in (task.train, task.test))
        middle, spread = train[at].mean(0), train[at].std(0)
        spread[spread == 0] = 1
        mine[at], theirs[there] = (train[at] - middle) / spread, (test[there] - middle) / spread
    fitted = RidgeClassifier(alpha=1.0).fit(mine, task.train.labels.numpy())
    return 0.5 + np.asarray(fitted.decision_function(theirs), float) / 2


METHODS: dict[str, dict[str, Any]] = {
    "fedavg_none": {},
    "fedavg_leaving": {"scenario": "sequential"},
    "feddig_none": {"absence": "feddig"},
    "feddig_leaving": {"absence": "feddig", "scenario": "sequential"},
    "moments_leaving": {"absence": {"name": "feddig", "mode": "moments", "epsilon": 3.0}, "scenario": "sequential"},
}
ONE_MESSAGE: dict[str, Any] = {"algorithm": "oneshot", "rounds": 1, "model": "auto"}
DIGESTS_ALONE: dict[str, dict[str, Any]] = {
    "rows_alone": {**ONE_MESSAGE, "absence": "feddig"},
    "sums_alone": {**ONE_MESSAGE, "absence": {"name": "feddig", "mode": "sums"}},
    "moments3_alone": {**ONE_MESSAGE, "absence": {"name": "feddig", "mode": "moments", "epsilon": 3.0}},
}


WORDS = {
    "pooled_ridge": "ridge on pooled records, columns scaled by the schema",
    "scaled_apart": "the same, each hospital scaling by its own mean and deviation",
    "fedavg_none": "FedAvg, nobody leaves",
    "fedavg_leaving": "FedAvg, all leave one after the other",
    "feddig_none": "FedDig, nobody leaves",
    "feddig_leaving": "FedDig, all leave one after the other",
    "moments_leaving": "FedDig, all leave, moments at epsilon 3",
    "sums_alone": 'digests alone (`algorithm = "oneshot"`): exact sums',
    "rows_alone": "digests alone: mixed rows",
    "moments3_alone": "digests alone: moments at epsilon 3",
}


PAIRS = (
    ("FedDig: all leave - nobody leaves", "feddig_leaving", "feddig_none"),
    ("all leave: FedDig - FedAvg", "feddig_leaving", "fedavg_leaving"),
    ("all leave: moments at epsilon 3 - FedAvg", "moments_leaving", "fedavg_leaving"),
)


def flamby(seeds: int) -> None:
    task = flamby_task()
    print("records", len(task.train), len(task.test), *np.bincount(task.test.facts["hospital"].numpy()))
    found = {"pooled_ridge": [scores(task, pooled(task))], "scaled_apart": [scores(task, pooled_scaled_apart(task))]}
    ways = {name: METHODS[name] for name in ("fedavg_none", "feddig_none", "feddig_leaving")} | DIGESTS_ALONE
    for name, keys in ways.items():
        found[name] = [scores(task, play(task, seed, **keys)) for seed in range(seeds)]
        show(name, found[name])
    keep("hearts-flamby", found, range(seeds), {"accuracy": "all records", "hospitals": "mean of hospitals"})


def keep(name: str, found: dict[str, list[Scores]], seeds: range, metrics: dict[str, str]) -> None:
    cells = {
        (WORDS[way], column): [one[metric] for one in all_scores]
        for way, all_scores in found.items()
        for metric, column in metrics.items()
    }
    save(name, cells, seeds, digits=3)


def leaving(splits: int, first: int) -> None:
    schema = read_schema(HEART_FILE.with_suffix(".toml"))
    found: dict[str, list[Scores]] = {}
    for split in range(first, first + splits):
        task = table_task(schema, HEART_FILE, split)
        found.setdefault("pooled_ridge", []).append(scores(task, pooled(task)))
        for name, keys in METHODS.items():
            found.setdefault(name, []).append(scores(task, play(task, split, **keys)))
    for name, all_scores in found.items():
        show(name, all_scores)
    keep("hearts-leaving", found, range(first, first + splits), {"balanced": "balanced accuracy", "auroc": "AUROC"})
    cells: dict[tuple[str, str], list[float]] = {}
    for words, ours, theirs in PAIRS:
        for metric, column in (("balanced", "balanced accuracy"), ("auroc", "AUROC")):
            gaps = [one[metric] - other[metric] for one, other in zip(found[ours], found[theirs], strict=True)]
            low, high = interval(gaps)
            print(f"{words:42} {metric} {statistics.mean(gaps):+.3f} [{low:+.3f}, {high:+.3f}]", flush=True)
            cells |= {(words, column): gaps, (words, f"{column}: from"): [low], (words, f"{column}: to"): [high]}
    save("hearts-differences", cells, range(first, first + splits), corner="paired difference", digits=3)


def show(name: str, found: list[Scores]) -> None:
    cells = []
    for metric in found[0]:
        values = [one[metric] for one in found]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        cells.append(f"{metric} {statistics.mean(values):.3f} ± {spread:.3f}")
    print(f"{name:18}", "  ".join(cells), flush=True)


def interval(gaps: list[float]) -> tuple[float, float]:
    """The mean's 95 % interval (Student's t; splits overlap, so it is somewhat too narrow)."""
    from scipy.stats import t

    half = float(t.ppf(0.975, len(gaps) - 1)) * statistics.stdev(gaps) / len(gaps) ** 0.5 if gaps[1:] else 0.0
    return statistics.mean(gaps) - half, statistics.mean(gaps) + half


if __name__ == "__main__":
    what, numbers = sys.argv[1], [int(word) for word in sys.argv[2:]]
    with one_thread():
        if what == "flamby":
            flamby(*(numbers or [5]))
        else:
            leaving(*(numbers + [20, 0][len(numbers) :]))
