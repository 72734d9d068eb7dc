"""Adversaries that know the rule x rules x data: what they take, what the worst-hit class loses, who is named.

    python benchmarks/adversary.py --data fashion --rule jury,feddig+jury --hostile 4,6,8 --seed 201,202
    python benchmarks/adversary.py --data cifar,letters --files FOLDER --hostile 4 --attack none,late --seed 201,202

"Lost" is against the same run with the hostile members left out (away in all rounds), on the same seed; without attack,
against the same run without the jury. "Short-changed" is the share of the honest members' rounds, in %, in which one
that was heard counts less than half of its share of the samples of those heard. Each run is one line of the --out file,
and is not played again; so the whole grid can be stopped and resumed. `--save NAME` writes what was found to
docs/results/NAME.json.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from saved import save

from holdfast.attacks.adversary import choose_hostile
from holdfast.attacks.panel_lies import LIES
from holdfast.cli.hostile import backdoor_rate, hostile_in, suspected
from holdfast.data.task import Samples, Task
from holdfast.play import run
from holdfast.runs.experiment import from_table

COMMON = {"partition": "dirichlet:0.5", "lr": 0.02, "workers": 0, "download": False}
DATA: dict[str, dict[str, Any]] = {
    "fashion": {**COMMON, "clients": 20, "rounds": 16, "model": "features"},
    "fashion-long": {**COMMON, "clients": 20, "rounds": 32, "model": "features"},
    "fashion-classes": {**COMMON, "clients": 20, "rounds": 16, "model": "features", "partition": "classes"},
    "fashion-cnn": {**COMMON, "clients": 20, "rounds": 16, "model": "cnn"},
    "breast": {**COMMON, "task": "adversary:breast", "clients": 10, "rounds": 16, "lr": 0.05},
    "twelve": {**COMMON, "clients": 12, "rounds": 16, "model": "features"},
    "five": {**COMMON, "clients": 5, "rounds": 16, "model": "features"},
    "cifar": {**COMMON, "task": "cifar10", "samples": 4000, "clients": 20, "rounds": 16, "model": "features"},
    "cifar-12k": {**COMMON, "task": "cifar10", "clients": 20, "rounds": 16, "model": "features"},
    "letters": {**COMMON, "task": "ocr-letters", "samples": 2600, "clients": 20, "rounds": 16},
    "heart": {"task": "heart", "rounds": 16, "workers": 0},
}
FILES = ("cifar", "cifar-12k", "letters")  # sets whose files are looked for in --files
RULES = {
    "fedavg": {"trust": "samples"},
    "jury": {"trust": "jury"},
    "feddig": {"absence": "feddig", "trust": "samples"},
    "feddig+jury": {"absence": "feddig", "trust": "jury"},
    "moments": {"absence": {"name": "feddig", "mode": "moments", "epsilon": 3.0}, "trust": "samples"},
    "moments+jury": {"absence": {"name": "feddig", "mode": "moments", "epsilon": 3.0}, "trust": "jury"},
    **{rule: {"trust": rule} for rule in ("fedtest", "median", "multikrum")},
}
PLAIN = {"jury": "fedavg", "feddig+jury": "feddig", "moments+jury": "moments"}  # the same without the jury
ATTACKS = {  # {half}: half of the rounds; {last}: all but one
    "none": "none",
    "random": "random",
    "flip x3": "signflip:3",
    "label flips": "labelflip",
    "late": "loudflip:since={half}",
    "every second": "loudflip:every=2",
    "slander": "slander:since={half}",
    "frame": "slander:update=honest",
    "dead units": "deadunits",
    "class push": "classpush",
    "last round": "loudflip:since={last}",
    "held back": "mixture:length=3.9,own=-1,against=-0.6,push=0.5",
    "quiet late": "loudflip:since={half},length=2",
    "quiet slander": "mixture:length=2,own=-1,against=0,victims=3,since={half}",
    **{
        f"quiet {words}": f"mixture:length=2,own=-1,against=0,victims=3,words={words},since={{half}}"
        for words in LIES[1:]
    },
    **{f"frame {words}": f"slander:update=honest,words={words}" for words in LIES[1:]},
    "flip x1": "signflip:1",
    "lying testers": "liar",
    "colluding testers": "colluder",
    "rescaled layers": "relayer",
    "scaled x10": "scale",
    "Gaussian": "gaussian",
    "ALIE": "alie",
    "IPM": "ipm",
    "mimic": "mimic",
    "min-max": "minmax",
    "free-rider": "freerider",
    "late label flips": "labelflip:since={half}",
    **{f"door {shape}": f"backdoor:shape={shape}" for shape in ("square", "dark", "stripe", "blend", "invert", "wave")},
}


def breast() -> Task:
    """Breast cancer of scikit-learn: 569 records of 30 numbers, two classes; every third record is for testing."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    x, y = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32), torch.tensor(y)
    test = torch.arange(len(y)) % 3 == 0
    return Task("breast", Samples((x[~test],), y[~test]), Samples((x[test],), y[test]), ("malignant", "benign"))


def settings_of(data: str, rule: str, attack: str, hostile: int, seed: int) -> dict[str, Any]:
    """One run of the grid; attack "away" is the yardstick: the hostile members are left out."""
    base = {**DATA[data], **RULES[rule], "seed": seed}
    if attack == "none":
        return base
    if attack == "away":
        gone = choose_hostile(base.get("clients", 4), hostile, seed)
        away = [[client, 1, base["rounds"] + 1] for client in gone]
        return {**base, "scenario": {"name": "intervals", "away": away}}
    choice = ATTACKS[attack].format(half=base["rounds"] // 2, last=base["rounds"] - 1)
    return {**base, "attack": choice, "attackers": hostile}


def play(settings: dict[str, Any]) -> dict[str, Any]:
    """One run, and what came of it: the final model counts, not the mean of the last ones."""
    history = run(from_table(settings))
    hostile = set(hostile_in(history)) if settings.get("attackers") else set()
    last = history.records[-1]
    accuracy = last.accuracy
    assert accuracy is not None
    claims = history.state.claims if history.state else {}
    return {
        "accuracy": 100 * accuracy,
        "classes": [None if value is None else 100 * value for value in last.by_class],
        "caught": len(set(suspected(history.records)) & hostile),
        "honest_named": len({c for record in history.records for c in record.suspects} - hostile),
        "undone": sum("undone" in note for record in history.records for note in record.notes),
        "short": short_changed([record.weights for record in history.records], claims, hostile),
        "backdoor": backdoor_rate(history),
        "seconds": sum(sum(record.seconds.values()) for record in history.records),
    }


def short_changed(rounds: Sequence[Mapping[int, float]], samples: Mapping[int, int], hostile: Collection[int]) -> float:
    """In %, how often an honest member that was heard counts less than half of its share of the samples heard.

    >>> short_changed([{0: 0.24, 1: 0.26, 2: 0.5}], {0: 2, 1: 1, 2: 1}, hostile=[2])
    50.0
    """
    found = []
    for weights in rounds:
        total = sum(samples[client] for client in weights)
        found += [2 * say * total < samples[c] for c, say in weights.items() if c not in hostile]
    return 100 * statistics.fmean(found) if found else 0.0


class Lines:
    """What was played already, by its settings."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self._there = {key_of(line["settings"], line.get("with")): line for line in map(json.loads, lines)}

    def get(self, settings: dict[str, Any], changed: str | None = None) -> dict[str, Any]:
        """The run of these settings, with something changed in the rule itself if that is said."""
        key = key_of(settings, changed)
        line = self._there.get(key)
        if line is None:
            line = {"settings": settings, "with": changed, **play(settings)}
            self._there[key] = line
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        return line


def key_of(settings: dict[str, Any], changed: str | None = None) -> str:
    return json.dumps([settings, changed], sort_keys=True)


@dataclass(frozen=True)
class Cell:
    """The runs of one cell, one for each seed, beside those they are held against."""

    found: Sequence[dict[str, Any]]
    without: Sequence[dict[str, Any]]

    @property
    def lost(self) -> list[float]:
        return [w["accuracy"] - f["accuracy"] for f, w in zip(self.found, self.without, strict=True)]

    @property
    def worst_class(self) -> float:
        """What the class that falls furthest lost, as a mean over seeds."""
        falls = [
            [w - f for f, w in zip(one["classes"], other["classes"], strict=True) if f is not None and w is not None]
            for one, other in zip(self.found, self.without, strict=True)
        ]
        return max((statistics.fmean(values) for values in zip(*falls, strict=True)), default=0.0)

    def columns(self) -> dict[str, list[float]]:
        return {
            "accuracy": [one["accuracy"] for one in self.found],
            "lost": self.lost,
            "worst seed": [max(self.lost)],
            "worst class": [self.worst_class],
            "honest named": [sum(one["honest_named"] for one in self.found)],
            "short-changed": [statistics.fmean(one["short"] for one in self.found)],
            "rounds undone": [statistics.fmean(one["undone"] for one in self.found)],
        }

    def __str__(self) -> str:
        doors = [one["backdoor"] for one in self.found if one["backdoor"] is not None]
        door = f"  door {100 * statistics.fmean(doors):3.0f} %" if doors else ""
        named = "/".join(str(one["honest_named"]) for one in self.found)
        caught = statistics.fmean(one["caught"] for one in self.found)
        undone, short = (statistics.fmean(one[key] for one in self.found) for key in ("undone", "short"))
        return (
            f"{statistics.fmean(one['accuracy'] for one in self.found):5.1f}  lost {statistics.fmean(self.lost):+5.1f} "
            f"(worst {max(self.lost):+5.1f})  worst class {self.worst_class:+5.1f}  caught {caught:.1f}  "
            f"honest named {named}  short-changed {short:.1f} %  rounds undone {undone:.1f}{door}"
        )


def cells(options: argparse.Namespace) -> Iterator[tuple[str, str, int, str]]:
    for data in options.data.split(","):
        for rule in options.rule.split(","):
            for hostile in map(int, options.hostile.split(",")):
                for attack in options.attack.split(","):
                    yield data, rule, hostile, attack


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", default="fashion", help=", ".join(DATA))
    parser.add_argument("--rule", default="jury,feddig+jury", help=", ".join(RULES))
    parser.add_argument("--hostile", default="4,6,8")
    parser.add_argument("--attack", default=",".join(ATTACKS), help=", ".join(ATTACKS))
    parser.add_argument("--seed", default="201,202")
    parser.add_argument("--files", help="folder with the files of " + " and ".join(FILES))
    parser.add_argument("--save", help="write the table to docs/results under this name")
    parser.add_argument("--out", type=Path, default=Path("runs/adversary.jsonl"))
    options = parser.parse_args()
    for name in FILES:
        DATA[name]["data"] = options.files
    torch.set_num_threads(1)
    lines = Lines(options.out)
    seeds = [int(seed) for seed in options.seed.split(",")]
    saved: dict[tuple[str, str], list[float]] = {}
    for data, rule, hostile, attack in cells(options):
        if data == "breast" and "feddig" in rule:
            continue  # no encoder is known for numbers without a schema
        found = [lines.get(settings_of(data, rule, attack, hostile, seed)) for seed in seeds]
        yardstick = "none" if attack == "none" else "away"
        base = PLAIN.get(rule, rule) if attack == "none" else rule
        without = [lines.get(settings_of(data, base, yardstick, hostile, seed)) for seed in seeds]
        cell = Cell(found, without)
        print(f"{data:11} {rule:11} {hostile} {attack:12} {cell}", flush=True)
        members = DATA[data].get("clients", 4)
        name = f"{data}, {rule}: {attack}" + (f", {hostile} of {members}" if attack != "none" else "")
        saved |= {(name, column): values for column, values in cell.columns().items()}
    if options.save:
        wanted = ("data", "rule", "hostile", "attack", "seed", "save")
        words = [word for key in wanted for word in (f"--{key}", getattr(options, key))]
        command = shlex.join(["python", "benchmarks/adversary.py", *words])
        save(options.save, saved, seeds, corner="data, rule: attack", digits={"honest named": 0}, command=command)


if __name__ == "__main__":
    main()
