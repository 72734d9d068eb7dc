"""FedDig on public encoders beside FedAvg on the same features: images, series and texts, everybody there and all gone.

    python benchmarks/encoders.py cifar10 [--data FOLDER] [--seeds 0,1] [--encoder pretrained:1280] [--save NAME]

Sets: cifar10, cifar100, pneumoniamnist, har, ocr-letters (their files are looked for in FOLDER) and docstrings (texts
that installed libraries bring). The test of ocr-letters is another fold of ten in each seed; no word is in two parts.
Prints a line for each run, and for each set means, deviations and paired differences on the moderator's test, and means
on the data of those who have left.

    python benchmarks/encoders.py speed

How long EfficientNet-Lite0 takes for 10,000 random images at 128 x 128 on all cores.
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

import numpy as np
from saved import Cells, save

from holdfast.play import run
from holdfast.report.words import on_absent
from holdfast.runs.experiment import from_table

USUAL = {"model": "features", "rounds": 24, "lr": 0.05, "schedule": "cosine", "workers": 0, "evaluate_every": 24}
SETS: dict[str, dict[str, Any]] = {
    "cifar10": {"partition": "dirichlet:0.1", "clients": 4, "encoder": "pretrained"},
    "cifar100": {"partition": "dirichlet:0.1", "clients": 4, "encoder": "pretrained"},
    "pneumoniamnist": {"partition": "dirichlet:0.5", "clients": 4, "metrics": ["auroc"], "encoder": "scattering"},
    "har": {"partition": "column", "encoder": "series"},
    "ocr-letters": {"partition": "dirichlet:0.3", "clients": 20, "encoder": "scattering"}
    | {"rounds": 12, "evaluate_every": 12},
    "docstrings": {"partition": "dirichlet:0.3", "clients": 6, "encoder": "text"},
}
WAYS: dict[str, dict[str, Any]] = {
    "FedAvg, none": {"absence": "none", "scenario": "none"},
    "FedAvg, all gone": {"absence": "none", "scenario": "sequential"},
    "FedDig, none": {"absence": {"name": "feddig"}, "scenario": "none"},
    "FedDig, all gone": {"absence": {"name": "feddig"}, "scenario": "sequential"},
}
PAIRS = (
    ("FedDig: gone - none", "FedDig, all gone", "FedDig, none"),
    ("gone: FedDig - FedAvg", "FedDig, all gone", "FedAvg, all gone"),
    ("none: FedDig - FedAvg", "FedDig, none", "FedAvg, none"),
)
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


def next_fold(data: str, folder: Path, seed: int) -> str:
    """A folder with the same letters, where fold `seed` is called 0, which is the test."""
    with np.load(Path(data) / "ocr-letters.npz", allow_pickle=False) as file:
        letters = dict(file)
    letters["fold"] = (letters["fold"] - seed) % 10
    own = folder / f"fold {seed % 10}"
    own.mkdir()
    np.savez(own / "ocr-letters.npz", **letters)
    return str(own)


def speed(count: int = 10_000) -> None:
    """Seconds for so many images, with as many threads as cores, nothing kept."""
    import torch

    from holdfast.encoders import make_encoder
    from holdfast.encoders.cache import Kept

    encoder = make_encoder("pretrained", (3, 128, 128))
    images = torch.randint(0, 256, (count, 3, 128, 128), dtype=torch.uint8)
    kept = Kept(encoder.name, encoder.fingerprint, encoder._features, encoder.batch, os.cpu_count() or 1)
    start, used = time.perf_counter(), time.process_time()
    for _ in kept.computed(images, {n.to_bytes(4, "big"): n for n in range(count)}):
        pass
    took, used = time.perf_counter() - start, time.process_time() - used
    print(f"{took:.0f} s for {count:,} images, {os.cpu_count()} threads, {used:.0f} s of processor time")


def measure(name: str, table: dict[str, Any], seeds: list[int], folder: Path) -> Cells:
    """A row of the table: each way on the moderator's test, differences, and the data of those who left; in %."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    left: dict[str, list[float]] = {way: [] for way in WAYS if way.endswith("gone")}
    for seed in seeds:
        fold: dict[str, Any] = {"data": next_fold(table["data"], folder, seed)} if name == "ocr-letters" else {}
        for way, keys in WAYS.items():
            start = time.perf_counter()
            records = run(from_table({**USUAL, **SETS[name], **table, **fold, **keys, "seed": seed})).records
            value, apart = records[-1].leading, on_absent(records)
            assert value is not None
            found[way].append(100 * value)
            if way in left:
                assert apart is not None
                left[way].append(100 * apart)
            of_left = f", of those who left {100 * apart:.1f}" if apart is not None else ""
            seconds = time.perf_counter() - start
            print(f"  {name} seed {seed} {way}: {100 * value:.1f}{of_left} ({seconds:.0f} s)", flush=True)
    row = f"{name}, {SETS[name].get('clients', 30)} members, `{table['encoder']}`"
    cells: dict[tuple[str, str], list[float]] = {(row, way): values for way, values in found.items()}
    for words, one, other in PAIRS:
        cells[row, words] = [a - b for a, b in zip(found[one], found[other], strict=True)]
    cells |= {(row, f"who left: {way.split(',')[0]}"): values for way, values in left.items()}
    for (_, column), values in cells.items():
        print(f"{row} | {column} | {told(values)}", flush=True)
    return cells


def told(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} +- {deviation:.1f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="+", choices=[*SETS, "speed"])
    parser.add_argument("--data", default=None)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--encoder", help="another than the set's usual one")
    parser.add_argument("--save", metavar="NAME", help="keep the table as docs/results/NAME.json")
    told_to = parser.parse_args()
    seeds = [int(seed) for seed in told_to.seeds.split(",")]
    cells: dict[tuple[str, str], Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in told_to.sets:
            if name == "speed":
                speed()
                continue
            table = {"task": name, "data": told_to.data, "encoder": told_to.encoder or SETS[name]["encoder"]}
            if name == "docstrings":
                docstrings(Path(folder) / "docstrings.csv")
                table |= {"task": f"text:{folder}/docstrings.csv", "data": None}
            cells |= measure(name, table, seeds, Path(folder))
            if told_to.save:
                save(told_to.save, cells, seeds, corner="set, members, encoder")
