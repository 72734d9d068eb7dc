"""A panel's members: how they score models, what of their words is heard, and what they refuse to measure."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.core.failures import Refusal
from holdfast.core.types import Tensors, pack
from holdfast.data.task import Samples
from holdfast.models.networks import fill
from holdfast.trust import panel
from holdfast.trust.panel import CONFIRM, PANEL, REPLAY, PanelRequest, all_class_scores, class_scores
from holdfast.trust.words import sound


def test_all_holders_are_scored_in_one_pass_as_each_alone() -> None:
    chance = torch.Generator().manual_seed(0)
    held = {
        h: Samples((torch.randn(n, 4, generator=chance) * n,), torch.randint(3, (n,), generator=chance))
        for h, n in ((2, 5), (7, 1), (9, 30))
    }
    weights = [torch.randn(3, 4, generator=chance) for _ in range(2)]
    asked = PanelRequest(pack(new={"weight": weights[0]}, good={"weight": weights[1]}))
    found = all_class_scores(nn.Linear(4, 3, bias=False), held, asked)
    assert list(found) == [2, 7, 9]
    for holder, samples in held.items():
        alone = class_scores(nn.Linear(4, 3, bias=False), samples, asked)
        assert found[holder].keys() == alone.keys()
        assert all(found[holder][name] == pytest.approx(alone[name], abs=1e-6) for name in alone)


def test_scores_do_not_depend_on_how_sure_a_model_is_of_itself() -> None:
    model = nn.Linear(2, 2, bias=False)
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    asked = PanelRequest(pack(new={"weight": 9 * weights}, good={"weight": weights}))
    samples = Samples((torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]),), torch.tensor([0, 1, 1]))
    found = class_scores(model, samples, asked)
    right = torch.tensor([panel.SHARP, -panel.SHARP]).softmax(0)  # outputs +-1/2, rms 1/2
    assert found["new"] == pytest.approx({"0": float(right[0]), "1": 0.5})
    assert found["good"] == pytest.approx(found["new"])


def test_a_witness_scores_no_model_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The good model of the last round is asked about again; what is told of it is the same to the bit."""
    computed: list[Tensors] = []

    def counting(model: nn.Module, weights: Tensors, buffers: Tensors) -> None:
        computed.append(weights)
        fill(model, weights, buffers)

    monkeypatch.setattr(panel, "fill", counting)
    samples = Samples((torch.tensor([[1.0, 0.0], [0.0, 1.0]]),), torch.tensor([0, 1]))
    client = SimpleNamespace(
        trust=SimpleNamespace(panel=2), validation=samples, train=samples, model=nn.Linear(2, 2, bias=False), scored={}
    )
    first, second = ({"weight": torch.tensor([[1.0, 0.0], [0.0, one]])} for one in (0.5, 2.0))
    asked = [PanelRequest(pack(new=first)), PanelRequest(pack(new=second, good=first)), PanelRequest(pack(all=second))]
    told = [job.perform(client, one, 0).scores for job, one in zip((PANEL, PANEL, REPLAY), asked, strict=True)]  # type: ignore[arg-type]
    assert len(computed) == 2
    assert [set(scores or {}) for scores in told] == [{"new"}, {"new", "good"}, {"all"}]
    assert told[1] == class_scores(nn.Linear(2, 2, bias=False), samples, asked[1])
    assert told[0] != told[2]


def test_a_report_without_all_models_or_with_other_numbers_is_not_heard() -> None:
    assert sound({"new": {"0": 0.5}, "good": {"0": 1}}, ["new", "good"], 2)
    no_number: list[Any] = [None, [], [0.5], "0.5", {}, math.nan, math.inf, -1, 10**400]
    no_table: list[Any] = [None, 7, [], ["0"], "0"]
    wrong: list[dict[str, Any]] = [
        {"new": {"0": 0.5}},
        {"new": {"0": 0.5}, "good": {"1": 0.5}},
        {"new": {}, "good": {}},
        {"new": {"2": 0.5}, "good": {"2": 0.5}},  # there are two classes
        {"new": {"<b>": 0.5}, "good": {"<b>": 0.5}},
        *({"new": {"0": 0.5}, "good": odd} for odd in no_table),
        *({"new": odd, "good": {"0": 0.5}} for odd in no_table),
        *({"new": {"0": 0.5}, "good": {"0": odd}} for odd in no_number),
    ]
    assert not any(sound(told, ["new", "good"], 2) for told in wrong)


def test_a_site_measures_only_models_that_the_rule_has() -> None:
    class Few:
        clients, rounds = 3, 9

    REPLAY.check(PanelRequest({"all/w": torch.ones(1), "2/w": torch.ones(1)}), 0, None, Few())  # type: ignore[arg-type]
    for job in (PANEL, CONFIRM):
        asked = PanelRequest({f"{name}/w": torch.ones(1) for name in ("new", "good", "hushed", "before")})
        job.check(asked, 8, None, Few())  # type: ignore[arg-type]
        with pytest.raises(Refusal, match="names models that the rule does not have"):
            job.check(asked, 7, None, Few())  # type: ignore[arg-type]
    for job, name in ((PANEL, "2"), (REPLAY, "3")):
        with pytest.raises(Refusal, match="names models that the rule does not have"):
            job.check(PanelRequest({f"{name}/w": torch.ones(1)}), 0, None, Few())  # type: ignore[arg-type]
