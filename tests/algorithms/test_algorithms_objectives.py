"""What an algorithm adds to each gradient is the gradient of the objective its paper prints: asked of autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.algorithms import ALGORITHMS, AdaBest, FedDyn, FedProx, Scaffold
from holdfast.algorithms.fedavg import FedAvg, Work
from holdfast.algorithms.scaffold import variate_change
from holdfast.core.types import Tensors
from holdfast.data.task import Samples
from holdfast.learning.loop import correct, train
from holdfast.learning.objective import TaskLoss
from holdfast.learning.settings import Learning

Objective = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # (w, w_t, moderator's tensor, client's memory)

OBJECTIVES: dict[str, tuple[FedAvg, Objective]] = {
    "fedprox": (FedProx(mu=0.3), lambda w, start, c, g: 0.3 / 2 * (w - start).square().sum()),
    "feddyn": (FedDyn(alpha=0.7), lambda w, start, c, g: -(g * w).sum() + 0.7 / 2 * (w - start).square().sum()),
    "adabest": (AdaBest(mu=0.2), lambda w, start, c, g: -(g * w).sum()),
    "scaffold": (Scaffold(), lambda w, start, c, g: ((c - g) * w).sum()),
}
SHAPES = {"fc.weight": (2, 3), "fc.bias": (2,), "scale": ()}
EVERY = settings(max_examples=25, deadline=None, derandomize=True)


def random_tensors(generator: torch.Generator) -> Tensors:
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("remembers", [True, False])
@given(seed=st.integers(0, 2**32))
@EVERY
def test_correction_is_the_gradient_of_the_printed_objective(name: str, remembers: bool, seed: int) -> None:
    algorithm, objective = OBJECTIVES[name]
    generator = torch.Generator().manual_seed(seed)
    now, start, server, memory = (random_tensors(generator) for _ in range(4))
    correction = algorithm.correction(start, server, memory if remembers else {})
    for weight in SHAPES:
        w = now[weight].clone().requires_grad_()
        g = memory[weight] if remembers else torch.zeros_like(w)  # an empty memory is zero
        (expected,) = torch.autograd.grad(objective(w, start[weight], server[weight], g), w)
        added = correction(weight, now[weight]) if correction else torch.zeros_like(w)
        torch.testing.assert_close(added, expected)


def test_every_algorithm_that_corrects_is_checked_here() -> None:
    def corrects(algorithm: FedAvg) -> bool:
        one = {"w": torch.ones(1)}
        return algorithm.correction(one, one, one) is not None

    assert {name for name, kind in ALGORITHMS.items() if corrects(kind())} == set(OBJECTIVES)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loop_descends_loss_plus_objective(name: str) -> None:
    """Two steps of the product's loop equal two steps of SGD on L + objective, differentiated as one function."""
    algorithm, objective = OBJECTIVES[name]
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator)
    model = nn.Linear(3, 2)
    draw = {n: torch.randn(p.shape, generator=generator) for n, p in model.named_parameters()}
    server, memory = {n: t / 2 for n, t in draw.items()}, {n: t.square() for n, t in draw.items()}
    start = {n: p.detach().clone() for n, p in model.named_parameters()}

    weights = {n: t.clone().requires_grad_() for n, t in start.items()}
    velocity = {n: torch.zeros_like(t) for n, t in start.items()}
    for _ in range(2):
        loss = nn.functional.mse_loss(x @ weights["weight"].T + weights["bias"], y)
        loss = loss + sum(objective(w, start[n], server[n], memory[n]) for n, w in weights.items())
        for n, gradient in zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True):
            velocity[n] = 0.9 * velocity[n] + gradient
            weights[n] = (weights[n] - 0.1 * velocity[n]).detach().requires_grad_()

    learning = Learning(epochs=2, batch_size=4, lr=0.1, momentum=0.9)
    steps, _ = train(
        model,
        Samples((x,), y),
        learning,
        torch.Generator().manual_seed(0),
        TaskLoss(nn.functional.mse_loss),
        algorithm.correction(start, server, memory),
    )
    assert steps == 2
    for n, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), weights[n].detach())


def test_correct_adds_to_the_gradient_and_does_not_replace_it() -> None:
    model = nn.Linear(1, 1, bias=False)
    model.weight.grad = torch.full((1, 1), 2.0)
    correct(dict(model.named_parameters()), lambda name, weight: torch.full_like(weight, 0.5))
    assert model.weight.grad.item() == 2.5


@given(steps=st.integers(1, 60), rho=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99]))
@EVERY
def test_reach_is_what_a_constant_unit_gradient_moves(steps: int, rho: float) -> None:
    w, v = 0.0, 0.0
    for _ in range(steps):
        v = rho * v + 1.0
        w += v
    assert Learning(momentum=rho).reach(steps) == pytest.approx(w, rel=1e-9)


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 5), rho=st.sampled_from([0.0, 0.9]))
@EVERY
def test_scaffold_client_variate_is_a_mean_of_gradients(seed: int, steps: int, rho: float) -> None:
    """With one and the same gradient G at every step, c_i+ is G, whatever c, c_i, lr, steps and momentum."""
    generator = torch.Generator().manual_seed(seed)
    G, c, c_i = (torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(3))
    learning = Learning(lr=0.2, momentum=rho)
    delta = -0.2 * learning.reach(steps) * (G + c - c_i)
    work = Work(5, steps, 4, learning)
    memory = Scaffold().remember({"w": delta}, work, {"w": c}, {"w": c_i})
    change = variate_change({"w": delta}, work.steps, {"w": c}, work.learning)
    torch.testing.assert_close(memory["w"], G)
    torch.testing.assert_close(change["w"], G - c_i)


@given(seed=st.integers(0, 2**32), alpha=st.sampled_from([0.01, 0.5, 4.0]))
@EVERY
def test_feddyn_memory_is_the_gradient_at_the_local_minimum(seed: int, alpha: float) -> None:
    """For L = |w - m|^2 / 2 the bent loss has its minimum at (m + g + alpha w_t)/(1 + alpha); there g+ = w - m."""
    generator = torch.Generator().manual_seed(seed)
    m, g, start = (torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(3))
    best = (m + g + alpha * start) / (1 + alpha)
    memory = FedDyn(alpha=alpha).remember({"w": best - start}, Work(1, 9, 0, Learning()), {}, {"w": g})
    torch.testing.assert_close(memory["w"], best - m)
