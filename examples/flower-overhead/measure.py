"""What an exchange costs beyond training, in seconds, bytes and memory: real processes on loopback.

python examples/flower-overhead/measure.py --sites 3 --rounds 6 [--half both] [--plain] [--durable] [--insecure]

A small relay stands between the sites and the SuperLink and counts what passes, TLS and Flower's own talk included.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.files import read_lines
from holdfast.core.types import size
from holdfast.flower.deploy.app import write_app
from holdfast.flower.deploy.keys import make_keys
from holdfast.flower.deploy.local import Local
from holdfast.flower.engine.sites import usual_names
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import from_table


class Relay:
    """Passes bytes on to a port, and counts them."""

    def __init__(self, port: int) -> None:
        self.count = 0
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            theirs, _ = self._server.accept()
            with suppress(OSError):  # the SuperLink is down: the site hangs up
                ours = socket.create_connection(("127.0.0.1", self._port))
                for source, target in ((theirs, ours), (ours, theirs)):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.count += len(data)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@dataclass(frozen=True)
class Seen:
    """What was measured."""

    up: float  # seconds until all sites were up
    run: float  # seconds of the run
    passed: int  # bytes between sites and SuperLink during the run
    memory: int  # bytes of all processes, at most
    exchanges: list[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--half", default="none", choices=["none", "updates", "both"])
    parser.add_argument("--task", default="fashion-mini")
    parser.add_argument("--plain", action="store_true", help="Flower's own way, without fast.py")
    parser.add_argument("--durable", action="store_true", help="the SuperLink keeps its state on disk")
    parser.add_argument("--insecure", action="store_true")
    chosen = parser.parse_args()
    os.environ["HOLDFAST_FLOWER"] = "plain" if chosen.plain else "fast"
    wanted = from_table({
        "task": chosen.task, "clients": chosen.sites, "rounds": chosen.rounds, "evaluate_every": chosen.rounds,
        "model": "cnn", "partition": "iid",
    })  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        print_figures(wanted, play(Path(name), wanted, chosen))


def play(folder: Path, wanted: Any, chosen: argparse.Namespace) -> Seen:
    """Start everything, play the run, take everything down."""
    here = Local(folder, not chosen.insecure, chosen.durable)
    sites = usual_names(chosen.sites)
    try:
        start = time.monotonic()
        if here.secure:
            make_keys(here.keys, sites)
        here.start_link()
        relay = Relay(here.port)
        if here.secure:
            here.register(*sites)
        for site in sites:
            here.start_node(site, relay.address)
        while not all("SuperNode ID" in here.log(site).read_text() for site in sites):
            time.sleep(0.1)
        up = time.monotonic()
        before = relay.count
        here.begin(write_app(folder / "app", wanted), out=str(folder / "run"), half=chosen.half)
        memory = 0
        while here.goes_on(folder / "run"):
            memory = max(memory, sum(map(memory_of, members(here))))
            time.sleep(1)
        lines: Any = read_lines(folder / "run" / "exchanges.jsonl")
        return Seen(up - start, time.monotonic() - up, relay.count - before, memory, lines)
    finally:
        here.close()


def members(here: Local) -> list[int]:
    """All processes of a federation, those that its processes started among them."""
    heads = {process.pid for process in here.processes.values()}
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    found = []
    for pid in pids:
        with suppress(ProcessLookupError):
            found += [pid] if os.getsid(pid) in heads else []
    return found


def memory_of(pid: int) -> int:
    """Bytes of a process; what it shares with others counts by its share."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def print_figures(wanted: Any, seen: Seen) -> None:
    start = make_plan(wanted).start()
    model = size(start.model) + size(start.buffers)
    beyond = [line["seconds"] - max(line["working"].values()) for line in seen.exchanges]
    trains = [line["seconds"] for line in seen.exchanges if line["job"] == "train"]
    absent = sum(len(line["absent"]) for line in seen.exchanges)
    ideal = model * 2 * wanted.clients * wanted.rounds + model * wanted.clients  # and one evaluation at the end
    payload = sum(line["bytes_down"] + line["bytes_up"] for line in seen.exchanges)
    print(f"model {model / 1e6:.2f} MB, {wanted.clients} sites, {wanted.rounds} rounds and one evaluation")
    print(f"seconds of an exchange beyond its slowest site's work: median {statistics.median(beyond):.2f}, "
          f"least {min(beyond):.2f}, most {max(beyond):.2f}; "
          f"of a whole round: median {statistics.median(trains):.2f}")  # fmt: skip
    print(f"seconds until all sites were up: {seen.up:.0f}; of the run, its start included: {seen.run:.0f}; "
          f"absences: {absent}; memory at most: {seen.memory / 1e9:.1f} GB")  # fmt: skip
    print(f"Holdfast's messages: {payload / 1e6:.2f} MB, {payload / ideal:.3f} x (model x 2 x sites)")
    print(f"bytes between sites and SuperLink: {seen.passed / 1e6:.2f} MB, "
          f"{seen.passed / ideal:.3f} x (model x 2 x sites)")  # fmt: skip


if __name__ == "__main__":
    main()
