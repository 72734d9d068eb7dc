"""protect = "secure-sum": a run whose moderator learns the members' total alone; what it excludes is one sentence."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import Experiment
from holdfast.client import SECURE_SUM
from holdfast.client.digest import DIGEST, DigestRequest
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import Refusal
from holdfast.core.types import Absent
from holdfast.engines.inline import Inline
from holdfast.privacy.ledger import read_ledger
from holdfast.round import play_round
from holdfast.runs.build import make_plan

MOMENTS = {"name": "feddig", "mode": "moments", "epsilon": 8.0}


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
    return make_plan(experiment())


@pytest.mark.parametrize("die", [("shares", 1, 2), ("masked", 2, 2), ("open", 1, 2)])
def test_a_client_killed_in_a_step_is_absent_and_the_others_go_on(plan, die):
    federation = Flaky({id: plan.client(id, plan.model(), None) for id in range(5)})
    federation.die = die
    state = plan.start()
    after, record = play_round(state, federation, plan.method)
    assert record.absent == {2: "killed"}, record.notes
    assert not [n for n in record.notes if "Nothing" in n or "secure sum:" in n], record.notes
    assert any((after.model[name] != state.model[name]).any() for name in state.model)


def test_a_single_digest_is_refused(plan):
    client = plan.client(0, plan.model(), None)
    with pytest.raises(Refusal, match="only the members' total leaves"):
        DIGEST.perform(client, DigestRequest(), 0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clients": 2}, "needs 3 clients at least"),
        ({"protect": "secure-sum:4"}, "needs 6 clients at least"),
        ({"absence": {"name": "feddig", "mode": "sums"}}, "say absence.mode = 'moments'"),
        ({"trust": "jury"}, "there are no updates to weigh"),
        ({"algorithm": "oneshot:server-step"}, "choose another head"),
        ({"algorithm": "scaffold", "rounds": 3}, "no single member's update or digest"),
        ({"algorithm": "fedavg", "rounds": 3, "trust": "jury"}, "no single member's update or digest"),
        ({"attack": "falsedigest", "attackers": 1}, "can only be played on data"),
    ],
)
def test_what_a_total_excludes_is_refused_in_one_sentence(changes, sentence):
    with pytest.raises(HoldfastError, match=sentence):
        make_plan(experiment(**changes))
