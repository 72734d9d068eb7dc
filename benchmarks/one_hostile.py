"""What a hostile client gains by false claims about itself: accuracy beside the same run with everybody honest.

    python benchmarks/one_hostile.py --seed 0,1,2 [--save NAME]

The liar knows the rules, the encoder and its own data; it may change anything in its own replies. Each row is one lie:

    steps       fednova, claims 100,000 steps                      (1 of 20)
    variances   a network with batch norm, sends running_var = 100  (1 of 10)
    far         digest rows moved by 100 in one direction; all members leave  (1 of 20)
    rows        a digest with 100 times the rows; all members leave           (1 of 20)
    samples     claims four times the median samples, and flips the signs of its updates  (4 of 20)
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from saved import save, text
from torch import Tensor, nn

from holdfast.core.types import Absent, Federation, Message, Reply, unpack
from holdfast.digests.digest import Digest, open_digest, seal_digest
from holdfast.engines.inline import Inline
from holdfast.play import run
from holdfast.runs.experiment import from_table
from holdfast.runs.history import History
from holdfast.runs.plan import Plan

Lie = Callable[[Reply], Reply]


class Liar(Federation):
    """A federation in which some clients rewrite what they answer to `train`."""

    def __init__(self, inner: Federation, lie: Lie, liars: Sequence[int]) -> None:
        self._inner, self._lie, self._liars = inner, lie, liars

    @property
    def clients(self) -> Sequence[int]:
        return self._inner.clients

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        training = {message.client for message in messages if message.job == "train"}
        lying = training & set(self._liars)
        return [
            self._lie(reply) if isinstance(reply, Reply) and reply.client in lying else reply
            for reply in self._inner.ask(messages)
        ]

    def close(self) -> None:
        self._inner.close()


def play(settings: dict[str, Any], lie: Lie | None = None, liars: Sequence[int] | None = (3,)) -> History:
    """One run in which these clients lie; without any named, those that the experiment's attack chose."""

    def engine(plan: Plan, folder: Path | None) -> Federation:
        model = plan.model()
        inner = Inline({id: plan.client(id, model, folder) for id in range(plan.experiment.clients)})
        return inner if lie is None else Liar(inner, lie, plan.hostile if liars is None else liars)

    return run(from_table(settings), engine=engine)


def says(**claims: object) -> Lie:
    """Other scalars than the true ones."""
    return lambda reply: dataclasses.replace(reply, scalars={**reply.scalars, **claims})


def with_buffers(change: Callable[[str, Tensor], Tensor]) -> Lie:
    """Other buffers than the true ones."""

    def lie(reply: Reply) -> Reply:
        found = {n: change(n, t) if n.startswith("buffers/") else t for n, t in reply.tensors.items()}
        return dataclasses.replace(reply, tensors=found)

    return lie


def with_digest(change: Callable[[Digest], Digest]) -> Lie:
    """Another digest than the true one."""

    def lie(reply: Reply) -> Reply:
        sealed = unpack(reply.tensors, "digest")
        if not sealed:
            return reply
        changed = {f"digest/{n}": t for n, t in seal_digest(change(open_digest(sealed))).items()}
        rest = {name: tensor for name, tensor in reply.tensors.items() if not name.startswith("digest/")}
        return dataclasses.replace(reply, tensors={**rest, **changed})

    return lie


def pushed(digest: Digest, far: float) -> Digest:
    """Every row moved by so much in one direction."""
    shift = torch.zeros(digest.feature_shape)
    shift[0] = far
    return dataclasses.replace(digest, features=digest.features + shift)


def many(digest: Digest, times: int, spd: int | None = None) -> Digest:
    """So many times the rows, with false labels."""
    rows = len(digest) * times
    spd = digest.spd if spd is None else spd
    return dataclasses.replace(
        digest, features=digest.features.repeat(times, 1), labels=digest.labels.roll(1, 1).repeat(times, 1), spd=spd,
        samples=rows * spd, used=rows * spd,
    )  # fmt: skip


def normed() -> nn.Module:
    """A small network with batch norm, whose running statistics travel."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def loud_variances(name: str, tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, 100.0) if name.endswith("running_var") else tensor


JURY = {
    "clients": 20, "partition": "dirichlet:0.5", "rounds": 14, "lr": 0.02, "trust": "jury", "model": "features",
    "workers": 0,
}  # fmt: skip
LEAVING = {**JURY, "absence": "feddig", "scenario": "sequential"}
NORMED = {**JURY, "clients": 10, "model": "one_hostile:normed", "lr": 0.05}
FOUR = {**JURY, "attack": "signflip:1", "attackers": 4}
ROWS: dict[str, tuple[dict[str, Any], Lie, Sequence[int] | None]] = {
    "steps": ({**JURY, "algorithm": "fednova"}, says(steps=100_000), (3,)),
    "variances": (NORMED, with_buffers(loud_variances), (3,)),
    "far": (LEAVING, with_digest(lambda digest: pushed(digest, 100.0)), (3,)),
    "rows": (LEAVING, with_digest(lambda digest: many(digest, 100)), (3,)),
    "samples": (FOUR, says(samples=4 * 75), None),
}

WORDS = {
    "steps": "FedNova, claims 100,000 steps (1 of 20)",
    "variances": "batch norm, sends running variances of 100 (1 of 10)",
    "far": "digest rows moved by 100, all members leave (1 of 20)",
    "rows": "digest with 100 times the rows, all members leave (1 of 20)",
    "samples": "claims four times the median samples and flips signs (4 of 20)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="0,1,2")
    parser.add_argument("--only", choices=list(ROWS))
    parser.add_argument("--save", metavar="NAME", help="keep the table as docs/results/NAME.json")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seed.split(",")]
    cells: dict[tuple[str, str], list[float]] = {}
    print(f"{'lie':10} {'honest':>14} {'lying':>14}   (test accuracy in %, seeds {arguments.seed})")
    for name in [arguments.only] if arguments.only else ROWS:
        settings, lie, liars = ROWS[name]
        peaceful = {key: value for key, value in settings.items() if key not in ("attack", "attackers")}
        honest = [100 * play({**peaceful, "seed": seed}).final_accuracy for seed in seeds]
        lying = [100 * play({**settings, "seed": seed}, lie, liars).final_accuracy for seed in seeds]
        cells |= {(WORDS[name], "honest"): honest, (WORDS[name], "lying"): lying}
        print(f"{name:10} {text(honest, 1):>14} {text(lying, 1):>14}", flush=True)
    if arguments.save:
        print(save(arguments.save, cells, seeds, corner="lie"))


if __name__ == "__main__":
    main()
