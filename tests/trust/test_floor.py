"""The floor: medians by hand, who is blamed, what a judgement is without them, and whole runs that are struck late."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from holdfast.core.failures import Refusal
from holdfast.core.types import State, Update, pack, unpack
from holdfast.data.task import Samples
from holdfast.play import run
from holdfast.runs.experiment import Experiment
from holdfast.trust.base import judgement
from holdfast.trust.floor import Found, Good, blamed, compare, left_out, sound, without
from holdfast.trust.panel import PANEL, REPLAY, PanelRequest, class_scores

STATE = State(0, {"w": torch.tensor([1.0, 1.0])}, {}, {}, {}, {})


def test_a_class_is_judged_by_the_median_of_its_holders_if_they_are_more_than_a_third() -> None:
    words = {j: {"new": {"0": 0.5, "1": 0.2}, "good": {"0": 0.6, "1": 0.1}} for j in range(5)}
    words[5] = {"new": {"0": 1.0, "2": 0.0}, "good": {"0": 0.0, "2": 1.0}}  # a liar, and the only one with class 2
    found = compare(words, "new", "good")
    assert found is not None
    assert found.classes == pytest.approx({"0": -0.1, "1": 0.1})
    assert compare({}, "new", "good") is None


def test_harm_is_a_loss_of_the_mean_or_of_one_class_over_rounds() -> None:
    found = Found({"0": -0.15, "1": 0.15}, 3)
    assert found.harmed(0.02, {}) == []
    assert found.harmed(0.02, {"0": -0.06}) == ["0"]
    assert found.harmed(0.01, {}) == ["0"]
    assert Found({"0": -0.5, "1": 0.6}, 3).harmed(0.02, {}) == []  # traded for another
    assert Found({"0": -0.15, "1": 0.05}, 3).harmed(0.02, {}) == ["0"]
    assert Found({"0": -0.03, "1": -0.02}, 3).harmed(0.02, {}) == ["0", "1"]


def test_the_average_without_each_member() -> None:
    updates = [Update(i, {"w": torch.tensor([x, 0.0])}, 1, 1) for i, x in ((3, 1.0), (5, 4.0), (7, 7.0))]
    asked = left_out(STATE, judgement(updates, [1, 1, 2], {}))
    assert asked.names == ["all", "3", "5", "7"]
    assert {name: unpack(asked.models, name)["w"][0].item() for name in asked.names} == pytest.approx(
        {"all": 1 + 19 / 4, "3": 1 + 18 / 3, "5": 1 + 15 / 3, "7": 1 + 5 / 2}
    )


def test_who_is_blamed_does_not_testify_and_at_most_half_are_left_out() -> None:
    told = {"all": {"0": 0.5, "1": 0.5}, "3": {"0": 0.9, "1": 0.5}, "5": {"0": 0.4, "1": 0.9}, "7": {"0": 0.6, "1": 0}}
    words = {3: {**told, "3": {"0": 0.0, "1": 0.0}}, 5: told, 7: told}
    assert blamed(words, ["0"]) == [3]  # 7 as well, by less: one of three is at most half
    assert blamed(words, ["1"]) == [5]
    assert blamed({}, ["0"]) == []
    updates = [Update(i, {"w": torch.ones(2)}, 1, 1) for i in (3, 5, 7)]
    fewer = without(judgement(updates, [1, 1, 2], {}), [3])
    assert fewer is not None
    assert (fewer.weights, fewer.say) == (pytest.approx([0, 1 / 3, 2 / 3]), pytest.approx({3: 0, 5: 1 / 3, 7: 2 / 3}))
    assert without(judgement(updates, [1, 1, 2], {}), [3, 5, 7]) is None


def test_the_good_model_moves_up_only_and_what_classes_lost_fades() -> None:
    good = Good({"w": torch.zeros(2)}, {}, {"0": -0.1})
    assert good.or_new(STATE, Found({"0": -0.3, "1": 0.1}, 3)) is good
    new = good.or_new(STATE, Found({"0": -0.1, "1": 0.2}, 3))
    assert new.model is STATE.model
    assert new.fallen == pytest.approx({"0": -0.2, "1": 0.0})
    kept = Good.of(new.kept_in(STATE))
    assert torch.equal(kept.model["w"], STATE.model["w"])
    assert kept.fallen == pytest.approx({"0": -0.18, "1": 0.0})


def test_scores_do_not_depend_on_how_sure_a_model_is_of_itself() -> None:
    model = nn.Linear(2, 2, bias=False)
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    asked = PanelRequest(pack(new={"weight": 9 * weights}, good={"weight": weights}))
    samples = Samples((torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]),), torch.tensor([0, 1, 1]))
    found = class_scores(model, samples, asked)
    right = torch.tensor([3.0, -3.0]).softmax(0)  # outputs +-1/2, rms 1/2
    assert found["new"] == pytest.approx({"0": float(right[0]), "1": 0.5})
    assert found["good"] == pytest.approx(found["new"])


def test_a_report_without_all_models_or_with_other_numbers_is_not_heard() -> None:
    assert sound({"new": {"0": 0.5}, "good": {"0": 1.0}}, ["new", "good"])
    wrong: list[dict[str, dict[str, float]]] = [
        {"new": {"0": 0.5}},
        {"new": {"0": 0.5}, "good": {"1": 0.5}},
        {"new": {}, "good": {}},
    ]
    assert not any(sound(told, ["new", "good"]) for told in wrong)
    assert not sound({"new": {"0": 0.5}, "good": {"0": float("nan")}}, ["new", "good"])


def test_a_site_measures_only_models_that_the_rule_has() -> None:
    class Few:
        clients = 3

    REPLAY.check(PanelRequest({"all/w": torch.ones(1), "2/w": torch.ones(1)}), 0, None, Few())  # type: ignore[arg-type]
    for job, name in ((PANEL, "2"), (REPLAY, "3")):
        with pytest.raises(Refusal, match="names models that the rule does not have"):
            job.check(PanelRequest({f"{name}/w": torch.ones(1)}), 0, None, Few())  # type: ignore[arg-type]


def test_a_late_strike_with_slander_is_undone() -> None:
    settings: dict[str, Any] = {
        "clients": 10, "partition": "dirichlet:1", "rounds": 6, "lr": 0.02, "model": "features", "workers": 0,
        "attack": "slander:since=4", "attackers": 4, "seed": 202,
    }  # fmt: skip
    held = run(Experiment(**settings, trust="jury"))
    free = run(Experiment(**settings, trust="jury:lose=none"))
    assert [record.round for record in held.records for note in record.notes if "undone" in note] == [5, 6]
    assert (held.records[-1].accuracy or 0) > (free.records[-1].accuracy or 1) + 0.03
