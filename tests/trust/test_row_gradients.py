"""Sums of records' gradients are those that autograd finds record by record, and so is what a search tells of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from holdfast.core.types import Update
from holdfast.data.task import Samples
from holdfast.models.networks import Cnn, Scale
from holdfast.trust import backdoor_probe
from holdfast.trust.backdoor_probe import Records, innocence_of, search
from holdfast.trust.measures import ask_for_help, each_gradient, mean_of_logs, only_linear
from holdfast.trust.row_gradients import AT_A_TIME, knows_rows, sums_of_gradients
from holdfast.trust.shifts import odds, what_is_read

PICTURE = (1, 8, 8)
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "one layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
    "layers": lambda: nn.Sequential(
        nn.Flatten(), Scale(2.0), nn.Linear(64, 6, bias=False), nn.Dropout(), nn.GELU(), nn.Linear(6, 3)
    ),
    "rows in a record": lambda: nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3)),
    "cnn": lambda: Cnn(width=8, hidden=12).build(PICTURE, 3, ()),
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(1, 3, (3, 2), stride=(2, 1), padding=1, dilation=(1, 2), bias=False), nn.AvgPool2d(2), nn.ReLU(),
        nn.GroupNorm(1, 3, affine=False), nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3),
    ),
}  # fmt: skip


class Twice(nn.Module):
    """One layer's weights are used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(self.layer(x.flatten(1)).relu())[:, :3]
        return found


def reused() -> nn.Module:
    act = nn.ReLU()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), act, nn.Linear(8, 8), act, nn.Linear(8, 3))


def hooked() -> nn.Module:
    model = NETWORKS["layers"]()
    model.get_submodule("2").register_forward_hook(lambda layer, given, said: 2 * said)
    return model


def shared() -> nn.Module:
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.Linear(64, 3))


def normed() -> nn.Module:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(64, 3))
    return nn.Sequential(nn.Flatten(), layer)


def frozen() -> nn.Module:
    model = NETWORKS["layers"]()
    model.get_submodule("2").requires_grad_(False)
    return model


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "overwritten": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)),
    "used twice": Twice,
    "a function twice": reused,
    "hooks": hooked,
    "shared weights": shared,
    "weights made of others": normed,
    "weights that stand still": frozen,
    "a norm of many records": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
}  # fmt: skip


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return build().eval()


def drawn(count: int) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(4)
    return torch.randn(count, *PICTURE, generator=chance), torch.arange(count) % 3


def each_alone(model: nn.Module, inputs: Tensor, labels: Tensor) -> list[Tensor]:
    """By autograd, a record at a time: rows of all weights."""
    found = []
    for x, label in zip(inputs, labels, strict=True):
        value = odds(model(x[None]), label[None]).sum()
        found.append(torch.cat([one.flatten() for one in torch.autograd.grad(value, list(model.parameters()))]))
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_sums_are_those_of_each_record_alone(name: str) -> None:
    model, (inputs, labels) = seeded(NETWORKS[name]), drawn(AT_A_TIME + 3)
    assert knows_rows(model)
    sums = torch.randn(4, len(inputs), generator=torch.Generator().manual_seed(5)) * (torch.arange(len(inputs)) % 3 > 0)
    expected = sums @ torch.stack(each_alone(model, inputs, labels))
    found = sums_of_gradients(model, inputs, labels, odds, sums)
    products, most = found.products()
    assert torch.allclose(products, expected @ expected.T, rtol=1e-4, atol=1e-4)
    assert bool((most > 0.999 * expected.norm(dim=1)).all())
    shares = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.5, -2.0, 0.0, 1.0]])
    stacks = found.combined(shares)
    assert {n: stack.shape[1:] for n, stack in stacks.items()} == {n: w.shape for n, w in model.named_parameters()}
    rows = torch.cat([stacks[n].flatten(1) for n, _ in model.named_parameters()], 1)
    assert torch.allclose(rows, shares @ expected, rtol=1e-4, atol=1e-5)
    assert all(weight.grad is None for weight in model.parameters())


def test_sums_where_what_a_layer_reads_of_the_last_records_is_shifted() -> None:
    model, (inputs, labels) = seeded(NETWORKS["cnn"]), drawn(5)
    assert isinstance(model, nn.Sequential)
    layer = next(one for one in model if isinstance(one, nn.Linear))
    shifts = torch.randn(2, layer.in_features, generator=torch.Generator().manual_seed(5))
    found = sums_of_gradients(model, inputs, labels, odds, torch.eye(5), (layer, shifts)).combined(torch.eye(5))
    for place in range(5):
        shift = shifts[place - 3] if place >= 3 else torch.zeros(layer.in_features)
        hook = layer.register_forward_pre_hook(lambda layer, given, shift=shift: (given[0] + shift,))
        [expected] = each_alone(model, inputs[[place]], labels[[place]])
        hook.remove()
        own = torch.cat([found[n][place].flatten() for n, _ in model.named_parameters()])
        assert torch.allclose(own, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_go_record_by_record(name: str) -> None:
    model, (inputs, labels) = seeded(OTHERS[name]), drawn(6)
    assert not knows_rows(model)
    parts = [Samples((inputs[:4],), labels[:4]), Samples((inputs[4:],), labels[4:])]
    together = each_gradient(model, parts, mean_of_logs)
    for place, part in enumerate(parts):
        for weight, alone in each_gradient(model, [part], mean_of_logs).items():
            assert torch.allclose(together[weight][place], alone[0], atol=1e-6)


def test_which_convolutions_are_known() -> None:
    assert knows_rows(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1)))
    for settings in ({"groups": 2}, {"padding": "same"}, {"padding": 1, "padding_mode": "reflect"}):
        assert not knows_rows(nn.Sequential(nn.Conv2d(2, 2, 3, **settings)))  # type: ignore[arg-type]
    assert not only_linear(seeded(NETWORKS["cnn"]))


def told(model: nn.Module, count: int = 40) -> dict[str, float]:
    """What a witness says of nine members, one of whom moves the odds of a class where no records lie."""
    inputs, labels = drawn(count)
    inputs[:, :, 4:] = 0
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    chance = torch.Generator().manual_seed(6)
    updates = [
        Update(i, {n: torch.randn(w.shape, generator=chance) / 9 for n, w in weights.items()}, 1, 1) for i in range(9)
    ]
    asked = ask_for_help(weights, buffers, updates)
    nobody = Samples((inputs[:0],), labels[:0])
    return innocence_of(model, Samples((inputs,), labels), nobody, asked, range(9))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_witness_says_the_same_either_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build = NETWORKS[name]
    fast = told(seeded(build))
    assert len({round(value, 3) for value in fast.values()}) > 3
    monkeypatch.setattr(backdoor_probe, "knows_rows", lambda model: False)
    assert told(seeded(build)) == pytest.approx(fast, rel=1e-4, abs=1e-5)


def test_a_witness_says_the_same_of_networks_that_compute_the_same() -> None:
    def layers(overwrite: bool = False) -> nn.Sequential:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(inplace=overwrite), nn.Linear(8, 3))

    plain = seeded(layers)
    assert knows_rows(plain)
    expected = list(told(plain).values())
    for build in (lambda: layers(overwrite=True), lambda: nn.Sequential(layers())):
        assert not knows_rows(seeded(build))
        assert list(told(seeded(build)).values()) == pytest.approx(expected, abs=1e-5)


def test_a_shift_that_changes_nothing_blames_nobody() -> None:
    """All hidden units are off: no shift is uphill, and what is left is no more than rounding, of which none has a
    part."""
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)))
    with torch.no_grad():
        model.get_parameter("1.weight").zero_()
        model.get_parameter("1.bias").fill_(-1e6)
    assert set(told(model).values()) == {1.0}


def test_what_comes_after_a_layer_finds_the_same_shifts_as_the_whole_network() -> None:
    model, (inputs, labels) = seeded(NETWORKS["cnn"]), drawn(9)
    records, within = Records((inputs,), labels), nn.Sequential(model)
    sets = {c: records.of_others(c) for c in range(3)}
    (_, rest), (_, whole) = what_is_read(model, records.inputs), what_is_read(within, records.inputs)
    assert rest.rest is not None
    assert whole.rest is None
    assert torch.allclose(search(model, records, sets, rest), search(within, records, sets, whole), atol=1e-5)
