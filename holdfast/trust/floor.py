"""The floor: the result is judged, not only its parts. A round that harms is undone, or done without the culprits.

    1  compare     each witness j tells p_jc of the new model and of the last good one, for the classes c that it holds
    2  change      d_c = median over the holders of c of p_jc(new) - p_jc(good), judged where more than a third of all
                   witnesses hold c, so that liars are not alone;  d = mean_c d_c: all classes count alike
    3  harm        d < -lose; or d < lose and fallen_c + d_c < -10 lose for some c, fallen_c what c lost of late
    4  replay      then the witnesses compare the average with that without member i, for each i: whose leaving out is
                   better, by the same medians over the classes that are harmed (else all), is left out, at most half
    5  confirm     the round is done again without those and compared as in 1 to 3; if it harms still, it is undone: the
                   last good model stays
    6  ratchet     the new model is the last good one if d >= 0, and then fallen_c = min(0, fallen_c + d_c), which
                   fades by a tenth a round; else the old one stays the yardstick: small losses add up to a large one
    7  the last    round's model is taken if d >= 0, else the last good one: one strike at the end gains nothing

So whatever updates hold, the model never loses more than `lose` against the best so far, in units of p(true class) at
the median holder of each class; nor, while the others do not gain, a class more than ten times that: for classes most
of whose holders tell the truth. Liars with as many honest witnesses who doubt can hold a round up: the model then stays
at its best. Witnesses are the digests that are believed (FedDig), else all members that are there.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from holdfast.core.tensors import unflat
from holdfast.core.types import Reply, State, Tensors, pack, size, unpack
from holdfast.data.task import Samples
from holdfast.trust.base import Hearing, Judgement
from holdfast.trust.panel import ALL, CONFIRM, GOOD, NEW, PANEL, REPLAY, Panel, PanelRequest, Scores, class_scores
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
        ruined = [c for c, change in self.classes.items() if fallen.get(c, 0.0) + change < -CLASS * lose]
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
    first = compare(panel.ask(PANEL, good.beside(after)), NEW, GOOD)
    harmed = first.harmed(lose, good.fallen) if first else []
    if first is None or not harmed:
        if first is not None and first.change < 0 and before.round + 1 == panel.hearing.context.rounds:
            judged = replace(judged, notes=[*judged.notes, f"the final model is the last good one ({first})"])
            after = replace(after, model=good.model, buffers=good.buffers)
        return good.or_new(after, first).kept_in(after), panel.billed(judged)
    culprits = blamed(panel.ask(REPLAY, left_out(before, judged)), harmed)
    note = f"the round harmed ({first}) and was undone"
    if culprits and (fewer := without(judged, culprits)) is not None:
        after = again(fewer)
        second = compare(panel.ask(CONFIRM, good.beside(after)), NEW, GOOD)
        if second is not None and not second.harmed(lose, good.fallen):
            names = ", ".join(panel.hearing.context.called(client) for client in culprits)
            note += f"; it was done again without {names} ({second})"
            fewer = replace(fewer, notes=[*fewer.notes, note])
            return good.or_new(after, second).kept_in(charged(after, culprits)), panel.billed(fewer)
    after = replace(
        before, model=good.model, buffers=good.buffers, trust=after.trust, digests=after.digests, claims=after.claims,
        absence=after.absence,
    )  # fmt: skip
    judged = replace(judged, notes=[*judged.notes, f"{note}: the last good model stays"])
    return good.kept_in(charged(after, culprits)), panel.billed(judged)


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

    def beside(self, after: State) -> PanelRequest:
        return PanelRequest(
            pack(**{NEW: after.model, GOOD: self.model}), pack(**{NEW: after.buffers, GOOD: self.buffers})
        )

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


def compare(words: Words, one: str, other: str, skip: int | None = None) -> Found | None:
    """Steps 1 and 2, without the word of one witness; None where no class can be judged.

    >>> low, high = {"0": 0.5, "1": 0.5}, {"0": 0.75, "1": 0.5}
    >>> words = {0: {"new": low, "good": high}, 1: {"new": low, "good": high}, 2: {"new": high, "good": low}}
    >>> compare(words, "new", "good")
    Found(classes={'0': -0.25, '1': 0.0}, witnesses=3)
    """
    heard = [told for witness, told in words.items() if witness != skip]
    changes: dict[str, list[float]] = {}
    for told in heard:
        for c in told[one]:
            changes.setdefault(c, []).append(told[one][c] - told[other][c])
    judged = {c: statistics.median(changes[c]) for c in sorted(changes) if 3 * len(changes[c]) > len(heard)}
    return Found(judged, len(heard)) if judged else None


def left_out(before: State, judged: Judgement) -> PanelRequest:
    """Step 4: the average of the updates that count, and that without each member in turn."""
    rows, weights = stacked(judged.updates).double(), torch.tensor(judged.weights, dtype=torch.float64)
    total = weights @ rows
    models = {ALL: total}
    for update, row, weight in zip(judged.updates, rows, judged.weights, strict=True):
        if 0 < weight < 1:
            models[str(update.client)] = (total - weight * row) / (1 - weight)
    packed: Tensors = {}
    for name, vector in models.items():
        shift = unflat(vector.to(torch.float32), judged.updates[0].delta)
        packed |= pack(**{name: {n: tensor + shift[n] if n in shift else tensor for n, tensor in before.model.items()}})
    return PanelRequest(packed, {f"{name}/{n}": tensor for name in models for n, tensor in before.buffers.items()})


def blamed(words: Words, harmed: Sequence[str]) -> list[int]:
    """Without whom the harmed classes do better; nobody testifies of itself, and at most half are blamed."""
    gains = {}
    for name in next(iter(words.values()), {}):
        found = None if name == ALL else compare(words, name, ALL, skip=int(name))
        told = [found.classes[c] for c in harmed if c in found.classes] if found else []
        if told and statistics.fmean(told) > 0:
            gains[int(name)] = statistics.fmean(told)
    most = (len(next(iter(words.values()), {})) - 1) // 2
    return sorted(sorted(gains, key=lambda client: -gains[client])[:most])


def without(judged: Judgement, culprits: Sequence[int]) -> Judgement | None:
    """The judgement with those left out; None where nobody else has any say."""
    weights = [0.0 if u.client in culprits else w for u, w in zip(judged.updates, judged.weights, strict=True)]
    total, left = sum(weights), {c: 0.0 if c in culprits else say for c, say in judged.say.items()}
    if not total > 0:
        return None
    shares = sum(left.values())
    return replace(judged, weights=[w / total for w in weights], say={c: say / shares for c, say in left.items()})


def charged(state: State, culprits: Sequence[int]) -> State:
    """The state in which those are charged: they count less, or nothing, in the rounds that follow."""
    charges = state.trust["charged"].clone()
    charges[list(culprits)] += 1
    return replace(state, trust={**state.trust, "charged": charges})
