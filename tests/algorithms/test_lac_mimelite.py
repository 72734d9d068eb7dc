"""Local adaptivity correction and MimeLite: numbers by hand, torch.optim as oracle, and what does not go with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from algorithms_bench import Bench, plain
from engine_helpers import experiment

from holdfast.algorithms import FedNova, Lac, MimeLite
from holdfast.core.errors import HoldfastError
from holdfast.core.types import Update
from holdfast.learning.optimizers import Adam
from holdfast.runs.build import make_plan

TARGETS = [8.0, -16.0]


@pytest.mark.parametrize(("how", "moved"), [("local", -1.0), ("joint", -1 / 12), ("nova", -3 / 32)])
def test_one_step_of_adam_by_hand(how: str, moved: float) -> None:
    # A step of Adam is lr against the gradient's sign, D = 1/4 and -1/4, and Q = 1/|g| = 1/8 and 1/16: so D/Q = -lr g.
    # local: (2 - 4)/2 = -1.  joint: -1 / ((8 + 16)/2) = -1/12.  nova: -1 * (1/8 + 1/16)/2 = -3/32.
    bench = Bench(Lac(how), TARGETS, [1, 1], replace(plain(0.25), optimizer=Adam()))  # type: ignore[arg-type]
    assert bench.play() == pytest.approx(moved, rel=1e-5)


def test_nova_of_sgd_is_fednova() -> None:
    ours, theirs = (Bench(kind, TARGETS, [1, 3], plain(0.1, momentum=0.5)) for kind in (Lac("nova"), FedNova()))
    for _ in range(3):
        assert ours.play() == pytest.approx(theirs.play(), rel=1e-5)


def test_joint_against_torchs_adam_over_several_steps() -> None:
    w, samples, eps = 0.0, [1, 3], 0.1
    bench = Bench(Lac(), TARGETS, samples, replace(plain(0.5), optimizer=Adam(eps=eps)))
    for _ in range(3):
        top = bottom = 0.0
        for target, count in zip(TARGETS, samples, strict=True):
            weight = torch.tensor([w], requires_grad=True)
            adam = torch.optim.Adam([weight], lr=0.5, eps=eps)
            reach = 0.0
            for step in range(1, count + 1):
                adam.zero_grad()
                ((weight - target) ** 2 / 2).sum().backward()
                adam.step()
                reach += 1 / (float(adam.state[weight]["exp_avg_sq"] / (1 - 0.999**step)) ** 0.5 + eps)
            top += count / 4 * (float(weight) - w) / reach
            bottom += count / 4 / reach
        w += top / bottom
        assert bench.play() == pytest.approx(w, rel=1e-4)


def test_a_false_reach_counts_no_further_than_the_bound() -> None:
    told = [2.0, 2.0, 1e-30]
    sent = [Update(c, {"w": torch.ones(1)}, 1, 1, extra={"w": torch.tensor([q])}) for c, q in enumerate(told)]
    assert [float(Lac(most=10.0).believed(one, sent)["w"]) for one in sent] == pytest.approx([2.0, 2.0, 0.2])
    two = replace(sent[2], extra={"w": torch.tensor([-1.0])})  # with two clients only what is no reach at all is mended
    assert float(Lac().believed(two, [sent[0], two])["w"]) > 0


def test_mimelite_by_hand() -> None:
    # beta = lr = 1/2: a step is w - (w - m_i + m)/4, so it goes a quarter of the way to m_i - m; 37/64 in three steps.
    # Round 1, w = m = 0:  deltas 8/4 = 2 and -16 * 37/64 = -9.25; w = 2/4 - 9.25 * 3/4; c = -8/4 + 16 * 3/4 = 10, m = 5
    # Round 2: towards 3 and -21: 9.4375/4 and -14.5625 * 37/64; c = -14.4375/4 + 9.5625 * 3/4 = 3.5625, m = (c + 5)/2
    bench = Bench(MimeLite(), TARGETS, [1, 3], plain(0.5, momentum=0.5))
    assert bench.play() == pytest.approx(-6.4375)
    assert bench.server == pytest.approx(5.0)
    assert bench.play() == pytest.approx(-12.161865234375)
    assert bench.server == pytest.approx(4.28125)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"algorithm": "lac", "optimizer": {"name": "adam", "keep": True}}, "begins anew"),
        ({"algorithm": "lac", "trust": "median"}, "changes or merges updates"),
        ({"algorithm": "mimelite", "optimizer": "adam"}, "'lac' is for Adam"),
        ({"algorithm": "mimelite", "protect": "dp-sgd:epsilon=3"}, "send exact gradients"),
        ({"algorithm": "mimelite", "late": "fedbuff"}, "sends more with an update"),
        ({"algorithm": "mime", "optimizer": "adam"}, "'lac' is for Adam"),
        ({"algorithm": "mime", "protect": "dp-sgd:epsilon=3"}, "send exact gradients"),
        ({"algorithm": "mime", "protect": "secure-sum"}, "secure"),
        ({"algorithm": "mime", "late": "fedbuff"}, "agree on a gradient"),
        ({"algorithm": "mime", "trust": "jury"}, "averages gradients before there are any"),
        ({"algorithm": "lac:most=0.5"}, "most must be at least 1"),
    ],
)
def test_what_does_not_go_together_is_a_sentence(keys: dict[str, object], why: str) -> None:
    with pytest.raises(HoldfastError, match=why):
        make_plan(experiment(**keys))
