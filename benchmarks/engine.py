"""What the embedded engine costs, as ratios measured within one run. Prints a line `name value` for each figure.

    python benchmarks/engine.py [engine] [clients] [imports] [precision] [--save]

`--save` writes docs/results/engine.json; parts that are not measured keep what it says of them.

engine_vs_plain      a round of 20 clients x 1,200 pictures, CNN of conv 32, conv 64, fc 128, against a plain PyTorch
                     loop over as many batches in as many single-threaded processes as there are cores
engine_overhead      the part of a round that is not training, in the worker that trains longest
clients_1000_vs_250  time per client of a round with 1,000 clients of 60 samples against 250 such clients
moderator_memory     the moderator's growth in memory over (model + one round's updates), with 1,000 clients
bfloat16_vs_float32  a training of one client with 1,200 pictures, the same CNN, in bfloat16 against float32, one thread
import_seconds       `import holdfast`; torch_in_help is 1 if `holdfast --help` imports torch
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack

import torch
from saved import save_parts
from torch import nn

import holdfast
from holdfast.core.types import size
from holdfast.data.named import load_task
from holdfast.data.task import Samples, Task
from holdfast.engines.embedded import cores, share_out
from holdfast.play import federation_of, one_thread
from holdfast.round import play_round, train_messages
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment
from holdfast.runs.plan import Plan

BATCH, LR, MOMENTUM = 64, 0.01, 0.9


def tiled() -> Task:
    """fashion-mini repeated to 24,000 training pictures: speed does not depend on what is in them."""
    mini = load_task("fashion-mini")
    index = torch.arange(30_000) % len(mini.train)
    return Task("tiled", mini.train.take(index), mini.test, mini.class_names)


def many() -> Task:
    """75,000 small vectors, for 1,000 clients of 60 training samples each."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(75_000, 20, generator=generator), torch.randint(0, 10, (75_000,), generator=generator)
    return Task("many", Samples((x,), y), Samples((x[:100],), y[:100]), tuple("0123456789"))


def plain_loop(pipe: multiprocessing.connection.Connection, clients: int) -> None:
    """What one would write by hand: a model, a loop over batches, SGD; one process of several."""
    torch.set_num_threads(1)
    images = torch.rand(1200, 1, 28, 28)
    labels = torch.randint(0, 10, (1200,))
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    while pipe.recv():
        for _ in range(clients):
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
            for index in torch.randperm(1200).split(BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images[index]), labels[index]).backward()
                optimizer.step()
        pipe.send(True)


def engine(rounds: int = 5) -> None:
    plan = make_plan(
        Experiment(
            task="engine:tiled",
            clients=20,
            partition="iid",
            model="cnn:norm=none",
            rounds=rounds,
            batch_size=BATCH,
            lr=LR,
        )
    )
    context = multiprocessing.get_context("forkserver")
    shares = share_out(plan.stage.sizes, cores())
    pipes = [context.Pipe() for _ in shares]
    loops = [
        context.Process(target=plain_loop, args=(theirs, len(share)), daemon=True)
        for (_, theirs), share in zip(pipes, shares, strict=True)
    ]
    for loop in loops:
        loop.start()

    def plain_round() -> float:
        start = time.perf_counter()
        for ours, _ in pipes:
            ours.send(True)
        for ours, _ in pipes:
            ours.recv()
        return time.perf_counter() - start

    plains, rounds_taken, overheads = [], [], []
    with one_thread(), federation_of(plan, None) as federation:
        watched = Watched(federation)
        state = plan.start()
        for number in range(rounds + 1):
            plain = plain_round()
            start = time.perf_counter()
            state, _ = play_round(state, watched, plan.method)
            taken = time.perf_counter() - start
            training = max(sum(watched.seconds[client] for client in share) for share in shares)
            if number:  # the first round warms up
                plains.append(plain)
                rounds_taken.append(taken)
                overheads.append(1 - training / taken)
    for ours, _ in pipes:
        ours.send(False)
    show("engine_vs_plain", statistics.median(rounds_taken) / statistics.median(plains))
    show("engine_overhead", statistics.median(overheads))


class Watched:
    """A federation that notes how long each client computed."""

    def __init__(self, federation: holdfast.core.types.Federation) -> None:
        self._federation = federation
        self.seconds: dict[int, float] = {}

    @property
    def clients(self) -> object:
        return self._federation.clients

    def ask(self, messages: object) -> object:
        replies = self._federation.ask(messages)
        self.seconds = {reply.client: reply.seconds for reply in replies}
        return replies


def round_seconds(plan: Plan, rounds: int = 4) -> float:
    with one_thread(), federation_of(plan, None) as federation:
        state = plan.start()
        state, _ = play_round(state, federation, plan.method)
        start = time.perf_counter()
        for _ in range(rounds):
            state, _ = play_round(state, federation, plan.method)
        return (time.perf_counter() - start) / rounds


def clients() -> None:
    def experiment(count: int) -> Experiment:
        return Experiment(task="engine:many", clients=count, partition="iid", model="mlp:64", batch_size=20, rounds=4)

    large, small = make_plan(experiment(1000)), make_plan(experiment(1000))
    few = make_plan(Experiment(task="engine:quarter", clients=250, partition="iid", model="mlp:64", batch_size=20))
    updates = size(small.start().model) * 1001
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = round_seconds(large)
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    show("clients_1000_vs_250", seconds / 1000 / (round_seconds(few) / 250))
    show("moderator_memory", growth / updates)


def quarter() -> Task:
    """The first quarter of `many`, for 250 clients of the same size."""
    task = many()
    return Task("quarter", task.train.take(torch.arange(18_750)), task.test, task.class_names)


def precision(trainings: int = 7) -> None:
    """Interleaved, so that a busy machine slows down both alike."""
    usual = {"task": "engine:tiled", "clients": 20, "partition": "iid", "batch_size": BATCH, "lr": LR, "workers": 0}
    taken: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    with one_thread(), ExitStack() as stack:
        plans = {name: make_plan(Experiment(**usual, model="cnn:norm=none", precision=name)) for name in taken}
        federations = {name: stack.enter_context(federation_of(plan, None)) for name, plan in plans.items()}
        for number in range(trainings + 1):
            for name, plan in plans.items():
                [message] = train_messages(plan.start(), [0], plan.method)
                start = time.perf_counter()
                federations[name].ask([message])
                if number:  # the first one warms up
                    taken[name].append(time.perf_counter() - start)
    show("bfloat16_vs_float32", statistics.median(taken["bfloat16"]) / statistics.median(taken["float32"]))


def imports() -> None:
    code = "import time; t = time.perf_counter(); import holdfast; print(time.perf_counter() - t)"
    show("import_seconds", float(subprocess.check_output([sys.executable, "-c", code])))
    code = "import sys; sys.argv = ['holdfast', '--help']\nfrom holdfast.cli import main\ntry:\n    main()\nfinally:\n"
    code += "    print('TORCH', int('torch' in sys.modules))"
    text = subprocess.check_output([sys.executable, "-c", code], text=True)
    show("torch_in_help", float(text.rsplit("TORCH ", 1)[1]))


def show(name: str, value: float) -> None:
    print(f"{name} {value:.3f}", flush=True)
    FOUND[f"`{name}`: {WORDS[name]}", "measured"] = f"{value:.3f}"


FOUND: dict[tuple[str, str], str] = {}
WORDS = {
    "engine_vs_plain": "a round of 20 clients x 1,200 pictures, CNN, against a plain PyTorch loop in as many processes",
    "bfloat16_vs_float32": "a training of the same in bfloat16 against float32",
    "engine_overhead": "part of that round which is not training",
    "clients_1000_vs_250": "cost per client of a round with 1,000 clients against 250",
    "moderator_memory": "growth of the moderator over (model + one round's updates), 1,000 clients",
    "import_seconds": "`import holdfast`, in seconds",
    "torch_in_help": "whether `holdfast --help` imports torch",
}


if __name__ == "__main__":
    for name in [word for word in sys.argv[1:] if word != "--save"] or ["imports", "clients", "precision", "engine"]:
        {"engine": engine, "clients": clients, "imports": imports, "precision": precision}[name]()
    if "--save" in sys.argv:
        save_parts("engine", FOUND, "python benchmarks/engine.py --save")
