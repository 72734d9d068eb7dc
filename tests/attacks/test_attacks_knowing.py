"""Adversaries that know the rule: what they send, by hand."""

from __future__ import annotations

import pytest
import torch

from holdfast.attacks import Sight, awake, choose_attack, tamper_updates
from holdfast.attacks.data import Backdoor, drawn
from holdfast.attacks.knowing import ClassPush, DeadUnits, LoudFlip
from holdfast.core.config import Choice
from holdfast.core.errors import HoldfastError
from holdfast.core.tensors import norm_of

DELTA = {
    "0.weight": torch.zeros(2, 3), "0.bias": torch.zeros(2), "2.weight": torch.tensor([[3.0, 0], [0, 4]]),
    "2.bias": torch.zeros(2),
}  # fmt: skip


def test_in_every_second_round_after_some() -> None:
    attack = choose_attack(Choice.parse("signflip:since=1,every=2,until=6", "attack"))
    assert [round for round in range(8) if awake(attack, round, "update")] == [1, 3, 5]
    with pytest.raises(HoldfastError, match="every, the rounds from one attack to the next, must be at least 1"):
        choose_attack(Choice.parse("signflip:every=0", "attack"))


def test_a_loud_flip_is_as_long_as_told() -> None:
    honest = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])  # median length 2
    sent = LoudFlip(length=4).tamper(Sight(torch.tensor([[0.3, 0.4]]), honest, torch.zeros(2), torch.Generator()))
    assert torch.allclose(sent, torch.tensor([[-4.8, -6.4]]))


def test_dead_units_lower_hidden_biases_and_nothing_else() -> None:
    [sent] = tamper_updates(DeadUnits(length=4), [DELTA], [], DELTA, torch.Generator())
    assert torch.allclose(sent["0.bias"], torch.full((2,), -20 / 2**0.5))  # the honest update is 5 long
    assert all(torch.equal(sent[name], DELTA[name]) for name in DELTA if name != "0.bias")
    with pytest.raises(HoldfastError, match="no hidden layer with biases"):
        DeadUnits().rewrite({"w.weight": torch.ones(2, 2), "w.bias": torch.ones(2)}, {}, torch.Generator())


def test_a_push_lowers_one_class_alone() -> None:
    [sent] = tamper_updates(ClassPush(target=1, length=1), [DELTA], [], DELTA, torch.Generator())
    assert torch.equal(sent["2.weight"][0], DELTA["2.weight"][0])
    assert sent["2.bias"].tolist() == pytest.approx([0, -5 / 3**0.5])
    assert norm_of({name: sent[name] - DELTA[name] for name in DELTA}) == pytest.approx(5)
    with pytest.raises(HoldfastError, match="no output for class 7"):
        ClassPush(target=7).rewrite(DELTA, DELTA, torch.Generator())


@pytest.mark.parametrize("shape", ["square", "dark", "stripe", "blend", "invert", "wave", "corner"])
def test_stamps_stay_within_an_image_and_change_it(shape: str) -> None:
    images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    stamped = drawn(images, shape, 3)
    assert stamped.min() >= 0
    assert stamped.max() <= 1
    assert (stamped != images).any()
    as_bytes = Backdoor(shape=shape).stamp((images * 255).byte())  # type: ignore[arg-type]
    assert as_bytes.dtype == torch.uint8


def test_stamps_for_tables_and_series_and_what_they_do_not_fit() -> None:
    records, series = torch.zeros(2, 5), torch.randn(2, 3, 48, generator=torch.Generator().manual_seed(0))
    assert Backdoor(shape="column").stamp(records).tolist() == [[0, 0, 1, 1, 1]] * 2
    tone = Backdoor(shape="tone").stamp(series) - series
    assert tone.std(2, correction=0) == pytest.approx(0.5 * 0.5**0.5 * series.std(2, correction=0), rel=1e-5)
    assert tone.mean(2).abs().max() < 1e-6
    with pytest.raises(HoldfastError, match=r"needs series as \(N, channels, steps\), got shape \(2, 5\)"):
        Backdoor(shape="tone").stamp(records)
    with pytest.raises(HoldfastError, match="needs records of a table"):
        Backdoor(shape="column", size=6).stamp(records)
