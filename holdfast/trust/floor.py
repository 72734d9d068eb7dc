"""The floor: the result is judged, not only its parts. A round that harms is undone, or done without the culprits.

    1  compare     each witness j tells p_jc of the new model and of the last good one, for the classes c that it holds;
                   where seven members or more testify, also of the hushed round, in which no update is longer than
                   the median one
    2  belief      of seven witnesses or more each counts b_j, how far its words on all classes and models of the
                   question are the others' (their concordance with the medians, consensus.py). So who lies about most
                   classes is believed in none, also where liars are half of a class's holders; and to lie about the
                   class that fell most costs most
    3  change      d_c = median, weighted by b_j, over the holders of c of p_jc(new) - p_jc(good), judged where four
                   of those who are believed hold c, or more than a third;  d = mean_c d_c: all classes count alike.
                   A class that fewer hold counts what its holders say it gained, at most max |d_c| of those judged,
                   never what they say it lost: honest members trade classes for each other, and were the gains of
                   those whom nobody else can check left out, their rounds would look like harm
                   e_c, e: their errors, 2 sqrt((n - 1) / (n - 3)) standard errors at n witnesses, from how far their
                   words lie apart; p(new) - p(good) is of the same samples, so what differs between members is not
                   in it. Of three witnesses no change is believed
    4  harm        worth = d + mean_c min(0, fallen_c + d_c), over classes with d_c < -e_c, fallen_c what c lost of
                   late: gains count once, falls that are believed twice. worth < -lose is harm, if it still is so
                   where classes must fall further than they swing by themselves (5). Where seven members testify a
                   small loss that is believed, d < -e, is harm too; and a round that does no harm is hushed if that
                   is worth more than e beside it: updates that help a little, and loudly something else, harm nothing
                   that is there and hold training back. Of honest updates the long ones are mostly the better half
    5  replay      then the witnesses compare the average with that without member i, for each i: i is blamed if d > e
                   of that, at most half are. Witnesses count as in 2, whatever their number; nobody testifies of
                   itself. How far class c swings by chance, from which members' updates happen to be what they are,
                   is 2 standard errors of the jackknife, 2 (n - 1) / sqrt(n) times the deviation of d_c over i, that
                   from the median distance: so what a few do to a class is not in it
    6  confirm     the round is done again without the most blamed one, two, three ... and all of them. Of those whose
                   worth is better by more than e than that of the round as it was, the fewest within e of the best are
                   taken; where d >= 0, half of the harm must be gone without them, since such a round only trades
                   classes; where digests testify, two thirds in any case, since FedDig's server step swings between
                   classes by itself. Then 5 begins again without them as long as d < -max(lose, e), PASSES times in
                   all. If the hushed round was better, those who are left are hushed too, where that is better still.
                   If d < -max(lose, e) even so, the round is undone: the last good model stays
    7  charge      those left out are charged if as much of the harm is gone without them at full length (half; two
                   thirds): they count nothing for the next two rounds, after a second charge for four, then eight ...;
                   as long a time of good conduct takes one charge back (reputation.py): so nobody has a part in more
                   than every fifth round that harms. Who takes less of it away is left out of this round, and no more:
                   whoever holds much of a class that gained is blamed a little in every trade. Nobody is left out of a
                   round that does no harm: honest members who teach few classes would be, and what they teach forgotten
    8  ratchet     the new model is the last good one if d >= 0, and then fallen_c = min(0, fallen_c + d_c), which
                   fades by a tenth a round; else the old one stays the yardstick: small losses add up to a large one.
                   Where noised digests testify the new model is always the yardstick: all have the noise in common,
                   which no error shows, and on it a model that learns from records falls a little in each round
    9  the last    round, where it harms, is held against the model that it began with as well, done again or as it is:
                   worth < -lose / 2, and that one stays, as no later round mends what falls in this one. And the final
                   model gives way to the last good one if d < -lose / 2, whether that can be told from noise or not

So whatever updates hold, the model never loses more than `lose` against the best so far (where noised digests testify:
in a round), in units of p(true class) at the median holder of each class, where most witnesses tell the truth of most
classes. A class may fall further where nobody can be blamed for it: honest members trade classes for each other, and a
class whose holders are left out is forgotten. Liars with as many honest witnesses who doubt can hold a round up: the
model then stays at its best. Liars who say that they alone hold u of C classes, which gain, hide u / C of what the
class moved that moved most. Witnesses are the digests that are believed (FedDig), else all members that are there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from holdfast.core.types import State, Tensors, pack, unpack
from holdfast.trust.base import Judgement
from holdfast.trust.panel import (
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
)
from holdfast.trust.replay import blamed, each_left_out, left_out
from holdfast.trust.reputation import charge
from holdfast.trust.robust.merging import shortened, stacked
from holdfast.trust.witnesses import WitnessPanel
from holdfast.trust.words import Found, Words, believed_beyond, compare, usual_swings

Again = Callable[[Judgement], State]  # the round once more, from another judgement
FORGET = 0.9  # of what a class lost: where classes are traded for each other, a run must not stand still for ever


def hold(
    before: State, after: State, judged: Judgement, panel: WitnessPanel, again: Again, lose: float
) -> tuple[State, Judgement]:
    """The state that counts, with the good model in the rule's memory; and the judgement that it came from."""
    good = Good.of(before)
    if not good.model:
        return Good(after.model, after.buffers, {}).kept_in(after), judged
    case = Case(before, good, panel, again, lose)
    hush = hushed(judged) if panel.many else None
    quiet = None if hush is None else (again(hush), hush)
    words = case.ask(PANEL, {NEW: after} if quiet is None else {NEW: after, HUSHED: quiet[0]})
    beside = compare(words, HUSHED, NEW) if quiet is not None else None
    if beside is None or not beside.better:
        quiet = None
    first = compare(words, NEW, GOOD)
    if first is None or not case.harms(first):
        return case.unharmed(after, judged, first, quiet, words)
    several = not math.isinf(believed_beyond(first.witnesses - 1))  # else nobody can be blamed, and nobody is asked
    replayed = case.replay(judged) if several else {}
    swings = usual_swings(replayed)
    first = first.beyond(swings)
    if not case.harms(first):
        return case.unharmed(after, judged, first, quiet, words)
    whole = Try((), judged, after, first, gained(words, NEW))
    best = case.without_culprits(whole, replayed, swings)
    harm, left = (one.found.worth(good.fallen) for one in (whole, best))
    charged = best.culprits if left - harm >= panel.explains * -harm else ()
    if quiet is not None:
        best = case.hushed_too(best, quiet[1], words, swings)
    return case.settled(whole, best, charged, words)


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
    lose: float

    def ask(self, job: Panel, models: Mapping[str, State]) -> Words:
        """What the witnesses say of these and the last good one; in the last round of that which it began with too."""
        begun = {BEFORE: self.before} if self.panel.last else {}
        return self.panel.ask(job, self.good.beside({**models, **begun}))

    def replay(self, judged: Judgement) -> dict[int, Found]:
        """Step 5: what is said of the round without each member."""
        return each_left_out(self.panel.ask(REPLAY, left_out(self.before, judged)))

    def harms(self, found: Found) -> bool:
        """Step 4."""
        return found.worth(self.good.fallen) < -self.lose or (self.panel.many and found.lost(0.0))

    def without_culprits(self, whole: Try, replayed: Mapping[int, Found], swings: Mapping[str, float]) -> Try:
        """Steps 5 and 6, until the round no longer harms, or nothing more is won."""
        best = self.fewer(whole, replayed, swings)
        for _ in range(PASSES - 1):
            if best is whole or not best.found.lost(self.lose):
                break
            whole, best = best, self.fewer(best, self.replay(best.judged), swings)
        return best

    def fewer(self, whole: Try, replayed: Mapping[int, Found], swings: Mapping[str, float]) -> Try:
        """Step 6, once: the round without the most blamed, or as it is if nobody can be."""
        order = blamed(replayed)
        sets = {str(count): sorted(order[:count]) for count in numbers(len(order))}
        judged = {name: without(whole.judged, culprits) for name, culprits in sets.items()}
        made = {name: (one, self.again(one)) for name, one in judged.items() if one is not None}
        if not made:
            return whole
        words = self.ask(CONFIRM, {name: after for name, (_, after) in made.items()} | {NEW: whole.after})
        fallen = self.good.fallen
        least = self.panel.explains if self.panel.by_digests or whole.found.change >= 0 else 0.0
        gains, errors, tries = {}, {}, {}
        for name, (one, after) in made.items():
            first, found, beside = compare(words, NEW, GOOD), compare(words, name, GOOD), compare(words, name, NEW)
            if first is not None and found is not None and beside is not None:
                first, found = first.beyond(swings), found.beyond(swings)
                gains[name], errors[name] = found.worth(fallen) - first.worth(fallen), beside.error
                tries[name] = Try([*whole.culprits, *sets[name]], one, after, found, gained(words, name))
        better = [name for name in tries if gains[name] > max(errors[name], least * -whole.found.worth(fallen))]
        if not better:
            return whole
        best = max(better, key=lambda name: gains[name])
        return tries[min((name for name in better if gains[name] >= gains[best] - errors[best]), key=int)]

    def hushed_too(self, best: Try, hush: Judgement, words: Words, swings: Mapping[str, float]) -> Try:
        """Step 6: those who are left with no update longer than the median, if that is better still; else as it is."""
        one = without(hush, best.culprits)
        if one is None:
            return best
        after = self.again(one)
        if best.culprits:  # else they have told of it
            words = self.ask(CONFIRM, {NEW: best.after, HUSHED: after})
        beside, found = compare(words, HUSHED, NEW), compare(words, HUSHED, GOOD)
        if beside is None or found is None or not beside.better:
            return best
        return Try(best.culprits, one, after, found.beyond(swings), gained(words, HUSHED), hushed=True)

    def unharmed(
        self, after: State, judged: Judgement, first: Found | None, quiet: tuple[State, Judgement] | None, words: Words
    ) -> tuple[State, Judgement]:
        """The round as it is, or hushed if that is better."""
        if quiet is None:
            return self.kept(after, first, judged)
        found = compare(words, HUSHED, GOOD)
        note = f"the round was done with no update longer than the median ({found}; else {first})"
        return self.kept(quiet[0], found, replace(quiet[1], notes=[*quiet[1].notes, note]))

    def kept(self, after: State, found: Found | None, judged: Judgement) -> tuple[State, Judgement]:
        """Steps 8 and 9: this model, unless it is the final one and worse than the last good one."""
        best = self.good.or_new(after, None if self.panel.noised else found)
        if found is not None and self.panel.last and found.change < -self.lose / 2:
            judged = replace(judged, notes=[*judged.notes, f"the final model is the last good one ({found})"])
            after = replace(after, model=self.good.model, buffers=self.good.buffers)
        return best.kept_in(after), self.panel.billed(judged)

    def settled(self, whole: Try, best: Try, charged: Sequence[int], words: Words) -> tuple[State, Judgement]:
        """The round that harmed as it was best done again, or the model that stays; with the charges."""
        done = []
        if best.culprits:
            done.append(f"without {', '.join(map(self.panel.hearing.context.called, best.culprits))}")
        if best.hushed:
            done.append("with no update longer than the median")
        note = f"the round harmed ({whole.found}) and was undone"
        if done:
            note += f"; it was done again {' and '.join(done)} ({best.found})"
        end, after = ", which harmed too" if done else "", whole.after
        stay = replace(
            self.before, trust=charge(after.trust, charged), digests=after.digests, claims=after.claims,
            absence=after.absence,
        )  # fmt: skip
        if best.found.lost(self.lose):
            judged = replace(whole.judged, notes=[*whole.judged.notes, f"{note}{end}: the last good model stays"])
            stay = replace(stay, model=self.good.model, buffers=self.good.buffers)
            return self.good.kept_in(stay), self.panel.billed(judged)
        if best.gained is not None and best.gained.worth({}) < -self.lose / 2:
            judged = replace(whole.judged, notes=[*whole.judged.notes, f"{note}{end}: the model before it stays"])
            return self.kept(stay, compare(words, BEFORE, GOOD), judged)
        notes = [*whole.judged.notes, note] if done else whole.judged.notes
        after = replace(best.after, trust=charge(best.after.trust, charged))
        return self.kept(after, best.found, replace(best.judged, notes=notes))


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
        """Step 8; where nobody can tell, or noise adds up, the new model counts as good."""
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


def without(judged: Judgement, culprits: Sequence[int]) -> Judgement | None:
    """The judgement with those left out; None where nobody else has any say."""
    weights = [0.0 if u.client in culprits else w for u, w in zip(judged.updates, judged.weights, strict=True)]
    total, left = sum(weights), {c: 0.0 if c in culprits else say for c, say in judged.say.items()}
    if not total > 0:
        return None
    shares = sum(left.values()) or 1.0
    return replace(judged, weights=[w / total for w in weights], say={c: say / shares for c, say in left.items()})
