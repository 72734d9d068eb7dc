"""Local steps, gradients in parts, groups of weights, first weights: by hand, against torch, and refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_helpers import experiment
from safetensors.torch import save_file
from torch import nn

from holdfast.cli.checking import facts_of
from holdfast.core.errors import HoldfastError
from holdfast.core.types import Reply
from holdfast.core.validate import Sizes, validate
from holdfast.data.losses import Smoothed
from holdfast.data.task import Samples
from holdfast.learning.loop import train
from holdfast.learning.objective import TaskLoss
from holdfast.learning.settings import Learning
from holdfast.play import run
from holdfast.privacy.dp_sgd import plan_steps
from holdfast.privacy.dp_steps import Noisy
from holdfast.privacy.noise import seeded
from holdfast.runs.build import make_plan

SAMPLES = Samples((torch.randn(10, 4, generator=torch.Generator().manual_seed(1)),), torch.arange(10) % 3)
PLAIN = Learning(batch_size=4, lr=0.1, momentum=0.0)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def trained(model: nn.Module, learning: Learning, **more: Any) -> tuple[int, float]:
    return train(model, SAMPLES, learning, torch.Generator().manual_seed(5), TaskLoss(), **more)


def test_local_steps_are_that_many_in_the_order_of_epochs() -> None:
    """Ten samples make batches of 4, 4, 2: eight steps are two epochs and two steps, here of one weight that counts."""

    def count(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return output.sum() / 4

    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    ones = Samples((torch.ones(10, 4),), torch.zeros(10))
    learning = replace(PLAIN, lr=1.0, local_steps=8)
    steps, _ = train(model, ones, learning, torch.Generator(), TaskLoss(count))
    assert steps == 8 == learning.steps(10) == learning.steps(10**6)
    torch.testing.assert_close(model.weight.detach(), torch.full((1, 4), -(1 + 1 + 0.5) * 2 - 2.0))
    both = [network(), network()]
    assert trained(both[0], replace(PLAIN, local_steps=6)) == trained(both[1], replace(PLAIN, epochs=2))
    assert all(map(torch.equal, both[0].parameters(), both[1].parameters()))


def test_protected_local_steps_are_those_that_are_accounted_for() -> None:
    learning = replace(PLAIN, local_steps=7)
    noisy = Noisy(clip=1.0, multiplier=1.0, rate=0.4, expected=4, source=seeded(0))
    steps, loss = train(nn.Linear(4, 3), SAMPLES, learning, torch.Generator(), TaskLoss(), gradients=noisy)
    assert (steps, loss) == (7, 0.0)
    assert plan_steps(10, learning) == (0.4, 7)


def test_gradients_in_parts_are_those_of_the_batch() -> None:
    whole, parts = nn.Linear(4, 3), nn.Linear(4, 3)
    parts.load_state_dict(whole.state_dict())
    ours = [trained(model, replace(PLAIN, accumulate=k)) for model, k in ((whole, 1), (parts, 2))]
    assert ours[0][0] == ours[1][0] == 3
    assert ours[0][1] == pytest.approx(ours[1][1], rel=1e-6)
    torch.testing.assert_close(whole.weight, parts.weight, rtol=1e-6, atol=1e-7)


def test_groups_are_torchs_parameter_groups_and_frozen_ones_stay() -> None:
    """The last layer learns at half the rate; the first one and its norm, statistics too, do not move at all."""
    ours, theirs = network(), network()
    first = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    trained(ours, replace(PLAIN, batch_size=10, momentum=0.9, epochs=3, weight_decay=0.3,
                           groups=(("2.bias", 0.5, 0.0), ("2.*", 0.5), ("*", 0.0))))  # fmt: skip
    theirs[:2].eval()
    spared = {"params": [theirs[2].bias], "weight_decay": 0.0}
    oracle = torch.optim.SGD([{"params": [theirs[2].weight], "weight_decay": 0.3}, spared], lr=0.05, momentum=0.9)
    for _ in range(3):
        oracle.zero_grad()
        nn.functional.cross_entropy(theirs(SAMPLES.inputs[0]), SAMPLES.labels).backward()
        oracle.step()
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(tensor, theirs.state_dict()[name], rtol=1e-5, atol=1e-6)
        assert torch.equal(tensor, first[name]) == (not name.startswith("2."))
    assert all(weight.requires_grad for weight in ours.parameters())
    noisy = Noisy(clip=1.0, multiplier=1.0, rate=1.0, expected=4, source=seeded(0))
    linear = nn.Linear(4, 3)
    bias = linear.bias.detach().clone()
    trained(linear, replace(PLAIN, groups=(("bias", 0.0),)), gradients=noisy)
    assert torch.equal(linear.bias, bias)


def test_an_update_that_moves_a_frozen_weight_is_refused() -> None:
    expected = {"delta": {"a": torch.zeros(2), "b": torch.zeros(1)}}
    replies = [
        Reply(0, {"delta/a": torch.zeros(2), "delta/b": torch.ones(1)}, {"samples": 4, "steps": 1}),
        Reply(1, {"delta/a": torch.tensor([0.0, 1e-9]), "delta/b": torch.ones(1)}, {"samples": 4, "steps": 1}),
    ]
    updates, refused, _ = validate(replies, expected, {}, None, Sizes(), lambda samples: 1, ["a"])
    assert [update.client for update in updates] == [0]
    assert refused == {1: "delta/a moves a frozen weight"}


def test_label_smoothing_by_hand() -> None:
    """p = 1/2, 1/4, 1/4, s = 0.3. Truth 0: 0.8 log 2 + 0.2 log 4 = 1.2 log 2; truth half and half: .45, .45, .1."""
    output = torch.tensor([[math.log(2.0), 0.0, 0.0]])
    assert float(Smoothed(0.3)(output, torch.tensor([0]))) == pytest.approx(1.2 * math.log(2))
    soft = Smoothed(0.3)(output, torch.tensor([[0.5, 0.5, 0.0]]))
    assert float(soft) == pytest.approx(0.45 * math.log(2) + 0.55 * math.log(4))
    with pytest.raises(ValueError, match="smoothing must be in"):
        Smoothed(1.0)


def test_a_run_starts_from_a_file_and_moves_only_what_learns(tmp_path: Path) -> None:
    first = make_plan(experiment()).first_state().model
    names = list(first)
    save_file({names[0]: torch.full_like(first[names[0]], 0.01)}, tmp_path / "w.safetensors")
    keys = {"start": str(tmp_path / "w.safetensors"), "groups": (f"{names[0]}:0",), "rounds": 1, "local_steps": 2}
    history = run(experiment(**keys, loss="smoothed:0.1", algorithm="fedprox:0.1", server_optimizer="adam"))
    assert history.state is not None
    assert torch.equal(history.state.model[names[0]], torch.full_like(first[names[0]], 0.01))
    assert not torch.equal(history.state.model[names[-1]], first[names[-1]])
    assert not history.records[0].refused


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"local_steps": 3, "epochs": 2}, "local_steps stand in place of epochs"),
        ({"accumulate": 3, "batch_size": 32}, "accumulate: 3 parts must divide batch_size 32"),
        ({"accumulate": 2, "protect": "dp-sgd:epsilon=8"}, "accumulate: protected gradients"),
        ({"groups": ("nothing*:0",)}, "groups: no weight is left for 'nothing*'; the model has"),
        ({"groups": ("*:0",)}, "groups: every weight is frozen"),
        ({"groups": ("*:fast",)}, "expected a number, got 'fast'"),
        ({"groups": ("*",)}, "groups"),
        ({"groups": ("*:1:0:1",)}, "groups: expected 'pattern:factor'"),
        ({"groups": ("*:0.5",), "algorithm": "scaffold"}, "groups: scaffold needs one lr"),
        ({"loss": "smoothed:2"}, "smoothing must be in [0, 1)"),
    ],
)
def test_what_cannot_work_is_one_sentence_before_round_1(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(HoldfastError) as error:
        make_plan(experiment(**keys))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        (None, "start: cannot read"),
        ({}, "holds no weights"),
        ({"conv9.weight": torch.zeros(1)}, "start: the model has no 'conv9.weight'"),
        ("first", "does not fit the model"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, tensors: Any, says: str) -> None:
    path = tmp_path / "w.safetensors"
    plan = make_plan(experiment(start=str(path)))
    if tensors is not None:
        save_file({next(iter(plan.first_state().model)): torch.zeros(1)} if tensors == "first" else tensors, path)
    with pytest.raises(HoldfastError, match=says):
        plan.start()


@pytest.mark.parametrize("able", [True, False])
def test_check_says_where_bfloat16_gains_nothing(able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: able)
    facts = dict(facts_of(make_plan(experiment(precision="bfloat16", device="cpu"))))
    assert ("gains nothing on this CPU" in facts.get("precision", "")) != able
    assert "precision" not in dict(facts_of(make_plan(experiment(device="cpu"))))
