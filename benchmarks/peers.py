"""A round of the same work beside the peers: seconds of processor time and by the clock, in turns.

    python benchmarks/peers.py [flower fluke fedlab pfl fedjax] [--work vectors] [--turns 5] [--clients 20]
                               [--images 1200] [--threads 2] [--save]

Each peer has an environment of its own under build/peers, which takes torch from this one, and an adapter in
benchmarks/beside. All train the same network (conv 32, conv 64, fc 128) on pictures of the same shape, one epoch of SGD
with momentum in batches of 64; or, with --work vectors, many small clients 784-64-10 on 60 samples each, in two batches
of 30. The first turn of each warms up. What was found is kept in build/peers/WORK.json, and a
peer that is in it is not measured again; --again forgets it. On a busy machine only processor time says something:
it shows what the work costs, not that a peer in a single process leaves the other cores idle.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from saved import save, table

BESIDE = Path(__file__).parent / "beside"
BUILD = Path(__file__).parent.parent / "build" / "peers"
NEEDS = {  # without their dependencies: those that a round needs are named here, stubs stand for the others
    "flower": ["ray==2.55.1", "msgpack"],  # flwr itself is one of our own
    "fluke": [
        "fluke-fl==0.8.1",
        "omegaconf==2.3.0",
        "antlr4-python3-runtime==4.9.3",
        "cerberus",
        "diskcache",
        "psutil",
    ],
    "fedlab": ["fedlab==1.3.0", "munch"],
    "pfl": ["pfl==0.6.0", "multiprocess==0.70.18", "dill"],
    "fedjax": [
        "fedjax==0.0.17",
        "jax==0.10.2",
        "jaxlib==0.10.2",
        "dm-haiku==0.0.17",
        "optax==0.2.8",
        "absl-py",
        "jmp",
        "ml_dtypes",
        "msgpack",
        "opt_einsum",
        "tabulate",
    ],
}
OURS = {"float32": ("float32", "auto"), "bfloat16": ("bfloat16", "auto"), "float32, plain layout": ("float32", "plain")}
USUAL = {"pictures": (20, 1200), "vectors": (1000, 60)}  # clients, and the samples of each
NAMES = {"flower": "Flower 1.41, simulation", "fluke": "fluke 0.8.1", "fedlab": "FedLab 1.3.0", "pfl": "pfl 0.6.0",
         "fedjax": "FedJAX 0.0.17"}  # fmt: skip
AIMS = {"flower": (0.68, 0.40), "fluke": (0.50, 0.30), "fedlab": (0.50, 0.30), "pfl": (0.37, 0.22)}
Taken = list[tuple[float, float]]  # of each turn: processor seconds, and by the clock


class Player:
    """An adapter at work, which plays a round when it is told to."""

    def __init__(self, python: Path, name: str, threads: int, work: tuple[object, ...], *arguments: str) -> None:
        words = [str(python), str(BESIDE / f"with_{name}.py"), *arguments]
        paths = [str(BESIDE), str(BESIDE.parent.parent)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)}
        environment["BESIDE"] = " ".join(map(str, work))
        self._log = (BUILD / f"{name}.log").open("w")
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment
        )

    def play(self) -> tuple[float, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("TURN "):
                _, processor, clock = line.split()
                return float(processor), float(clock)
        raise RuntimeError(f"it ended; see {self._log.name}")

    def end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there."""
    home = BUILD / peer
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, with_pip=True, clear=True)
        packages = next((home / "lib").glob("python*")) / "site-packages"
        (packages / "torch_and_others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *NEEDS[peer]], check=True)
        (home / "ready").touch()
    return python


def ours(work: str) -> dict[str, tuple[str, str]]:
    """How Holdfast plays it; layouts and bfloat16 are nothing to so small a network."""
    return OURS if work == "pictures" else {"float32": OURS["float32"]}


def beside(peer: str, chosen: argparse.Namespace) -> dict[str, Taken]:
    """The turns of a peer and of ours, one after the other."""
    work = (chosen.turns + 1, chosen.clients, chosen.images, chosen.work)
    players = {peer: Player(python_of(peer), peer, chosen.threads, work)}
    for name, words in ours(chosen.work).items():
        players[name] = Player(Path(sys.executable), "holdfast", 1, work, *words)
    try:
        turns = [{name: player.play() for name, player in players.items()} for _ in range(chosen.turns + 1)][1:]
    finally:
        for player in players.values():
            player.end()
    return {name: [turn[name] for turn in turns] for name in players}


def ratios(ours: Taken, theirs: Taken, which: int) -> str:
    """The median, the least and the largest ratio of neighbouring turns; which: 0 processor time, 1 the clock."""
    found = [mine[which] / other[which] for mine, other in zip(ours, theirs, strict=True)]
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def cells_of(peer: str, found: dict[str, Taken], work: str) -> dict[tuple[str, str], str]:
    """A peer's row of the table."""
    theirs, row = found[peer], NAMES[peer]
    cells = {(row, "seconds a round"): f"{statistics.median(clock for _, clock in theirs):.2f}"}
    for name in ours(work):
        cells[row, name] = ratios(found[name], theirs, 1)
    if work == "pictures":
        cells[row, "aims, float32 and bfloat16"] = " and ".join(f"{aim:.2f}" for aim in AIMS.get(peer, ()))
    cells[row, "processor time, float32"] = ratios(found["float32"], theirs, 0)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", choices=[*NEEDS, []], default=[])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--work", choices=list(USUAL), default="pictures")
    parser.add_argument("--clients", type=int)
    parser.add_argument("--images", type=int, help="or vectors, of each client")
    parser.add_argument("--threads", type=int, help="of a peer in a single process: all cores, or 1 for vectors")
    parser.add_argument("--save", action="store_true", help="as docs/results/peers.json or peers-vectors.json")
    parser.add_argument("--again", action="store_true", help="measure also what is known")
    chosen = parser.parse_args()
    clients, images = USUAL[chosen.work]
    chosen.clients, chosen.images = chosen.clients or clients, chosen.images or images
    chosen.threads = chosen.threads or (os.cpu_count() if chosen.work == "pictures" else 1)  # two wait for each other
    BUILD.mkdir(parents=True, exist_ok=True)
    kept = BUILD / f"{chosen.work}.json"
    known: dict[str, dict[str, Taken]] = json.loads(kept.read_text()) if kept.exists() and not chosen.again else {}
    print(f"{chosen.clients} clients of {chosen.images} {chosen.work}, load {os.getloadavg()[0]:.1f}", flush=True)
    for peer in chosen.peers or NEEDS:
        try:
            known[peer] = known.get(peer) or beside(peer, chosen)
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            print(f"{peer}: not measured, {error}", flush=True)
            continue
        kept.write_text(json.dumps(known))
        for (row, column), value in cells_of(peer, known[peer], chosen.work).items():
            print(f"{row}: {column} {value}", flush=True)
    if chosen.save:
        cells = {
            cell: value
            for peer in NAMES
            if peer in known
            for cell, value in cells_of(peer, known[peer], chosen.work).items()
        }
        path = save("peers" if chosen.work == "pictures" else "peers-vectors", cells, (), corner="peer")
        print(table(json.loads(path.read_text()), f"results/{path.name}"))


if __name__ == "__main__":
    main()
