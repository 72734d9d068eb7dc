"""What a member planted: the account of what it taught by hand, what it alone taught, and how that is taken out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.attacks.adversary import choose_hostile
from holdfast.cli.hostile import backdoor_rate
from holdfast.core.failures import Refusal
from holdfast.core.types import State, Update, unpack
from holdfast.play import resume, run
from holdfast.record import Record
from holdfast.runs.experiment import Experiment
from holdfast.runs.history import History
from holdfast.trust import jury
from holdfast.trust.base import Judgement, judgement
from holdfast.trust.floor import Good
from holdfast.trust.measures import TestRequest
from holdfast.trust.panel import CONFIRM, PanelRequest
from holdfast.trust.reputation import RAMPS, first_memory
from holdfast.trust.testing import TEST
from holdfast.trust.unlearning import (
    AWAY,
    RIDGE,
    account,
    alone,
    explaining,
    set_aside,
    take_out,
    taught_alone,
    with_all_taught,
)

STATE = State(0, {"w": torch.zeros(3)}, {}, {}, {}, {})


def judged_of(*deltas: list[float], weights: tuple[float, ...]) -> Judgement:
    updates = [Update(i, {"w": torch.tensor(delta)}, 1, 1) for i, delta in enumerate(deltas)]
    return judgement(updates, weights, first_memory(len(deltas)))


@pytest.mark.parametrize("server", [1.0, 0.5])
def test_what_each_taught_is_its_part_in_the_average_as_far_as_the_model_went(server: float) -> None:
    judged = judged_of([4.0, 0.0, 0.0], [0.0, 8.0, 0.0], weights=(0.25, 0.75))
    after = replace(STATE, model={"w": server * torch.tensor([1.0, 6.0, 0.0])}, accepted={0: 0})
    once = account(STATE, after, judged, 0.05)
    assert once.trust["taught"].tolist() == [[server, 0, 0], [0, 6 * server, 0]]
    again = account(
        replace(once, round=1), replace(once, model={"w": 2 * once.model["w"]}, accepted={0: 1}), judged, 0.05
    )
    assert again.trust["taught"].tolist() == [[2 * server, 0, 0], [0, 12 * server, 0]]
    undone = account(replace(again, round=2), again, judged, 0.05)  # nobody's update of round 2 was accepted
    assert torch.equal(undone.trust["taught"], again.trust["taught"])


def test_a_member_that_withdraws_leaves_nothing_in_the_account() -> None:
    trust = {**first_memory(2), "taught": torch.ones(2, 3), "aside/0": torch.ones(3), "aside/1": torch.ones(3)}
    left = replace(STATE, trust=trust).without([1]).trust
    assert left["taught"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert set_aside(left).keys() == {0}


def test_what_does_not_count_because_of_a_backdoor_is_set_aside_and_fades() -> None:
    """The second of two has lost half of its say by what it planted: half of its update, over two, is set aside, as if
    it were no longer than the median one: 8 of 12."""
    judged = judged_of([4.0, 0.0, 0.0], [0.0, 12.0, 0.0], weights=(0.25, 0.75))
    low, high = RAMPS["planted"]
    memory = {**first_memory(2), "planted": torch.tensor([0.0, (low + high) / 2], dtype=torch.float64)}
    judged = replace(judged, memory=memory)
    once = account(STATE, STATE, judged, 0.05)
    assert {client: row.tolist() for client, row in set_aside(once.trust).items()} == {1: [0, 2, 0]}
    twice = account(replace(once, round=1), once, judged, 0.05)
    assert set_aside(twice.trust)[1].tolist() == pytest.approx([0, 2 + 0.95 * 2, 0])
    model, units = {"w": torch.ones(3), "still": torch.ones(1)}, {"w": torch.eye(3)}
    asked = TestRequest(model, {}, units=units, order=torch.arange(3), length=torch.tensor(2.0))
    there = with_all_taught(asked, twice.trust)
    assert {name: tensor.tolist() for name, tensor in there.items()} == {"w": pytest.approx([1, 4.9, 1]), "still": [1]}
    near = with_all_taught(replace(asked, length=torch.tensor(0.5)), twice.trust)
    assert near["w"].tolist() == pytest.approx([1, 1 + AWAY * 0.5, 1])  # no further, whatever they send by then
    assert with_all_taught(asked, first_memory(2)) == {}


def test_what_others_teach_too_is_not_in_what_a_member_teaches_alone() -> None:
    """Rows 0 to 2 explain; 3 is twice the first and something of its own; the ridge leaves a hundredth."""
    rows = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0], [2.0, 0, 0, 5.0], [0, 3.0, 0, 5.0]])
    found = alone(rows, range(5), rows, np.array([True, True, True, False, False]))
    kept = RIDGE / (1 + RIDGE)
    assert found[3].tolist() == pytest.approx([2 * kept, 0, 0, 5], abs=1e-6)
    assert found[4].tolist() == pytest.approx([0, 3 * kept, 0, 5], abs=1e-6)  # colluders do not explain each other
    assert found[0].tolist() == pytest.approx([1, 0, 0, 0])  # nobody explains itself


@given(st.permutations(range(6)), st.integers(0, 99))
def test_the_order_of_members_does_not_matter(order: list[int], seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    rows, explain = torch.randn(6, 9, generator=chance), (torch.randn(6, generator=chance) > 0).numpy()
    found = alone(rows, range(6), rows, explain)
    assert torch.allclose(found[order], alone(rows[order], range(6), rows[order], explain[order]), atol=1e-5)
    assert torch.allclose(found[order], alone(rows[order], order, rows, explain), atol=1e-5)


def test_who_explains_is_the_half_of_those_who_help_of_whom_least_is_said() -> None:
    """Who sends noise plants nothing, and explains nothing either."""
    memory = first_memory(6)
    memory["planted"] += torch.tensor([0.9, 0.9, -0.1, 0.1, 0.0, -0.6], dtype=torch.float64)
    assert explaining(memory, range(6)).tolist() == [True, True, False, True, False, False]  # nobody is known to help
    memory["reputation"] += torch.tensor([-0.3, 0.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    assert explaining(memory, range(6)).tolist() == [False, False, False, True, True, False]


def test_a_trace_of_the_backdoor_in_a_good_row_hides_nobody() -> None:
    """A shield, of whom little is said, has a hundredth of what the culprit plants: without the ridge it would explain
    all of it, since others explain the rest of the shield."""
    rows = torch.tensor([[1.0, 0, 0, 0.01], [1.0, 0, 0, 0], [0, 1.0, 0, 0], [1.0, 1.0, 0, 1.0]])
    found = alone(rows, range(4), rows, np.array([True, True, True, False]))
    assert float(found[3, 3]) > 0.99


class Panel:
    """Five witnesses that score a model by one weight: what is right in what was taught."""

    hearing = SimpleNamespace(context=SimpleNamespace(called="member {}".format))

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def ask(self, job: Any, asked: PanelRequest) -> dict[int, dict[str, dict[str, float]]]:
        assert job is CONFIRM
        self.asked.append(asked.names)
        said = {name: {"0": unpack(asked.models, name)["w"][1].sigmoid().item()} for name in asked.names}
        return dict.fromkeys(range(5), said)

    def billed(self, judged: Any) -> Any:
        return judged


def planted_state(right: float, share: float = 1.0) -> tuple[State, Judgement]:
    """The last of four members taught a backdoor, the third weight, and something right that nobody else teaches."""
    taught = torch.tensor([[1.0, 0, 0], [2.0, 0, 0], [0.5, 0, 0], [0.0, right, 3.0]])
    low, high = RAMPS["planted"]
    planted = torch.tensor([0.0, 0.0, 0.0, high - share * (high - low)], dtype=torch.float64)
    trust = {**first_memory(4), "taught": taught, "planted": planted, "gone": torch.zeros(4, dtype=torch.float64)}
    model = {"w": torch.tensor([9.0, 0.0, 3.0])}
    judged = judged_of(*[[1.0, 0.0, 0.0]] * 4, weights=(1, 1, 1, 1))
    return Good({"w": torch.tensor([5.0, 0.0, 2.0])}, {}, {}).kept_in(replace(STATE, model=model, trust=trust)), judged


@pytest.mark.parametrize(
    ("right", "part"),
    [
        (0.04, 1.0),  # p falls by 0.01
        (0.12, 0.5),  # by 0.03 with all, 0.015 with half
        (0.5, 0.125),  # 0.122, 0.062, 0.031, 0.016
        (2.0, 0.0),  # an eighth is 0.06
    ],
)
def test_as_much_is_taken_out_as_the_witnesses_can_spare(right: float, part: float) -> None:
    (before, judged), panel = planted_state(right), Panel()
    after, told = take_out(before, judged, panel, 0.02)  # type: ignore[arg-type]
    assert panel.asked == [["new", "0", "1", "2", "3"]]
    assert after.model["w"].tolist() == pytest.approx([9, -part * right, 3 - 3 * part], abs=1e-5)
    assert after.trust["good/w"].tolist() == pytest.approx([5, -part * right, 2 - 3 * part], abs=1e-5)
    assert after.trust["taught"][3].tolist() == pytest.approx([0, right * (1 - part), 3 * (1 - part)], abs=1e-5)
    assert torch.equal(after.trust["taught"][:3], before.trust["taught"][:3])
    aside = {client: row.tolist() for client, row in set_aside(after.trust).items()}
    assert aside == ({3: pytest.approx([0, right * part, 3 * part], abs=1e-5)} if part else {})  # U is as it was
    assert list(told.notes) == (["what member 3 alone taught was taken out of the model"] if part else [])


def test_half_of_the_evidence_takes_half_out_and_none_asks_nobody() -> None:
    panel = Panel()
    after, _ = take_out(*planted_state(0.0, share=0.5), panel, 0.02)  # type: ignore[arg-type]
    assert after.model["w"].tolist() == pytest.approx([9, 0, 1.5], abs=1e-5)
    before, judged = planted_state(0.0, share=0.0)
    assert take_out(before, judged, panel, 0.02) == (before, judged)  # type: ignore[arg-type]
    assert len(panel.asked) == 1


def test_what_is_out_is_not_taken_out_twice_and_is_never_put_back() -> None:
    """All of 3 is out; once half of that is forgotten as much may be taken of what is there by then."""
    before, judged = planted_state(0.0)
    out, _ = take_out(before, judged, Panel(), 0.02)  # type: ignore[arg-type]
    assert out.trust["gone"].tolist() == [0, 0, 0, 1]
    panel = Panel()
    assert take_out(out, judged, panel, 0.02) == (out, judged)  # type: ignore[arg-type]
    cleared = replace(out, trust={**out.trust, "planted": torch.zeros(4, dtype=torch.float64)})
    assert take_out(cleared, judged, panel, 0.02) == (cleared, judged)  # type: ignore[arg-type]
    assert panel.asked == []
    taught = torch.tensor([[1.0, 0, 0], [2.0, 0, 0], [0.5, 0, 0], [0.0, 0.0, 4.0]])
    forgot = replace(out, trust={**out.trust, "gone": 0.5 * out.trust["gone"], "taught": taught})
    again, _ = take_out(forgot, judged, Panel(), 0.02)  # type: ignore[arg-type]
    assert again.model["w"].tolist() == pytest.approx([9, 0, 0 - 4], abs=1e-5)
    assert again.trust["gone"].tolist() == [0, 0, 0, 1]


def test_testers_are_sent_what_each_taught_with_its_update_once_something_was_said() -> None:
    updates = [Update(i, {"w": torch.tensor(delta)}, 1, 1) for i, delta in enumerate([[2.0, 0, 0], [0, 2.0, 4.0]])]
    taught = torch.tensor([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    state = replace(STATE, trust={**first_memory(2), "taught": taught})
    assert taught_alone(state, updates) == {}  # nothing was said of anybody yet
    assert taught_alone(replace(STATE, trust=first_memory(2)), updates) == {}  # nor is anything known
    state.trust["planted"][1] = -0.1
    found = taught_alone(state, updates)[
        "w"
    ]  # rows (2, 0, 0) and (2, 1, 2), of which the first explains the second's 2
    assert found[0].tolist() == [1, 0, 0]
    assert found[1].tolist() == pytest.approx([0, 1 / 5**0.5, 2 / 5**0.5], abs=0.01)


@pytest.mark.parametrize(
    ("round", "more", "why"),
    [
        (0, {"alone": {"w": torch.eye(2)}, "taught": {"w": torch.ones(2)}}, None),
        (1, {"alone": {"w": torch.eye(2)}}, "nobody looks for backdoors"),
        (1, {"taught": {"w": torch.ones(2)}}, "nobody looks for backdoors"),
        (0, {"alone": {"w": 2 * torch.eye(2)}}, "longer than 1"),
        (0, {"alone": {"w": torch.ones(1, 2)}}, "more or fewer directions"),
        (0, {"alone": {"v": torch.eye(2)}}, "other tensors"),
        (0, {"taught": {"v": torch.ones(2)}}, "other tensors"),
    ],
)
def test_a_site_refuses_other_directions_and_models(round: int, more: dict[str, Any], why: str | None) -> None:
    asked = TestRequest(
        {"w": torch.ones(2)}, {}, units={"w": torch.eye(2)}, order=torch.arange(2), length=torch.tensor(1.0), **more
    )
    tester, context = SimpleNamespace(trust=jury.Jury()), SimpleNamespace(clients=2)
    if why is None:
        TEST.check(asked, round, tester, context)  # type: ignore[arg-type]
        return
    with pytest.raises(Refusal, match=why):
        TEST.check(asked, round, tester, context)  # type: ignore[arg-type]


def experiment(**changed: Any) -> Experiment:
    settings = {
        "clients": 14, "partition": "dirichlet:0.5", "rounds": 12, "lr": 0.02, "model": "features", "workers": 0,
        "attack": "backdoor:shape=stripe,fraction=0.1", "attackers": 3, "trust": "jury", "seed": 200, **changed,
    }  # fmt: skip
    return Experiment(**settings)  # type: ignore[arg-type]


def test_a_backdoor_that_was_learnt_is_unlearnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 % where those who planted it are only silenced, 4.7 % where it is taken out too, 5 % without an attack."""
    out, hostile = run(experiment()), set(choose_hostile(14, 3, 200))
    notes = [note for record in out.records for note in record.notes if "was taken out" in note]
    assert notes
    assert all(f"client {c} " not in note.replace(",", " ") for c in set(range(14)) - hostile for note in notes)
    monkeypatch.setattr(jury, "take_out", lambda after, judged, panel, lose: (after, judged))
    silenced = run(experiment())
    assert (backdoor_rate(out) or 0) < 0.08 < 0.3 < (backdoor_rate(silenced) or 0)
    assert out.final_accuracy > silenced.final_accuracy - 0.04  # the last rounds have not mended all yet


def test_what_is_set_aside_comes_in_the_order_of_members_whatever_a_file_makes_of_it() -> None:
    rows = {client: torch.randn(4, generator=torch.Generator().manual_seed(client)) for client in (11, 2, 5)}
    memory = {f"aside/{client}": row for client, row in rows.items()}
    assert list(set_aside(memory)) == [2, 5, 11]


def test_who_was_found_stays_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searched in the clean model the evidence vanishes, and one of them is heard in full again for two rounds."""
    hostile = choose_hostile(14, 3, 200)

    def say(history: History) -> list[float]:
        return [sum(record.weights[client] for client in hostile) for record in history.records[8:]]

    found = run(experiment())
    assert say(found) == [0.0] * 4
    monkeypatch.setattr(jury, "with_all_taught", lambda asked, memory: {})
    assert max(say(run(experiment()))) > 0.05


def test_what_was_taught_and_taken_out_is_the_same_with_workers_and_after_a_resume(tmp_path: Path) -> None:
    wanted = experiment(rounds=9)
    whole = run(wanted)
    assert any("was taken out" in note for record in whole.records[2:] for note in record.notes)

    def killed(record: Record) -> None:
        if record.round == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(wanted, tmp_path / "run", watch=killed)
    for other in (resume(tmp_path / "run"), run(replace(wanted, workers=2))):
        assert other.state is not None
        assert whole.state is not None
        assert other.state.trust.keys() == whole.state.trust.keys()
        assert all(torch.equal(other.state.trust[name], tensor) for name, tensor in whole.state.trust.items())
        assert all(torch.equal(other.state.model[name], tensor) for name, tensor in whole.state.model.items())


def test_the_last_round_takes_nothing_out_and_few_members_have_no_account() -> None:
    last = run(experiment(rounds=7))
    assert not any("was taken out" in note for note in last.records[-1].notes)
    few = run(experiment(rounds=2, clients=12))
    assert few.state is not None
    assert last.state is not None
    assert "taught" in last.state.trust
    assert "taught" not in few.state.trust
