"""FedDig: a missing client's digest stands in for it (Hsu et al., Algorithm 1). Line numbers are the paper's.

Round t, with M_t the server model, D^j the digest of client j, and P_G the guidance producer (model `full` only):

    line 3       a client sends its digest once, along with its first update
    lines 13-18  for each absent client j with a digest: the recall model, M_t trained on ((P_G(D_R), D_R) -> D_y),
                 by the same loop and the same algorithm as a client's
    line 19      A_t: the average of clients' and stand-ins' updates
    lines 20-22  M_{t+1}: A_t trained on all digests, of present and absent clients, jointly with P_G

Beyond the paper, chosen on validation data (docs/results-leaving.md): mixed rows are stretched first (stretching.py);
a server step that finds new digests trains for WARM epochs times their share of all records, so that the model starts
from what the digests know, and learns what those who come later bring (where rows left out say so, for fewer epochs);
one that finds none takes half as many steps, of twice the batch and learning rate;
and each server step's learning rate starts at the clients' and falls to none, so that it ends where the digests and the
clients' updates agree, with little noise of its own. `printed` leaves all four out.
Line 22 as printed, M_{t+1} = M_t + grad, would throw the clients' updates away; it is read as A_t + grad.

A stand-in steps down as soon as its client answers; a client that returns takes over the memory (control variate) as
its stand-in left it. Where the trust rule doubts digests, one that the others contradict (digests/contradiction.py)
neither stands in nor teaches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from holdfast.absence.base import AbsencePolicy, NoStandIns
from holdfast.absence.client_memory import follow_memories, last_act, memory_of, stood_in
from holdfast.absence.server_step import WARM, server_learning, share_of, warm_epochs
from holdfast.algorithms.local_training import Sent, learn
from holdfast.algorithms.oneshot import OneShot
from holdfast.attacks import awake
from holdfast.context import Context, Owner
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import tell_home
from holdfast.core.files import Unwritable
from holdfast.core.randomness import rng, seed_of
from holdfast.core.types import Reply, State, Tensors, Update, pack, unpack
from holdfast.data.task import Samples
from holdfast.digests import contradiction as doubt
from holdfast.digests.cells import cells_of
from holdfast.digests.digest import Digest
from holdfast.digests.moments import MomentDigest
from holdfast.digests.odd_classes import nothing_left, odd_classes, remembered, without_odd
from holdfast.digests.received import excuse_in, open_for, receive_one, samples_of
from holdfast.digests.release import excuse_of, release
from holdfast.digests.release_options import COMPACT, ReleaseOptions, check_features, sums_leave
from holdfast.digests.sums import SumDigest
from holdfast.heads.of_run import fit_run, fit_total
from holdfast.heads.sum_samples import samples_from_sums
from holdfast.learning.device import outputs
from holdfast.learning.loop import train
from holdfast.learning.objective import TaskLoss
from holdfast.models.networks import buffers_of, fill, weights_of
from holdfast.privacy.patients import whose_of

__all__ = ["COMPACT", "FedDig", "open_for"]

# Why a client sends no new digest that ends the old one, too: its policy no longer lets one leave. A budget that is
# used up, too few records or a lost ledger do not: what was released before stays as it was agreed.
TAKEN_BACK = ("digest-kept", "mode", "mixing", "policy", "withdrawn")
# Chosen on validation seeds.
TEACH = 0.4  # share of the labels of samples drawn from moments that the model itself gives


@dataclass(frozen=True)
class FedDig(ReleaseOptions, AbsencePolicy):
    """A missing client's digest stands in for it."""

    needs_features: ClassVar[bool] = True
    server_epochs: int = 1  # of each server step but the first; 0: no server step

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server_epochs < 0:
            raise ValueError("server_epochs must not be negative.")

    @property
    def named_policy(self) -> str | None:
        return self.policy

    def with_policy(self, named: str) -> Self:
        return replace(self, policy=named)

    @property
    def noised(self) -> bool:
        return self.mode not in ("paper", "sums")

    @property
    def protects(self) -> bool:
        return self.mode != "paper"

    # At a client ------------------------------------------------------------------------------------------------

    def make_digest(self, owner: Owner, samples: Samples, round: int) -> Tensors:
        """Line 3: what the client releases, or why it does not."""
        features, labels = samples.inputs[-1], samples.labels
        if owner.attack is not None and awake(owner.attack, round, "digest"):
            generator = rng(owner.seed, round, owner.id, "digest attack")
            features, labels = owner.attack.spoil(features, labels, owner.about.classes, generator)
        try:
            whose = whose_of(samples, owner.about.person)
            return release(self, owner, features, labels, round, samples.weights, whose)
        except Unwritable:  # the run's own disk: to go on could not be resumed
            raise
        except HoldfastError as error:  # too few samples, a policy, say: its update counts all the same
            tell_home(owner.memory.folder, f"the digest of client {owner.id} in round {round + 1}: {error}")
            return excuse_of(self, owner, error)

    # At the moderator -------------------------------------------------------------------------------------------

    def begin(self, context: Context) -> Tensors:
        check_features(self, context.bench.about)
        producer = context.bench.producer
        guidance = {} if producer is None else guidance_of(producer)
        came = {"came": torch.full((context.clients,), -1)} if self.refresh else {}  # the round of each digest
        return {"stood_in": torch.full((context.clients,), -1), **came, **guidance}

    def wants_digest(self, state: State, client: int) -> bool:
        """At first, and once in each period of `refresh` rounds: of who was away when it began, when it is back."""
        if client not in state.digests or not self.refresh:
            return client not in state.digests
        came = int(state.absence["came"][client]) if "came" in state.absence else state.round - 1  # of earlier versions
        return came // self.refresh < state.round // self.refresh

    def receive(
        self, state: State, replies: Sequence[Reply], context: Context
    ) -> tuple[Mapping[int, Tensors], dict[int, str]]:
        digests, refused = dict(state.digests), {}
        for reply in replies:
            sealed = unpack(reply.tensors, "digest")
            if not sealed:
                continue
            try:
                if excuse_in(sealed) in TAKEN_BACK:
                    digests.pop(reply.client, None)
                receive_one(self, context, reply.client, state.claims[reply.client], sealed)
                digests[reply.client] = sealed
            except HoldfastError as error:
                refused[reply.client] = str(error)
        return digests, refused

    def believed(self, state: State) -> Mapping[int, Tensors]:
        doubted = {*self.doubts(state), *nothing_left(state.absence)}
        return {client: sealed for client, sealed in state.digests.items() if client not in doubted}

    def doubts(self, state: State) -> dict[int, str]:
        return doubt.in_words(state.absence)

    def review(self, before: State, after: State, context: Context) -> State:
        """Which digests the others contradict, and which classes of the rest are odd, whenever a new one came."""
        if all(before.digests.get(client) is sealed for client, sealed in after.digests.items()):
            return after
        cells = {client: cells_of(self, context, sealed) for client, sealed in after.digests.items()}
        contradicted = doubt.contradicted(cells)
        found = doubt.of_all(contradicted, context.clients)
        if self.mode != "moments":  # what is drawn from moments is pooled over clients: no class can be taken out
            rest = {client: one for client, one in cells.items() if client not in contradicted}
            found |= remembered(odd_classes(rest), context.clients, context.bench.about.classes)
        return replace(after, absence={**after.absence, **found})

    def testimony(self, state: State, context: Context) -> Mapping[int, Samples]:
        if context.bench.producer is not None:  # the model reads guidance besides, which no client's digest holds
            return {}
        believed = self.believed(state)
        holders = sorted(believed)
        opened = self.samples_for(context, state, holders)
        held = {h: Samples((digest.features,), digest.labels) for h, digest in zip(holders, opened, strict=True)}
        return {holder: samples for holder, samples in held.items() if len(samples)}

    def stand_ins(self, state: State, asked: Collection[int], context: Context) -> NoStandIns:
        return StandIns(self, state, asked, context)

    def recall(self, state: State, context: Context, client: int) -> Update:
        """Lines 14-16: the update of an absent client, synthesised from its digest."""
        samples, count = self.samples_in_place(state, context, client)
        bench, algorithm = context.bench, context.algorithm
        learnt = learn(
            bench.model,
            samples,
            Sent(state.model, state.buffers, algorithm.broadcast(state.algorithm)),
            memory_of(state, client),
            algorithm=algorithm,
            learning=context.learning_in(state.round),
            objective=TaskLoss(bench.loss),
            round=state.round,
            last=last_act(state, client),
            order=rng(context.seed, state.round, client, "batches"),
            chance=seed_of(context.seed, state.round, client, "model"),
        )
        return Update(client, learnt.delta, count, learnt.steps, learnt.buffers, synthetic=True, extra=learnt.extra)

    def recall_samples(self, state: State, context: Context, client: int) -> tuple[Samples, int] | None:
        return self.samples_in_place(state, context, client) if client in self.believed(state) else None

    def samples_in_place(self, state: State, context: Context, client: int) -> tuple[Samples, int]:
        """What an absent client's digest says, as samples, and how many records it stands for."""
        [digest] = self.stand_in_digests(context, state, [client])
        features, producer = digest.features, context.bench.producer
        inputs = (features,) if producer is None else (guide(producer, state, features), features)
        return Samples(inputs, digest.labels), digest.samples

    def stand_in_digests(
        self, context: Context, state: State, clients: Sequence[int], teach: bool = True
    ) -> list[Digest]:
        """What stands in for these clients. The model gives a share of drawn samples' labels itself: they have the
        right means and spread but blurred borders between classes, which the model soon knows better."""
        found = self.samples_for(context, state, clients)
        if self.mode != "moments" or not teach or sums_leave(self, context.bench.about):
            return found
        bench = context.bench
        fill(bench.model, state.model, state.buffers)
        bench.model.eval()
        taught = []
        for digest in found:
            features = digest.features
            inputs = (features,) if bench.producer is None else (guide(bench.producer, state, features), features)
            with torch.no_grad():
                own = torch.softmax(outputs(bench.model, *inputs), dim=1)
            taught.append(replace(digest, labels=(1 - TEACH) * digest.labels + TEACH * own))
        return taught

    def samples_for(self, context: Context, state: State, clients: Sequence[int]) -> list[Digest]:
        """What the digests of these clients say, as samples."""
        drawn = samples_from_sums if sums_leave(self, context.bench.about) else samples_of
        found = drawn(self, context, self.believed(state), state.round, clients, state.claims)
        return [without_odd(one, state.absence, client) for client, one in zip(clients, found, strict=True)]

    def memory_for(self, state: State, client: int) -> Tensors:
        return memory_of(state, client) if stood_in(state, client) > state.accepted.get(client, -1) else {}

    def server_step(self, before: State, after: State, updates: Sequence[Update], context: Context) -> State:
        """Lines 20-22; before it, what each client remembers by now."""
        absence = {**after.absence, **follow_memories(before, after, updates, context)}
        absence |= self.arrivals(before, after)
        after = replace(after, absence=absence)
        model, memory = after.model, after.algorithm
        if self.believed(after) and self.server_epochs:
            model, guidance = self.learn_from_digests(after, context, self.believed(before))
            absence |= guidance
            memory = context.algorithm.moved(memory, {n: model[n] - after.model[n] for n in model})
        return replace(after, model=model, algorithm=memory, absence=absence)

    def arrivals(self, before: State, after: State) -> Tensors:
        """When each digest came, where new ones are asked for."""
        if "came" not in after.absence:
            return {}
        came = after.absence["came"].clone()
        came[[client for client, one in after.digests.items() if before.digests.get(client) is not one]] = before.round
        return {"came": came}

    def learn_from_digests(self, state: State, context: Context, known: Collection[int]) -> tuple[Tensors, Tensors]:
        """L_server: the aggregate, jointly with P_G, trained on the digests of all clients; it has met the known."""
        holders = sorted(self.believed(state))
        new = {client for client in holders if client not in known}
        opened = self.stand_in_digests(context, state, holders, teach=self.printed or not new)
        share = share_of(new, {client: one.samples for client, one in zip(holders, opened, strict=True)})
        features, labels = torch.cat([d.features for d in opened]), torch.cat([d.labels for d in opened])
        bench = context.bench
        fill(bench.model, state.model, state.buffers)
        whole: nn.Module = bench.model
        if bench.producer is not None:
            fill(bench.producer, unpack(state.absence, "guidance"), unpack(state.absence, "guidance_buffers"))
            whole = Guided(bench.model, bench.producer)
        samples, learning = Samples((features,), labels), context.learning_in(state.round)
        if share and not self.printed:
            share *= warm_epochs(whole, samples, learning, TaskLoss(bench.loss), context.seed) / WARM
        drawn = self.mode == "moments"
        learning = server_learning(learning, self.server_epochs, share, len(samples), self.printed, drawn)
        batches = rng(context.seed, state.round, -1, "server step")
        train(whole, samples, learning, batches, TaskLoss(bench.loss), falling=not self.printed)
        return weights_of(bench.model), {} if bench.producer is None else guidance_of(bench.producer)

    def fit_head(self, state: State, context: Context) -> tuple[Tensors, Tensors]:
        assert isinstance(context.algorithm, OneShot)
        return fit_run(self, context, state, context.algorithm.head)

    def fit_total(self, total: MomentDigest | SumDigest, context: Context) -> tuple[Tensors, Tensors]:
        assert isinstance(context.algorithm, OneShot)
        return fit_total(context, total, context.algorithm.head)


class StandIns(NoStandIns):
    """Stand-ins at work in a thread of the moderator's, while the clients train."""

    def __init__(self, feddig: FedDig, state: State, asked: Collection[int], context: Context) -> None:
        self._feddig, self._state, self._context = feddig, state, context
        self._believed = feddig.believed(state)
        # Told to a new thread, since convolutions there would otherwise use all cores: slower, and other bits.
        self._thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),))
        presumed = [client for client in state.absent if client in asked and client in self._believed]
        self._started: dict[int, Future[Update]] = {c: self._submit(c) for c in presumed}

    def result(self, absent: Collection[int], received: Sequence[Update]) -> list[Update]:
        for client, future in self._started.items():
            if client not in absent:
                future.cancel()  # its client is back
        missing = sorted(client for client in absent if client in self._believed)
        futures = [self._started.get(client) or self._submit(client) for client in missing]
        updates = [future.result() for future in futures]
        self._thread.shutdown()
        return updates

    def _submit(self, client: int) -> Future[Update]:
        return self._thread.submit(self._feddig.recall, self._state, self._context, client)


class Guided(nn.Module):
    """A(P_G(D_R), D_R): the model on guidance and digest."""

    def __init__(self, model: nn.Module, producer: nn.Module) -> None:
        super().__init__()
        self.model, self.producer = model, producer

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.model(self.producer(features), features)
        return output


def guidance_of(producer: nn.Module) -> Tensors:
    return pack(guidance=weights_of(producer), guidance_buffers=buffers_of(producer))


@torch.no_grad()
def guide(producer: nn.Module, state: State, features: Tensor) -> Tensor:
    """G = P_G(D_R); P_G learns in the server step only."""
    fill(producer, unpack(state.absence, "guidance"), unpack(state.absence, "guidance_buffers"))
    producer.eval()
    return torch.cat([outputs(producer, part) for part in features.split(500)])
