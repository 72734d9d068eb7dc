"""One round: the front door. Read play_round first; every line of it names the room where the rest is.

how they learn      algorithms/     what a client adds to its gradients, and how updates are averaged
who stands in       absence/        nothing, or FedDig's digests
whom to believe     trust/          by samples, FedTest, robust rules
what a step is      learning/       optimisers of clients and of the moderator, schedules
who is asked        selection/      everyone, or some
how they are asked  engines/        worker processes on this machine, or Flower across sites
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from holdfast.algorithms.fedavg import along
from holdfast.client import TRAIN, TrainRequest
from holdfast.core.failures import sentence_of
from holdfast.core.tensors import in_order
from holdfast.core.types import (
    Absent,
    Federation,
    Message,
    Reply,
    State,
    Tensors,
    Update,
    has_withdrawn,
    one_by_one,
    size,
)
from holdfast.core.validate import all_finite, bounded_buffers, validate
from holdfast.first_gradients import Opening, open_round
from holdfast.method import Method
from holdfast.one_exchange import exchange_digests, exchange_total
from holdfast.record import Clock, Record
from holdfast.running_sum import RunningSum, sums_up
from holdfast.secure_round import play_secure_round
from holdfast.selection import remembered, select
from holdfast.trust import Hearing, Judgement
from holdfast.trust.base import check_judgement
from holdfast.trust.robust.merging import average_buffers

NO_FINITE_LOSS = "no client's training loss is finite"


def play_round(state: State, federation: Federation, method: Method) -> tuple[State, Record]:
    """State in, state out: nothing else changes."""
    if method.algorithm.one_message:
        return (exchange_digests if method.secure is None else exchange_total)(state, federation, method)
    if method.secure is not None:
        return play_secure_round(state, federation, method)
    clock = Clock()
    asked = select(method.selection, federation.clients, state, method.seed)
    opening = open_round(state, federation, asked, method)  # nothing, or Mime: a gradient that all step along
    state = opening.state
    stand_ins = method.absence.stand_ins(state, asked, method)  # a digest answers for a missing client, meanwhile
    answers = ask(opening, federation, asked, method)
    clock.lap("clients")

    updates, refused, claims = accept(answers, state, method)  # what does not fit is refused, named and counted
    state = replace(state, claims=claims).without(answers.withdrawn)
    fresh = [reply for reply in answers.heard if reply.client not in refused]
    digests, bad_digests = method.absence.receive(state, fresh, method)
    away = [client for client in (*answers.absent, *refused) if client not in answers.withdrawn]
    updates = in_line([*updates, *stand_ins.result(away, updates)], state)
    clock.lap("stand_ins")

    reviewed = replace(state, digests=digests)
    if method.trust.doubts_digests:
        reviewed = method.absence.review(state, reviewed, method)  # whose digest the others contradict
    judged = judge(updates, federation, replace(state, absence=reviewed.absence), method)  # whom to believe
    clock.lap("trust")

    def advance(judged: Judgement) -> State:
        mean = answers.running.mean(updates) if answers.running else None
        after = aggregate(reviewed, updates, judged, method, mean)
        return method.absence.server_step(state, after, updates, method)  # FedDig: learn from digests

    after = advance(judged)
    clock.lap("server_step")
    after, judged = hold(state, after, judged, federation, advance, method)  # a round that harms is undone
    clock.lap("floor")

    notes = [*told(answers.heard, bad_digests, method), *set_aside(state, after, method), *judged.notes]
    if not all(map(all_finite, (after.model, after.buffers, after.algorithm, after.server_optimizer))):
        notes.append("diverged: the averaged model is not finite, so the last one was kept")
        after = state
    known = remembered(method.selection, state, after, federation.clients, asked, updates, fresh)
    took = {reply.client: reply.took for reply in fresh}
    pace = method.workload.measured(state.pace, took, {update.client: update.steps for update in updates})
    after = after.next(absent=tuple(sorted([*answers.absent, *refused])), selection=known, pace=pace)
    stood_in = [update.client for update in updates if update.synthetic]
    suspects = both(judged, method.absence.doubts(after))
    return after, written(after.round, answers, refused, stood_in, judged, suspects, notes, clock, method)


@dataclass(frozen=True)
class Answers:
    """What came back when clients were asked to train, in the order of clients."""

    asked: Mapping[int, str]  # client -> why it was asked, where the selection says so
    everyone: bool  # whether all clients were asked
    messages: Sequence[Message]
    heard: Sequence[Reply]
    absent: Mapping[int, str]  # client -> reason
    late: Mapping[int, Message]  # the question of an earlier round that a reply answers
    opening: Opening
    bytes_up: int
    running: RunningSum | None  # the sum of a large model's updates, which are not in `heard`

    @property
    def steps(self) -> dict[int, int]:
        """The steps of those who were asked for others than their samples make."""
        return {m.client: m.scalars["steps"] for m in self.messages if "steps" in m.scalars}

    @property
    def withdrawn(self) -> set[int]:
        return {client for client, why in self.absent.items() if has_withdrawn(why)}


def ask(opening: Opening, federation: Federation, asked: Mapping[int, str], method: Method) -> Answers:
    """Send the model to those who are asked, and sort what comes back."""
    state = opening.state
    messages = train_messages(state, [client for client in asked if client not in opening.absent], method)
    running = RunningSum(state, asked, method) if sums_up(state, method) else None
    come = [running.take(one) for one in one_by_one(federation, messages)] if running else federation.ask(messages)
    replies, late = method.late.take(come, state.round)  # also a slow client's of an earlier round
    heard = [reply for reply in replies if isinstance(reply, Reply)]
    absent = {reply.client: reply.reason for reply in replies if isinstance(reply, Absent)}
    everyone = len(asked) == len(federation.clients)
    bytes_up = running.bytes_up if running else sum(method.compress.bytes_up(reply.tensors) for reply in heard)
    absent = {**opening.absent, **absent}
    return Answers(asked, everyone, messages, heard, absent, late, opening, bytes_up, running)


def accept(answers: Answers, state: State, method: Method) -> tuple[list[Update], dict[int, str], dict[int, int]]:
    """The updates that count, as they count; whose are refused and why; and what clients claim of themselves."""
    known = (state.claims, method.max_norm, method.sizes, method.steps, method.frozen())
    faults = answers.running.faults if answers.running else None
    updates, refused, claims = validate(answers.heard, method.expected(state), *known, faults)
    updates = as_assigned(updates, answers.steps)
    return method.late.discount(updates, answers.late, state.model, state.round), refused, claims


def train_messages(state: State, asked: Collection[int], method: Method) -> list[Message]:
    """The same model for all, with what the algorithm adds to it, and what a returning client takes over."""
    common = method.shared(state.model, state.buffers)
    server = method.algorithm.broadcast(state.algorithm)
    lr = method.learning_in(state.round).lr
    steps = method.assigned(state, asked)
    messages = []
    for client in asked:
        request = TrainRequest(
            **common,
            server=server,
            memory=method.absence.memory_for(state, client),
            accepted=state.accepted.get(client, -1),
            lr=lr,
            digest=method.absence.wants_digest(state, client),
            steps=steps.get(client),
        )
        messages.append(TRAIN.message(client, state.round, request))
    return messages


def as_assigned(updates: Sequence[Update], steps: Mapping[int, int]) -> list[Update]:
    """The updates with the steps that the moderator asked for, where work goes by speed."""
    return [replace(one, steps=steps[one.client]) if one.client in steps else one for one in updates]


def in_line(updates: Sequence[Update], state: State) -> list[Update]:
    """The updates in the order of clients, each with its tensors in the order of the model's."""
    ordered = [replace(update, delta=in_order(update.delta, state.model)) for update in updates]
    return sorted(ordered, key=lambda update: update.client)


def judge(updates: Sequence[Update], federation: Federation, state: State, method: Method) -> Judgement:
    if not updates:
        return Judgement([], [], {}, state.trust)
    testimony = cache(partial(method.absence.testimony, state, method))
    awaited, promised = method.absence.needs_features, method.absence.noised
    hearing = Hearing(method, federation, testimony, updates, awaited, promised, method.absence.doubts(state))
    if method.trust.bounds_buffers:
        updates = bounded_buffers(updates)
    return check_judgement(method.trust, method.trust.judge(updates, hearing, state))


def hold(
    state: State,
    after: State,
    judged: Judgement,
    federation: Federation,
    again: Callable[[Judgement], State],
    method: Method,
) -> tuple[State, Judgement]:
    if not judged.updates:
        return after, judged
    testimony = partial(method.absence.testimony, after, method)
    hearing = Hearing(method, federation, testimony, promised=method.absence.noised)
    return method.trust.hold(state, after, judged, hearing, again)


def aggregate(
    state: State, updates: Sequence[Update], judged: Judgement, method: Method, mean: Tensors | None = None
) -> State:
    """The state with the judged updates averaged in, or their mean where it is known; without updates as it is."""
    if not judged.updates:
        return state
    before = method.shared(state.model, state.buffers)
    aggregated, memory = (
        (along(before["model"], mean), state.algorithm)
        if mean is not None
        else method.algorithm.aggregate(
            before["model"],
            judged.updates,
            judged.weights,
            state.algorithm,
            method.clients,
            method.learning_in(state.round),
        )
    )
    model, kept = method.server_optimizer.step(before["model"], aggregated, state.server_optimizer)
    if model is not aggregated:
        memory = method.algorithm.moved(memory, {name: model[name] - aggregated[name] for name in model})
    heeded = {client for client, say in judged.say.items() if say > 0}
    counted = {u.client: state.round for u in updates if u.client in heeded and not u.synthetic}
    return replace(
        state,
        model={**state.model, **model},
        algorithm=memory,
        buffers={**state.buffers, **average_buffers(judged.updates, judged.weights, before["buffers"])},
        trust=judged.memory,
        accepted={**state.accepted, **counted},
        server_optimizer=kept,
    )


def written(
    round: int,
    answers: Answers,
    refused: Mapping[int, str],
    stood_in: Sequence[int],
    judged: Judgement,
    suspects: Mapping[int, str],
    notes: Sequence[str],
    clock: Clock,
    method: Method,
) -> Record:
    """What is written down of the round, which is counted from 1."""
    heard, opening = answers.heard, answers.opening
    loss, finite = mean_loss([reply for reply in heard if reply.client not in refused])
    received = [message for message in answers.messages if message.client not in answers.absent]
    return Record(
        round=round,
        absent=answers.absent,
        refused=refused,
        stand_ins=stood_in,
        weights=judged.say,
        scores=judged.scores,
        credibility=judged.credibility,
        suspects=suspects,
        loss=loss,
        bytes_up=opening.bytes_up + judged.bytes_up + answers.bytes_up,
        bytes_down=opening.bytes_down + judged.bytes_down + sum(size(message.tensors) for message in received),
        seconds=clock.laps,
        notes=[*notes, *([] if finite else [NO_FINITE_LOSS])],
        asked=None if answers.everyone else list(answers.asked),
        late={client: question.round + 1 for client, question in answers.late.items() if client not in refused},
        client_steps=answers.steps,
        chosen_for={client: why for client, why in answers.asked.items() if why},
        client_seconds={reply.client: reply.seconds for reply in heard if 0 <= reply.seconds < math.inf},
    )


def both(judged: Judgement, doubts: Mapping[int, str]) -> dict[int, str]:
    """Why each client is suspected: for its updates, or for its digest where something else speaks against it too."""
    harm, doubts = judged.suspects, {client: why for client, why in doubts.items() if client in judged.doubted}
    clients = sorted({*harm, *doubts})
    return {client: " and ".join(found[client] for found in (harm, doubts) if client in found) for client in clients}


def set_aside(before: State, after: State, method: Method) -> list[str]:
    """Whose digest is not believed from this round on: nobody is named for that alone."""
    known, found = method.absence.doubts(before), method.absence.doubts(after)
    return [f"{method.called(c)}'s digest is set aside: {why}" for c, why in found.items() if c not in known]


def told(replies: Sequence[Reply], bad_digests: Mapping[int, str], method: Method) -> list[str]:
    """What clients have to say, the sentences of their codes, at most a few each; and whose digests are refused."""
    notes = []
    for reply in replies:
        codes = reply.scalars.get("notes", ())
        if isinstance(codes, list):
            notes += [f"{method.called(reply.client)}: {sentence_of(code)}" for code in codes[:5]]
    return notes + [f"{method.called(client)}'s digest is refused: {why}" for client, why in bad_digests.items()]


def mean_loss(replies: Sequence[Reply]) -> tuple[float | None, bool]:
    """The mean of the finite losses among those told, and whether there is one; who protects its updates tells none."""
    losses = [float(reply.scalars["loss"]) for reply in replies if "loss" in reply.scalars]
    finite = [loss for loss in losses if math.isfinite(loss)]
    mean = statistics.fmean(finite) if finite and math.isfinite(sum(finite)) else None
    return mean, mean is not None or not losses
