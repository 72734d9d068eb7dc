"""What trust costs: processor time of a round under each rule beside FedAvg's, in turns within one run, part by part.

    python benchmarks/trust_cost.py [CASE ...] [--seed 200] [--turns 16] [--save NAME] [--files FOLDER]

All in this process with one thread. Each turn plays one more round of every rule; the first four warm up, and in them
FedDig's digests come, so that what they cost once is not here. Saved is the time of all rounds over FedAvg's, and the
least and largest of a round over FedAvg's of the same turn. A part's milliseconds are its median over turns, less those
of the parts within it, and what is in no other part is "the rest". "Full" is all of Fashion-MNIST, which is looked for
in --files, and left out without it.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from saved import save

from holdfast.core.types import State
from holdfast.play import federation_of, one_thread
from holdfast.round import play_round
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import from_table

WARM = 4
COMMON = {"task": "fashion-mini", "partition": "dirichlet:0.5", "lr": 0.02, "workers": 0, "rounds": 99}
FULL = "features-20-full"
CASES: dict[str, dict[str, Any]] = {
    "features-20": {**COMMON, "model": "features", "clients": 20},
    "features-4": {**COMMON, "model": "features", "clients": 4},
    FULL: {**COMMON, "task": "fashion-mnist", "model": "features", "clients": 20},
    "cnn-8": {**COMMON, "model": "cnn", "clients": 8},
}
FEDAVG = "FedAvg"
RULES: dict[str, dict[str, Any]] = {
    FEDAVG: {"trust": "samples"},
    "jury:patches=0": {"trust": "jury:patches=0"},
    "jury": {"trust": "jury"},
    "FedDig": {"absence": "feddig", "trust": "samples"},
    "FedDig + jury": {"absence": "feddig", "trust": "jury"},
}
AIMS = {"jury:patches=0": "1.15", "jury": "1.5", "FedDig": "1.15", "FedDig + jury": "1.5"}
PARTS = {  # part -> the functions that are all of it
    "clients train": ["holdfast.client.train:Train.perform"],
    "validation": ["holdfast.round:accept"],
    "guides": ["holdfast.trust.jury:explained"],
    "witnesses' gradients": ["holdfast.trust.testing:Test.perform", "holdfast.trust.jury:helps_of"],
    "search for backdoors": ["holdfast.trust.testing:innocence_of"],
    "judging": ["holdfast.round:judge"],
    "averaging": ["holdfast.round:aggregate"],
    "digest review": ["holdfast.absence.feddig:FedDig.review"],
    "server step": ["holdfast.absence.feddig:FedDig.server_step"],
    "panel": ["holdfast.trust.witnesses:WitnessPanel.ask"],
    "floor": ["holdfast.round:hold"],
}
REST = "the rest"


class Clocks:
    """The processor time of each part, less that of the parts within it."""

    def __init__(self) -> None:
        self.taken: dict[str, float] = defaultdict(float)
        self._within: list[float] = []

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def plays(*arguments: Any, **named: Any) -> Any:
            self._within.append(0.0)
            start = time.process_time()
            try:
                return call(*arguments, **named)
            finally:
                whole = time.process_time() - start
                self.taken[part] += whole - self._within.pop()
                if self._within:
                    self._within[-1] += whole

        return plays

    def put_in(self, stack: ExitStack) -> None:
        for part, places in PARTS.items():
            for place in places:
                module, _, path = place.partition(":")
                *owners, name = path.split(".")
                owner = importlib.import_module(module)
                for one in owners:
                    owner = getattr(owner, one)
                stack.enter_context(patch.object(owner, name, self.timed(part, getattr(owner, name))))


def measure(case: str, seed: int, turns: int) -> dict[str, list[dict[str, float]]]:
    """Of each rule and turn, seconds of each part."""
    clocks = Clocks()
    with one_thread(), ExitStack() as stack:
        clocks.put_in(stack)
        able = [rule for rule, keys in RULES.items() if "absence" not in keys or CASES[case]["model"] == "features"]
        plans = {rule: make_plan(from_table({**CASES[case], **RULES[rule], "seed": seed})) for rule in able}
        federations = {rule: stack.enter_context(federation_of(plan, None)) for rule, plan in plans.items()}
        states: dict[str, State] = {rule: plan.start() for rule, plan in plans.items()}
        found = {rule: list[dict[str, float]]() for rule in plans}
        play = clocks.timed(REST, play_round)
        for turn in range(WARM + turns):
            for rule, plan in plans.items():
                clocks.taken.clear()
                states[rule], _ = play(states[rule], federations[rule], plan.method)
                if turn >= WARM:
                    found[rule].append(dict(clocks.taken))
    return found


def tell(case: str, found: dict[str, list[dict[str, float]]]) -> dict[tuple[str, str], str]:
    """Print the case's table; what is saved of it."""
    totals = {rule: [sum(turn.values()) for turn in turns] for rule, turns in found.items()}
    print(f"\n{case:22}" + "".join(f"{rule:>17}" for rule in found))
    for part in (*PARTS, REST):
        values = [1000 * statistics.median(turn.get(part, 0.0) for turn in turns) for turns in found.values()]
        if any(values):
            print(f"{part:22}" + "".join(f"{value:17.2f}" for value in values))
    print(f"{'a round, ms':22}" + "".join(f"{1000 * statistics.median(one):17.1f}" for one in totals.values()))
    cells, medians, all_rounds = {}, [], []
    for rule, values in totals.items():
        ratios = [value / other for value, other in zip(values, totals[FEDAVG], strict=True)]
        medians.append(statistics.median(ratios))
        all_rounds.append(sum(values) / sum(totals[FEDAVG]))  # every second one has a search, a few harm
        if rule != FEDAVG:
            text = f"{all_rounds[-1]:.2f} (single rounds {min(ratios):.2f} to {max(ratios):.2f})"
            cells[case, rule], cells["aim", rule] = text, AIMS[rule]
    print(f"{'of FedAvg, the median':22}" + "".join(f"{ratio:17.2f}" for ratio in medians))
    print(f"{'of FedAvg, all rounds':22}" + "".join(f"{ratio:17.2f}" for ratio in all_rounds), flush=True)
    return cells


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("cases", nargs="*", choices=[*CASES, []])
    options.add_argument("--seed", type=int, default=200)
    options.add_argument("--turns", type=int, default=16)
    options.add_argument("--save", metavar="NAME")
    options.add_argument("--files", metavar="FOLDER", help=f"with the files of Fashion-MNIST, for {FULL}")
    given = options.parse_args()
    CASES[FULL]["data"] = given.files
    cells: dict[tuple[str, str], str] = {}
    for case in given.cases or [case for case in CASES if given.files or case != FULL]:
        cells |= tell(case, measure(case, given.seed, given.turns))
    if given.save:
        save(given.save, cells, [given.seed], corner="processor time of FedAvg's round")


if __name__ == "__main__":
    main()
