"""Algorithm 1 of FedDig, line by line, on numbers that can be checked by hand.

Two clients; M_t = 0 (2 x 2, no bias), so softmax gives (1/2, 1/2). Client 1's digest is one row, D_R = (1, 0) with
D_y = (1/4, 3/4); client 0's is D_R = (0, 1) with D_y = (1, 0). One step of plain SGD, lr = 0.1.

    stand-in of 1   gradient (p - D_y) D_R' = (1/4, -1/4)' (1, 0), so its update is [[-.025, 0], [.025, 0]]
    A_t, 1/n        half of client 0's update [[.2, 0], [0, .4]] and half of the stand-in's: [[.0875, 0], [.0125, .2]]
    server step     at (1, 0) the logits are (.0875, .0125): p = s(.075), D_y = 1/4; at (0, 1) they are (0, .2):
                    p = s(-.2), D_y = 1; with s(x) = 1/(1 + e^-x). The mean gradient's first row is
                    ((s(.075) - 1/4)/2, (s(-.2) - 1)/2), its second row the opposite.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from feddig_helpers import (
    DIGESTS,
    FROM_CLIENT_0,
    OneLayer,
    Script,
    both,
    digest_of,
    method_with,
    only_client_0,
    reply,
    sealed,
    start,
)

from holdfast.absence import FedDig
from holdfast.absence.server_step import warm_epochs
from holdfast.algorithms import AdaBest, FedAvg, FedDyn, Scaffold
from holdfast.core.randomness import rng
from holdfast.core.types import Absent, Message, Reply, State, Tensors
from holdfast.data.task import Samples
from holdfast.digests import received
from holdfast.digests.digest import open_digest
from holdfast.learning.loop import train
from holdfast.learning.objective import TaskLoss
from holdfast.learning.settings import Learning
from holdfast.models.networks import fill, weights_of
from holdfast.round import play_round

ZERO = [[0.0, 0.0], [0.0, 0.0]]
STAND_IN = [[-0.025, 0.0], [0.025, 0.0]]
AGGREGATE = [[0.0875, 0.0], [0.0125, 0.2]]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


GRADIENT = [[(sigmoid(0.075) - 0.25) / 2, (sigmoid(-0.2) - 1) / 2]]
GRADIENT.append([-GRADIENT[0][0], -GRADIENT[0][1]])
SERVER_STEP = -0.1 * torch.tensor(GRADIENT)


def nobody(message: Message) -> Reply | Absent:
    return Absent(message.client, "away")


def round_of(feddig: FedDig, answer=only_client_0, digests: dict[int, Tensors] | None = None):  # type: ignore[no-untyped-def]
    method = method_with(feddig)
    state = replace(start(method), digests=DIGESTS if digests is None else digests)
    return play_round(state, Script(2, answer), method)


def w(state: State) -> torch.Tensor:
    return state.model["w"]


def assert_close(found: torch.Tensor, expected: object) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected), atol=1e-7, rtol=0)


def test_a_stand_in_trains_on_the_digest_as_a_client_on_its_samples() -> None:
    method = method_with(FedDig())
    state = replace(start(method), digests=DIGESTS)
    update = FedDig().recall(state, method, 1)  # lines 14-16
    assert_close(update.delta["w"], STAND_IN)
    assert (update.client, update.synthetic, update.samples, update.steps) == (1, True, 4, 1)


def test_the_aggregate_weighs_clients_and_stand_ins_alike() -> None:
    after, record = round_of(FedDig(server_epochs=0))  # line 19 alone
    assert_close(w(after), AGGREGATE)
    assert record.stand_ins == [1]
    assert record.weights == {0: 0.5, 1: 0.5}
    assert record.absent == {1: "away"}


def test_the_server_step_starts_at_the_aggregate_and_learns_from_all_digests() -> None:
    after, _ = round_of(FedDig(printed=True))  # lines 20-22
    assert_close(w(after), torch.tensor(AGGREGATE) + SERVER_STEP)


def test_a_usual_server_step_of_a_single_batch_is_the_printed_one() -> None:
    after, _ = round_of(FedDig())  # a single step, so nothing has fallen yet
    assert_close(w(after), torch.tensor(AGGREGATE) + SERVER_STEP)


def test_the_learning_rate_of_the_server_step_falls_to_none() -> None:
    """On one constant gradient, four steps of lr 1, 3/4, 1/2 and 1/4 in place of four of lr 1."""
    data = Samples((torch.ones(4, 2),), torch.zeros(4, dtype=torch.long))
    moved = []
    for falling in (False, True):
        model = OneLayer()
        fill(model, {"w": torch.zeros(2, 2)}, {})
        learning = Learning(lr=0.5, momentum=0.0, batch_size=2, epochs=2)
        steps, _ = train(model, data, learning, torch.Generator(), Slope(), falling=falling)
        assert steps == 4
        moved.append(weights_of(model)["w"])
    assert_close(moved[1], 2.5 / 4 * moved[0])


class Slope:
    """The sum of the outputs: its gradient is the same everywhere."""

    def __call__(self, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = model(*inputs)
        return output.sum(1)


def test_with_the_first_digests_the_model_starts_from_what_they_know() -> None:
    """Ten epochs on all of them at the clients' learning rate, then as usual; as printed, one."""

    def answer(message: Message) -> Reply | Absent:
        wanted = message.scalars["digest"]
        return reply(message.client, FROM_CLIENT_0, DIGESTS[message.client] if wanted else None)

    for feddig, epochs in ((FedDig(), 10), (FedDig(printed=True), 1)):
        method = method_with(feddig)
        after, _ = play_round(start(method), Script(2, answer), method)
        assert_close(w(after), by_hand(FROM_CLIENT_0, replace(method.learning, epochs=epochs), 0, epochs == 10))
        again, _ = play_round(after, Script(2, answer), method)
        aggregate = w(after) + torch.tensor(FROM_CLIENT_0)
        assert_close(w(again), by_hand(aggregate, method.learning, 1, epochs == 10))


def test_digests_that_come_later_are_learnt_for_their_share_of_the_warm_epochs() -> None:
    """Two digests of 4 records each: five epochs more when the second comes, at the clients' learning rate."""

    def answer(message: Message) -> Reply | Absent:
        if message.client == 1 and message.round == 0:
            return Absent(1, "away")
        return reply(message.client, FROM_CLIENT_0, DIGESTS[message.client] if message.scalars["digest"] else None)

    method = method_with(FedDig())
    before, _ = play_round(start(method), Script(2, answer), method)
    after, _ = play_round(before, Script(2, answer), method)
    aggregate = w(before) + torch.tensor(FROM_CLIENT_0)
    assert_close(w(after), by_hand(aggregate, replace(method.learning, epochs=5), 1, True))


def test_the_warm_epochs_are_those_with_the_least_loss_on_rows_left_out() -> None:
    """Labels by chance: what more epochs learn of them is wrong elsewhere. Labels that features tell: the most."""
    features = torch.randn(60, 20, generator=torch.Generator().manual_seed(0))
    luck = torch.randint(2, (60,), generator=torch.Generator().manual_seed(1))
    found = []
    for labels in (luck, (features[:, 0] > 0).long()):
        model = torch.nn.Linear(20, 2)
        torch.nn.init.zeros_(model.weight)
        before = model.state_dict()["weight"].clone()
        samples = Samples((features,), labels)
        found.append(warm_epochs(model, samples, Learning(lr=0.2), TaskLoss(torch.nn.functional.cross_entropy), 0))
        assert torch.equal(model.weight, before)
    assert found == [1, 10]


def by_hand(begin: object, learning: Learning, round: int, falling: bool) -> torch.Tensor:
    """The client's loop, started here, on the digests: each is one row, which stretching leaves where it is."""
    model = OneLayer()
    fill(model, {"w": torch.as_tensor(begin)}, {})
    opened = [open_digest(DIGESTS[client]) for client in (0, 1)]
    data = Samples((torch.cat([d.features for d in opened]),), torch.cat([d.labels for d in opened]))
    objective = TaskLoss(torch.nn.functional.cross_entropy)
    train(model, data, learning, rng(0, round, -1, "server step"), objective, falling=falling)
    return weights_of(model)["w"]


def test_the_server_step_is_train_on_the_digests_and_nothing_else() -> None:
    """The same bits as the client's loop, started by hand at A_t, over two epochs with momentum."""
    method = method_with(FedDig(server_epochs=2), momentum=0.9)
    state = replace(start(method), digests=DIGESTS)
    after, _ = play_round(state, Script(2, only_client_0), method)
    before, _ = play_round(state, Script(2, only_client_0), method_with(FedDig(server_epochs=0), momentum=0.9))
    learning = replace(method.learning, epochs=2)
    assert torch.equal(by_hand(w(before), learning, 0, falling=True), w(after))


def test_where_no_digest_is_new_and_rows_are_enough_its_batches_and_learning_rate_are_doubled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.absence.server_step.ENOUGH", 2)
    method = method_with(FedDig())
    method = replace(method, learning=replace(method.learning, batch_size=1))
    state = replace(start(method), digests=DIGESTS)
    after, _ = play_round(state, Script(2, only_client_0), method)
    before, _ = play_round(state, Script(2, only_client_0), replace(method, absence=FedDig(server_epochs=0)))
    doubled = replace(method.learning, batch_size=2, lr=2 * method.learning.lr)
    assert torch.equal(by_hand(w(before), doubled, 0, falling=True), w(after))


def test_the_server_step_is_taken_also_while_all_are_there() -> None:
    after, record = round_of(FedDig(), both)
    assert not torch.allclose(w(after), torch.tensor(FROM_CLIENT_0))
    assert record.stand_ins == []


def test_a_refused_update_is_an_absence_with_a_stand_in() -> None:
    def broken(message: Message) -> Reply | Absent:
        return reply(message.client, FROM_CLIENT_0 if message.client == 0 else [[math.nan, 0.0], [0.0, 0.0]])

    after, record = round_of(FedDig(server_epochs=0), broken)
    assert list(record.refused) == [1]
    assert_close(w(after), AGGREGATE)


def test_a_client_without_a_digest_is_missed() -> None:
    after, record = round_of(FedDig(server_epochs=0), digests={0: DIGESTS[0]})
    assert_close(w(after), FROM_CLIENT_0)
    assert record.stand_ins == []


def test_with_all_clients_gone_the_stand_ins_go_on_alone() -> None:
    # Stand-in of 0: gradient (1/2 - 1, 1/2)' (0, 1), so its update is [[0, .05], [0, -.05]].
    after, record = round_of(FedDig(server_epochs=0), nobody)
    assert_close(w(after), [[-0.0125, 0.025], [0.0125, -0.025]])
    assert record.stand_ins == [0, 1]
    assert record.loss is None


def test_with_all_gone_and_no_digest_nothing_changes() -> None:
    after, record = round_of(FedDig(), nobody, digests={})
    assert_close(w(after), ZERO)
    assert after.round == 1
    assert record.stand_ins == []


def test_a_digest_travels_once_and_a_refreshed_one_replaces_it() -> None:
    newer = sealed(digest_of([[1.0, 0.0]], [[0.0, 1.0]]))

    def answer(message: Message) -> Reply | Absent:
        if not message.scalars["digest"]:
            return reply(message.client, ZERO)
        return reply(message.client, ZERO, DIGESTS[message.client] if message.round == 0 else newer)

    method = method_with(FedDig(refresh=2))
    state, wanted, held = start(method), [], []
    for _ in range(4):
        script = Script(2, answer)
        state, _ = play_round(state, script, method)
        wanted.append([message.scalars["digest"] for message in script.heard])
        held.append(state.digests[1]["manifest"])
    assert wanted == [[True, True], [False, False], [True, True], [False, False]]
    assert held[1] is DIGESTS[1]["manifest"]
    assert held[2] is newer["manifest"]
    assert held[3] is newer["manifest"]


def test_who_was_away_when_digests_were_due_is_asked_when_it_is_back() -> None:
    """Digests are due in rounds 1 and 3 (of two each); client 1 is away in round 3 and is asked again in round 4."""

    def answer(message: Message) -> Reply | Absent:
        if message.client == 1 and message.round == 2:
            return Absent(1, "away")
        return reply(message.client, ZERO, dict(DIGESTS[message.client]) if message.scalars["digest"] else None)

    method = method_with(FedDig(refresh=2))
    state, wanted = start(method), []
    for _ in range(5):
        script = Script(2, answer)
        state, _ = play_round(state, script, method)
        wanted.append([message.scalars["digest"] for message in script.heard])
    assert wanted == [[True, True], [False, False], [True, True], [False, True], [True, True]]


@pytest.mark.parametrize(
    ("algorithm", "times"),
    [(FedAvg(), 1.0), (AdaBest(mu=0.0, beta=0.5), 1.75), (FedDyn(alpha=0.1), 3.0), (Scaffold(), 1.0)],
    ids=repr,
)
def test_the_server_step_counts_once_whatever_the_algorithm_remembers(algorithm: FedAvg, times: float) -> None:
    """Both clients send D in the first round, nothing in the second; only the first has a server step, s.

    AdaBest  m_1 = D, w = D + D/2, then s: 1.5 D + s. The second mean is that; w = 1.5 D + s + (1.5 D - D)/2: s once.
    FedDyn   h = -alpha D, w = D + D, then s; the second round adds D once more: 3 D + s.
    """
    with_step, without = (method_with(FedDig(server_epochs=n), algorithm) for n in (1, 0))
    begun = replace(start(without), digests=DIGESTS)
    state, _ = play_round(begun, Script(2, both), with_step)
    step = w(state) - w(play_round(begun, Script(2, both), without)[0])
    assert float(step.abs().max()) > 0.003
    after, _ = play_round(state, Script(2, lambda message: reply(message.client, ZERO)), without)
    torch.testing.assert_close(w(after), times * torch.tensor(FROM_CLIENT_0) + step, atol=1e-6, rtol=0)


def test_a_digest_is_unpacked_once_and_a_newer_one_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[Tensors] = []

    def counted(tensors: Tensors, **facts: object) -> object:
        unpacked.append(tensors)
        return open_digest(tensors, **facts)  # type: ignore[arg-type]

    monkeypatch.setattr(received, "open_digest", counted)
    method = method_with(FedDig())
    state = replace(start(method), digests=DIGESTS)
    for _ in range(3):
        state, _ = play_round(state, Script(2, only_client_0), method)
    assert len(unpacked) == 2
    newer = sealed(digest_of([[1.0, 0.0]], [[0.0, 1.0]]))
    state, _ = play_round(replace(state, digests={**DIGESTS, 1: newer}), Script(2, only_client_0), method)
    assert len(unpacked) == 3
    kept, _ = play_round(state, Script(2, only_client_0), method)
    anew, _ = play_round(state, Script(2, only_client_0), method_with(FedDig()))
    assert torch.equal(w(kept), w(anew))


def test_a_late_joiners_digest_counts_from_its_first_round_on() -> None:
    def answer(message: Message) -> Reply | Absent:
        if message.client == 1 and message.round != 1:
            return Absent(1, "away")
        return reply(message.client, ZERO, DIGESTS[message.client] if message.scalars["digest"] else None)

    method = method_with(FedDig(server_epochs=0))
    state, records = start(method), []
    for _ in range(3):
        state, record = play_round(state, Script(2, answer), method)
        records.append(record)
    assert [record.stand_ins for record in records] == [[], [], [1]]
    assert sorted(state.digests) == [0, 1]
    assert_close(w(state), torch.tensor(STAND_IN) / 2)
