"""Whether a change leaves every bit as it was: small experiments, and the SHA-256 of the model each of them ends with.

    python benchmarks/bits.py --out before.json        (on the code before the change)
    python benchmarks/bits.py --against before.json    (on the code after it: same or different, row by row)
    python benchmarks/bits.py --list
    python benchmarks/bits.py --only trust-krum        (a name, or the beginning of several)

The exit code is 1 if a row differs or no longer runs. PYTHONPATH=/another/checkout says which code is looked at: the
script needs only `holdfast.Experiment`, `run` and `resume`, except for Flower's grid, which is in one function.
A row's hash is that of the names, types, shapes and bytes of all weights and buffers in its `model.safetensors`. Rows
with privacy noise read a seeded stream in place of the system's entropy, here and nowhere else. Hashes depend on the
machine and on torch's version: compare within one machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from torch import nn

import holdfast

USUAL: dict[str, Any] = {
    "samples": 280, "clients": 7, "partition": "dirichlet:1.0", "model": "features:16", "rounds": 3, "batch_size": 16,
    "lr": 0.05, "evaluate_every": 3, "workers": 0,
}  # fmt: skip
MANY = {"samples": 1400, "clients": 4}  # moments need as many records as their noise asks for
FLIP = {"attack": "signflip", "attackers": 2}
CNN = {"model": {"name": "cnn", "width": 8, "hidden": 16}}
ALL = {"algorithm": "scaffold", "absence": "feddig", "trust": "jury", "scenario": "dropout:0.4", "rounds": 4, **FLIP}


def network() -> nn.Module:
    """A user's own network, named by import path, with buffers: means, variances and a counter."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 7 * 7, 10))


def feddig(**options: Any) -> dict[str, Any]:
    return {"absence": {"name": "feddig", **options}, "scenario": "sequential"}


def attacked(attack: str, **keys: Any) -> dict[str, Any]:
    return {"attack": attack, "attackers": 2, **keys}


ROWS: dict[str, dict[str, Any]] = {
    **{
        f"algorithm-{name}": {"algorithm": name, "scenario": "dropout:0.3"}
        for name in ("fedavg", "fedprox:0.1", "fednova", "feddyn", "adabest", "scaffold")
    },
    "learning": {"schedule": "cosine", "momentum": 0.5, "weight_decay": 0.01, "epochs": 2, "max_norm": 2.0, "seed": 3},
    "partition-skewed": {"partition": "dirichlet:0.1", "clients": 4},
    "partition-iid": {"partition": "iid"},
    "partition-shards": {"partition": "shards"},
    "partition-classes": {"partition": "classes"},
    "feddig": feddig(),
    "feddig-across": feddig(strategy="across", bits="32", weights="random", refresh=1),
    "feddig-four-bits": feddig(epsilon=0.005, spd=2, bits="4"),
    "feddig-label-public": feddig(mode="dp-label-public"),
    "feddig-laplace": feddig(mode="dp-label-public", delta=0.0),
    "feddig-full": feddig(mode="dp-full"),
    "feddig-moments": {**feddig(mode="moments"), **MANY},
    "feddig-paper": {"model": {"name": "full", "width": 8, "hidden": 16}, "encoder": "autoencoder", "clients": 4,
                     **feddig(strategy="across", epsilon=0.005, bits="32", printed=True)},
    **{f"feddig-{name}": {"algorithm": name, **feddig()} for name in ("fednova", "feddyn", "adabest", "scaffold")},
    "protect-dp-sgd": {"protect": "dp-sgd", "clients": 3},
    **{
        f"trust-{name}": {"trust": name, **FLIP}
        for name in ("samples", "uniform", "fedtest", "jury", "median", "trimmed", "krum", "multikrum", "geomedian",
                     "clipping", "normclip", "nnm", "bulyan", "fltrust", "servertest")
    },
    "trust-jury-feddig": {"trust": "jury", **feddig(), **FLIP},
    "trust-jury-moments": attacked("falsedigest", trust="jury", **feddig(mode="moments"), **MANY),
    "trust-jury-exclude": {"trust": "jury:exclude=1", "rounds": 6, **FLIP},
    "trust-fedtest-trusted": {"trust": "fedtest:testers=2,choice=trusted,adapt=true", **FLIP},
    **{f"scenario-{name}": {"scenario": name} for name in ("temporary", "forever", "group", "sequential")},
    "scenario-intervals": {"scenario": {"name": "intervals", "away": [[0, 1, 3], [3, 2, 4]]}},
    **{
        f"attack-{name}": attacked(name)
        for name in ("random", "gaussian", "scale", "alie", "ipm", "mimic", "minmax", "minsum", "freerider:previous",
                     "malformed", "relayer", "labelflip")
    },
    **{f"attack-{name}": attacked(name, trust="fedtest") for name in ("liar", "colluder", "nonsense")},
    **{f"attack-{name}": attacked(name, trust="jury", **feddig()) for name in ("baddigest", "falsedigest")},
    "attack-backdoor": {**attacked("backdoor", trust="jury:patches=1"), **CNN, "clients": 7, "attackers": 1},
    "model-linear": {"model": "linear"},
    "model-mlp": {"model": "mlp:16"},
    "model-cnn": CNN,
    "model-cnn-batch": {"model": {**CNN["model"], "norm": "batch"}, "clients": 4},
    "model-full": {"model": {"name": "full", "width": 8, "hidden": 16}, "encoder": "random", **feddig(), "clients": 4},
    "model-mobilenetv2": {"model": "mobilenetv2:width=0.25", "clients": 2, "samples": 60, "rounds": 2},
    "model-own": {"model": "bits:network", "algorithm": "fednova", "scenario": "dropout:0.3"},
    "model-own-median": {"model": "bits:network", "trust": "median", **FLIP},
    "model-own-jury": {"model": "bits:network", "trust": "jury", **FLIP},
    **{f"engine-{name}": ALL for name in ("inline", "workers", "resumed", "flower")},
    "engine-workers-own": {"model": "bits:network"},
}  # fmt: skip


def flower(experiment: holdfast.Experiment, out: Path) -> None:
    """The same over Flower's messages, in this process: the one place that knows the package from within."""
    from holdfast.flower.deploy.site import client_app
    from holdfast.flower.engine.inprocess import InProcessGrid
    from holdfast.flower.engine.moderator import play_over

    policy = out / "policy.toml"
    policy.write_text("min_records = 0\n")  # the sites of these rows are small
    more = {"policy": str(policy)}
    sites = {100 + i: {"partition-id": i, "folder": str(out / f"site-{i}"), **more} for i in range(experiment.clients)}
    play_over(InProcessGrid(client_app(experiment), sites), experiment, {"out": str(out / "run")})


class Stopped(Exception):
    """Raised in the middle of a run."""


def resumed(experiment: holdfast.Experiment, out: Path) -> None:
    """Stopped after its second round, then resumed."""
    rounds: list[Any] = []

    def stop(record: Any) -> None:
        rounds.append(record)
        if len(rounds) == 2:
            raise Stopped

    try:
        holdfast.run(experiment, out / "run", watch=stop)
    except Stopped:
        holdfast.resume(out / "run")


def at_once(experiment: holdfast.Experiment, out: Path) -> None:
    holdfast.run(experiment, out / "run")


def play(name: str) -> str:
    """Run a row in a folder of its own; the hash of what it learnt."""
    keys = {**USUAL, **ROWS[name], **({"workers": 2} if name.startswith("engine-workers") else {})}
    engine = {"engine-flower": flower, "engine-resumed": resumed}.get(name, at_once)
    chance = random.Random(name)
    with tempfile.TemporaryDirectory() as folder:
        with patch("os.urandom", chance.randbytes), patch("secrets.randbits", chance.getrandbits):
            engine(holdfast.Experiment(**keys), Path(folder))
        return fingerprint(load_file(Path(folder, "run", "model.safetensors")))


def fingerprint(tensors: dict[str, torch.Tensor]) -> str:
    """SHA-256 over the tensors in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        values = tensors[name].numpy()
        digest.update(f"{name} {values.dtype} {values.shape}\n".encode() + values.tobytes())
    return digest.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the hashes there")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with the hashes of this file")
    parser.add_argument("--only", default="", metavar="NAME", help="rows whose names begin like this")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    told = parser.parse_args()
    names = [name for name in ROWS if name.startswith(told.only)]
    if not names:
        parser.error(f"no row begins with {told.only!r}; --list names them all.")
    if told.list:
        print("\n".join(names))
        return 0
    before = json.loads(told.against.read_text()) if told.against else {}
    if told.against and not before.keys() & set(names):
        parser.error(f"{told.against} has none of these rows.")
    torch.set_num_threads(1)
    hashes: dict[str, str] = {}
    bad = 0
    for name in names:
        start = time.perf_counter()
        try:
            hashes[name] = play(name)
            verdict = "new" if name not in before else "same" if hashes[name] == before[name] else "DIFFERENT"
        except Exception as error:  # whatever a change broke, the other rows are worth knowing
            verdict = f"FAILED: {type(error).__name__}: {error}"
        bad += verdict not in ("new", "same")
        print(f"{name:26} {hashes.get(name, '')[:12]:12} {time.perf_counter() - start:5.1f} s  {verdict}", flush=True)
    if told.out:
        told.out.write_text(json.dumps(hashes, indent=1) + "\n")
    print(f"{len(names)} rows of {Path(holdfast.__file__).parent}, {bad} of them different or failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
