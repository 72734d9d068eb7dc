"""What the tests of engines and runs share: tiny tasks, children that are killed, and finding what is left of them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.client import Client
from holdfast.core.tensors import norm_of
from holdfast.core.types import Message, Reply, State, Tensors, Update, pack
from holdfast.data.task import Samples, Task
from holdfast.engines.embedded import without_script
from holdfast.jobs import Job, register
from holdfast.play import resume, run
from holdfast.record import Record
from holdfast.runs.experiment import Experiment, from_table
from holdfast.runs.history import History
from holdfast.runs.store import Run
from holdfast.trust import Hearing, Judgement, Trust
from holdfast.trust.base import judgement

CLASSES = 4
GENEROUS = 120.0  # seconds: how long a loaded machine may take before a test calls it a failure


def samples(count: int, seed: int) -> Samples:
    """Points around one corner for each class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    points = torch.randn(count, 6, generator=generator) + 2.0 * nn.functional.one_hot(labels, 6)
    return Samples((points,), labels)


def tiny(loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy) -> Task:
    return Task("tiny", samples(160, 1), samples(80, 2), tuple("abcd"), loss=loss)


@dataclass(frozen=True)
class Careful(Trust):
    """A user's own rule: the larger an update, the less it counts."""

    power: float = 1.0

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        masses = [1 / (1e-9 + norm_of(update.delta)) ** self.power for update in updates]
        return judgement(updates, masses, state.trust)


def by_class(labels: Tensor, clients: int, generator: torch.Generator) -> list[Tensor]:
    """Client c has the samples of class c: a loss then knows whose samples it sees."""
    return [(labels == client).nonzero().flatten() for client in range(clients)]


def raising_loss(output: Tensor, labels: Tensor) -> Tensor:
    if torch.is_grad_enabled() and bool((labels == 2).any()):
        raise ValueError("client two is out of order")
    return nn.functional.cross_entropy(output, labels)


def raising() -> Task:
    return tiny(raising_loss)


def killed_loss(output: Tensor, labels: Tensor) -> Tensor:
    """Client 2's process is killed once, when there is a file `kill-now` where the run was started."""
    if torch.is_grad_enabled() and bool((labels == 2).any()) and Path("kill-now").exists():
        Path("kill-now").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return nn.functional.cross_entropy(output, labels)


def killed() -> Task:
    return tiny(killed_loss)


def hanging_loss(output: Tensor, labels: Tensor) -> Tensor:
    """Client 1 hangs once, when there is a file `hang-now` where the run was started."""
    if torch.is_grad_enabled() and bool((labels == 1).any()) and Path("hang-now").exists():
        Path("hang-now").unlink()
        time.sleep(600)
    return nn.functional.cross_entropy(output, labels)


def hanging() -> Task:
    return tiny(hanging_loss)


def slow_loss(output: Tensor, labels: Tensor) -> Tensor:
    """Each step of training takes a minute, after leaving a file `training-PID`: only a kill ends it sooner."""
    if torch.is_grad_enabled():
        Path(f"training-{os.getpid()}").touch()
        time.sleep(60)
    return nn.functional.cross_entropy(output, labels)


def slow() -> Task:
    return tiny(slow_loss)


def no_pickle() -> Task:
    """In a worker: from here on whatever pickles raises, or ends the worker."""
    if multiprocessing.parent_process() is not None:
        forbid_pickle(setattr)
    return tiny()


def forbid_pickle(set_attribute: Callable[[Any, str, Any], None]) -> None:
    for owner, name in ((Connection, "send"), (Connection, "recv"), (pickle, "dumps"), (pickle, "loads")):
        set_attribute(owner, name, refuse)


def refuse(*arguments: object, **options: object) -> None:
    raise AssertionError("something was pickled")


def experiment(**changes: object) -> Experiment:
    usual = {
        "task": "engine_helpers:tiny",
        "partition": "engine_helpers:by_class",
        "model": "mlp:8",
        "clients": 4,
        "rounds": 4,
        "batch_size": 8,
        "lr": 0.05,
        "workers": 0,
    }
    return from_table({**usual, **changes})


def weights(state: State | None) -> Tensors:
    """All that a run learnt."""
    assert state is not None
    groups = ("model", "buffers", "algorithm", "trust", "server_optimizer")
    return pack(**{group: getattr(state, group) for group in groups})


def same_bits(a: History, b: History) -> bool:
    one, other = weights(a.state), weights(b.state)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def assert_same_run(history: History, reference: History) -> None:
    """The same bits, each round once, the same accuracies: in memory and on disk."""
    assert same_bits(history, reference)
    assert [record.round for record in history.records] == list(range(1, reference.experiment.rounds + 1))
    assert history.accuracy == reference.accuracy
    if history.folder is not None:
        lines = (history.folder / "rounds.jsonl").read_text().splitlines()
        assert len(lines) == reference.experiment.rounds
        assert [record.accuracy for record in Run.open(history.folder).records()] == reference.accuracy
        assert (history.folder / "model.safetensors").exists()
        assert not list(history.folder.rglob("*.tmp"))


def interrupted(wanted: Experiment, folder: Path, after: int) -> None:
    """A run that ends after so many rounds, as by Ctrl-C."""

    def watch(record: Record) -> None:
        if record.round == after:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        run(wanted, folder, watch)


def go_on(folder: Path, wanted: Experiment) -> History:
    """What a user does after a crash: resume if there is a run, else start it."""
    return resume(folder) if (folder / "experiment.json").exists() else run(wanted, folder)


def child(target: Callable[..., None], *arguments: object) -> BaseProcess:
    """A process that starts quickly: forked from a server that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["holdfast.play", "torch._dynamo", "engine_helpers"])
    forkserver.ensure_running()
    process = context.Process(target=target, args=arguments)
    with without_script():
        process.start()
    return process


def play_quietly(folder: Path, wanted: Experiment) -> None:
    torch.set_num_threads(1)
    go_on(folder, wanted)


def wait_until(condition: Callable[[], Any], what: str, seconds: float = GENEROUS) -> Any:
    """The condition's value as soon as it is true; not to become true in time is a failure."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(0.02)
    return value


def marked(marker: str) -> list[int]:
    """Living processes whose environment holds the marker: a subprocess and all that it started."""
    return [
        pid
        for pid in processes()
        if marker.encode() in read(pid, "environ") and b"\nState:\tZ" not in read(pid, "status")
    ]


def processes() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def read(pid: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:  # it has ended meanwhile, or is not ours to see
        return b""


PLAY = """
import sys
from pathlib import Path
from engine_helpers import experiment
from holdfast.jobs import Job, register
from holdfast.play import run
if __name__ == "__main__":
    run(experiment(**eval(sys.argv[2])), Path(sys.argv[1]))
"""


def environment(marker: str) -> dict[str, str]:
    """For a subprocess: it finds this module and the package, and can be found by the marker.

    Not all of sys.path: folders of users' own modules that earlier tests searched are on it.
    """
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HOLDFAST_TEST": marker}


def pictures() -> Task:
    """Pictures large enough for the cnn."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(96) % CLASSES
    images = torch.randint(0, 128, (96, 1, 12, 12), generator=generator) + 32 * labels[:, None, None, None]
    data = Samples((images.to(torch.uint8),), labels)
    return Task("pictures", data, data.take(torch.arange(40)), tuple("abcd"))


def not_in_workers() -> Task:
    if multiprocessing.parent_process() is not None:
        raise RuntimeError("not in a worker")
    return tiny()


class Echo(Job[Client, Any, Any]):
    name = "echo"

    def answer(self, id: int, client: Client, message: Message) -> Reply:
        return Reply(id, {**message.tensors, "x": message.tensors["x"] + id})


class Sparse(Job[Client, Any, Any]):
    name = "sparse"

    def answer(self, id: int, client: Client, message: Message) -> Reply:
        return Reply(id, {"x": torch.ones(2).to_sparse()})


class Die(Job[Client, Any, Any]):
    name = "die"

    def answer(self, id: int, client: Client, message: Message) -> Reply:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def echo() -> Task:
    """In a worker: clients learn three more jobs."""
    if multiprocessing.parent_process() is not None:
        register(Echo())
        register(Sparse())
        register(Die())
    return tiny()
