"""What many clients, a large model and the start cost: seconds and memory, each measured in a process of its own.

    python benchmarks/scale.py [few] [memory] [start] [--save]     or: make bench-speed

few       10,000 clients of 20 samples, 1 % asked: seconds a round and the moderator's memory, and those of 100 clients
memory    how the moderator's memory grows in two rounds of 4 clients, in multiples of a model of 20 M weights
start     seconds from the command until round 1 begins, fashion-mini, 2 workers

What a process needed at most says nothing of what came later, hence the processes. `--save` writes
docs/results/scale.json; parts that are not measured keep what it says of them.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from saved import save_parts
from speed import TURNS, drawn, rounds_of, show

from holdfast.core.types import size
from holdfast.data.task import Task
from holdfast.play import federation_of, one_thread
from holdfast.round import play_round
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import from_table

CLASSES = tuple("0123456789")


def tiny() -> Task:
    return Task("tiny", drawn(250_000, 16), drawn(10, 16), CLASSES)


def few_tiny() -> Task:
    return Task("tiny", drawn(2_500, 16), drawn(10, 16), CLASSES)


def hundred() -> Task:
    return Task("hundred", drawn(100, 784), drawn(10, 784), CLASSES)


def in_a_process(call: str) -> list[float]:
    """The numbers that a function of this module prints, called in a process of its own."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import scale; scale.{call}"
    return [float(word) for word in subprocess.check_output([sys.executable, "-c", code], text=True).split()]


def peak_bytes() -> int:
    """What this process needed at most, on Linux; ru_maxrss would hold what its parent needed, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def few() -> dict[str, str]:
    seconds, peak = in_a_process("few_here('scale:tiny', 10_000)")
    _, usual = in_a_process("few_here('scale:few_tiny', 100)")
    return {
        "10,000 clients of 20 samples, 100 asked: seconds a round": f"{seconds:.2f}",
        "the moderator's peak in MB; with 100 clients in all": f"{peak / 2**20:.0f}; {usual / 2**20:.0f}",
    }


def few_here(task: str, clients: int) -> None:
    keys = {"task": task, "clients": clients, "partition": "iid", "model": "mlp:32", "selection": "uniform:100"}
    with one_thread(), ExitStack() as stack:
        play = rounds_of(from_table({**keys, "workers": 1, "rounds": 99}), stack)
        taken = []
        for _ in range(TURNS + 1):
            start = time.perf_counter()
            play()
            taken.append(time.perf_counter() - start)
    print(statistics.median(taken[1:]), peak_bytes())


def memory() -> dict[str, str]:
    [growth] = in_a_process("memory_here()")
    figure = "growth of the moderator's memory in two rounds of 4 clients, two workers, over a model of 80 MB"
    return {figure: f"{growth:.1f}"}


def memory_here() -> None:
    """Beyond what the process had once all was loaded: the first model is in that already."""
    keys = {"task": "scale:hundred", "model": "mlp:25000", "clients": 4, "partition": "iid", "workers": 2, "rounds": 9}
    with one_thread(), ExitStack() as stack:
        plan = make_plan(from_table(keys))
        federation, state = stack.enter_context(federation_of(plan, None)), plan.start()
        before = peak_bytes()
        for _ in range(2):
            state, _ = play_round(state, federation, plan.method)
        print((peak_bytes() - before) / size(state.model))


def start() -> dict[str, str]:
    """Until the workers stand ready, in the order in which the commands import."""
    code = (
        "import time; t = time.perf_counter()\n"
        "from holdfast.engines.forking import begin_ahead; begin_ahead(None)\n"
        "from holdfast.play import *\nfrom holdfast.runs.experiment import *\n"
        "plan = make_plan(Experiment(workers=2))\n"
        "with federation_of(plan, None): print(time.perf_counter() - t)"
    )
    taken = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3)]
    found = f"{statistics.median(taken):.1f} ({min(taken):.1f} to {max(taken):.1f})"
    return {"start until round 1, fashion-mini, 2 workers: seconds": found}


PARTS: dict[str, Callable[[], dict[str, str]]] = {"few": few, "memory": memory, "start": start}
AIMS = {"few": ["under 2", "grows with those asked"], "memory": ["4 in all"], "start": ["under 3"]}


if __name__ == "__main__":
    cells: dict[tuple[str, str], str] = {}
    for part in [word for word in sys.argv[1:] if word != "--save"] or PARTS:
        for (figure, value), aim in zip(PARTS[part]().items(), AIMS[part], strict=True):
            cells |= {(figure, "found"): value, (figure, "aim"): aim}
            show(part, f"{figure}: {value}")
    if "--save" in sys.argv:
        save_parts("scale", cells, "python benchmarks/scale.py --save")
