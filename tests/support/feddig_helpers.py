"""What the tests of FedDig share: a federation that answers as written, a tiny task, and an encoder for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.absence import FedDig
from holdfast.algorithms.fedavg import FedAvg
from holdfast.context import About, Bench
from holdfast.core.types import Absent, Message, Reply, State, Tensors, pack
from holdfast.data.task import Samples, Task
from holdfast.digests.compact import Compact
from holdfast.digests.digest import Digest, seal_digest
from holdfast.encoders.contract import Encoder
from holdfast.learning.settings import Learning
from holdfast.method import Method
from holdfast.models.networks import weights_of
from holdfast.runs.experiment import Experiment, from_table
from holdfast.trust.base import Uniform

Answer = dict[str, object] | str  # a reply, or why there is none


class Script:
    """A federation that answers as written: answers[round][client]."""

    def __init__(self, clients: int, answer: Callable[[Message], Reply | Absent]) -> None:
        self._clients, self._answer = clients, answer
        self.heard: list[Message] = []

    @property
    def clients(self) -> Sequence[int]:
        return range(self._clients)

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        self.heard += messages
        return [self._answer(message) for message in messages]

    def close(self) -> None:
        pass


class OneLayer(nn.Module):
    """Two features, two classes, no bias, all weights zero: softmax gives one half to each."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, 2))

    def forward(self, features: Tensor) -> Tensor:
        return features @ self.w.T


ABOUT = About("tiny", 2, "finger", (2,), norm_bound=100.0)


def digest_of(features: list[list[float]], labels: list[list[float]], **facts: object) -> Digest:
    """A digest of known numbers, as of clients with four samples for each row."""
    known = {"task": "tiny", "encoder": "finger", "spd": 4, "samples": 4 * len(features), "used": 4 * len(features)}
    usual = {"strategy": "across", "weights": "balanced", "noise": "none"}
    return Digest(torch.tensor(features), torch.tensor(labels), **{**known, **usual, **facts})  # type: ignore[arg-type]


def sealed(digest: Digest) -> Tensors:
    return seal_digest(digest, Compact("float32"))


def method_with(absence: FedDig, algorithm: FedAvg | None = None, clients: int = 2, momentum: float = 0.0) -> Method:
    learning = Learning(epochs=1, batch_size=8, lr=0.1, momentum=momentum)
    bench = Bench(OneLayer(), about=ABOUT)
    return Method(
        algorithm=algorithm or FedAvg(), absence=absence, trust=Uniform(), learning=learning, rounds=9,
        clients=clients, seed=0, bench=bench,
    )  # fmt: skip


def start(method: Method) -> State:
    model = weights_of(method.bench.model)
    return State(0, model, {}, method.algorithm.begin(model), method.absence.begin(method), {})


def reply(client: int, delta: list[list[float]], digest: Tensors | None = None, extra: Tensors | None = None) -> Reply:
    tensors = pack(delta={"w": torch.tensor(delta)}, extra=extra or {}, digest=digest or {})
    return Reply(client, tensors, {"samples": 40, "steps": 1, "loss": 0.5, "notes": []})


# A run with real clients -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Means:
    """Means of a picture on a 3 x 3 grid, as nine flat features or as a map."""

    flat: bool = True

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        network = nn.Sequential(nn.AdaptiveAvgPool2d(3), *([nn.Flatten()] if self.flat else []))
        features = (9 * shape[0],) if self.flat else (shape[0], 3, 3)
        return Encoder("means", shape, features, f"means {shape} {self.flat}", network)


def corners(n: int = 96, held_out: int = 40) -> Task:
    """Noisy pictures with one bright corner each, which is the class."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(n) % 4
    images = torch.randint(0, 100, (n, 1, 12, 12), generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, 6 * (label // 2) : 6 * (label // 2) + 6, 6 * (label % 2) : 6 * (label % 2) + 6] += 120
    data = Samples((images.to(torch.uint8),), labels)
    return Task("corners", data, data.take(torch.arange(held_out)), tuple("abcd"))


def experiment(**changes: object) -> Experiment:
    """Four clients with 24 pictures each, one class each, 20 of them to train on; FedDig."""
    usual: dict[str, object] = {
        "task": "feddig_helpers:corners",
        "partition": "engine_helpers:by_class",
        "encoder": "feddig_helpers:Means",
        "absence": "feddig:spd=3",
        "model": "features:8",
        "clients": 4,
        "rounds": 4,
        "batch_size": 8,
        "lr": 0.05,
        "workers": 0,
    }
    return from_table({**usual, **changes})


FROM_CLIENT_0 = [[0.2, 0.0], [0.0, 0.4]]
DIGESTS = {0: sealed(digest_of([[0.0, 1.0]], [[1.0, 0.0]])), 1: sealed(digest_of([[1.0, 0.0]], [[0.25, 0.75]]))}


def only_client_0(message: Message) -> Reply | Absent:
    return reply(0, FROM_CLIENT_0) if message.client == 0 else Absent(1, "away")


def both(message: Message) -> Reply | Absent:
    return reply(message.client, FROM_CLIENT_0)
