"""The floor: the result is judged, not only its parts. A round that harms is undone, or done without the culprits.

    1  compare     each witness j tells p_jc of the new model and of the last good one, for the classes c that it holds
    2  change      d_c = median over the holders of c of p_jc(new) - p_jc(good), judged where more than a third of all
                   witnesses hold c, so that liars are not alone;  d = mean_c d_c: all classes count alike.
                   e_c, e: their errors, 2 sqrt((n - 1) / (n - 3)) standard errors at n witnesses, from how far their
                   words lie apart; p(new) - p(good) is of the same samples, so what differs between members is not
                   in it. Of three witnesses no change is believed
    3  harm        worth = d + mean_c min(0, fallen_c + d_c), over classes with d_c < -e_c, fallen_c what c lost of
                   late: gains count once, falls that are believed twice. worth < -lose is harm
    4  replay      then the witnesses compare the average with that without member i, for each i: i is blamed if d > e
                   of that, at most half are. Witnesses count as far as their words go with the others'
    5  confirm     the round is done again without the most blamed one, two, three ... and all of them. Of those whose
                   worth is better by more than e than that of the round as it was, the fewest within e of the best are
                   taken, and 4 begins again without them as long as d < -max(lose, e). If nobody can be blamed any
                   more and that is still so, the round is undone: the last good model stays. Those left out count
                   nothing for the next two rounds, after a second charge for four, then eight ...; as long a time
                   of good conduct takes one charge back (reputation.py): so nobody has a part in more than every
                   fifth round that harms
    6  ratchet     the new model is the last good one if d >= 0, and then fallen_c = min(0, fallen_c + d_c), which
                   fades by a tenth a round; else the old one stays the yardstick: small losses add up to a large one
    7  the last    round's model gives way to the last good one if d < -lose / 2: a strike at the end gains less still

So whatever updates hold, the model never loses more than `lose` against the best so far, in units of p(true class) at
the median holder of each class, where most holders tell the truth. A class may fall further where nobody can be blamed
for it: honest members trade classes for each other, and a class whose holders are left out is forgotten. Liars with as
many honest witnesses who doubt can hold a round up: the model then stays at its best. Witnesses are the digests that
are believed (FedDig), else all members that are there.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from holdfast.algorithms.fedavg import average
from holdfast.core.tensors import unflat
from holdfast.core.types import Reply, State, Tensors, pack, size, unpack
from holdfast.data.task import Samples
from holdfast.trust.base import Hearing, Judgement
from holdfast.trust.consensus import Values, agreement, weighted_median
from holdfast.trust.panel import ALL, CONFIRM, GOOD, NEW, PANEL, REPLAY, Panel, PanelRequest, Scores, class_scores
from holdfast.trust.reputation import charge
from holdfast.trust.robust.merging import stacked

Again = Callable[[Judgement], State]  # the round once more, from another judgement
Words = Mapping[int, Scores]  # witness -> model -> class -> score
FORGET = 0.9  # of what a class lost: where classes are traded for each other, a run must not stand still for ever
BEYOND = 2.0  # standard errors, of many witnesses: a change within them is not believed


@dataclass(frozen=True)
class Found:
    """What the witnesses say of one model beside another."""

    classes: Mapping[str, float]  # d_c of each class that is judged
    errors: Mapping[str, float]  # e_c
    error: float  # e
    witnesses: int

    @property
    def change(self) -> float:
        return statistics.fmean(self.classes.values())

    def falls(self, fallen: Mapping[str, float]) -> dict[str, float]:
        """The classes that fell beyond their error: by how much, with what they lost of late."""
        return {c: fallen.get(c, 0.0) + d for c, d in self.classes.items() if d < -self.errors[c]}

    def worth(self, fallen: Mapping[str, float]) -> float:
        return self.change + sum(self.falls(fallen).values()) / len(self.classes)

    def lost(self, lose: float) -> bool:
        return self.change < -max(lose, self.error)

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
    if first is None or first.worth(good.fallen) >= -lose:
        last = before.round + 1 == panel.hearing.context.rounds
        if first is not None and last and first.change < -lose / 2:
            judged = replace(judged, notes=[*judged.notes, f"the final model is the last good one ({first})"])
            after = replace(after, model=good.model, buffers=good.buffers)
        return good.or_new(after, first).kept_in(after), panel.billed(judged)
    whole = Try((), judged, after, first)
    best = fewer(whole, before, good, panel, again)
    while best is not whole and best.found.lost(lose):
        whole, best = best, fewer(best, before, good, panel, again)
    note = f"the round harmed ({first})"
    if best.culprits:
        names = ", ".join(panel.hearing.context.called(client) for client in best.culprits)
        note += f" and was undone; it was done again without {names} ({best.found})"
    if not best.found.lost(lose):
        notes = [*judged.notes, note] if best.culprits else judged.notes
        after = replace(best.after, trust=charge(best.after.trust, best.culprits))
        return good.or_new(after, best.found).kept_in(after), panel.billed(replace(best.judged, notes=notes))
    after = replace(
        before, model=good.model, buffers=good.buffers, trust=charge(after.trust, best.culprits),
        digests=after.digests, claims=after.claims, absence=after.absence,
    )  # fmt: skip
    end = ", which harmed too" if best.culprits else " and was undone"
    judged = replace(judged, notes=[*judged.notes, f"{note}{end}: the last good model stays"])
    return good.kept_in(after), panel.billed(judged)


@dataclass(frozen=True)
class Try:
    """The round without those who are blamed most, and what the witnesses say of it beside the last good model."""

    culprits: Sequence[int]
    judged: Judgement
    after: State
    found: Found


def fewer(whole: Try, before: State, good: Good, panel: WitnessPanel, again: Again) -> Try:
    """Steps 4 and 5: the round without the most blamed, or as it is if nobody can be."""
    order = blamed(panel.ask(REPLAY, left_out(before, whole.judged)))
    sets = {str(count): sorted(order[:count]) for count in numbers(len(order))}
    judged = {name: without(whole.judged, culprits) for name, culprits in sets.items()}
    made = {name: (one, again(one)) for name, one in judged.items() if one is not None}
    if not made:
        return whole
    words = panel.ask(CONFIRM, good.beside({name: after for name, (_, after) in made.items()} | {NEW: whole.after}))
    gains, errors, tries = {}, {}, {}
    for name, (one, after) in made.items():
        first, found, beside = compare(words, NEW, GOOD), compare(words, name, GOOD), compare(words, name, NEW)
        if first is not None and found is not None and beside is not None:
            gains[name], errors[name] = found.worth(good.fallen) - first.worth(good.fallen), beside.error
            tries[name] = Try([*whole.culprits, *sets[name]], one, after, found)
    better = [name for name in tries if gains[name] > errors[name]]
    if not better:
        return whole
    best = max(better, key=lambda name: gains[name])
    return tries[min((name for name in better if gains[name] >= gains[best] - errors[best]), key=int)]


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


def compare(words: Words, one: str, other: str, belief: Mapping[int, float] | None = None) -> Found | None:
    """Steps 1 and 2; None where no class can be judged. `belief` is what each witness counts, one each if left out.

    >>> low, high = {"0": 0.5, "1": 0.5}, {"0": 0.75, "1": 0.5}
    >>> words = {0: {"new": low, "good": high}, 1: {"new": low, "good": high}, 2: {"new": high, "good": low}}
    >>> compare(words, "new", "good").classes
    {'0': -0.25, '1': 0.0}
    """
    weights = np.array([1.0 if belief is None else belief[witness] for witness in words])
    heard = [told for told, weight in zip(words.values(), weights, strict=True) if weight > 0]
    holders = Counter(c for told in heard for c in told[one])
    judged = sorted(c for c, count in holders.items() if 3 * count > len(heard))
    if not judged:
        return None
    values = np.array([[told[one].get(c, np.nan) - told[other].get(c, np.nan) for c in judged] for told in heard])
    weights, said = weights[weights > 0], ~np.isnan(values)
    middle = (weighted_median(values, weights) - weighted_median(-values, weights)) / 2
    away = values - middle
    means = np.nanmean(away[said.any(1)], 1)
    beyond = believed_beyond(len(heard))
    errors = beyond * error_of_median(away[said], said.sum(0))
    error = beyond * float(error_of_median(means, np.array(len(means))))
    classes, each = (dict(zip(judged, row.tolist(), strict=True)) for row in (middle, errors))
    return Found(classes, each, error, len(words))


def believed_beyond(witnesses: int) -> float:
    """How many standard errors: two, and more where few witnesses tell them (deviation of Student's t, n - 1 degrees).

    >>> [round(believed_beyond(n), 1) for n in (3, 4, 5, 20)]
    [inf, 3.5, 2.8, 2.1]
    """
    return BEYOND * math.sqrt((witnesses - 1) / (witnesses - 3)) if witnesses > 3 else math.inf


def error_of_median(away: Values, of: Values) -> Values:
    """The standard error of a median of n values, whatever their distribution, from how far values lie from theirs.

    (q(1/2 + r) - q(1/2 - r)) / 2,    q the quantiles, r = 1 / (2 sqrt(n)): how far the rank of a median strays
    """
    stray = 0.5 / np.sqrt(of)
    half = np.asarray(np.quantile(away, 0.5 + stray) - np.quantile(away, 0.5 - stray)) / 2
    return np.maximum(half, np.finfo(np.float64).eps)  # rounding alone


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


def blamed(words: Words) -> list[int]:
    """Step 4: whom it is better to leave out, the most blamed first, at most half."""
    clients = sorted({int(name) for told in words.values() for name in told if name != ALL})
    belief = believed(words, clients)
    gains = {}
    for i in clients:
        found = compare({j: told for j, told in words.items() if j != i}, str(i), ALL, belief)
        if found is not None and found.change > found.error:
            gains[i] = found.change
    return sorted(gains, key=lambda i: -gains[i])[: len(clients) // 2]


def believed(words: Words, clients: Sequence[int]) -> dict[int, float]:
    """How far each witness's words go with the others', on the mean of what it holds; nobody testifies of itself."""
    values = np.array(
        [
            [
                np.nan if i == witness else statistics.fmean(told[str(i)][c] - told[ALL][c] for c in told[ALL])
                for i in clients
            ]
            for witness, told in words.items()
        ]
    ).reshape(len(words), len(clients))
    return dict(zip(words, agreement(values, np.ones(len(values))).tolist(), strict=True))


def without(judged: Judgement, culprits: Sequence[int]) -> Judgement | None:
    """The judgement with those left out; None where nobody else has any say."""
    weights = [0.0 if u.client in culprits else w for u, w in zip(judged.updates, judged.weights, strict=True)]
    total, left = sum(weights), {c: 0.0 if c in culprits else say for c, say in judged.say.items()}
    if not total > 0:
        return None
    shares = sum(left.values())
    return replace(judged, weights=[w / total for w in weights], say={c: say / shares for c, say in left.items()})
