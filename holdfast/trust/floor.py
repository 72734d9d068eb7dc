"""The floor: the result is judged, not only its parts. A round that harms is undone, or done without the culprits.

    1  compare     each witness j tells p_jc of the new model and of the last good one, for the classes c that it holds;
                   where seven members or more testify, also of the hushed round, in which no update is longer than
                   the median one
    2  change      d_c = median over the holders of c of p_jc(new) - p_jc(good), judged where more than a third of all
                   witnesses hold c, so that liars are not alone;  d = mean_c d_c: all classes count alike. A class
                   that fewer hold counts what its holders say it gained, at most max |d_c| of those judged, never
                   what they say it lost: honest members trade classes for each other, and were the gains of those
                   whom nobody else can check left out, their rounds would look like harm
                   e_c, e: their errors, 2 sqrt((n - 1) / (n - 3)) standard errors at n witnesses, from how far their
                   words lie apart; p(new) - p(good) is of the same samples, so what differs between members is not
                   in it. Of three witnesses no change is believed
    3  harm        worth = d + mean_c min(0, fallen_c + d_c), over classes with d_c < -e_c, fallen_c what c lost of
                   late: gains count once, falls that are believed twice. worth < -lose is harm, if it still is so
                   where classes must fall further than they swing by themselves (4). Where seven members testify a
                   small loss that is believed, d < -e, is harm too; and a round that does no harm is hushed if that
                   is worth more than e beside it: updates that help a little, and loudly something else, harm nothing
                   that is there and hold training back. Of honest updates the long ones are mostly the better half
    4  replay      then the witnesses compare the average with that without member i, for each i: i is blamed if d > e
                   of that, at most half are. Witnesses count as far as their words go with the others'. How far class
                   c swings by chance, from which members' updates happen to be what they are, is 2 standard errors of
                   the jackknife, 2 (n - 1) / sqrt(n) times the deviation of d_c over i, that from the median distance:
                   so what a few do to a class is not in it
    5  confirm     the round is done again without the most blamed one, two, three ... and all of them. Of those whose
                   worth is better by more than e than that of the round as it was, the fewest within e of the best are
                   taken; where d >= 0, half of the harm must be gone without them, since such a round only trades
                   classes; where digests testify, two thirds in any case, since FedDig's server step swings between
                   classes by itself. Then 4 begins again without them as long as d < -max(lose, e), PASSES times in
                   all. If the hushed round was better, those who are left are hushed too, where that is better still.
                   If d < -max(lose, e) even so, the round is undone: the last good model stays. Those left out are
                   charged if as much of the harm is gone without them at full length (half; two thirds):
                   they count nothing for the next two rounds, after a second charge for four, then eight ...; as long
                   a time of good conduct takes one charge back (reputation.py): so nobody has a part in more than every
                   fifth round that harms. Who takes less of it away is left out of this round, and no more: whoever
                   holds much of a class that gained is blamed a little in every trade. Nobody is left out of a round
                   that does no harm: honest members who teach few classes would be, and what they teach forgotten
    6  ratchet     the new model is the last good one if d >= 0, and then fallen_c = min(0, fallen_c + d_c), which
                   fades by a tenth a round; else the old one stays the yardstick: small losses add up to a large one.
                   Where noised digests testify the new model is always the yardstick: all have the noise in common,
                   which no error shows, and on it a model that learns from records falls a little in each round
    7  the last    round, where it harms, is held against the model that it began with as well, done again or as it is:
                   worth < -lose / 2, and that one stays, as no later round mends what falls in this one. And the final
                   model gives way to the last good one if d < -lose / 2, whether that can be told from noise or not

So whatever updates hold, the model never loses more than `lose` against the best so far (where noised digests testify:
in a round), in units of p(true class) at the median holder of each class, where most holders tell the truth. A class
may fall further where nobody can be blamed for it: honest members trade classes for each other, and a class whose
holders are left out is forgotten. Liars with as many honest witnesses who doubt can hold a round up: the model then
stays at its best. Liars who say that they alone hold u of C classes, which gain, hide u / C of what the class moved
that moved most. Witnesses are the digests that are believed (FedDig), else all members that are there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from holdfast.algorithms.fedavg import average
from holdfast.core.tensors import unflat
from holdfast.core.types import Reply, State, Tensors, pack, size, unpack
from holdfast.data.task import Samples
from holdfast.trust.base import Hearing, Judgement
from holdfast.trust.consensus import agreement
from holdfast.trust.panel import (
    ALL,
    BEFORE,
    CONFIRM,
    GOOD,
    HUSHED,
    NEW,
    PANEL,
    PASSES,
    REPLAY,
    Panel,
    PanelRequest,
    digest_scores,
)
from holdfast.trust.reputation import ENOUGH, charge
from holdfast.trust.robust.merging import shortened, stacked
from holdfast.trust.words import Found, Words, believed_beyond, compare, sound, usual_swings

Again = Callable[[Judgement], State]  # the round once more, from another judgement
FORGET = 0.9  # of what a class lost: where classes are traded for each other, a run must not stand still for ever


def hold(
    before: State, after: State, judged: Judgement, panel: WitnessPanel, again: Again, lose: float
) -> tuple[State, Judgement]:
    """The state that counts, with the good model in the rule's memory; and the judgement that it came from."""
    good = Good.of(before)
    if not good.model:
        return Good(after.model, after.buffers, {}).kept_in(after), judged
    case, hush = Case(before, good, panel, again), hushed(judged) if panel.many else None
    other = {} if hush is None else {HUSHED: again(hush)}
    words = case.ask(PANEL, {NEW: after, **other})
    first, quieter = compare(words, NEW, GOOD), compare(words, HUSHED, NEW) if other else None
    better = quieter is not None and quieter.better

    def harms(found: Found) -> bool:
        return found.worth(good.fallen) < -lose or (panel.many and found.lost(0.0))

    def unharmed() -> tuple[State, Judgement]:
        if hush is None or not better:
            return kept(good, after, first, judged, panel, lose)
        found = compare(words, HUSHED, GOOD)
        note = f"the round was done with no update longer than the median ({found}; else {first})"
        return kept(good, other[HUSHED], found, replace(hush, notes=[*hush.notes, note]), panel, lose)

    if first is None or not harms(first):
        return unharmed()
    several = not math.isinf(believed_beyond(first.witnesses - 1))  # else nobody can be blamed, and nobody is asked
    replayed = each_left_out(panel.ask(REPLAY, left_out(before, judged))) if several else {}
    swings = usual_swings(replayed)
    first = first.beyond(swings)
    if not harms(first):
        return unharmed()
    whole = Try((), judged, after, first, gained(words, NEW))
    best = fewer(whole, case, replayed, swings)
    for _ in range(PASSES - 1):
        if best is whole or not best.found.lost(lose):
            break
        replayed = each_left_out(panel.ask(REPLAY, left_out(before, best.judged)))
        whole, best = best, fewer(best, case, replayed, swings)
    harm, left = (one.worth(good.fallen) for one in (first, best.found))
    charged = best.culprits if left - harm >= panel.explains * -harm else ()
    if hush is not None and better:
        best = hushed_too(best, hush, words, case, swings)
    note = f"the round harmed ({first}) and was undone"
    done = [f"without {', '.join(map(panel.hearing.context.called, best.culprits))}"] if best.culprits else []
    done += ["with no update longer than the median"] if best.hushed else []
    if done:
        note += f"; it was done again {' and '.join(done)} ({best.found})"
    end = ", which harmed too" if done else ""
    stay = replace(
        before, trust=charge(after.trust, charged), digests=after.digests, claims=after.claims,
        absence=after.absence,
    )  # fmt: skip
    if best.found.lost(lose):
        judged = replace(judged, notes=[*judged.notes, f"{note}{end}: the last good model stays"])
        return good.kept_in(replace(stay, model=good.model, buffers=good.buffers)), panel.billed(judged)
    if best.gained is not None and best.gained.worth({}) < -lose / 2:
        judged = replace(judged, notes=[*judged.notes, f"{note}{end}: the model before it stays"])
        return kept(good, stay, compare(words, BEFORE, GOOD), judged, panel, lose)
    notes = [*judged.notes, note] if done else judged.notes
    after = replace(best.after, trust=charge(best.after.trust, charged))
    return kept(good, after, best.found, replace(best.judged, notes=notes), panel, lose)


def kept(
    good: Good, after: State, found: Found | None, judged: Judgement, panel: WitnessPanel, lose: float
) -> tuple[State, Judgement]:
    """Steps 6 and 7: this model, unless it is the final one and worse than the last good one."""
    best = good.or_new(after, None if panel.noised else found)
    if found is not None and panel.last and found.change < -lose / 2:
        judged = replace(judged, notes=[*judged.notes, f"the final model is the last good one ({found})"])
        after = replace(after, model=good.model, buffers=good.buffers)
    return best.kept_in(after), panel.billed(judged)


@dataclass(frozen=True)
class Try:
    """The round without those who are blamed most, and what the witnesses say of it beside the last good model."""

    culprits: Sequence[int]
    judged: Judgement
    after: State
    found: Found
    gained: Found | None = None  # in the last round: beside the model that it began with
    hushed: bool = False  # with no update longer than the median


@dataclass(frozen=True)
class Case:
    """What a round is judged with."""

    before: State
    good: Good
    panel: WitnessPanel
    again: Again

    def ask(self, job: Panel, models: Mapping[str, State]) -> Words:
        """What the witnesses say of these and the last good one; in the last round of that which it began with too."""
        begun = {BEFORE: self.before} if self.panel.last else {}
        return self.panel.ask(job, self.good.beside({**models, **begun}))


def gained(words: Words, name: str) -> Found | None:
    return compare(words, name, BEFORE) if any(BEFORE in told for told in words.values()) else None


def hushed(judged: Judgement) -> Judgement | None:
    """The judgement with no update longer than the median one; None where all are of one length."""
    lengths = stacked(judged.updates).double().norm(dim=1)
    usual = lengths.quantile(0.5)
    if not bool((lengths > usual).any()):
        return None
    factors = (usual / lengths.clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1).tolist()
    heard = [shortened(update, factor) for update, factor in zip(judged.updates, factors, strict=True)]
    return replace(judged, updates=heard)


def hushed_too(best: Try, hush: Judgement, words: Words, case: Case, swings: Mapping[str, float]) -> Try:
    """Step 5: those who are left with no update longer than the median, if that is better still; else as it is."""
    one = without(hush, best.culprits)
    if one is None:
        return best
    after = case.again(one)
    if best.culprits:  # else they have told of it
        words = case.ask(CONFIRM, {NEW: best.after, HUSHED: after})
    beside, found = compare(words, HUSHED, NEW), compare(words, HUSHED, GOOD)
    if beside is None or found is None or not beside.better:
        return best
    return Try(best.culprits, one, after, found.beyond(swings), gained(words, HUSHED), hushed=True)


def fewer(whole: Try, case: Case, replayed: Mapping[int, Found], swings: Mapping[str, float]) -> Try:
    """Steps 4 and 5: the round without the most blamed, or as it is if nobody can be."""
    order = blamed(replayed)
    sets = {str(count): sorted(order[:count]) for count in numbers(len(order))}
    judged = {name: without(whole.judged, culprits) for name, culprits in sets.items()}
    made = {name: (one, case.again(one)) for name, one in judged.items() if one is not None}
    if not made:
        return whole
    words = case.ask(CONFIRM, {name: after for name, (_, after) in made.items()} | {NEW: whole.after})
    good, panel = case.good, case.panel
    least = panel.explains if panel.by_digests or whole.found.change >= 0 else 0.0
    gains, errors, tries = {}, {}, {}
    for name, (one, after) in made.items():
        first, found, beside = compare(words, NEW, GOOD), compare(words, name, GOOD), compare(words, name, NEW)
        if first is not None and found is not None and beside is not None:
            first, found = first.beyond(swings), found.beyond(swings)
            gains[name], errors[name] = found.worth(good.fallen) - first.worth(good.fallen), beside.error
            tries[name] = Try([*whole.culprits, *sets[name]], one, after, found, gained(words, name))
    better = [name for name in tries if gains[name] > max(errors[name], least * -whole.found.worth(good.fallen))]
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
        """Step 6; where nobody can tell, or noise adds up, the new model counts as good."""
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

    @property
    def by_digests(self) -> bool:
        """Whether digests testify, not members."""
        return len(self._digests) >= 3

    @property
    def many(self) -> bool:
        """Whether members testify, and enough of them that two do not tip the scales."""
        return not self.by_digests and len(self._members) >= ENOUGH

    @property
    def explains(self) -> float:
        """The share of the harm that must be gone without those who are charged (step 5)."""
        return 2 / 3 if self.by_digests else 1 / 2

    @property
    def noised(self) -> bool:
        """Whether digests with noise on them testify."""
        return self.hearing.promised and self.by_digests

    @property
    def last(self) -> bool:
        """Whether this is the last round."""
        return self._round + 1 == self.hearing.context.rounds

    def ask(self, job: Panel, asked: PanelRequest) -> Words:
        if self.by_digests:
            return digest_scores(self.hearing.context.bench, self._digests, asked, self._most)
        messages = [job.message(member, self._round, asked) for member in self._members]
        self._down += sum(size(message.tensors) for message in messages)
        found = {}
        for reply in self.hearing.federation.ask(messages):
            scores = job.read(reply).scores if isinstance(reply, Reply) else None
            if scores and sound(scores, asked.names, self.hearing.context.bench.about.classes):
                found[reply.client] = scores
        return found

    def billed(self, judged: Judgement) -> Judgement:
        """The judgement with what asking cost since the last bill."""
        down, self._down = self._down, 0
        return replace(judged, bytes_down=judged.bytes_down + down)


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


def each_left_out(words: Words) -> dict[int, Found]:
    """Step 4: what the others say of the round without each member, as far as their words go with the others'."""
    clients = sorted({int(name) for told in words.values() for name in told if name != ALL})
    belief = believed(words, clients)
    found = {i: compare({j: told for j, told in words.items() if j != i}, str(i), ALL, belief) for i in clients}
    return {i: one for i, one in found.items() if one is not None}


def blamed(replayed: Mapping[int, Found]) -> list[int]:
    """Step 4: whom it is better to leave out, the most blamed first, at most half."""
    gains = {i: found.change for i, found in replayed.items() if found.change > found.error}
    return sorted(gains, key=lambda i: -gains[i])[: len(replayed) // 2]


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
    shares = sum(left.values()) or 1.0
    return replace(judged, weights=[w / total for w in weights], say={c: say / shares for c, say in left.items()})
