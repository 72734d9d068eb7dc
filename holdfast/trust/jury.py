"""The jury: FedTest's idea, that the clients' own data measure quality, made to survive what breaks FedTest.

    0  guides      with exact digests, what goes beyond a member's own in sum is taken off its update (guides.py)
    1  clip        an update longer than c = 4 x the median length is shortened to c, and counts c / length: the louder,
                   the less; one shorter than q = 1/4 of the median counts length / q: who does nothing has no say;
                   of who takes fewer steps than the median, c and q are smaller in proportion
    2  votes       updates that are nearly the same share one vote: vote_i = 1 / (number of near-duplicates of i)
    3  witnesses   each witness j reports help_ji = cos(g_j, delta_i), g_j the gradient, half way to the tentative
                   aggregate, of the mean over classes that j holds of log(mean p(true class)): <g_j, a_i delta_i> is
                   i's part in what j gains by the round, and all parts sum to that. The logarithm lets a class count
                   that the model hardly knows; fewer than seven members do without it (measures.py)
    4  consensus   h_i = mean over witnesses of help_ji, outlying reports bounded, weighted by credibility; nobody
                   testifies for itself
    5  credibility of j: moving average of the correlation of its reports with the median of all
    6  reputation  reputation_i, a long moving average of e_i = h_i / (the largest median |h| so far), in [-2, 2],
                   in which a round counts max(0, median e)^2: where hardly anybody helps, little is learnt of anybody,
                   and as little forgotten, so that a long dull end does not outlast what the first rounds told;
                   among fewer than seven, it takes the say only of who goes against the others too (9), and one that
                   rests on less than one round that tells is so much smaller
    7  backdoors   planted_i, below 0 where what i alone taught so far, of fewer than 13 members its update, gives a
                   meaning to what is in nobody's records (backdoor_probe.py): what most witnesses who can tell say,
                   the share by which it goes beyond the median member's, or that of those who help, if that is more;
                   the mean of what is found now and what was known before. What i alone taught is then taken out of
                   the model again (unlearning.py). Not among fewer than seven, whose updates are too large a part;
                   standing_i = ramp(reputation_i, -0.1, 0) ramp(planted_i, -0.5, -0.4), the first wider among
                   fewer than 20, 20 / n times: each is more of the round, and fewer tell of it
    8  weights     a_i in proportion to min(samples_i, 4 x the median) count_i vote_i standing_i; what is told of them
                   is in proportion to a_i and to how much of its length the guides left of update i; 0 for whose
                   digest the others contradict, unless witnesses find that its updates help: reputation_i > 0
    9  names       nobody is named or excluded on one kind of evidence alone, nor where there are fewer than seven: a
                   suspect is in doubt by what witnesses say (6, 7), and goes against the others: opposed_i < 0, a
                   long moving average of cos(delta_i, sum_j!=i a_j delta_j), of which witnesses tell nothing; or it
                   has lost half of its standing, and its digest is contradicted
    10 no quorum   where fewer than three witnesses, or at most half of those heard, can tell, nothing is learnt of
                   anybody, and the weights are those of nearest-neighbour mixing and the geometric median for
                   f = (n - 1) / 3, said in the notes: (f, kappa)-robust whatever f of n send (Allouah et al. 2023),
                   among those who count at all by 0, 1 and 8. Where noised digests testify and by these the median
                   member harms, they tell of nobody, and no update is longer than the median one

Why this and not accuracy: the accuracy of w + delta_i says little of a sign-flipped or disguised update, while honest
clients with few classes score low. A witness that leaves out the classes it does not hold has no quarrel with clients
that have others. The number of hostile clients need not be known, and the moderator needs no clean data.

Witnesses are peers; where FedDig keeps digests at the moderator, the digests are the witnesses, and the guides that are
made of them find backdoors: peers look for these only where most members left no exact digest.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from holdfast.context import Context
from holdfast.core.errors import HoldfastError
from holdfast.core.names import Called
from holdfast.core.rows import inner_products
from holdfast.core.tensors import unflat
from holdfast.core.types import State, Tensors, Update
from holdfast.data.task import Samples
from holdfast.trust.base import Hearing, Judgement, Testing, Trust, judgement
from holdfast.trust.consensus import Flags, Values, near_duplicates
from holdfast.trust.floor import Again, hold, hushed
from holdfast.trust.guides import Explained, beyond_digest, explained
from holdfast.trust.measures import TestRequest, ask_for_help, helps_of, some_of
from holdfast.trust.quorum import lacks_quorum, mixed_weights, most_harm
from holdfast.trust.relayed import relay, shares, signed_of
from holdfast.trust.reputation import (
    ENOUGH,
    Told,
    blame,
    compare_with_others,
    doubtful,
    first_memory,
    helping,
    opposes,
    remember,
    standing,
    why,
)
from holdfast.trust.robust.merging import average_buffers, shortened, stacked
from holdfast.trust.testers import Reports, ask_testers
from holdfast.trust.unlearning import MANY, account, take_out, taught_alone, with_all_taught
from holdfast.trust.witnesses import WitnessPanel

LOUD = 4.0  # x the median length: who alone holds a class is up to three times as loud as the others
QUIET = 0.25  # x the median length
MOST_SAMPLES = 4.0  # x the median
TWIN = 0.01  # of the usual distance between two updates; honest hospitals with like data come down to 0.06
ALL_TESTIFY = 3  # rounds in which all peers testify: whom to believe is learnt first
HARDLY = 0.1  # a credibility that is said
OPPOSES = "its updates go against what the others' come to"


@dataclass(frozen=True)
class Jury(Trust):
    """Peers, or digests, testify how far each update helps; harm lowers a client's standing (recommended)."""

    doubts_digests: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True

    testers: int | None = None  # peers that testify in a round, after the first three; none: half, at least seven
    evidence: Literal["auto", "peers"] = "auto"  # auto: digests where there are any
    slow: float = 0.05  # share forgotten in a round; of a reputation, only as far as the round tells anything
    patience: int = 4  # rounds of evidence before a client is called suspect
    exclude: int = 0  # rounds of evidence after which it counts for nothing, until as many good ones; 0: never
    most: int = 200  # samples on which a witness compares models; a gradient costs three passes, and is of a quarter
    lose: float | None = 0.02  # that the median witness may, before a round is undone; none: no floor
    beyond: float = 1.75  # times the usual that updates may say beyond their digest; 0: digests explain nothing
    patches: int = 2  # rounds from one search for backdoors to the next, done by peers; 0: none

    def __post_init__(self) -> None:
        if (self.testers is not None and self.testers < 3) or self.most < 1:
            raise ValueError(f"testers must be at least 3 and most at least 1, got {self.testers} and {self.most}.")
        if not 0 < self.slow <= 1:
            raise ValueError(f"slow must be in (0, 1], got {self.slow}.")
        if not 0 <= self.beyond < math.inf:
            raise ValueError(f"beyond must not be negative, got {self.beyond}.")
        if self.patience < 1 or self.exclude < 0 or self.patches < 0:
            given = f"{self.patience}, {self.exclude} and {self.patches}"
            raise ValueError(f"patience must be at least 1, exclude and patches not negative, got {given}.")

    def begin(self, clients: int) -> Tensors:
        return first_memory(clients)

    @property
    def panel(self) -> int | None:
        return None if self.lose is None else self.most

    def hold(
        self, before: State, after: State, judged: Judgement, hearing: Hearing, again: Again
    ) -> tuple[State, Judgement]:
        if self.lose is None:
            return after, judged
        digests = hearing.digests() if self.evidence == "auto" else {}
        members = [update.client for update in judged.updates if not update.synthetic]
        witnesses = WitnessPanel(hearing, digests, members, before.round, self.most)
        after, judged = hold(before, after, judged, witnesses, again, self.lose)
        if not self.patches or len(digests) >= 3 or hearing.context.clients < MANY:
            return after, judged
        after = account(before, after, judged, self.slow)
        return (after, judged) if witnesses.last else take_out(after, judged, witnesses, self.lose)

    def check(self, context: Context) -> None:
        if context.clients < 3:
            raise HoldfastError("trust 'jury': a jury needs at least 3 clients; take trust 'samples'.")

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        clients = [update.client for update in updates]
        state = dataclasses.replace(state, trust={**first_memory(hearing.context.clients), **state.trust})
        heard, rows, products, counts = clipped(updates)
        near = near_duplicates(products, TWIN)
        guided = self.guided(updates, hearing, state)
        if any(one is not sent for one, sent in zip(guided.updates, updates, strict=True)):
            heard, rows, products, counts = clipped(guided.updates)
        left = np.array([guided.left.get(client, 1.0) for client in clients])
        masses = fair_samples(updates) * counts / near.sum(1) * (left > 0)
        vouched = helping(state.trust, clients) | ~np.isin(clients, list(hearing.contradicted))
        masses = masses * vouched if (masses * vouched).any() else masses
        before = self.weights_of(masses, state.trust, clients)
        half = before / 2
        shift = unflat(torch.from_numpy(half).to(rows.dtype) @ rows, updates[0].delta)
        halfway = {name: weight + shift[name] for name, weight in state.model.items()}
        buffers = average_buffers(heard, before.tolist(), state.buffers)
        testers, reports = self.hear(heard, half, halfway, buffers, hearing, state, bool(guided.left))
        acting = [place for place, update in enumerate(updates) if not update.synthetic]
        memory = {**state.trust, **guided.memory}
        memory = compare_with_others(memory, products, before, clients, acting, self.slow)
        memory = self.remember(reports.told, clients, testers, memory)
        memory = blame(memory, reports.innocence, clients)
        lacking = lacks_quorum(reports.told)
        weights = mixed_weights(rows, masses > 0) if lacking else self.weights_of(masses, memory, clients)
        called, judged = hearing.context.called, judgement(heard, weights.tolist(), memory)
        told = judgement(heard, (weights * left).tolist(), memory) if guided.left else judged
        if (
            not lacking
            and hearing.promised
            and not testers
            and most_harm(reports.told, clients, memory["credibility"].numpy())
        ):
            lacking = ["by the noised digests most members harm: no update is longer than the median"]
            judged = hushed(judged) or judged
        return dataclasses.replace(
            judged,
            say=told.say,
            scores={client: float(memory["reputation"][client]) for client in clients},
            credibility={witness: float(memory["credibility"][witness]) for witness in sorted(reports.told)},
            suspects=self.suspects(memory, clients) if hearing.context.clients >= ENOUGH else {},
            doubted=self.doubted(memory, clients) if hearing.context.clients >= ENOUGH else {},
            notes=[
                *reports.notes,
                *lacking,
                *beyond_digest(guided, called),
                *said_of(near, clients, called),
                *hardly_believed(reports.told, memory, called),
            ],
            bytes_up=reports.bytes_up,
            bytes_down=reports.bytes_down,
        )

    def hear(
        self,
        updates: Sequence[Update],
        weights: Values,
        halfway: Tensors,
        buffers: Tensors,
        hearing: Hearing,
        state: State,
        guided: bool = False,
    ) -> tuple[list[int], Reports]:
        """Step 3: the reports of the digests at the moderator if there are any, else of peers; these alone have
        records, so it is they who look for backdoors, in images also beside digests, where no guides do."""
        clients = [update.client for update in updates]
        asked = ask_for_help(halfway, buffers, updates)
        digests = hearing.digests() if self.evidence == "auto" else {}
        told = self.hear_digests(clients, asked, digests, hearing.context) if len(digests) >= 3 else None
        searches = self.searches(state.round) and not (hearing.awaited and state.round == 0)
        images = len(hearing.context.bench.about.shape) == 3 and len(clients) >= ENOUGH
        if told is not None and not (images and searches and not hearing.promised and not guided):
            return [], Reports(told)
        testers = self.choose(updates, hearing.context, state)
        if signed := signed_of(hearing.received):
            asked = relay(state.model, state.buffers, signed, shares(signed, updates, weights.tolist()))
            clients = asked.clients
        elif searches and len(clients) >= MANY:
            taught = with_all_taught(asked, state.trust)
            asked = dataclasses.replace(asked, alone=taught_alone(state, updates), taught=taught)
        tested = {tester: [client for client in clients if client != tester] for tester in testers}
        testers = [tester for tester in testers if tested[tester]]
        found = ask_testers(hearing.federation, testers, asked, tested, state.round, searches)
        return testers, found if told is None else dataclasses.replace(found, told=told)

    def guided(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Explained:
        """Step 0: what counts of each update; all where fewer than seven, or than half of those who are there, left
        exact digests."""
        digests = hearing.digests() if self.beyond and self.evidence == "auto" and not hearing.promised else {}
        acting = [update.client for update in updates if not update.synthetic]
        left = [client for client in acting if client in digests and len(digests[client])]
        if len(left) < ENOUGH or 2 * len(left) < len(acting):
            return Explained(updates)
        found = explained(updates, digests, state, hearing.context, self.beyond)
        return found if any(found.left.values()) else Explained(updates, memory=found.memory)

    def testing(self, round: int) -> Testing:
        return Testing("help", -(-self.most // 4), self.searches(round))

    def searches(self, round: int) -> bool:
        """Whether peers look for backdoors in this round."""
        return self.patches > 0 and round % self.patches == 0

    def choose(self, updates: Sequence[Update], context: Context, state: State) -> list[int]:
        """All peers in the first rounds; then some of those who are believed, drawn anew each round: who testified in
        the last one may again, so that nobody knows the next panel."""
        present = [update.client for update in updates if not update.synthetic]
        credibility = state.trust["credibility"].numpy()
        count = max(-(-len(present) // 2), ENOUGH) if self.testers is None else self.testers
        if state.round < ALL_TESTIFY or count >= len(present):
            return present
        believed = [c for c in present if credibility[c] >= np.median(credibility[present]) / 2]
        drawn = torch.randperm(len(believed), generator=context.draw(state.round, "testers"))[:count]
        return sorted(believed[place] for place in drawn.tolist())

    def hear_digests(
        self, clients: Sequence[int], asked: TestRequest, digests: Mapping[int, Samples], context: Context
    ) -> dict[int, dict[int, float]]:
        """Each client's digest is a witness for or against the others; nobody has to be asked."""
        some = {holder: some_of(samples, self.most) for holder, samples in sorted(digests.items())}
        found = helps_of(context.bench.model, list(some.values()), asked)
        return {
            holder: {client: values[client] for client in clients if client != holder}
            for holder, values in zip(some, found, strict=True)
        }

    def remember(self, told: Told, clients: Sequence[int], testers: Sequence[int], memory: Tensors) -> Tensors:
        """Steps 4 to 6, and who testified."""
        after = remember(memory, told, clients, slow=self.slow, most=2 * max(self.patience, self.exclude))
        after["testers"].zero_()
        after["testers"][list(testers)] = True
        return after

    def weights_of(self, masses: Values, memory: Tensors, clients: Sequence[int]) -> Values:
        """Step 8; if nobody is in good standing, by samples and votes alone."""
        weights: Values = masses * standing(memory, clients)
        if self.exclude:
            weights = weights * np.array([not self.excludes(memory, client) for client in clients])
        weights = weights if weights.sum() > 0 else masses
        return np.asarray(weights / weights.sum())

    def suspects(self, memory: Tensors, clients: Sequence[int]) -> dict[int, str]:
        """Step 9: who has been in bad standing for several rounds and goes against the others, and why."""
        found = {}
        for client in clients:
            doubts, out = int(memory["doubts"][client]), self.excludes(memory, client)
            if out or (doubts >= self.patience and doubtful(memory, [client])[0] and opposes(memory, client)):
                excluded = ", so it is excluded" if out else ""
                found[client] = f"{why(memory, client)}, {doubts} rounds of doubt{excluded}; {OPPOSES}"
        return found

    def doubted(self, memory: Tensors, clients: Sequence[int]) -> dict[int, str]:
        """Who has lost most of its say by what witnesses tell."""
        low = standing(memory, clients) < 0.5
        return {client: why(memory, client) for client, lost in zip(clients, low, strict=True) if lost}

    def excludes(self, memory: Tensors, client: int) -> bool:
        return 0 < self.exclude <= int(memory["doubts"][client]) and opposes(memory, client)


def clipped(updates: Sequence[Update]) -> tuple[list[Update], Tensor, Tensor, Values]:
    """Step 1: the updates, at most LOUD x the median length, also as rows; the rows' inner products; and what each
    still counts."""
    rows = stacked(updates)
    products = inner_products(rows)
    norms = products.diagonal().sqrt()
    steps = torch.tensor([float(max(update.steps, 1)) for update in updates], dtype=torch.float64)
    usual = norms.quantile(0.5) * (steps / steps.quantile(0.5)).clamp_max(1)
    if float(usual[0]) == 0:
        return list(updates), rows, products, np.ones(len(updates))
    factors = (LOUD * usual / norms.clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1)
    heard = [shortened(update, factor) for update, factor in zip(updates, factors.tolist(), strict=True)]
    counts = factors * (norms / (QUIET * usual)).clamp_max(1)
    if bool((factors < 1).any()):
        rows, products = (rows.double() * factors[:, None]).to(rows.dtype), factors[:, None] * products * factors
    return heard, rows, products, counts.numpy()


def fair_samples(updates: Sequence[Update]) -> Values:
    """The samples that clients claim, up to MOST_SAMPLES x the median: a claim must not buy any weight one likes.

    >>> fair_samples([Update(i, {}, samples=n, steps=1) for i, n in enumerate([10, 20, 10**9])]).tolist()
    [10.0, 20.0, 80.0]
    """
    samples = np.array([update.samples for update in updates], dtype=np.float64)
    return np.minimum(samples, MOST_SAMPLES * np.median(samples))


def said_of(near: Flags, clients: Sequence[int], called: Called) -> list[str]:
    """Who sends nearly the same updates."""
    groups = sorted({tuple(np.flatnonzero(row).tolist()) for row in near if row.sum() > 1})
    names = [", ".join(called(clients[place]) for place in group) for group in groups]
    return [f"{name} sent nearly the same update and share one vote" for name in names]


def hardly_believed(told: Mapping[int, Mapping[int, float]], memory: Tensors, called: Called) -> list[str]:
    """Whose reports, or whose digest, the others contradict."""
    doubted = [witness for witness in sorted(told) if float(memory["credibility"][witness]) < HARDLY]
    return [f"what {called(witness)} testifies is hardly believed: the others contradict it" for witness in doubted]
