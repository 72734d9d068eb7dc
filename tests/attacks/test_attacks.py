"""Attacks on updates: numbers derived by hand, and the inequalities that define them."""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from engine_helpers import experiment
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from holdfast.attacks import ATTACKS, Sight, awake, tamper_updates
from holdfast.attacks.updates import ALittleIsEnough, InnerProduct, Mimic, MinMax, MinSum, RandomWeights
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.core.randomness import rng
from holdfast.play import run

HONEST = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 6.0]])  # mean (2, 2), deviation (sqrt(2/3), sqrt(8))
OWN = torch.tensor([[4.0, -2.0], [0.5, 1.0]])
MODEL = torch.tensor([10.0, -10.0])


def chosen(spec: str) -> Any:
    return choose(ATTACKS, Choice.parse(spec, "attack"), "attack")


def sight(own: Tensor = OWN, honest: Tensor = HONEST, model: Tensor = MODEL, previous: Tensor | None = None) -> Sight:
    return Sight(own, honest, model, rng(0, 1, -1, "attack"), previous)


def test_every_attack_can_be_chosen_and_says_what_it_is() -> None:
    methods = {"update": ("tamper", "rewrite"), "data": ("poison",), "tester": ("report",), "digest": ("spoil",)}
    for name, kind in ATTACKS.items():
        attack = chosen(name)
        assert isinstance(attack, kind)
        assert attack.kind
        for each in attack.kind:
            assert any(hasattr(attack, method) for method in methods[each]), (name, each)
        assert (attack.since, attack.until) == (0, None)
        with pytest.raises(dataclasses.FrozenInstanceError):
            attack.since = 3


def test_options_by_position_and_by_name() -> None:
    assert chosen("signflip:3").scale == 3
    assert chosen("scale:10").scale == 10
    assert chosen("backdoor:4").target == 4
    assert chosen("alie").z is None
    assert chosen("alie:1.5").z == 1.5
    assert chosen("minmax:sign").direction == "sign"
    assert chosen("signflip:scale=3,since=7") == ATTACKS["signflip"](3, since=7)
    with pytest.raises(HoldfastError, match="did you mean 'signflip'"):
        chosen("signflop")
    with pytest.raises(HoldfastError, match="has no option 'eps'"):
        chosen("ipm:eps=3")
    with pytest.raises(HoldfastError, match="scale must be above zero"):
        chosen("relayer:-1")
    with pytest.raises(HoldfastError, match=r"'mimic' takes only options by name \(since, until, every\), got '3'"):
        chosen("mimic:3")


def test_honest_then_hostile_then_honest_again() -> None:
    attack = chosen("liar:since=5,until=7")
    assert [awake(attack, t, "tester") for t in (0, 4, 5, 6, 7, 9)] == [False, False, True, True, False, False]
    assert awake(attack, 5, "update")
    assert not awake(attack, 5, "data")
    assert awake(chosen("liar:since=5"), 999, "tester")


@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_begins_before_the_first_round_or_ends_before_it_begins(name: str) -> None:
    with pytest.raises(HoldfastError, match=r"since, .* must not be negative, got -1"):
        chosen(f"{name}:since=-1")
    with pytest.raises(HoldfastError, match="until must be above since, got 3 and 3"):
        chosen(f"{name}:since=3,until=3")


@pytest.mark.parametrize("attack", ["signflip:since=1,until=2", "labelflip:since=1,until=2"])
def test_a_run_is_attacked_in_the_rounds_told_and_no_others(attack: str) -> None:
    """Up to the attack the run is the clean one; after it, it is another, and one more round of attack is a third."""
    clean, told, longer = (
        [record.loss for record in run(wanted).records]
        for wanted in (
            experiment(rounds=5),
            experiment(rounds=5, attack=attack, attackers=2),
            experiment(rounds=5, attack=attack.replace("until=2", "until=3"), attackers=2),
        )
    )
    poisoned = attack.startswith("labelflip")  # seen in the loss of that very round, a false update in the next one's
    assert told[:1] == clean[:1]
    assert (told[1] == clean[1]) == (not poisoned)
    assert told[2] != clean[2]
    assert (told[2] == longer[2]) == (not poisoned)
    assert told[3] != longer[3]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("signflip", [[-4.0, 2.0], [-0.5, -1.0]]),
        ("signflip:3", [[-12.0, 6.0], [-1.5, -3.0]]),
        ("scale:10", [[40.0, -20.0], [5.0, 10.0]]),
        ("ipm:0.5", [[-1.0, -1.0]] * 2),
        ("alie:1", [[2 + math.sqrt(2 / 3), 2 + math.sqrt(8)]] * 2),
        ("alie:-2", [[2 - 2 * math.sqrt(2 / 3), 2 - 2 * math.sqrt(8)]] * 2),
        ("freerider", [[0.0, 0.0]] * 2),
        ("freerider:previous", [[0.25, 0.5]] * 2),
        ("liar:honest", [[4.0, -2.0], [0.5, 1.0]]),
        ("colluder:update=signflip", [[-4.0, 2.0], [-0.5, -1.0]]),
        ("backdoor:boost=2", [[8.0, -4.0], [1.0, 2.0]]),
        ("mimic", [[2.0, 6.0]] * 2),
    ],
)
def test_numbers_by_hand(spec: str, expected: list[list[float]]) -> None:
    torch.testing.assert_close(chosen(spec).tamper(sight(previous=torch.tensor([0.25, 0.5]))), torch.tensor(expected))


def test_free_rider_sends_nothing_while_nothing_has_moved() -> None:
    assert not chosen("freerider:previous").tamper(sight()).any()


def test_random_weights_are_as_large_as_the_model_and_forget_it() -> None:
    model = torch.randn(20_000, generator=torch.Generator().manual_seed(1)) * 0.05
    own = torch.zeros(2, 20_000)
    sent = RandomWeights().tamper(sight(own, own[:0], model)) + model
    assert sent.std(1).tolist() == pytest.approx([0.05, 0.05], rel=0.03)
    assert abs(float(torch.corrcoef(torch.stack([sent[0], model]))[0, 1])) < 0.03
    assert abs(float(torch.corrcoef(sent)[0, 1])) < 0.03  # each hostile client draws its own
    from_zero = RandomWeights(2.0).tamper(sight(own + 0.1, own[:0], torch.zeros(20_000)))
    assert float(from_zero.std()) == pytest.approx(0.2, rel=0.03)


def test_noise_has_the_deviation_told_and_comes_from_the_generator() -> None:
    own = torch.zeros(3, 5_000)
    for spec, sd in (("gaussian:2", 2.0), ("freerider:manner=noise,sd=0.01", 0.01)):
        sent = chosen(spec).tamper(sight(own, own, own[0]))
        assert float(sent.std()) == pytest.approx(sd, rel=0.03)
        assert torch.equal(sent, chosen(spec).tamper(sight(own, own, own[0])))


def test_alie_z_by_hand() -> None:
    """n = 50, f = 24 (the paper's example): s = 26 - 24 = 2 supporters of 26 honest. n = 10, f = 2: s = 4 of 8."""
    assert ALittleIsEnough().reach(50, 24) == pytest.approx(NormalDist().inv_cdf(24 / 26))
    assert ALittleIsEnough().reach(10, 2) == pytest.approx(0.0)
    assert ALittleIsEnough().reach(11, 3) == pytest.approx(NormalDist().inv_cdf(5 / 8))
    with pytest.raises(HoldfastError, match=r"no z follows from 6 hostile clients of 10; say one, as in alie:1\.5\."):
        ALittleIsEnough().reach(10, 6)


def test_alie_leaves_enough_honest_clients_beyond_it() -> None:
    """With its s supporters beyond it the hostile value has a majority: it is the median or nearer to the mean."""
    honest = torch.randn(26, 4_000, generator=torch.Generator().manual_seed(2))
    sent = ALittleIsEnough().tamper(sight(honest[:24], honest, honest[0]))
    beyond = (honest >= sent[0]).float().sum(0).mean()
    assert float(beyond) == pytest.approx(2, abs=0.3)


@pytest.mark.parametrize(("epsilon", "turned"), [(1.4, False), (1.6, True)])
def test_ipm_turns_the_mean_exactly_when_epsilon_f_exceeds_the_honest(epsilon: float, turned: bool) -> None:
    """3 honest, 2 hostile: the mean of all is (3 - 2 epsilon)/5 of the honest mean, negative from epsilon 1.5 on."""
    everyone = torch.cat([HONEST, InnerProduct(epsilon).tamper(sight())]).mean(0)
    assert (float(everyone @ HONEST.mean(0)) < 0) == turned
    torch.testing.assert_close(everyone, HONEST.mean(0) * (3 - 2 * epsilon) / 5)


def test_mimic_by_singular_vectors() -> None:
    honest = torch.randn(9, 30, generator=torch.Generator().manual_seed(3))
    z = torch.linalg.svd(honest - honest.mean(0)).Vh[0]
    assert torch.equal(Mimic().tamper(sight(honest[:2], honest, honest[0]))[1], honest[(honest @ z).abs().argmax()])


def test_min_max_and_min_sum_by_hand() -> None:
    """Honest -1 and 1: mean 0, p = -1. Farthest pair 2, so |gamma + 1| <= 2: 1. Sums: 2 (gamma^2 + 1) <= 4: 1."""
    honest = torch.tensor([[-1.0], [1.0]])
    assert MinMax().tamper(sight(honest, honest, honest[0])).tolist() == [[-1.0], [-1.0]]
    assert MinSum().tamper(sight(honest, honest, honest[0])).tolist() == [[-1.0], [-1.0]]
    skewed = torch.tensor([[0.0], [0.0], [3.0]])  # mean 1; |1 - g - 3| <= 3: g = 1; sums: 3 g^2 + 6 <= 18: g = 2
    torch.testing.assert_close(MinMax("sign").tamper(sight(skewed, skewed, skewed[0]))[0], torch.tensor([0.0]))
    torch.testing.assert_close(MinSum("unit").tamper(sight(skewed, skewed, skewed[0]))[0], torch.tensor([-1.0]))


honest_rows = st.tuples(st.integers(2, 7), st.integers(1, 6)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=st.integers(-64, 64).map(lambda value: value / 16))
)


@pytest.mark.parametrize("direction", ["std", "unit", "sign"])
@given(rows=honest_rows)
@settings(max_examples=60)
def test_min_max_and_min_sum_reach_their_bound_and_stay_within(direction: Any, rows: np.ndarray) -> None:
    honest = torch.tensor(rows)
    exact = honest.double()
    pairs = (exact[:, None] - exact[None]).square().sum(2)
    mean = exact.mean(0)
    for attack, most, bound in (
        (MinMax(direction), torch.max, pairs.max()),
        (MinSum(direction), torch.sum, pairs.sum(1).max()),
    ):
        sent = attack.tamper(sight(honest[:1], honest, honest[0]))[0].double()
        reached = float(most((sent - exact).square().sum(1)))
        assert reached <= float(bound) * (1 + 1e-4) + 1e-6
        if not torch.allclose(sent, mean, atol=1e-6):  # it moved: then as far as it may
            assert reached >= float(bound) * (1 - 1e-3) - 1e-6


@pytest.mark.parametrize("name", [name for name, kind in ATTACKS.items() if getattr(kind, "omniscient", False)])
def test_omniscient_attacks_send_their_own_where_there_is_no_honest_client(name: str) -> None:
    own = [{"w": row} for row in OWN]
    sent = tamper_updates(chosen(name), own, [], {"w": MODEL}, rng(0, 0, 0, "attack"))
    assert torch.equal(torch.stack([delta["w"] for delta in sent]), OWN)
    one_left = tamper_updates(chosen(name), own, [{"w": HONEST[0]}], {"w": MODEL}, rng(0, 0, 0, "attack"))
    assert all(torch.isfinite(delta["w"]).all() for delta in one_left)


def test_attackers_of_whom_all_others_are_away_do_not_stop_the_run() -> None:
    for attack in ("ipm", "alie", "minmax"):
        wanted = experiment(rounds=6, model="linear", scenario="sequential", attack=attack, attackers=2)
        assert len(run(wanted).records) == 6


def test_named_tensors_go_through_flat_vectors_and_back() -> None:
    shapes = {"a": torch.zeros(2, 3), "b": torch.zeros(4), "c": torch.zeros(())}
    own = [{name: torch.full_like(tensor, i + 1.0) for name, tensor in shapes.items()} for i in range(2)]
    others = [{name: torch.full_like(tensor, 6.0) for name, tensor in reversed(shapes.items())}]
    sent = tamper_updates(chosen("signflip:2"), own, others, shapes, rng(0, 0, 0, "attack"))
    assert [float(delta["b"].sum()) for delta in sent] == [-8.0, -16.0]
    assert {name: tensor.shape for name, tensor in sent[0].items()} == {k: v.shape for k, v in shapes.items()}
    copied = tamper_updates(chosen("ipm:1"), own, others, shapes, rng(0, 0, 0, "attack"))
    assert float(copied[1]["c"]) == -6.0
    assert float(own[0]["a"].sum()) == 6.0  # what they learnt is left as it was
    assert tamper_updates(chosen("ipm"), [], others, shapes, rng(0, 0, 0, "attack")) == []
