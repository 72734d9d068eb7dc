"""FLAME and CrowdGuard: numbers derived by hand; oracles of scikit-learn and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.cluster import HDBSCAN, AgglomerativeClustering
from sklearn.decomposition import PCA
from sklearn.preprocessing import scale
from torch import nn

from holdfast.algorithms.fedavg import FedAvg
from holdfast.context import Context
from holdfast.core.types import State, Update
from holdfast.data.task import Samples
from holdfast.engines.inline import Inline
from holdfast.learning.settings import Learning
from holdfast.models.networks import weights_of
from holdfast.play import run
from holdfast.rivals.crowdguard import beyond_the_gap, decided, first_component, outliers, votes_by_layers
from holdfast.rivals.flame import Flame, cosine_distances, majority
from holdfast.rivals.two_samples import kolmogorov_smirnov, levene, t_test
from holdfast.runs.experiment import Experiment
from holdfast.trust import Hearing
from holdfast.trust.measures import ask_for_accuracies

WHO = {"task": "fashion-mini", "samples": 1000, "clients": 6, "partition": "iid", "rounds": 3, "model": "features"}
CLIENTS = {**WHO, "workers": 0, "attack": "random", "attackers": 1}


def update(client: int, *values: float) -> Update:
    return Update(client, {"w": torch.tensor(values)}, samples=1, steps=1)


def flame(updates: list[Update], noise: float) -> tuple[torch.Tensor, dict[int, float]]:
    context = Context(algorithm=FedAvg(), learning=Learning(), rounds=1, clients=len(updates), seed=0)
    state = State(0, {"w": torch.tensor([1.0, 0.0])}, {}, {}, {}, {})
    judged = Flame(noise).judge(updates, Hearing(context, Inline({})), state)
    moved = torch.stack([w * u.delta["w"] for w, u in zip(judged.weights, judged.updates, strict=True)])
    return moved.sum(0), dict(judged.say)


def test_flame_by_hand() -> None:
    # Models (1, 2), (1, 3), (1, 2.5) point up, (1, -2) down: three of four. Norms 2, 3, 2.5, 2: the median is 2.25, to
    # which 3 and 2.5 are shortened: (2 + 2.25 + 2.25) / 3.
    sent = [update(0, 0, 2), update(1, 0, 3), update(2, 0, 2.5), update(3, 0, -2)]
    moved, say = flame(sent, noise=0)
    torch.testing.assert_close(moved, torch.tensor([0, 6.5 / 3]))
    assert say == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3, 3: 0})
    # The noise is lambda times the median length, in each coordinate.
    noise = torch.stack([flame(sent, noise=share)[0] - moved for share in (0.1, 0.2)])
    torch.testing.assert_close(noise[1], 2 * noise[0])
    many = [Update(i, {"w": torch.ones(40_000)}, 1, 1) for i in range(3)]
    state = State(0, {"w": torch.zeros(40_000)}, {}, {}, {}, {})
    context = Context(algorithm=FedAvg(), learning=Learning(), rounds=1, clients=3, seed=0)
    moved = Flame(0.01).judge(many, Hearing(context, Inline({})), state).updates[0].delta["w"] - 1
    assert float(moved.std()) == pytest.approx(0.01 * 200, rel=0.02)  # a vector of 40,000 ones is 200 long


def test_the_majority_is_what_hdbscan_finds() -> None:
    chance = np.random.default_rng(0)
    for n in range(2, 24):
        for spread in (0.1, 1.0, 5.0):
            rows = torch.tensor(chance.normal(size=(n, 4)) + spread * chance.integers(0, 2, size=(n, 1)))
            distances = cosine_distances(rows)
            distances = (distances + distances.T) / 2
            found = HDBSCAN(
                min_cluster_size=n // 2 + 1, min_samples=1, allow_single_cluster=True, metric="precomputed", copy=True
            ).fit(distances.fill_diagonal_(0).numpy())
            assert majority(distances) == np.flatnonzero(found.labels_ == 0).tolist()


@pytest.mark.parametrize(("n", "m"), [(3, 4), (7, 7), (2, 9), (1, 5), (12, 11)])
def test_the_tests_are_those_of_scipy(n: int, m: int) -> None:
    chance = np.random.default_rng(n)
    x, y = chance.normal(size=n).tolist(), chance.normal(0.5, 2, size=m).tolist()
    assert t_test(x, y) == pytest.approx(stats.ttest_ind(x, y).pvalue, abs=1e-9)
    assert kolmogorov_smirnov(x, y) == pytest.approx(stats.ks_2samp(x, y, method="exact").pvalue, abs=1e-9)
    assert levene(x, y) == pytest.approx(stats.levene(x, y).pvalue, abs=1e-9)
    assert t_test([], y) == levene([], y) == kolmogorov_smirnov([], y) == 1


def test_component_and_gap_are_those_of_scikit_learn() -> None:
    chance = np.random.default_rng(3)
    for _ in range(10):
        rows = chance.normal(size=(7, 5))
        line = first_component(torch.tensor(rows)).numpy()
        wanted = PCA().fit_transform(scale(rows))[:, 0]
        np.testing.assert_allclose(line, wanted * np.sign(wanted @ line), atol=1e-8)
        labels = AgglomerativeClustering(n_clusters=2, linkage="single").fit(line[:, None]).labels_
        assert beyond_the_gap(line.tolist()) == np.flatnonzero(labels != labels[-1]).tolist()


def test_at_most_half_are_dropped_the_farthest_first() -> None:
    good, bad = [[0.1 * i, 0.1 * i] for i in range(12)], [[90.0 + i, 50.0] for i in range(6)]
    assert outliers(torch.tensor([*good, *bad[:5]], dtype=torch.float64)) == [12, 13, 14, 15, 16]
    # Twenty rows, so ten may go: first the eight beyond the widest gap, then of 30, 31 and 60 the two farthest.
    line = [*(0.01 * i for i in range(9)), 30.0, 31.0, 60.0, *(1000.0 + i for i in range(8))]
    assert outliers(torch.tensor(line, dtype=torch.float64)[:, None]) == list(range(10, 20))
    assert outliers(torch.zeros(5, 2)) == []


def test_lying_voters_fall_apart() -> None:
    honest, liar, joker = [True] * 4 + [False] * 2, [False] * 4 + [True] * 2, [True, False, True, False, True, False]
    assert decided([honest, liar, honest, honest, joker, liar]) == honest
    assert decided([honest]) == honest


def test_a_validator_votes_against_the_model_whose_layers_differ() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    sent = {name: weight.clone() for name, weight in weights_of(model).items()}
    samples = Samples((torch.randn(30, 4),), torch.arange(30) % 3)
    deltas = [{n: 0.01 * torch.randn_like(w) for n, w in sent.items()} for _ in range(10)]
    deltas[7] = {n: 2.0 * torch.randn_like(w) for n, w in sent.items()}
    asked = ask_for_accuracies(sent, {}, [Update(i, delta, 1, 1) for i, delta in enumerate(deltas)])
    votes = votes_by_layers(model, samples, asked, [i for i in range(10) if i != 2])
    assert set(votes) == {str(i) for i in range(10) if i != 2}
    assert votes["7"] == 0
    assert sum(votes.values()) >= 7  # an honest one may be dropped once the hostile one no longer widens the scale


@pytest.mark.parametrize("trust", ["flame", "crowdguard"])
def test_random_weights_get_no_say_in_a_run(trust: str) -> None:
    history = run(Experiment(**CLIENTS, trust=trust))
    hostile = sorted(set(range(6)) - {c for record in history.records for c, say in record.weights.items() if say})
    assert len(hostile) == 1
    assert history.final_accuracy > 0.5
