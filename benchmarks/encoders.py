"""FedDig on public encoders beside FedAvg on the same features: images, series and texts, everybody there and all gone.

    python benchmarks/encoders.py cifar10 [--data FOLDER] [--seeds 0,1] [--encoder pretrained:1280]

Sets: cifar10, cifar100, pneumoniamnist, har, ocr-letters (their files are looked for in FOLDER) and docstrings (texts
that installed libraries bring). Prints a line for each run, and for each set means, deviations and paired differences.

    python benchmarks/encoders.py speed

How long EfficientNet-Lite0 takes for 1,000 random images at 128 x 128 on all cores, as seconds for 10,000.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import os
import pkgutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast.play import run
from holdfast.runs.experiment import from_table

USUAL = {"model": "features", "rounds": 24, "lr": 0.05, "schedule": "cosine", "workers": 0, "evaluate_every": 24}
SETS: dict[str, dict[str, Any]] = {
    "cifar10": {"partition": "dirichlet:0.1", "clients": 4},
    "cifar100": {"partition": "dirichlet:0.1", "clients": 4},
    "pneumoniamnist": {"partition": "dirichlet:0.5", "clients": 4, "metrics": ["auroc"]},
    "har": {"partition": "column"},
    "ocr-letters": {"partition": "dirichlet:0.3", "clients": 20},
    "docstrings": {"partition": "dirichlet:0.3", "clients": 6},
}
WAYS = {
    "FedAvg, none": {"absence": "none", "scenario": "none"},
    "FedAvg, all gone": {"absence": "none", "scenario": "sequential"},
    "FedDig, none": {"absence": {"name": "feddig"}, "scenario": "none"},
    "FedDig, all gone": {"absence": {"name": "feddig"}, "scenario": "sequential"},
}
# Each is a class: whose documentation is this?
LIBRARIES = ("numpy", "torch", "scipy", "pandas", "sklearn", "matplotlib", "asyncio", "email", "unittest", "PIL")
MOST = 400  # texts of each


def docstrings(path: Path) -> None:
    """A CSV of documentation strings and the library that each comes from; its name is blotted out."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for library in LIBRARIES:
            writer.writerows((text, library) for text in sorted(texts_of(library))[:MOST])


def texts_of(library: str) -> set[str]:
    """Documentation strings of a library's modules, classes and functions."""
    package = importlib.import_module(library)
    found: set[str] = set()
    names = [library, *(f"{library}.{module.name}" for module in pkgutil.iter_modules(package.__path__))]
    for name in names:
        if len(found) > 3 * MOST or name.rpartition(".")[2].startswith(("_", "test", "conftest")):
            continue
        try:
            module = importlib.import_module(name)
        except Exception:  # an optional part that is not installed
            continue
        things = [thing for thing in vars(module).values() if str(getattr(thing, "__module__", "")).startswith(library)]
        things += [one for thing in things if isinstance(thing, type) for one in vars(thing).values()]
        for thing in things:
            text = getattr(thing, "__doc__", None)
            if isinstance(text, str) and len(text) > 120:
                found.add(text.lower().replace(library, "library")[:2000])
    return found


def speed() -> None:
    """Seconds for 10,000 images, with as many threads as cores, nothing kept."""
    import torch

    from holdfast.encoders import make_encoder
    from holdfast.encoders.cache import Kept

    encoder = make_encoder("pretrained", (3, 128, 128))
    images = torch.randint(0, 256, (1000, 3, 128, 128), dtype=torch.uint8)
    kept = Kept(encoder.name, encoder.fingerprint, encoder._features, encoder.batch, os.cpu_count() or 1)
    start = time.perf_counter()
    for _ in kept.computed(images, {bytes([n // 256, n % 256]): n for n in range(len(images))}):
        pass
    print(f"{10 * (time.perf_counter() - start):.0f} s for 10,000 images, {os.cpu_count()} threads")


def measure(name: str, table: dict[str, Any], seeds: list[int]) -> None:
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in seeds:
        for way, keys in WAYS.items():
            start = time.perf_counter()
            history = run(from_table({**USUAL, **SETS[name], **table, **keys, "seed": seed}))
            value = 100 * history.records[-1].leading
            found[way].append(value)
            print(f"  {name} seed {seed} {way}: {value:.1f} ({time.perf_counter() - start:.0f} s)", flush=True)
    for way, values in found.items():
        print(f"{name} | {way} | {told(values)}", flush=True)
    gone, there, plain = found["FedDig, all gone"], found["FedDig, none"], found["FedAvg, all gone"]
    print(f"{name} | FedDig, all gone less none | {told([a - b for a, b in zip(gone, there, strict=True)])}")
    print(
        f"{name} | FedDig less FedAvg, all gone | {told([a - b for a, b in zip(gone, plain, strict=True)])}", flush=True
    )


def told(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} +- {deviation:.1f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="+", choices=[*SETS, "speed"])
    parser.add_argument("--data", default=None)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--encoder", default="auto")
    parser.add_argument("--rounds", type=int, default=USUAL["rounds"])
    told_to = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in told_to.sets:
            if name == "speed":
                speed()
                continue
            table = {"task": name, "data": told_to.data, "encoder": told_to.encoder}
            table |= {"rounds": told_to.rounds, "evaluate_every": told_to.rounds}
            if name == "docstrings":
                docstrings(Path(folder) / "docstrings.csv")
                table |= {"task": f"text:{folder}/docstrings.csv", "data": None}
            measure(name, table, [int(seed) for seed in told_to.seeds.split(",")])
