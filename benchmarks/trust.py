"""Trust rules x attacks x seeds on small runs: accuracy against FedAvg without attackers, and who kept which weight.

    python benchmarks/trust.py --trust jury,fedtest --attack none,random,signflip:1 --attackers 4 --seed 0,1,2,3,4

Each run is one line of the --out file; runs that are there already are not played again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from saved import save
from torch import Tensor

from holdfast.cli.comparing import split_choices
from holdfast.cli.hostile import attacker_weight, backdoor_rate, hostile_in, suspected
from holdfast.data.partitions import Dirichlet
from holdfast.play import run
from holdfast.runs.experiment import from_table, set_key

EVERY_ATTACK = (
    "none,random,signflip:1,signflip:3,labelflip,liar,colluder,alie,ipm,mimic,minmax,gaussian,scale,freerider,"
    "labelflip:since=7,relayer,backdoor"
)


@dataclass(frozen=True)
class SoleHolder:
    """As Dirichlet, but one class is held by one client alone: `--partition trust:SoleHolder`."""

    mu: float = 0.5
    holder: int = 1
    alone: int = 4  # the class

    def __call__(self, labels: Tensor, clients: int, generator: torch.Generator) -> list[Tensor]:
        parts = Dirichlet(self.mu)(labels, clients, generator)
        own = (labels == self.alone).nonzero().flatten()
        rest = [part[labels[part] != self.alone] for part in parts]
        return [torch.cat([p, own]).sort().values if c == self.holder else p for c, p in enumerate(rest)]


def play(settings: dict[str, Any]) -> dict[str, Any]:
    """One run, and what came of it."""
    experiment = from_table(settings)
    start = time.perf_counter()
    history = run(experiment)
    hostile = hostile_in(history)
    flagged = set(suspected(history.records))
    last = history.records[-1]
    return {
        "accuracy": 100 * history.final_accuracy,
        "attacker_weight": attacker_weight(history),
        "caught": len(flagged & set(hostile)),
        "honest_suspects": len(flagged - set(hostile)),
        "class_accuracy": list(last.by_class),
        "backdoor": backdoor_rate(history),
        "trust_seconds": sum(record.seconds["trust"] for record in history.records),
        "client_seconds": sum(record.seconds["clients"] for record in history.records),
        "seconds": time.perf_counter() - start,
    }


def runs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The settings of every run: FedAvg without attackers first, then rules x attacks, all seeds of one together."""
    common = {
        "clients": options.clients,
        "partition": options.partition,
        "rounds": options.rounds,
        "model": options.model,
        "scenario": options.scenario,
        "absence": options.absence,
        "workers": options.workers,
    }
    for change in options.set:
        set_key(common, change)
    seeds = [int(seed) for seed in options.seed.split(",")]
    plain = {**common, "absence": "none", "scenario": "none", "trust": "samples"} if options.plain else common
    for seed in seeds:
        yield {**plain, "trust": "samples", "attack": "none", "attackers": 0, "seed": seed}
    for trust in split_choices(options.trust):
        for attack in split_choices(options.attack):
            attackers = 0 if attack == "none" else options.attackers
            for seed in seeds:
                yield {**common, "trust": trust, "attack": attack, "attackers": attackers, "seed": seed}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trust", default="jury")
    parser.add_argument("--attack", default=EVERY_ATTACK)
    parser.add_argument("--attackers", type=int, default=4)
    parser.add_argument("--seed", default="100,101")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--partition", default="dirichlet:0.5", help="or trust:SoleHolder")
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--model", default="features")
    parser.add_argument("--scenario", default="none")
    parser.add_argument("--absence", default="none")
    parser.add_argument("--plain", action="store_true", help="measure against FedAvg with nobody away and no digests")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another key of the experiment")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/trust.jsonl"))
    parser.add_argument("--save", metavar="NAME", help="keep the table as docs/results/NAME.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    there = {}
    if options.out.exists():
        there = {json.dumps(line["settings"]): line for line in map(json.loads, options.out.open())}
    clean: dict[int, float] = {}
    group: list[dict[str, Any]] = []
    cells: dict[tuple[str, str], list[float]] = {}
    seeds = len(options.seed.split(","))
    for settings in runs(options):
        line = there.get(json.dumps(settings))
        if line is None:
            line = {"settings": settings, **play(settings)}
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
        clean.setdefault(settings["seed"], line["accuracy"])
        group.append(line)
        if len(group) == seeds:
            report(group, clean)
            cells |= cells_of(group)
            group = []
    if options.save:
        save(options.save, cells, [int(seed) for seed in options.seed.split(",")])


def cells_of(lines: list[dict[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """Accuracy, the hostile members' share of the weight, and stamped images that become the target, in %."""
    rule, attack = (lines[0]["settings"][key] for key in ("trust", "attack"))
    found = {(rule, attack): [line["accuracy"] for line in lines]}
    if lines[0]["backdoor"] is not None:
        found[rule, f"{attack}: becomes the target"] = [100 * line["backdoor"] for line in lines]
    if lines[0]["attacker_weight"] is not None:
        found[rule, f"{attack}: their weight"] = [100 * line["attacker_weight"] for line in lines]
    return found


def report(lines: list[dict[str, Any]], clean: dict[int, float]) -> None:
    """One row for all seeds of a rule under an attack."""
    settings = lines[0]["settings"]
    lost = [line["accuracy"] - clean[line["settings"]["seed"]] for line in lines]
    weights = [line["attacker_weight"] for line in lines if line["attacker_weight"] is not None]
    share = f"{statistics.mean(weights):6.1%}" if weights else "     -"
    extra = ""
    if lines[0]["backdoor"] is not None:
        extra = f"  backdoor {statistics.mean(line['backdoor'] for line in lines):.1%}"
    if "SoleHolder" in settings["partition"]:
        alone = SoleHolder().alone
        extra += "  recall of the class held alone " + " ".join(f"{x['class_accuracy'][alone]:.2f}" for x in lines)
    time_ratio = sum(x["trust_seconds"] for x in lines) / max(1e-9, sum(x["client_seconds"] for x in lines))
    print(
        f"{settings['trust']:12} {settings['attack']:18} x{settings['attackers']} "
        f"accuracy {statistics.mean(line['accuracy'] for line in lines):5.1f}  against clean FedAvg "
        f"{statistics.mean(lost):+5.1f} (worst {min(lost):+5.1f})  attackers' weight {share}  "
        f"caught {statistics.mean(line['caught'] for line in lines):.1f}  "
        f"honest suspects {statistics.mean(line['honest_suspects'] for line in lines):.1f}  "
        f"testing {time_ratio:.0%} of training{extra}",
        flush=True,
    )


if __name__ == "__main__":
    main()
