"""The floor: the result is judged, not only its parts. A round that harms is undone, or done without the culprits.

    1  compare     each witness j tells p_jc of the new model and of the last good one, for the classes c that it holds
    2  change      d_c = median over the holders of c of p_jc(new) - p_jc(good), judged where more than a third of all
                   witnesses hold c, so that liars are not alone;  d = mean_c d_c: all classes count alike
    3  harm        d < -lose; or d < lose, and for some c: d_c < -lose and fallen_c + d_c < -10 lose, fallen_c what c
                   lost of late
    4  replay      then the witnesses compare the average with that without member i, for each i: whose leaving out is
                   better for the harmed classes, or for all, is blamed, at most half; by the jury's consensus, in
                   which outlying words are bounded and those who contradict most are hardly believed
    5  confirm     the round is done again without the most blamed one, two, three ... and all of them, by either order,
                   each result compared as in 1 to 3; the best that does no harm is taken. If all harm the round is
                   undone: the last good model stays. Those left out in the best count nothing for the next
                   two rounds, after a second charge for four, then eight ...; as long a time of good conduct
                   takes one charge back (reputation.py): so nobody has a part in more than every fifth round that
                   harms, and each of these is undone
    6  ratchet     the new model is the last good one if d >= 0, and then fallen_c = min(0, fallen_c + d_c), which
                   fades by a tenth a round; else the old one stays the yardstick: small losses add up to a large one
    7  the last    round's model gives way to the last good one if d < -lose / 2: a strike at the end gains less still

So whatever updates hold, the model never loses more than `lose` against the best so far, in units of p(true class) at
the median holder of each class; nor, while the others do not gain, a class more than ten times that: for classes most
of whose holders tell the truth. Liars with as many honest witnesses who doubt can hold a round up: the model then stays
at its best. Witnesses are the digests that are believed (FedDig), else all members that are there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from holdfast.algorithms.fedavg import average
from holdfast.core.tensors import unflat
from holdfast.core.types import Reply, State, Tensors, pack, size, unpack
from holdfast.data.task import Samples
from holdfast.trust.base import Hearing, Judgement
from holdfast.trust.consensus import agreement, consensus
from holdfast.trust.panel import ALL, CONFIRM, GOOD, NEW, PANEL, REPLAY, Panel, PanelRequest, Scores, class_scores
from holdfast.trust.reputation import charge
from holdfast.trust.robust.merging import stacked

Again = Callable[[Judgement], State]  # the round once more, from another judgement
Words = Mapping[int, Scores]  # witness -> model -> class -> score
FORGET = 0.9  # of what a class lost: where classes are traded for each other, a run must not stand still for ever
CLASS = 10  # x lose: what the median holder of one class may lose


@dataclass(frozen=True)
class Found:
    """What the witnesses say of one model beside another."""

    classes: Mapping[str, float]  # d_c of each class that is judged
    witnesses: int

    @property
    def change(self) -> float:
        return statistics.fmean(self.classes.values())

    def harmed(self, lose: float, fallen: Mapping[str, float]) -> list[str]:
        """The classes that lost too much, all that lost if it is the mean that did; empty if the round does no harm."""
        if self.change >= lose:  # a class may be traded for the others, early in training above all
            return []
        ruined = [
            c for c, change in self.classes.items() if change < -lose and fallen.get(c, 0.0) + change < -CLASS * lose
        ]
        return ruined or ([c for c, change in self.classes.items() if change < 0] if self.change < -lose else [])

    def __str__(self) -> str:
        worst = min(self.classes, key=lambda c: self.classes[c])
        least = f"class {worst} {100 * self.classes[worst]:+.1f}"
        return f"{100 * self.change:+.1f} points at {self.witnesses} witnesses, {least}"


def hold(
    before: State, after: State, judged: Judgement, panel: WitnessPanel, again: Again, lose: float
) -> tuple[State, Judgement]:
    """The state that counts, with the good model in the rule's memory; and the judgement that it came from."""
    good = Good.of(before)
    if not good.model:
        return Good(after.model, after.buffers, {}).kept_in(after), judged
    first = compare(panel.ask(PANEL, good.beside({NEW: after})), NEW, GOOD)
    harmed = first.harmed(lose, good.fallen) if first else []
    if first is None or not harmed:
        last = before.round + 1 == panel.hearing.context.rounds
        if first is not None and last and first.change < -lose / 2:
            judged = replace(judged, notes=[*judged.notes, f"the final model is the last good one ({first})"])
            after = replace(after, model=good.model, buffers=good.buffers)
        return good.or_new(after, first).kept_in(after), panel.billed(judged)
    note = f"the round harmed ({first}) and was undone"
    words = panel.ask(REPLAY, left_out(before, judged))
    tries = replayed(judged, [blamed(words, harmed), blamed(words, first.classes)], good, panel, again)
    passed = [one for one in tries if not one.found.harmed(lose, good.fallen)]
    if passed:
        best = max(passed, key=lambda one: one.found.change)
        names = ", ".join(panel.hearing.context.called(client) for client in best.culprits)
        note += f"; it was done again without {names} ({best.found})"
        judged = replace(best.judged, notes=[*judged.notes, note])
        after = replace(best.after, trust=charge(best.after.trust, best.culprits))
        return good.or_new(after, best.found).kept_in(after), panel.billed(judged)
    nearest = max(tries, key=lambda one: one.found.change, default=None)
    trust = charge(after.trust, nearest.culprits if nearest else ())
    after = replace(
        before, model=good.model, buffers=good.buffers, trust=trust, digests=after.digests, claims=after.claims,
        absence=after.absence,
    )  # fmt: skip
    judged = replace(judged, notes=[*judged.notes, f"{note}: the last good model stays"])
    return good.kept_in(after), panel.billed(judged)


@dataclass(frozen=True)
class Try:
    """The round without those who are blamed most, and what the witnesses say of it beside the last good model."""

    culprits: Sequence[int]
    judged: Judgement
    after: State
    found: Found


def replayed(
    judged: Judgement, orders: Sequence[Sequence[int]], good: Good, panel: WitnessPanel, again: Again
) -> list[Try]:
    """Step 5: the round without the most blamed one, two, three ... and all who are blamed; all asked of at once."""
    sets = list(dict.fromkeys(tuple(sorted(order[:count])) for order in orders for count in numbers(len(order))))
    fewer = {str(place): without(judged, culprits) for place, culprits in enumerate(sets)}
    made = {name: (one, again(one)) for name, one in fewer.items() if one is not None}
    if not made:
        return []
    words = panel.ask(CONFIRM, good.beside({name: after for name, (_, after) in made.items()}))
    found = {name: compare(words, name, GOOD) for name in made}
    return [Try(sets[int(name)], *made[name], one) for name, one in found.items() if one is not None]


def numbers(most: int) -> list[int]:
    """How many to leave out: each half as many again as the one before.

    >>> numbers(9), numbers(5), numbers(0)
    ([1, 2, 3, 4, 6, 9], [1, 2, 3, 4, 5], [])
    """
    found = [1]
    while found[-1] < most:
        found.append(max(found[-1] + 1, found[-1] * 3 // 2))
    return [*found[:-1], most] if most else []


@dataclass(frozen=True)
class Good:
    """The last good model, in the trust rule's memory, and what each class lost since its best."""

    model: Tensors
    buffers: Tensors
    fallen: Mapping[str, float]

    @classmethod
    def of(cls, state: State) -> Good:
        fallen = {c: FORGET * float(value) for c, value in unpack(state.trust, "fallen").items()}
        return cls(unpack(state.trust, "good"), unpack(state.trust, "good_buffers"), fallen)

    def beside(self, others: Mapping[str, State]) -> PanelRequest:
        models = {name: after.model for name, after in others.items()} | {GOOD: self.model}
        buffers = {name: after.buffers for name, after in others.items()} | {GOOD: self.buffers}
        return PanelRequest(pack(**models), pack(**buffers))

    def or_new(self, after: State, found: Found | None) -> Good:
        """Step 6; where nobody can tell, the new model counts as good."""
        if found is None:
            return Good(after.model, after.buffers, self.fallen)
        if found.change < 0:
            return self
        fallen = {c: min(0.0, self.fallen.get(c, 0.0) + change) for c, change in found.classes.items()}
        return Good(after.model, after.buffers, {**self.fallen, **fallen})

    def kept_in(self, state: State) -> State:
        groups = ("good/", "good_buffers/", "fallen/")
        trust = {name: tensor for name, tensor in state.trust.items() if not name.startswith(groups)}
        fallen = {c: torch.tensor(value, dtype=torch.float64) for c, value in self.fallen.items()}
        kept = {  # copies: files hold no two tensors that share their memory
            name: tensor.clone()
            for name, tensor in pack(good=self.model, good_buffers=self.buffers, fallen=fallen).items()
        }
        return replace(state, trust={**trust, **kept})


class WitnessPanel:
    """Whom the floor asks: the digests that are believed if there are three, else the members that are there."""

    def __init__(self, hearing: Hearing, digests: Mapping[int, Samples], members: Sequence[int], round: int, most: int):
        self.hearing, self._digests, self._members, self._round, self._most = hearing, digests, members, round, most
        self._down = 0

    def ask(self, job: Panel, asked: PanelRequest) -> Words:
        if len(self._digests) >= 3:
            model = self.hearing.context.bench.model
            return {holder: class_scores(model, self._few(held), asked) for holder, held in self._digests.items()}
        messages = [job.message(member, self._round, asked) for member in self._members]
        self._down += sum(size(message.tensors) for message in messages)
        found = {}
        for reply in self.hearing.federation.ask(messages):
            scores = job.read(reply).scores if isinstance(reply, Reply) else None
            if scores and sound(scores, asked.names):
                found[reply.client] = scores
        return found

    def billed(self, judged: Judgement) -> Judgement:
        """The judgement with what asking cost."""
        return replace(judged, bytes_down=judged.bytes_down + self._down)

    def _few(self, samples: Samples) -> Samples:
        return Samples(tuple(tensor[: self._most] for tensor in samples.inputs), samples.labels[: self._most])


def sound(scores: Scores, names: Sequence[str]) -> bool:
    """Whether a witness tells a score from 0 to 1 of each model, for the same classes: else it is not heard."""
    classes = set(scores.get(names[0], {}))
    return (
        set(scores) == set(names)
        and bool(classes)
        and all(set(told) == classes and all(0 <= value <= 1 for value in told.values()) for told in scores.values())
    )


def compare(words: Words, one: str, other: str) -> Found | None:
    """Steps 1 and 2; None where no class can be judged.

    >>> low, high = {"0": 0.5, "1": 0.5}, {"0": 0.75, "1": 0.5}
    >>> words = {0: {"new": low, "good": high}, 1: {"new": low, "good": high}, 2: {"new": high, "good": low}}
    >>> compare(words, "new", "good")
    Found(classes={'0': -0.25, '1': 0.0}, witnesses=3)
    """
    changes: dict[str, list[float]] = {}
    for told in words.values():
        for c in told[one]:
            changes.setdefault(c, []).append(told[one][c] - told[other][c])
    judged = {c: statistics.median(changes[c]) for c in sorted(changes) if 3 * len(changes[c]) > len(words)}
    return Found(judged, len(words)) if judged else None


def left_out(before: State, judged: Judgement) -> PanelRequest:
    """Step 4: the average of the updates that count, and that without each member in turn."""
    rows, weights = stacked(judged.updates).double(), torch.tensor(judged.weights, dtype=torch.float64)
    total = weights @ rows
    shifts = {ALL: average(judged.updates, judged.weights)}  # as FedAvg has it: witnesses know the new model's scores
    for update, row, weight in zip(judged.updates, rows, judged.weights, strict=True):
        if 0 < weight < 1:
            rest = (total - weight * row) / (1 - weight)
            shifts[str(update.client)] = unflat(rest.to(torch.float32), update.delta)
    packed: Tensors = {}
    for name, shift in shifts.items():
        packed |= pack(**{name: {n: tensor + shift[n] if n in shift else tensor for n, tensor in before.model.items()}})
    return PanelRequest(packed, {f"{name}/{n}": tensor for name in shifts for n, tensor in before.buffers.items()})


def blamed(words: Words, harmed: Collection[str]) -> list[int]:
    """Without whom the classes do better, the most blamed first, at most half; nobody testifies of itself, and who says
    otherwise than most is believed less."""
    clients = sorted({int(name) for told in words.values() for name in told if name != ALL})
    gains = []
    for witness, told in words.items():
        held = [c for c in told[ALL] if c in harmed]
        change = {i: [told[str(i)][c] - told[ALL][c] for c in held] for i in clients if i != witness}
        gains.append([statistics.fmean(change[i]) if change.get(i) else math.nan for i in clients])
    values = np.array(gains).reshape(len(words), len(clients))
    mean = dict(zip(clients, consensus(values, agreement(values, np.ones(len(values)))).tolist(), strict=True))
    return sorted((i for i in clients if mean[i] > 0), key=lambda i: -mean[i])[: len(clients) // 2]


def without(judged: Judgement, culprits: Sequence[int]) -> Judgement | None:
    """The judgement with those left out; None where nobody else has any say."""
    weights = [0.0 if u.client in culprits else w for u, w in zip(judged.updates, judged.weights, strict=True)]
    total, left = sum(weights), {c: 0.0 if c in culprits else say for c, say in judged.say.items()}
    if not total > 0:
        return None
    shares = sum(left.values())
    return replace(judged, weights=[w / total for w in weights], say={c: say / shares for c, say in left.items()})
