"""What FedDig costs: the median seconds of a round against FedAvg's on the same model, the rounds taken in turn.

    python benchmarks/absence.py [features] [full]

Prints a line `name value` for each figure; fashion-mini, 4 clients with 1,000 training samples each, as many workers
as cores.

MODEL_fedavg_seconds   a round of FedAvg with all clients there, in seconds
MODEL_all_there        FedDig with all clients there, as a multiple of that
MODEL_half_away        FedDig with two of four clients away, as a multiple of FedAvg with all there
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import ExitStack

from holdfast.play import federation_of, one_thread
from holdfast.round import play_round
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment, from_table

WARM_UP = 2  # rounds: in the first one digests are made, in the second one half of the clients leave
ROUNDS = {"features": 60, "full": 12}


def experiments(model: str) -> dict[str, Experiment]:
    away = {"name": "intervals", "away": [[2, 1, 1000], [3, 1, 1000]]}
    kinds: dict[str, dict[str, object]] = {
        "fedavg": {"absence": "none"},
        "all_there": {"absence": "feddig"},
        "half_away": {"absence": "feddig", "scenario": away},
    }
    return {
        name: from_table({"model": model, "partition": "iid", "rounds": 1000, **keys}) for name, keys in kinds.items()
    }


def seconds_of(kinds: dict[str, Experiment], rounds: int) -> dict[str, float]:
    """The median seconds of a round of each, one round of each in turn, so that a busy machine slows all alike."""
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        plans = {name: make_plan(experiment) for name, experiment in kinds.items()}
        federations = {name: stack.enter_context(federation_of(plan, None)) for name, plan in plans.items()}
        states = {name: plan.start() for name, plan in plans.items()}
        for number in range(WARM_UP + rounds):
            for name, plan in plans.items():
                start = time.perf_counter()
                states[name], _ = play_round(states[name], federations[name], plan.method)
                if number >= WARM_UP:
                    taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in taken.items()}


if __name__ == "__main__":
    for model in sys.argv[1:] or ROUNDS:
        found = seconds_of(experiments(model), ROUNDS[model])
        plain = found.pop("fedavg")
        print(f"{model}_fedavg_seconds {plain:.3f}", flush=True)
        for name, seconds in found.items():
            print(f"{model}_{name} {seconds / plain:.2f}", flush=True)
