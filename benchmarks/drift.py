"""Where replayed updates lead once everybody has left, beside digests.

    python benchmarks/drift.py [--seed 0,1,2]

fashion-mini, 1,000 images, 4 clients, Dirichlet 0.1; all leave for ever after round 6. Prints test accuracy in % after
some rounds, mean over seeds, and in brackets how far the model is then from that of round 6, as a share of its length.
"""

from __future__ import annotations

import argparse
import statistics

from saved import save

from holdfast import Experiment, run
from holdfast.core.tensors import norm_of

LEFT, SHOWN = 6, (6, 12, 24, 48)
METHODS = {
    "FedAvg": {},
    "MIFA": {"absence": "memory", "trust": "uniform"},
    "memory, decay 0.8": {"absence": "memory:0.8", "trust": "uniform"},
    "FedVARP": {"algorithm": "fedvarp"},
    "FedDig": {"absence": "feddig"},
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", default="0,1,2")
    wanted = options.parse_args()
    seeds = [int(seed) for seed in wanted.seed.split(",")]
    kept = {}
    for name, keys in METHODS.items():
        cells = []
        found = [[played(keys, seed, rounds) for rounds in SHOWN] for seed in seeds]
        for place in range(len(SHOWN)):
            accuracy = statistics.fmean(100 * row[place][0] for row in found)
            far = statistics.fmean(distance(row[0][1], row[place][1]) for row in found)
            cells.append(f"{accuracy:.1f} ({far:.2f})")
            kept[name, f"round {SHOWN[place]}"] = [100 * row[place][0] for row in found]
            if place:
                kept[name, f"moved by round {SHOWN[place]}"] = [distance(row[0][1], row[place][1]) for row in found]
        print(f"{name:20} " + "  ".join(f"round {r}: {cell}" for r, cell in zip(SHOWN, cells, strict=True)), flush=True)
    digits = {column: 2 if "moved" in column else 1 for _, column in kept}
    save("drift", kept, seeds, digits=digits)


def played(keys: dict[str, str], seed: int, rounds: int) -> tuple[float, dict]:
    """The accuracy and the model after so many rounds."""
    away = [[client, LEFT + 1, 10_000] for client in range(4)]
    table = {"task": "fashion-mini", "samples": 1000, "clients": 4, "partition": "dirichlet:0.1", "model": "features"}
    scenario = {"name": "intervals", "away": away}
    experiment = Experiment(
        **table, **keys, scenario=scenario, rounds=rounds, evaluate_every=rounds, seed=seed, workers=0
    )
    history = run(experiment)
    assert history.final is not None
    assert history.state is not None
    return history.final, history.state.model


def distance(before: dict, after: dict) -> float:
    return norm_of({name: after[name] - before[name] for name in before}) / norm_of(before)


if __name__ == "__main__":
    main()
