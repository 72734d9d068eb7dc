"""Survival with breast cancer in six regions (TCGA-BRCA): methods side by side on the same splits.

    python benchmarks/survival.py --data FOLDER [--splits 20] [--first 0] [--only feddig_none] [--save NAME]

FLamby's split, then random ones: a fifth of each region's patients, with and without the event apart, is held out.
Prints the C-index on all test patients, and paired differences to a penalised Cox fit of the pooled training patients.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from saved import save
from tables import Scores, interval, show
from torch import Tensor

import holdfast
from holdfast.data.kinds import Hazards
from holdfast.data.sources.tcga import tcga_task
from holdfast.data.survival import CIndex, Cox
from holdfast.data.task import Samples, Task
from holdfast.models.networks import fill
from holdfast.play import one_thread
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment

CUTS = tuple(365.0 * half / 2 for half in range(1, 21))  # where the intervals of discrete time end: half years
PENALTY = 0.1  # of the pooled fit, on standardised columns and the mean likelihood
COMMON: dict[str, Any] = {"partition": "column:region", "split": "100/0/0", "evaluate_every": 1000}
COX: dict[str, Any] = {"model": "linear", "batch_size": 1000, "lr": 1.0, "rounds": 30}
DIGESTS: dict[str, Any] = {"absence": {"name": "feddig", "mode": "sums"}, "encoder": "table"}
# The penalty of the pooled fit: a record is divided by the square root of its 39 columns.
SCALED: dict[str, Any] = {"scaling": "federated", "weight_decay": PENALTY / 39, "groups": ("*bias:1:0",)}
ROUNDS: dict[str, Any] = {
    **DIGESTS,
    **SCALED,
    "model": "head:form=proportional",
    "lr": 10.0,
    "rounds": 30,
    "batch_size": 200,
}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg_cox_none": COX,
    "fedavg_cox_leaving": {**COX, "scenario": "sequential"},
    "feddig_none": ROUNDS,
    "feddig_leaving": {**ROUNDS, "scenario": "sequential"},
    "digests_alone": {**DIGESTS, "algorithm": "oneshot", "rounds": 1},
}


WORDS = {
    "pooled_cox": "pooled Cox",
    "fedavg_cox_none": "FedAvg, Cox, nobody leaves",
    "fedavg_cox_leaving": "FedAvg, Cox, all leave one after the other",
    "digests_alone": "digests alone, one message",
    "feddig_none": "FedDig in rounds, nobody leaves",
    "feddig_leaving": "FedDig in rounds, all leave",
}


def in_discrete_time(task: Task) -> Task:
    return replace(task, kind=Hazards(CUTS), loss=None, metrics=())  # type: ignore[arg-type]


def with_split(task: Task, seed: int) -> Task:
    """The task with another fifth of each region held out."""
    both = (task.train, task.test)
    facts = {name: torch.cat([part.facts[name] for part in both]) for name in task.train.facts}
    whole = Samples((torch.cat([p.inputs[0] for p in both]),), torch.cat([p.labels for p in both]), facts)
    generator = torch.Generator().manual_seed(seed)
    group = 2 * whole.facts["region"] + (whole.labels[:, 1] > 0.5).long()
    test = torch.zeros(len(whole), dtype=torch.bool)
    for one in group.unique():
        at = (group == one).nonzero().flatten()
        test[at[torch.randperm(len(at), generator=generator)[: round(len(at) / 5)]]] = True
    return replace(task, train=whole.take((~test).nonzero().flatten()), test=whole.take(test.nonzero().flatten()))


def pooled(task: Task) -> Tensor:
    """The log risks of a penalised Cox fit to all training patients in one place."""
    x, labels = task.train.inputs[0].double(), task.train.labels.double()
    deviation = x.std(0)
    kept = deviation > 0
    x = (x - x.mean(0))[:, kept] / deviation[kept]
    slope = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([slope], max_iter=300, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def value() -> float:
        solver.zero_grad()
        loss = Cox()(x @ slope[:, None], labels) + PENALTY / 2 * slope @ slope
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    solver.step(value)
    tested: Tensor = task.test.inputs[0].double()[:, kept] / deviation[kept] @ slope.detach()[:, None]
    return tested


def play(task: Task, seed: int, keys: dict[str, Any]) -> Tensor:
    """What a run's model says of the test patients."""
    experiment = Experiment(task=task, seed=seed, **COMMON, **keys)
    state, plan = holdfast.run(experiment).state, make_plan(experiment)
    assert state is not None
    model = plan.model()
    fill(model, state.model, state.buffers)
    with torch.inference_mode():
        output: Tensor = model.eval()(*plan.prepare(task.test).inputs)
    return output


def scores(task: Task, output: Tensor) -> Scores:
    """The C-index on all test patients, and the mean of the regions' (of those that have a pair to compare)."""
    regions = [task.test.facts["region"] == region for region in task.test.facts["region"].unique()]
    apart = [CIndex().over(output[at], task.test.labels[at]) for at in regions]
    known = [value for value in apart if value == value]
    return {"c-index": CIndex().over(output, task.test.labels), "regions": sum(known) / len(known)}


def all_scores(task: Task, seed: int, methods: list[str]) -> dict[str, Scores]:
    found = {"pooled_cox": scores(task, pooled(task))}
    for name in methods:
        keys = METHODS[name]
        told = task if name.startswith("fedavg_cox") else in_discrete_time(task)
        found[name] = scores(task, play(told, seed, keys))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default=",".join(METHODS))
    parser.add_argument("--save", metavar="NAME", help="keep the table as docs/results/NAME.json")
    told = parser.parse_args()
    methods = told.only.split(",")
    task = tcga_task(told.data)
    splits = range(told.first, told.first + told.splits)
    cells: dict[tuple[str, str], list[float]] = {("FLamby's best (FedAdam), published", "FLamby's split"): [0.842]}
    with one_thread():
        print("FLamby's split")
        for name, found in all_scores(task, 0, methods).items():
            show(name, [found])
            cells[WORDS[name], "FLamby's split"] = [found["c-index"]]
        table: dict[str, list[Scores]] = {}
        for split in splits:
            for name, found in all_scores(with_split(task, split), split, methods).items():
                table.setdefault(name, []).append(found)
    print(told.splits, "random splits")
    for name, rows in table.items():
        show(name, rows)
        cells[WORDS[name], f"{told.splits} splits"] = [row["c-index"] for row in rows]
    for words, ours, theirs in [(WORDS[name], name, "pooled_cox") for name in methods] + [GONE]:
        if {ours, theirs} <= {*table}:
            cells |= paired(words, table[ours], table[theirs])
    if told.save:
        print(save(told.save, cells, splits, digits=3))


GONE = ("FedDig in rounds: all leave - nobody leaves", "feddig_leaving", "feddig_none")


def paired(words: str, ours: list[Scores], theirs: list[Scores]) -> dict[tuple[str, str], list[float]]:
    """The difference on each split, and the mean's 95 % interval."""
    gaps = [one["c-index"] - other["c-index"] for one, other in zip(ours, theirs, strict=True)]
    low, high = interval(gaps)
    print(f"{words:46} {sum(gaps) / len(gaps):+.3f} [{low:+.3f}, {high:+.3f}]", flush=True)
    return {(words, "paired"): gaps, (words, "95 %: from"): [low], (words, "95 %: to"): [high]}


if __name__ == "__main__":
    main()
