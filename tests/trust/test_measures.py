"""What witnesses measure, of many at once: the same as of each alone, and numbers by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.context import Bench
from holdfast.core.types import Tensors, Update, pack
from holdfast.data.task import Samples, joined
from holdfast.models.networks import fill
from holdfast.trust.consensus import weighted_median
from holdfast.trust.jury import clipped
from holdfast.trust.measures import (
    SumOfValues,
    all_cosines,
    ask_for_help,
    each_gradient,
    each_output,
    help_of,
    mean_of_chances,
    mean_of_logs,
    only_linear,
    some_of,
)
from holdfast.trust.panel import PanelRequest, all_class_scores, digest_scores


class Own(nn.Module):
    """A user's network, which uses one layer twice: its weights' gradients are no product of one layer's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(self.twice(self.twice(x).relu()))
        return output


def layered() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 3))


def frozen() -> nn.Module:
    model = layered()
    next(model.parameters()).requires_grad_(False)
    return model


def repeated() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(4, 3))


def in_place() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))


def shared() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    return model


def hooked() -> nn.Module:
    model = layered()
    model.register_forward_pre_hook(lambda _, inputs: (3 * inputs[0],))
    return model


def normed() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3))


class Tempered(nn.Module):
    """A learnt temperature: a weight that is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.temperature = nn.Linear(4, 3), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x) / self.temperature
        return output


MODELS: dict[str, Callable[[], nn.Module]] = {
    "layered": layered, "frozen": frozen, "repeated": repeated, "own": Own, "in place": in_place, "shared": shared,
    "hooked": hooked, "normed": normed, "tempered": Tempered,
}  # fmt: skip


def some_parts(soft: bool) -> list[Samples]:
    chance = torch.Generator().manual_seed(0)
    found = []
    for count in (5, 1, 30):
        labels = torch.randint(3, (count,), generator=chance)
        one_hot = nn.functional.one_hot(labels, 3).float()
        found.append(Samples((torch.randn(count, 4, generator=chance),), one_hot if soft else labels))
    return found


def test_gradients_of_parts_by_hand() -> None:
    """The value is the sum of the outputs, so the gradient over each row of weights is the sum of what was read."""

    def summed(output: Tensor, labels: Tensor, sizes: Sequence[int]) -> Tensor:
        return output.sum()

    parts = [Samples((torch.tensor(rows),), torch.zeros(len(rows))) for rows in ([[1.0], [2.0]], [[5.0]])]
    found = each_gradient(nn.Sequential(nn.Linear(1, 2)), parts, summed)
    assert found["0.weight"].tolist() == [[[3.0], [3.0]], [[5.0], [5.0]]]
    assert found["0.bias"].tolist() == [[2.0, 2.0], [1.0, 1.0]]


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("value", [mean_of_chances, mean_of_logs])
def test_gradients_of_all_witnesses_are_those_of_each_alone(name: str, soft: bool, value: SumOfValues) -> None:
    model, parts = MODELS[name](), some_parts(soft)
    assert only_linear(model) == (name == "layered")
    found = each_gradient(model, parts, value)
    assert list(found) == [weight for weight, _ in model.named_parameters()]
    for place, part in enumerate(parts):
        for weight, alone in each_gradient(model, [part], value).items():
            assert torch.allclose(found[weight][place], alone[0], atol=1e-6)
    assert all(weight.grad is None for weight in model.parameters())


LABELS = torch.tensor([0, 2, 0, 0, 2, 2, 0, 0, 0])
TWO = Samples((torch.randn(9, 2, generator=torch.Generator().manual_seed(1)),), LABELS)


@pytest.mark.parametrize("value", [mean_of_chances, mean_of_logs])
def test_the_gradient_of_help_by_differences(value: SumOfValues) -> None:
    """Of three classes the witness holds two: p is among these, and each of the two counts alike."""
    model = nn.Linear(2, 3)
    found = each_gradient(model, [TWO], value)

    def score() -> float:
        with torch.no_grad():
            p = model.double()(TWO.inputs[0].double())[:, [0, 2]].softmax(1)
            means = [float(p[TWO.labels == c, c // 2].mean()) for c in (0, 2)]
        return sum(math.log(mean) if value is mean_of_logs else mean for mean in means) / 2

    for name, weight in model.named_parameters():
        for place in range(weight.numel()):
            ends = []
            for step in (1e-4, -2e-4):
                weight.data.view(-1)[place] += step
                ends.append(score())
            weight.data.view(-1)[place] += 1e-4
            assert float(found[name][0].view(-1)[place]) == pytest.approx((ends[0] - ends[1]) / 2e-4, abs=1e-4)
    assert found["bias"][0][1] == 0, "the class that it does not hold"


@pytest.mark.parametrize("value", [mean_of_chances, mean_of_logs])
def test_who_holds_one_class_only_has_no_gradient(value: SumOfValues) -> None:
    found = each_gradient(nn.Linear(2, 3), [Samples((torch.eye(2),), torch.tensor([1, 1]))], value)
    assert all(float(stack.abs().sum()) == 0 for stack in found.values())


def test_a_class_that_the_model_does_not_know_is_heard_where_there_are_many_members() -> None:
    """p of class 1 is e^-200, for which single precision has no number: by the mean nobody can help it, or harm it."""
    model = nn.Linear(1, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.0, -200.0, 0.0]))
    records = Samples((torch.zeros(3, 1),), torch.tensor([0, 1, 2]))
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    raised = [Update(i, {"weight": torch.zeros(3, 1), "bias": torch.tensor([0, 1.0 - i, 0])}, 1, 1) for i in range(3)]
    quiet = [Update(i, {"weight": torch.zeros(3, 1), "bias": torch.tensor([1.0, 0, -1.0])}, 1, 1) for i in range(3, 7)]
    many = help_of(model, records, ask_for_help(weights, {}, raised + quiet), range(3))
    few = help_of(model, records, ask_for_help(weights, {}, raised), range(3))
    assert many["0"] > 0.8 > many["1"] == 0.5 > 0.2 > many["2"]
    assert few == pytest.approx({"0": 0.5, "1": 0.5, "2": 0.5})


def test_half_way_the_shares_sum_to_what_the_round_gains_up_to_the_third_order() -> None:
    """sum_i <g, a_i delta_i> = a <g, d>, d the average: held against f(w + d) - f(w), for d and for half of d."""
    torch.manual_seed(3)
    model = layered().double()
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    samples = Samples((torch.randn(8, 4, dtype=torch.float64),), torch.arange(8) % 3)
    way = {name: 0.3 * torch.randn_like(weight) for name, weight in start.items()}

    def at(part: float) -> Tensors:
        return {name: weight + part * way[name] for name, weight in start.items()}

    def value(part: float) -> float:
        fill(model, at(part), {})
        return float(mean_of_logs(model(*samples.inputs), samples.labels, [8]))

    def shares(whole: float, place: float) -> float:
        fill(model, at(place), {})
        slopes = each_gradient(model, [samples], mean_of_logs)
        return sum(float((slopes[name][0] * whole * way[name]).sum()) for name in way)

    missed = [abs(value(whole) - value(0) - shares(whole, whole / 2)) for whole in (1.0, 0.5)]
    assert 6 < missed[0] / missed[1] < 11  # eight, of third order
    assert missed[0] < abs(value(1.0) - value(0) - shares(1.0, 1.0)) / 3  # at the end of the way


def test_who_has_a_part_in_an_average_that_goes_a_little_too_far_has_helped() -> None:
    """By hand: p depends on one bias b alone, f = the mean of log p and log(1 - p) is best at b = 0, and a round goes
    from b = -2 to b = 1: it gains, though at its end the way on leads down. Half way, at -1/2, it leads up."""
    model = nn.Linear(1, 2)
    records = Samples((torch.zeros(2, 1),), torch.tensor([0, 1]))
    updates = [Update(i, {"weight": torch.zeros(2, 1), "bias": torch.tensor([3.0, 0.0])}, 1, 1) for i in range(7)]

    def told(b: float) -> float:
        weights = {"weight": torch.zeros(2, 1), "bias": torch.tensor([b, 0.0])}
        return help_of(model, records, ask_for_help(weights, {}, updates), [0])["0"]

    side = 0.5 / math.sqrt(2)  # of the cosine: the gradient is along (1, -1)
    assert (told(1.0), told(-0.5)) == (pytest.approx(0.5 - side), pytest.approx(0.5 + side))


@pytest.mark.parametrize("name", MODELS)
def test_outputs_with_stacked_weights_are_those_of_each_network(name: str) -> None:
    model, [samples, *_] = MODELS[name](), some_parts(soft=False)
    weights: Tensors = {
        n: torch.stack([weight.detach() * k for k in (1, -2)]) for n, weight in model.named_parameters()
    }
    found = each_output(model, weights, samples)
    for place in range(2):
        fill(model, {n: stack[place] for n, stack in weights.items()}, {})
        with torch.no_grad():
            assert torch.allclose(found[place], model(*samples.inputs), atol=1e-6)


def test_several_owners_samples_one_after_the_other() -> None:
    pictures = [Samples((torch.full((n, 1, 1, 1), 51 * n).byte(),), torch.full((n,), n)) for n in (1, 2)]
    [inputs], labels = joined(pictures)
    assert (inputs.flatten().tolist(), labels.tolist()) == (pytest.approx([0.2, 0.4, 0.4]), [1, 2, 2])


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.lists(st.sampled_from([-1.0, 0.0, 3.0, np.nan]), min_size=3)
        ),
        max_size=6,
    )
)
def test_a_weighted_median_leaves_out_who_says_nothing_or_has_no_weight(said: list[tuple[float, list[float]]]) -> None:
    values = np.array([row[:3] for _, row in said]).reshape(-1, 3)
    weights = np.array([weight for weight, _ in said])
    expected = []
    for column in values.T:
        heard = sorted((v, w) for v, w in zip(column, weights, strict=True) if w > 0 and not np.isnan(v))
        sums = np.cumsum([w for _, w in heard])
        expected.append(next((v for (v, _), s in zip(heard, sums, strict=True) if 2 * s >= sums[-1]), 0.0))
    assert weighted_median(values, weights).tolist() == expected


def test_the_inner_products_are_those_of_the_clipped_updates() -> None:
    """Lengths 5, 5, 50: the median is 5 and the bound 20, so that the last one is shortened to (12, 16)."""
    rows = [[3.0, 4.0], [0.0, 5.0], [30.0, 40.0]]
    _, kept, products, _ = clipped([Update(i, {"w": torch.tensor(row)}, 1, 1) for i, row in enumerate(rows)])
    assert kept[2].tolist() == pytest.approx([12, 16])
    assert products.flatten().tolist() == pytest.approx([25, 20, 100, 20, 25, 80, 100, 80, 400])


class Counted(nn.Linear):
    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(x)


def test_the_moderator_scores_no_model_twice_on_the_same_digests() -> None:
    model, held = Counted(4, 3, bias=False), dict(enumerate(some_parts(soft=True)))
    bench = Bench(model=model)
    a, b, c = (torch.randn(3, 4) for _ in range(3))

    def asked(new: Tensor, good: Tensor) -> PanelRequest:
        return PanelRequest(pack(new={"weight": new}, good={"weight": good}))

    digest_scores(bench, held, asked(b, a), most=20)
    assert model.passes == 2
    found = digest_scores(bench, held, asked(c, b), most=20)  # the new one has become the good one
    assert model.passes == 3
    some = {holder: some_of(samples, 20) for holder, samples in held.items()}
    assert found == all_class_scores(nn.Linear(4, 3, bias=False), some, asked(c, b))
    changed = {**held, 1: Samples((held[1].inputs[0].clone(),), held[1].labels)}
    assert digest_scores(bench, changed, asked(c, b), most=20) == found
    assert model.passes == 5, "of other samples nothing is known"


def test_a_norm_of_the_rows_that_come_together_keeps_parts_apart() -> None:
    norm = nn.BatchNorm1d(4, affine=False, track_running_stats=False)
    assert only_linear(nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 3)))
    assert not only_linear(nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 3)))


def test_a_weight_that_is_one_number_has_a_cosine_too() -> None:
    """Updates along the temperature alone and along the layer alone; the gradient is (3, 4): cosines 0.6 and 0.8."""
    updates = [
        Update(i, {"t": torch.tensor(t), "w": torch.tensor([w])}, 1, 1)
        for i, (t, w) in enumerate([(2.0, 0.0), (0.0, 5.0)])
    ]
    asked = ask_for_help({"t": torch.tensor(1.0), "w": torch.ones(1)}, {}, updates)
    found = all_cosines({"t": torch.tensor([3.0]), "w": torch.tensor([[4.0]])}, asked.units)
    assert found.tolist() == [pytest.approx([0.6, 0.8])]
