"""Survival: Cox's partial likelihood with ties, discrete-time hazards and Kaplan-Meier, by hand and by oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.data.kinds import Hazards
from holdfast.data.survival import Cox, HazardLoss, kaplan_meier, survival_of

ROWS = torch.tensor([[1.0, 1.0], [2.0, 1.0], [2.0, 1.0], [2.0, 0.0], [3.0, 0.0]])
RISK = torch.tensor([[0.3], [-0.2], [0.5], [0.1], [-0.4]])


def test_cox_with_ties_by_hand() -> None:
    a, b, c, d, e = torch.exp(RISK[:, 0].double()).tolist()
    first = math.log(a + b + c + d + e) - 0.3
    breslow = 2 * math.log(b + c + d + e) - (-0.2 + 0.5)
    efron = math.log(b + c + d + e) + math.log(b + c + d + e - (b + c) / 2) - (-0.2 + 0.5)
    assert float(Cox("breslow")(RISK, ROWS)) == pytest.approx((first + breslow) / 5, rel=1e-6)
    assert float(Cox("efron")(RISK, ROWS)) == pytest.approx((first + efron) / 5, rel=1e-6)
    order = torch.tensor([3, 1, 4, 0, 2])
    assert float(Cox()(RISK[order], ROWS[order])) == pytest.approx((first + efron) / 5, rel=1e-6)


def people(count: int = 120) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(4)
    x = torch.randn(count, 3, generator=g)
    time = (torch.empty(count).exponential_(generator=g) * torch.exp(-x @ torch.tensor([1.0, -0.5, 0.0])) * 5).ceil()
    return x, torch.stack([time.clamp(max=12), (time <= 12).float()], 1)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_the_minimum_of_cox_is_scikit_survivals_fit(ties: str) -> None:
    from sksurv.linear_model import CoxPHSurvivalAnalysis

    x, rows = people()
    assert len(rows[:, 0].unique()) < 15  # many ties
    outcome = np.array([(e > 0, t) for t, e in rows.tolist()], dtype=[("event", bool), ("time", float)])
    fitted = CoxPHSurvivalAnalysis(ties=ties, tol=1e-12).fit(x.double().numpy(), outcome).coef_
    weights = torch.tensor(fitted, requires_grad=True)
    Cox(ties)((x.double() @ weights)[:, None], rows.double()).backward()  # type: ignore[arg-type]
    assert weights.grad is not None
    assert float(weights.grad.abs().max()) < 1e-8
    assert float(weights.detach().abs().max()) > 0.3


def test_cox_stays_finite_where_risks_are_far_apart_and_without_events() -> None:
    risk = torch.tensor([[500.0], [-500.0], [-499.0]], requires_grad=True)
    loss = Cox()(risk, torch.tensor([[1.0, 1.0], [2.0, 1.0], [2.0, 1.0]]))
    loss.backward()
    assert risk.grad is not None
    assert torch.isfinite(loss) and torch.isfinite(risk.grad).all()  # noqa: PT018
    calm = Cox()(risk, torch.tensor([[1.0, 0.0], [2.0, 0.0], [2.0, 0.0]]))
    assert float(calm.detach()) == 0.0
    calm.backward()


def test_hazards_by_hand() -> None:
    rows = torch.tensor([[1.5, 1.0], [2.0, 0.0]])
    output = torch.tensor([[0.2, -0.4], [1.0, 0.3]])
    h = torch.sigmoid(output.double()).tolist()
    likelihood = math.log(1 - h[0][0]) + math.log(h[0][1]) + math.log(1 - h[1][0]) + math.log(1 - h[1][1])
    assert float(HazardLoss((1.0, 2.0))(output, rows)) == pytest.approx(-likelihood / 2, rel=1e-6)
    assert survival_of(output)[0].tolist() == pytest.approx([1 - h[0][0], (1 - h[0][0]) * (1 - h[0][1])], rel=1e-6)


def test_hazards_of_everyone_alike_are_the_life_table() -> None:
    """The best hazard of an interval is events / at risk: then survival is Kaplan and Meier's, where nobody is lost
    within an interval."""
    rows = torch.tensor([[1.0, 1.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [3.0, 1.0], [3.0, 0.0], [3.0, 0.0]])
    kind = Hazards((1.0, 2.0, 3.0))
    hazards = torch.tensor([2 / 7, 1 / 5, 1 / 3])
    best = torch.logit(hazards).requires_grad_()
    kind.loss(best.expand(7, 3), rows).backward()
    assert best.grad is not None
    assert float(best.grad.abs().max()) < 1e-6
    _, shares = kaplan_meier(rows)
    assert kind.readout(best.detach()[None])[0].tolist() == pytest.approx(shares, rel=1e-5)


def test_kaplan_meier_is_scikit_survivals() -> None:
    from sksurv.nonparametric import kaplan_meier_estimator

    _, rows = people()
    times, shares = kaplan_meier(rows)
    theirs = dict(zip(*kaplan_meier_estimator(rows[:, 1].numpy() > 0, rows[:, 0].numpy()), strict=True))
    assert shares == pytest.approx([theirs[time] for time in times])
