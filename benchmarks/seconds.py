"""Seconds until 99 % of FedAvg's final accuracy: FedDig against FedAvg on the same features, and with a CNN in Flower.

    python benchmarks/seconds.py [--seed 0,1,2] [--rounds 40] [--lr 0.05] [--cnn-lr 0.05] [--out build/seconds]
                                 [--without-flower]

fashion-mini, 4 clients, Dirichlet 0.1, two worker processes, cosine. Each curve is that of a process of its own, from
its start: imports, encoding (nothing is kept from earlier runs) and tests included; FedDig's and FedAvg's are compared
from the start of round 1 on, too, which leaves out what both share. The target of each comparison is
99 % of that FedAvg's final accuracy, the mean of its last tenth of rounds; it is reached in the first round from which
on the mean of three rounds is there. Curves are kept under --out and drawn in docs/seconds.png.
Without Flower (a minute for each seed) its row of the table and the drawing stay as they are.
"""

from __future__ import annotations

import sys

if "--play" in sys.argv:  # as the commands do: the process of the workers imports torch meanwhile
    from holdfast.engines.forking import begin_ahead

    begin_ahead(None)

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np
import torch
from peers import BESIDE, python_of
from saved import save_parts

from holdfast.core.types import Federation
from holdfast.data.task import Samples
from holdfast.play import run, this_machine
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import from_table
from holdfast.runs.plan import Plan

DRAWN = Path(__file__).parents[1] / "docs" / "seconds.png"
METHODS = {"FedDig, features": "feddig", "FedAvg, features": "none", "FedAvg, CNN in Flower": ""}
Curve = list[tuple[float, float]]  # seconds, accuracy


def keys(told: argparse.Namespace, seed: int) -> dict[str, object]:
    same = {"task": "fashion-mini", "clients": 4, "partition": "dirichlet:0.1", "schedule": "cosine", "workers": 2}
    return {**same, "lr": told.lr, "rounds": told.rounds, "seed": seed}


def play(told: argparse.Namespace) -> None:
    """In a process of its own: a line for each round."""
    chosen = {**keys(told, int(told.seed)), "model": "features", "absence": told.play}

    def engine(plan: Plan, folder: Path | None) -> Federation:
        federation = this_machine(plan, folder)
        print("START", flush=True)
        return federation

    run(from_table(chosen), watch=lambda record: print("ROUND", record.accuracy, flush=True), engine=engine)


def clients_file(told: argparse.Namespace, seed: int) -> Path:
    """The same clients' pictures and the same test set, for Flower."""
    path = told.out / f"clients-{seed}.npz"
    if not path.exists():
        plan = make_plan(from_table({**keys(told, seed), "model": "cnn"}))
        model = plan.model()
        parts = {str(client): plan.client(client, model, None).train for client in range(4)}
        parts["test"] = plan.prepare(plan.task.test)
        np.savez(path, **{name: array for part, one in parts.items() for name, array in arrays(part, one).items()})
    return path


def arrays(part: str, samples: Samples) -> dict[str, np.ndarray]:
    inputs, labels = samples.batch(torch.arange(len(samples)))
    return {f"x_{part}": inputs[0].numpy(), f"y_{part}": labels.numpy()}


def curve(told: argparse.Namespace, name: str, seed: int) -> tuple[float, Curve]:
    """When round 1 began (0: not known) and the curve, as it was measured before, or now."""
    kept = told.out / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}.json"
    if not kept.exists():
        words = [sys.executable, __file__, "--play", METHODS[name], "--seed", str(seed), "--lr", str(told.lr)]
        words += ["--rounds", str(told.rounds)]
        if not METHODS[name]:
            data = str(clients_file(told, seed))
            words = [str(python_of("flower")), str(BESIDE / "curve_with_flower.py"), data]
            words += [str(told.rounds), str(told.cnn_lr)]
        path = os.pathsep.join([str(BESIDE), str(BESIDE.parent.parent)])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HOLDFAST_CACHE": "off"}
        found: Curve = []
        begun = 0.0
        with (told.out / "log.txt").open("a") as log:
            start = time.perf_counter()
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("START"):
                    begun = time.perf_counter() - start
                if line.startswith("ROUND "):
                    found.append((time.perf_counter() - start, float(line.split()[1])))
            process.wait()
        if len(found) != told.rounds:
            raise RuntimeError(f"{name} ended after {len(found)} rounds; see {told.out / 'log.txt'}")
        kept.write_text(json.dumps({"begun": begun, "rounds": found}))
    told_before = json.loads(kept.read_text())
    return told_before["begun"], [(seconds, accuracy) for seconds, accuracy in told_before["rounds"]]


def final(curve: Curve) -> float:
    return statistics.fmean(accuracy for _, accuracy in curve[-max(1, len(curve) // 10) :])


def reached(curve: Curve, target: float) -> float:
    """The seconds of the first round from which on the mean of three rounds is at the target; infinite if none is.

    >>> reached([(1, 0.1), (2, 0.5), (3, 0.6), (4, 0.7), (5, 0.7)], 0.6), reached([(1, 0.1), (2, 0.1), (3, 0.1)], 0.6)
    (2, inf)
    """
    for place in range(len(curve) - 2):
        if statistics.fmean(accuracy for _, accuracy in curve[place : place + 3]) >= target:
            return curve[place][0]
    return float("inf")


def draw(curves: dict[str, dict[int, Curve]]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for number, (name, runs) in enumerate(curves.items()):
        for place, one in enumerate(runs.values()):
            seconds, accuracy = zip(*one, strict=True)
            axes.plot(seconds, [100 * a for a in accuracy], color=f"C{number}", label=None if place else name, lw=1.2)
    axes.set_xscale("log")
    axes.set_xticks([3, 5, 10, 20, 50, 100], ["3", "5", "10", "20", "50", "100"])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="seconds since the start, encoding included", ylabel="test accuracy in %", ylim=(40, 95))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.tight_layout()
    figure.savefig(DRAWN, dpi=130)


def measure(told: argparse.Namespace) -> None:
    told.out = told.out.resolve()
    told.out.mkdir(parents=True, exist_ok=True)
    seeds = [int(seed) for seed in told.seed.split(",")]
    methods = [name for name, absence in METHODS.items() if absence or not told.without_flower]
    curves: dict[str, dict[int, Curve]] = {name: {} for name in methods}
    begun: dict[str, dict[int, float]] = {name: {} for name in methods}
    cells: dict[tuple[str, str], list[float]] = {}
    for seed in seeds:  # in turns: what else the machine does slows all alike
        for name in methods:
            begun[name][seed], curves[name][seed] = curve(told, name, seed)
            print(
                seed, name, f"{100 * final(curves[name][seed]):.1f} % in {curves[name][seed][-1][0]:.1f} s", flush=True
            )
    digs, *plain = methods
    for name in plain:
        targets = [0.99 * final(curves[name][seed]) for seed in seeds]
        both = [[reached(curves[one][s], t) for s, t in zip(seeds, targets, strict=True)] for one in (name, digs)]
        cells[name, "final accuracy"] = [100 * target / 0.99 for target in targets]
        cells[name, "seconds to 99 % of it"], cells[name, "FedDig's seconds to that"] = both
        cells[name, "times"] = [theirs / ours for theirs, ours in zip(*both, strict=True)]
        if all(begun[name].values()):
            from_round_1 = [[t - begun[one][s] for t, s in zip(ts, seeds, strict=True)] for one, ts in
                            zip((name, digs), both, strict=True)]  # fmt: skip
            cells[name, "times, from round 1 on"] = [a / b for a, b in zip(*from_round_1, strict=True)]
    save_parts("seconds", cells, "python benchmarks/seconds.py", corner="against", seeds=seeds)
    if not told.without_flower:
        draw(curves)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--cnn-lr", type=float, default=0.05)
    parser.add_argument("--out", type=Path, default=Path("build/seconds"))
    parser.add_argument("--without-flower", action="store_true")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.play:
        play(told)
    else:
        measure(told)


if __name__ == "__main__":
    main()
