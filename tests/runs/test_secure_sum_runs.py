"""protect = "secure-sum": a run whose moderator learns the members' total alone; what it excludes is one sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import holdfast
from holdfast import Experiment
from holdfast.client import SECURE_SUM, SECURE_TRAIN, TRAIN, TrainRequest
from holdfast.client.digest import DIGEST, DigestRequest
from holdfast.client.secure_sum import keep_opened, opened_by
from holdfast.client.train import learn_here
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import Refusal
from holdfast.core.types import Absent
from holdfast.engines.inline import Inline
from holdfast.privacy.ledger import read_ledger
from holdfast.round import play_round
from holdfast.runs.build import make_plan
from holdfast.secure_sum import updates

MOMENTS = {"name": "feddig", "mode": "moments", "epsilon": 8.0}

ROUNDS = {"algorithm": "fedavg", "rounds": 3, "absence": "none", "task": "engine_helpers:tiny", "model": "mlp:8",
          "samples": None, "partition": "iid"}  # fmt: skip


def experiment(**changes: Any) -> Experiment:
    usual: dict[str, Any] = {
        "algorithm": "oneshot", "absence": MOMENTS, "rounds": 1, "samples": 2000, "clients": 5, "workers": 0,
        "protect": "secure-sum",
    }  # fmt: skip
    return Experiment(**{**usual, **changes})


def test_a_run_learns_from_the_total_and_enters_it_in_each_ledger(tmp_path):
    record = holdfast.run(experiment(), tmp_path / "run").records[-1]
    assert record.accuracy > 0.7
    assert not record.absent
    assert not record.notes
    for client in range(5):
        [entry] = read_ledger(tmp_path / "run" / "clients" / f"{client:04d}" / "privacy-ledger.json").entries
        assert entry.claim.mode == "secure-sum"
        assert entry.claim.epsilon_total <= 8.0


@pytest.mark.parametrize("trust", ["samples", "uniform"])
def test_the_mean_of_updates_is_that_of_the_whole_numbers_to_the_bit(trust):
    """Each client's update on the grid, weighed, added and divided, by the plain training job."""
    wanted = experiment(**ROUNDS, trust=trust)
    plan = make_plan(wanted)
    clients = {id: plan.client(id, plan.model(), None) for id in range(5)}
    state = plan.start()
    after, record = play_round(state, Inline(clients), plan.method)
    request = TrainRequest(state.model, {}, {}, {}, -1, wanted.lr, digest=False)
    learnt = {id: learn_here(client, request, 0) for id, client in clients.items()}
    weights = {id: len(client.train) if trust == "samples" else 1 for id, client in clients.items()}
    for name, before in state.model.items():
        whole = [weights[id] * (one.delta[name].double() * 2**20).round() for id, one in learnt.items()]
        mean = (torch.stack(whole).sum(0) / (sum(weights.values()) * 2**20)).float()
        assert torch.equal(after.model[name], before + mean)
    losses = [weights[id] * one.loss for id, one in learnt.items()]
    assert record.loss == pytest.approx(sum(losses) / sum(weights.values()), abs=1e-6)
    assert sum(record.weights.values()) == pytest.approx(1)


def test_long_updates_are_shortened_and_a_total_that_cannot_be_is_refused():
    long = {"a": torch.tensor([3.0, -4.0]), "b": torch.tensor([[12.0]])}  # length 13
    vector = updates.as_whole(long, 2, 0.5, clip=1.3)
    assert vector.tolist() == [2, 2, 2 * 2**19, *(2 * round(2**20 * v / 10) for v in (3, -4, 12))]
    mean = updates.mean_of(vector, long, 2, clip=1.3)
    assert mean.loss == 0.5
    assert torch.allclose(mean.delta["b"], torch.tensor([[1.2]]))
    for wrong, sentence in ((1, "another weight"), (3, "longer than clip")):
        spoilt = vector.copy()
        spoilt[0 if wrong == 1 else 4] += 2**22 if wrong == 3 else 1
        with pytest.raises(HoldfastError, match=sentence):
            updates.mean_of(spoilt, long, 2, clip=1.3)
    with pytest.raises(Refusal, match="diverged"):
        updates.as_whole({"a": torch.tensor([float("nan")])}, 1, None, clip=1.0)


class Flaky(Inline):
    """Clients in this process, one of which dies at a step of a stage."""

    die: tuple[str, int, int] = ("", 0, 0)
    dead: frozenset[int] = frozenset()

    def ask(self, messages):
        answers = []
        for message in messages:
            step, stage, client = self.die
            asked = message.job == SECURE_SUM.name and message.scalars
            if asked and (asked["step"], asked["stage"], message.client) == (step, stage, client):
                self.dead = frozenset([client])
            gone = message.client in self.dead
            answers.append(Absent(message.client, "killed") if gone else self._ask(message))
        return answers


@pytest.fixture(scope="module")
def plan():
    return make_plan(experiment(protect={"name": "secure-sum", "dropouts": 1}))


def test_without_dropouts_a_sum_is_taken_anew_and_paid_for_again(tmp_path):
    """Noise is made for those that are left on the shortest list: nobody may drop out of one of five, by default."""
    plan = make_plan(experiment())
    federation = Flaky({id: plan.client(id, plan.model(), tmp_path) for id in range(5)})
    federation.die = ("masked", 1, 2)
    _, record = play_round(plan.start(), federation, plan.method)
    assert [note for note in record.notes if "taken anew without client 2" in note]
    assert record.absent == {2: "killed"}
    ledgers = [read_ledger(tmp_path / "clients" / f"{client:04d}" / "privacy-ledger.json") for client in (0, 2)]
    assert [len(ledger.entries) for ledger in ledgers] == [2, 0]


@pytest.mark.parametrize("die", [("shares", 1, 2), ("masked", 2, 2), ("open", 1, 2)])
def test_a_client_killed_in_a_step_is_absent_and_the_others_go_on(plan, die):
    federation = Flaky({id: plan.client(id, plan.model(), None) for id in range(5)})
    federation.die = die
    state = plan.start()
    after, record = play_round(state, federation, plan.method)
    assert record.absent == {2: "killed"}, record.notes
    assert not [n for n in record.notes if "Nothing" in n or "secure sum:" in n], record.notes
    assert any((after.model[name] != state.model[name]).any() for name in state.model)


def test_all_sums_of_a_client_see_what_one_of_them_opened(plan, tmp_path):
    """Two sums that were begun side by side: what the first opened counts for the second, also by way of the disk."""
    client = plan.client(0, plan.model(), tmp_path)
    first, second = opened_by(client), opened_by(client)
    first["stage 1 of round 1"] = (0, 1, 2)
    keep_opened(client)
    again = opened_by(plan.client(0, plan.model(), tmp_path))
    assert second == again == {"stage 1 of round 1": (0, 1, 2)}
    again["stage 2 of round 1"] = (0, 1, 2)
    keep_opened(replace(client, opened_sums=again))
    assert opened_by(client) is first
    assert first == again


def test_a_single_digest_or_update_is_refused(plan):
    client = plan.client(0, plan.model(), None)
    with pytest.raises(Refusal, match="only the members' total leaves"):
        DIGEST.perform(client, DigestRequest(), 0)
    rounds = make_plan(experiment(**ROUNDS))
    state, client = rounds.start(), rounds.client(0, rounds.model(), None)
    assert not TRAIN.due(0, client, rounds.method)
    with pytest.raises(Refusal, match="only the members' total leaves"):
        TRAIN.perform(client, TrainRequest(state.model, {}, {}, {}, -1, 0.1, digest=False), 0)


class TwoModels(Inline):
    """Client 2 is sent another model to train on than the others."""

    def ask(self, messages):
        sent = []
        for message in messages:
            other = message.job == SECURE_TRAIN.name and message.client == 2
            sent.append(replace(message, tensors={n: -t for n, t in message.tensors.items()}) if other else message)
        return super().ask(sent)


def test_who_was_sent_another_model_is_in_no_mean():
    """The total would else be that of one member's update where the others' model lets theirs vanish."""
    plan = make_plan(experiment(**ROUNDS))
    clients = {id: plan.client(id, plan.model(), None) for id in range(5)}
    _, record = play_round(plan.start(), TwoModels(clients), plan.method)
    assert sorted(record.weights) == [0, 1, 3, 4]
    assert list(record.refused) == [2]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clients": 2}, "needs 3 clients at least"),
        ({"protect": "secure-sum:4"}, "needs 6 clients at least"),
        ({"absence": {"name": "feddig", "mode": "sums"}}, "say absence.mode = 'moments'"),
        ({"trust": "jury"}, "there are no updates to weigh"),
        ({"algorithm": "oneshot:server-step"}, "choose another head"),
        ({**ROUNDS, "algorithm": "scaffold"}, "algorithm 'scaffold' needs more of each client"),
        ({**ROUNDS, "algorithm": "fednova"}, "algorithm 'fednova' needs more of each client"),
        ({**ROUNDS, "algorithm": "fedbn"}, "algorithm 'fedbn' needs more of each client"),
        ({**ROUNDS, "algorithm": "mime"}, "algorithm 'mime' needs more of each client"),
        ({**ROUNDS, "trust": "jury"}, "trust 'jury' needs each"),
        ({**ROUNDS, "absence": MOMENTS}, "nothing of a single member that could stand in for it"),
        ({**ROUNDS, "scaling": "federated"}, "leave out scaling"),
        ({**ROUNDS, "late": "fedbuff"}, "leave out late"),
        ({**ROUNDS, "max_norm": 3.0}, "say protect.clip in place of max_norm"),
        ({**ROUNDS, "selection": "power-of-choice:3"}, "choose selection 'all' or 'uniform'"),
        ({**ROUNDS, "model": "round_bench:network"}, "this model has buffers too"),
        ({**ROUNDS, "attack": "signflip", "attackers": 1}, "can only be played on data"),
        ({"attack": "falsedigest", "attackers": 1}, "can only be played on data"),
    ],
)
def test_what_a_total_excludes_is_refused_in_one_sentence(changes, sentence):
    with pytest.raises(HoldfastError, match=sentence):
        make_plan(experiment(**changes))
