"""What became of hostile clients in a run: their weight, who was suspected, whether their backdoor is in the model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.attacks import backdoor_success, choose_attack
from holdfast.attacks.adversary import choose_hostile
from holdfast.attacks.data import Backdoor
from holdfast.data.task import Samples
from holdfast.learning.device import outputs
from holdfast.models.networks import fill
from holdfast.record import Record
from holdfast.runs.build import make_plan
from holdfast.runs.history import History
from holdfast.runs.rehearse import without_effect


def hostility(history: History) -> dict[str, object]:
    """A row's part, as --json prints it, on who was hostile and what came of it."""
    experiment = history.experiment
    return {
        "attack": str(experiment.attack),
        "attackers": experiment.attackers,
        "hostile": hostile_in(history),
        "without_effect": without_effect(experiment),
        "attacker_weight": attacker_weight(history),
        "suspects": sorted(suspected(history.records)),
    }


def hostile_in(history: History) -> list[int]:
    experiment = history.experiment
    return list(choose_hostile(experiment.clients, experiment.attackers, experiment.seed))


def backdoor_rate(history: History) -> float | None:
    """The share of stamped test images that the final model calls the target; none where the attack is no backdoor."""
    if history.state is None or not isinstance(choose_attack(history.experiment.attack), Backdoor):
        return None
    plan = make_plan(history.experiment)
    model = plan.model().eval()
    fill(model, plan.method.absence.model_of(history.state), history.state.buffers)

    def predict(images: Tensor) -> Tensor:
        ready = plan.prepare(Samples((images,), torch.zeros(len(images), dtype=torch.long)))
        inputs, _ = ready.batch(torch.arange(len(ready)))
        return outputs(model, *inputs)

    return backdoor_success(predict, plan.task.test, plan.attack)


def attacker_weight(history: History) -> float | None:
    """The mean share of the weight that hostile clients kept over the last half of the rounds."""
    if not history.experiment.attackers:
        return None
    hostile = hostile_in(history)
    last = [record for record in history.records[len(history.records) // 2 :] if record.weights]
    kept = [sum(record.weights.get(client, 0.0) for client in hostile) for record in last]
    return sum(kept) / len(kept) if kept else None


def suspected(records: Sequence[Record]) -> dict[int, list[int]]:
    """The clients that were suspected when last heard of, each with all the rounds in which it was."""
    rounds: dict[int, list[int]] = {}
    for record in records:
        for client in record.suspects:
            rounds.setdefault(client, []).append(record.round)
    last = {client: record.round for record in records for client in record.weights}
    return {client: found for client, found in rounds.items() if found[-1] >= last.get(client, -1)}


def suspicions(history: History) -> list[str]:
    """Who is suspected at the end, of what, since when, and believed how far as a tester; who was refused how often."""
    records = history.records
    refused: dict[int, int] = {}
    for record in records:
        for client in record.refused:
            refused[client] = refused.get(client, 0) + 1
    found = suspected(records)
    believed = {client: value for record in records for client, value in record.credibility.items()}
    lines = []
    for client in sorted({*refused, *found}):
        parts = []
        if client in refused:
            parts.append(f"refused {refused[client]} time{'s' if refused[client] > 1 else ''}")
        if client in found:
            reason = next(record.suspects[client] for record in reversed(records) if client in record.suspects)
            parts.append(f"suspected since round {found[client][0]}: {reason}")
            if client in believed:
                parts.append(f"believed to {believed[client]:.0%} as a tester")
        lines.append(f"{history.experiment.name_of(client)}: {', '.join(parts)}")
    return lines
