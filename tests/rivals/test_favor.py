"""FAVOR's double DQN: numbers derived by hand, scikit-learn's PCA, and a task whose best answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from holdfast.rivals.favor import Agent, Components, reward, state_of


def test_components_are_those_of_scikit_learn() -> None:
    torch.manual_seed(0)
    models = torch.randn(6, 20, dtype=torch.float64)
    found = Components.of(models, 3)
    wanted = PCA(3).fit(models.numpy())
    np.testing.assert_allclose(found.of_models(models).abs(), np.abs(wanted.transform(models.numpy())), atol=1e-9)
    assert state_of(found, models[0], list(models)).shape == (7 * 3,)


def test_values_are_those_of_the_bellman_equation() -> None:
    # From state A action 0 earns -0.5 and ends, action 1 earns -0.1 and leads to B; from B action 0 earns 1 and ends,
    # action 1 earns 0 and ends. With gamma 0.5: Q(B) = (1, 0), Q(A) = (-0.5, -0.1 + 0.5 x 1).
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    agent = Agent(2, 2, gamma=0.5, hidden=16)
    rounds: list[tuple[Tensor, int, float, Tensor, bool]] = [
        (a, 0, -0.5, a, True), (a, 1, -0.1, b, False), (b, 0, 1.0, a, True), (b, 1, 0.0, a, True)
    ]  # fmt: skip
    for one in rounds:
        agent.remember(*one)
    for _ in range(1200):
        agent.learn(batch=8, renew=20)
    with torch.no_grad():
        torch.testing.assert_close(agent.q(a), torch.tensor([-0.5, 0.4]), atol=0.03, rtol=0)
        torch.testing.assert_close(agent.q(b), torch.tensor([1.0, 0.0]), atol=0.03, rtol=0)
    assert agent.ask(a, explore=0.0) == 1
    assert agent.best(b, 1) == [0]
    assert {agent.ask(a, explore=1.0) for _ in range(20)} == {0, 1}


def test_reward_is_zero_at_the_target() -> None:
    assert reward(0.9, 0.9) == 0
    assert reward(0.5, 0.5 + 1 / 6) == pytest.approx(-0.5)  # the sixth root of 64 is 2
