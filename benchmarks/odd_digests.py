"""Honest digests that are set aside, or of which a class is odd, where nobody is hostile: a rule must leave them alone.

    python benchmarks/odd_digests.py --files FOLDER --seed 200,201

Only the first round is played, after which all digests are there.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from adversary import DATA, FILES, RULES
from saved import save

from holdfast.absence.feddig import FedDig
from holdfast.context import Context
from holdfast.core.types import State
from holdfast.digests.cells import cells_of
from holdfast.play import run
from holdfast.runs.experiment import from_table


def count(settings: dict[str, Any]) -> dict[str, float]:
    """Of one run: digests, those that are contradicted, classes in digests, and those that are odd, in %."""
    found: dict[str, float] = {}
    review = FedDig.review

    def watched(self: FedDig, before: State, after: State, context: Context) -> State:
        reviewed = review(self, before, after, context)
        held = {client: cells_of(self, context, sealed).counts > 0 for client, sealed in reviewed.digests.items()}
        odd = sum(int((reviewed.absence["odd"][client].numpy() & flags).sum()) for client, flags in held.items())
        classes = sum(int(flags.sum()) for flags in held.values())
        found.update(
            {"digests": len(held), "contradicted": len(self.doubts(reviewed)), "classes": classes, "odd classes": odd}
        )
        return reviewed

    FedDig.review = watched  # type: ignore[method-assign]
    try:
        run(from_table(settings))
    finally:
        FedDig.review = review  # type: ignore[method-assign]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", default="fashion,five,heart,letters,cifar")
    parser.add_argument("--seed", default="200,201")
    parser.add_argument("--files", help="folder with the files of " + " and ".join(FILES))
    parser.add_argument("--save", help="name of the file in docs/results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in FILES:
        DATA[name]["data"] = options.files
    seeds, cells = [int(seed) for seed in options.seed.split(",")], {}
    for data in options.data.split(","):
        found = [count({**DATA[data], **RULES["feddig+jury"], "rounds": 1, "seed": seed}) for seed in seeds]
        print(data, found, flush=True)
        cells |= {(data, column): [one[column] for one in found] for column in found[0]}
    if options.save:
        command = f"python benchmarks/odd_digests.py --data {options.data} --seed {options.seed} --save {options.save}"
        save(options.save, cells, seeds, corner="data", command=command)


if __name__ == "__main__":
    main()
