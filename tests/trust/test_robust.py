"""The robust rules against slow references written from the papers, and their refusals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.trust.robust.aggregates import (
    bulyan,
    centred_clipping,
    clip_norms,
    fltrust,
    geometric_median,
    krum,
    median,
    multi_krum,
    nearest_neighbour_mixing,
    norm_clipping,
    through,
    trimmed_mean,
)

RULES = {
    "median": median,
    "trimmed": lambda x: trimmed_mean(x, 2),
    "krum": lambda x: krum(x, 2),
    "multi-krum": lambda x: multi_krum(x, 2),
    "bulyan": lambda x: bulyan(x, 2),
    "geometric": geometric_median,
    "centred": lambda x: centred_clipping(x, 1.5, 3),
    "clipping": norm_clipping,
    "fltrust": lambda x: fltrust(x, torch.ones(x.shape[1])),
    "nnm": lambda x: through(p := nearest_neighbour_mixing(x, 2), median(p.updates)),
}


def rows(seed: int, n: int = 11, d: int = 7) -> Tensor:
    """Two loose clusters and two outliers, so that selections differ from the mean."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator)
    x[: n // 3] += 2
    x[-2:] *= 9
    return x[torch.randperm(n, generator=generator)]


def slow_krum_scores(x: list[list[float]], f: int, alive: list[int]) -> dict[int, float]:
    """Blanchard et al., section 4: the n - f - 2 nearest others, in plain Python."""
    scores = {}
    for i in alive:
        distances = sorted(math.dist(x[i], x[j]) ** 2 for j in alive if j != i)
        scores[i] = sum(distances[: min(len(distances), max(1, len(alive) - f - 2))])
    return scores


def slow_bulyan(x: list[list[float]], f: int) -> list[float]:
    """El Mhamdi et al., section 4: repeated Krum, then the mean of the values nearest to the median."""
    chosen: list[int] = []
    alive = list(range(len(x)))
    while len(chosen) < len(x) - 2 * f:
        scores = slow_krum_scores(x, f, alive)
        best = min(alive, key=lambda i: (scores[i], x[i]))
        chosen.append(x[best])
        alive.remove(best)
    result = []
    for column in zip(*chosen, strict=True):
        middle = float(np.median(column))
        near = sorted(column, key=lambda value: (abs(value - middle), value))[: len(chosen) - 2 * f]
        result.append(sum(near) / len(near))
    return result


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("f", [0, 1, 2])
def test_rules_equal_slow_references(seed: int, f: int) -> None:
    x = rows(seed)
    plain, n = x.double().tolist(), len(x)
    scores = slow_krum_scores(plain, f, list(range(n)))
    ranked = sorted(range(n), key=lambda i: scores[i])
    assert torch.equal(krum(x, f).vector, x[ranked[0]])
    assert krum(x, f).weights.argmax() == ranked[0]
    for m in (1, 3, n - f):
        result = multi_krum(x, f, m)
        torch.testing.assert_close(result.vector, x[ranked[:m]].mean(0))
        assert set(result.weights.nonzero().flatten().tolist()) == set(ranked[:m])
    torch.testing.assert_close(bulyan(x, f).vector, torch.tensor(slow_bulyan(plain, f)))
    trimmed = [sum(sorted(column)[f : n - f]) / (n - 2 * f) for column in zip(*plain, strict=True)]
    torch.testing.assert_close(trimmed_mean(x, f).vector, torch.tensor(trimmed))
    torch.testing.assert_close(median(x).vector.numpy(), np.median(x.numpy(), axis=0))
    torch.testing.assert_close(median(x[:-1]).vector.numpy(), np.median(x[:-1].numpy(), axis=0))

    def nearest(i: int) -> list[int]:
        return sorted(range(n), key=lambda j: math.dist(plain[i], plain[j]))[: n - f]

    mixed = [x[nearest(i)].mean(0) for i in range(n)]
    prepared = nearest_neighbour_mixing(x, f)
    torch.testing.assert_close(prepared.updates, torch.stack(mixed))
    torch.testing.assert_close(prepared.mixing.float() @ x, prepared.updates)


@pytest.mark.parametrize("seed", range(4))
def test_geometric_median_is_the_minimum_that_an_optimiser_finds(seed: int) -> None:
    x = rows(seed)

    def total(z: np.ndarray) -> float:
        return float(np.linalg.norm(x.double().numpy() - z, axis=1).sum())

    found = minimize(total, np.median(x.double().numpy(), axis=0), method="BFGS", options={"gtol": 1e-6})
    result = geometric_median(x)
    np.testing.assert_allclose(result.vector.numpy(), found.x, atol=2e-5)
    assert total(result.vector.double().numpy()) <= found.fun * (1 + 1e-9)
    torch.testing.assert_close(result.weights.float() @ x, result.vector)


def test_geometric_median_on_a_row_that_outweighs_the_others() -> None:
    """At (0, 0) the unit pulls of the three others add up to length 1 - sqrt(2) < 1: it is the median itself."""
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-5.0, -5.0]])
    assert geometric_median(x).vector.norm() < 1e-5


def test_geometric_median_reaches_fermats_point() -> None:
    """Of an equilateral triangle it is the centre; of (0,0), (4,0), (0,3) all three meet there at 120 degrees."""
    equilateral = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, math.sqrt(3)]])
    torch.testing.assert_close(geometric_median(equilateral).vector, torch.tensor([1.0, 1 / math.sqrt(3)]))
    corners = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 3.0]])
    unit = torch.nn.functional.normalize(corners - geometric_median(corners).vector)
    for a, b in itertools.combinations(unit, 2):
        assert float(a @ b) == pytest.approx(-0.5, abs=1e-4)


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_centred_clipping_equals_the_printed_iteration(seed: int, iterations: int) -> None:
    x, start = rows(seed), torch.randn(7, generator=torch.Generator().manual_seed(seed))
    v = start.double()
    for _ in range(iterations):
        v = v + torch.stack([(row - v) * min(1.0, 1.5 / float((row - v).norm())) for row in x.double()]).mean(0)
    result = centred_clipping(x, 1.5, iterations, start)
    torch.testing.assert_close(result.vector, v.float())
    rest = 1 - result.weights.sum()
    torch.testing.assert_close((result.weights @ x.double() + rest * start).float(), result.vector)


def test_norm_clipping_by_hand() -> None:
    """Lengths 5, 10, 1: the median is 5, so the second row is halved."""
    x = torch.tensor([[3.0, 4.0], [6.0, 8.0], [0.0, 1.0]])
    result = norm_clipping(x)
    torch.testing.assert_close(result.vector, torch.tensor([2.0, 3.0]))
    torch.testing.assert_close(result.weights, torch.tensor([2.0, 1.0, 2.0], dtype=torch.float64) / 6)
    torch.testing.assert_close(clip_norms(x).updates, torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 1.0]]))
    torch.testing.assert_close(clip_norms(x, bound=2.5).updates[0], torch.tensor([1.5, 2.0]))


def test_clipping_a_huge_row_ends_at_the_bound() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3e38, 3e38]])
    torch.testing.assert_close(clip_norms(x).updates[2], torch.tensor([0.5**0.5, 0.5**0.5]))
    torch.testing.assert_close(norm_clipping(x).vector, torch.full((2,), (1 + 0.5**0.5) / 3))


def test_fltrust_trusts_nobody_who_points_away() -> None:
    result = fltrust(torch.tensor([[-1.0, 0.0], [0.0, 3.0], [0.0, 0.0]]), torch.tensor([1.0, 0.0]))
    assert not result.vector.any()
    assert not result.weights.any()


def test_ties_go_to_the_lexicographically_smallest_row() -> None:
    """On a square every corner has the same score."""
    square = torch.tensor([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    for order in itertools.permutations(range(4)):
        assert krum(square[list(order)], 0).vector.tolist() == [0.0, 0.0]


def test_krum_does_not_count_itself() -> None:
    """n = 5, f = 1: two neighbours. Were a row its own first neighbour, the twins would win with .01."""
    x = torch.tensor([[0.0], [0.1], [5.0], [6.0], [7.0]])
    assert krum(x, 1).vector.item() == 6.0  # 1 + 1 = 2; the row at 0.1 has .01 + 4.9^2


@pytest.mark.parametrize("name", RULES)
def test_never_lets_nan_or_infinity_through(name: str) -> None:
    for bad in (math.nan, math.inf, -math.inf):
        x = rows(0)
        x[4, 3] = bad
        with pytest.raises(HoldfastError, match="row 4 holds NaN or infinity"):
            RULES[name](x)


@pytest.mark.parametrize("name", RULES)
def test_huge_rows_do_not_overflow(name: str) -> None:
    x = rows(1)
    x[3], x[7] = 3e38, -3e38
    vector, weights = RULES[name](x)
    assert vector.isfinite().all()
    assert vector.abs().max() < 50
    if name != "fltrust":  # row 3 points exactly where the server's update does: it is cut to size and believed
        assert weights[[3, 7]].max() < 0.12


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: krum(x[:6], 2), "f = 2 hostile clients it needs 7 updates, got 6"),
        (lambda x: bulyan(x[:10], 2), "needs 11 updates, got 10"),
        (lambda x: trimmed_mean(x[:4], 2), "needs 5 updates, got 4"),
        (lambda x: nearest_neighbour_mixing(x[:4], 2), "needs 5 updates, got 4"),
        (lambda x: krum(x, -1), "a whole number from 0 on"),
        (lambda x: trimmed_mean(x, 1.0), "a whole number from 0 on"),
        (lambda x: multi_krum(x, 2, 10), "from 1 to n - f = 9, got 10"),
        (lambda x: multi_krum(x, 2, 0), "got 0"),
        (lambda x: centred_clipping(x, 0.0), "above zero"),
        (lambda x: centred_clipping(x, math.nan), "above zero"),
        (lambda x: centred_clipping(x, 1.0, start=torch.zeros(3)), "a finite vector of 7 values"),
        (lambda x: norm_clipping(x, -1.0), "above zero"),
        (lambda x: fltrust(x, torch.zeros(7)), "not all zero"),
        (lambda x: fltrust(x, torch.ones(6)), "of 7 values"),
        (lambda x: geometric_median(x, smoothing=0.0), "above zero"),
        (lambda x: median(x[0]), "a matrix of float32"),
        (lambda x: median(x[:0]), "a matrix of float32"),
        (lambda x: median(x.long()), "a matrix of float32"),
        (lambda x: krum(x.double() * 1e200, 2), "a matrix of float32"),  # its squares would overflow
    ],
)
def test_refuses_in_one_sentence(call: object, words: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        call(rows(0))  # type: ignore[operator]
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")


def test_blocks_of_columns_make_no_difference() -> None:
    """Wider than one block: the same as the rule on the parts, where it is coordinate-wise, and as the slow Krum."""
    x = torch.randn(9, 10_000, generator=torch.Generator().manual_seed(3))
    parts = torch.cat([trimmed_mean(x[:, :777], 2).vector, trimmed_mean(x[:, 777:], 2).vector])
    assert torch.equal(trimmed_mean(x, 2).vector, parts)
    scores = slow_krum_scores(x.double().tolist(), 2, list(range(9)))
    assert krum(x, 2).weights.argmax() == min(scores, key=scores.__getitem__)
