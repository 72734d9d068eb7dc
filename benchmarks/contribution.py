"""What each client contributes, by leaving it out, and the curves of removal (FedCCEA's measure).

    python benchmarks/contribution.py [--seed 0] [--absence none]

fashion-mini, 4 clients, Dirichlet 0.1: a client that is removed is never there. Prints accuracies in %.
"""

from __future__ import annotations

import argparse
from functools import cache
from typing import Any

from holdfast import Experiment, run
from holdfast.rivals.contribution import area_between, leave_one_out, removal

CLIENTS, ROUNDS = 4, 12


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--absence", default="none")
    wanted = options.parse_args()

    @cache
    def value(there: frozenset[int]) -> float:
        away = [[client, 1, ROUNDS + 1] for client in range(CLIENTS) if client not in there]
        scenario = {"name": "intervals", "away": away} if away else "none"
        keys: Any = {"task": "fashion-mini", "partition": "dirichlet:0.1", "model": "features", "workers": 0}
        experiment = Experiment(
            clients=CLIENTS, rounds=ROUNDS, seed=wanted.seed, absence=wanted.absence, scenario=scenario, **keys
        )
        return 100 * run(experiment).final_accuracy

    found = leave_one_out(value, CLIENTS)
    for client, worth in sorted(found.items(), key=lambda item: -item[1]):
        print(f"client {client}: {worth:+.1f}")
    for first, name in ((True, "the least first"), (False, "the most first")):
        print(f"removed, {name}: " + ", ".join(f"{one:.1f}" for one in removal(value, found, first)))
    print(f"area between: {area_between(value, found):.1f}")


if __name__ == "__main__":
    main()
