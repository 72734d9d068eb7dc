"""Mixing: numbers by hand, and what must hold for any client."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import HoldfastError
from holdfast.digests.digest import Digest, check_digest, make_digest
from holdfast.digests.mixing import Laplace, mixing_plan, mixing_weights

QUICK = settings(max_examples=60, deadline=None)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def client(samples: int = 23, classes: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    source = generator(seed)
    return torch.rand(samples, 2, 3, generator=source), torch.randint(0, classes, (samples,), generator=source)


@st.composite
def settings_of_a_client(draw: st.DrawFn) -> dict[str, Any]:
    spd = draw(st.integers(1, 6))
    kind = draw(st.sampled_from(["balanced", "random", "given"]))
    raw = draw(st.lists(st.integers(1, 9), min_size=spd, max_size=spd))
    weights = tuple(w / sum(raw) for w in raw) if kind == "given" else kind
    return {
        "spd": spd,
        "weights": weights,
        "strategy": draw(st.sampled_from(["across", "within"])),
        "remainder": draw(st.sampled_from(["drop", "mix"])),
        "samples": draw(st.integers(40, 70)),
        "seed": draw(st.integers(0, 1000)),
    }


def test_weighted_mix_by_hand() -> None:
    """r = 2, 10 with weights 3/4, 1/4: 4 if sample 0 comes first, 8 if sample 1 does; the labels tell which."""
    features, labels = torch.tensor([[2.0], [10.0]]), torch.tensor([0, 1])
    made = make_digest(features, labels, 3, spd=2, weights=(0.75, 0.25), generator=generator())
    (value,), soft = made.features[0].tolist(), made.labels[0].tolist()
    assert (value, soft) in [(4.0, [0.75, 0.25, 0.0]), (8.0, [0.25, 0.75, 0.0])]


def test_balanced_mix_is_the_mean_whatever_the_order() -> None:
    features, labels = torch.tensor([[1.0, 0.0], [2.0, 4.0], [6.0, 2.0], [7.0, 2.0]]), torch.tensor([0, 1, 1, 2])
    made = make_digest(features, labels, 3, spd=4, generator=generator())
    assert made.features.tolist() == [[4.0, 2.0]]
    assert made.labels.tolist() == [[0.25, 0.5, 0.25]]


@given(settings_of_a_client())
@QUICK
def test_each_sample_is_used_at_most_once(options: dict[str, Any]) -> None:
    labels = torch.randint(0, 4, (options["samples"],), generator=generator(options["seed"]))
    spd = options["spd"]
    plan = mixing_plan(labels, spd, options["strategy"], options["remainder"], generator(options["seed"]))
    used = plan[plan >= 0]
    assert len(used.unique()) == len(used)
    assert int(used.max()) < len(labels)
    groups = [len(labels)] if options["strategy"] == "across" else torch.bincount(labels).tolist()
    left_over = sum(size % spd for size in groups)
    assert len(used) == len(labels) - (left_over if options["remainder"] == "drop" else 0)
    if options["remainder"] == "drop":
        assert (plan >= 0).all()
    if options["strategy"] == "within":
        assert all(len(labels[row[row >= 0]].unique()) == 1 for row in plan)


@given(settings_of_a_client())
@QUICK
def test_weights_sum_to_one_and_labels_match_counts(options: dict[str, Any]) -> None:
    features, labels = client(options["samples"], 4, options["seed"])
    chosen = {name: options[name] for name in ("spd", "weights", "strategy", "remainder")}
    made = make_digest(features, labels, 4, generator=generator(options["seed"]), **chosen)
    check_digest(made, "digest")
    torch.testing.assert_close(made.labels.sum(1), torch.ones(len(made)), atol=1e-6, rtol=0)
    assert ((made.labels > 0).sum(1) <= options["spd"]).all()
    assert made.features.min() >= features.min()
    assert made.features.max() <= features.max()
    # The same draws again, and the sum done by hand over the plan.
    again = generator(options["seed"])
    plan = mixing_plan(labels, options["spd"], options["strategy"], options["remainder"], again)
    shares = mixing_weights(plan, options["weights"], again)
    assert (shares >= 0).all()
    torch.testing.assert_close(shares.sum(1), torch.ones(len(plan), dtype=torch.float64), atol=1e-12, rtol=0)
    row = len(plan) - 1
    by_hand = torch.zeros(2, 3, dtype=torch.float64)
    for sample, share in zip(plan[row].tolist(), shares[row].tolist(), strict=True):
        if sample >= 0:
            by_hand += share * features[sample].double()
    torch.testing.assert_close(made.features[row], by_hand.float())
    if options["weights"] == "balanced" and options["remainder"] == "drop":
        counts = torch.bincount(labels[plan.flatten()], minlength=4)
        torch.testing.assert_close(made.labels.sum(0) * options["spd"], counts.float(), atol=1e-4, rtol=0)


def test_remainders_are_dropped_and_reported_or_mixed_with_fewer() -> None:
    features, labels = client(10)
    dropped = make_digest(features, labels, 5, spd=4, generator=generator())
    assert (len(dropped), dropped.used, dropped.dropped) == (2, 8, 2)
    mixed = make_digest(features, labels, 5, spd=4, remainder="mix", generator=generator())
    assert (len(mixed), mixed.used, mixed.dropped) == (3, 10, 0)
    assert (mixed.labels[2] > 0).sum() <= 2
    # All digests of balanced mixes average back to the mean of all samples, each weighted by how many it holds.
    mean = (4 * mixed.features[0] + 4 * mixed.features[1] + 2 * mixed.features[2]) / 10
    torch.testing.assert_close(mean, features.mean(0))


def test_small_classes_are_dropped_within_class_and_counted() -> None:
    labels = torch.tensor([0] * 8 + [1] * 3)
    made = make_digest(
        torch.rand(11, 2, generator=generator()), labels, 2, spd=4, strategy="within", generator=generator()
    )
    assert made.labels.tolist() == [[1.0, 0.0], [1.0, 0.0]]
    assert made.dropped == 3
    with pytest.raises(HoldfastError, match="no class has 4 samples"):
        make_digest(
            torch.zeros(5, 1), torch.tensor([0, 0, 1, 1, 2]), 3, spd=4, strategy="within", generator=generator()
        )


def test_clients_do_not_depend_on_each_other() -> None:
    """Each client's digest comes from its own data and generator: the order of the clients is irrelevant."""
    orders = [[0, 1, 2], [2, 0, 1]]
    made = [{c: make_digest(*client(20 + c, 5, c), 5, generator=generator(c)) for c in order} for order in orders]
    for c in range(3):
        assert torch.equal(made[0][c].features, made[1][c].features)
        assert torch.equal(made[0][c].labels, made[1][c].labels)


def test_laplace_noise_has_the_papers_scale_and_comes_from_the_system() -> None:
    """Scale b = tau / (S eps): mean |noise| is b, with deviation b / sqrt(n)."""
    features = torch.zeros(40_000, 1)
    features[0] = -2.0  # tau = 2, signed features count by magnitude
    labels = torch.zeros(40_000, dtype=torch.long)
    noise = Laplace(epsilon=0.005, samples=2_000)  # b = 0.2
    made = [make_digest(features[:], labels, 2, spd=1, noise=noise, generator=generator()) for _ in range(2)]
    plain = make_digest(features, labels, 2, spd=1, generator=generator())
    drawn = (made[0].features - plain.features).flatten()
    assert abs(float(drawn.abs().mean()) - 0.2) < 6 * 0.2 / math.sqrt(40_000)
    assert abs(float(drawn.mean())) < 6 * 0.2 * math.sqrt(2) / math.sqrt(40_000)
    assert not torch.equal(made[0].features, made[1].features)  # same generator, other entropy
    assert torch.equal(made[0].labels, plain.labels)


def test_seeded_noise_repeats_and_says_that_it_protects_nothing() -> None:
    made = [make_digest(*client(), 5, noise=Laplace(seed=3), generator=generator()) for _ in range(2)]
    assert torch.equal(made[0].features, made[1].features)
    assert "no guarantee" in made[0].noise


@pytest.mark.parametrize(
    ("spd", "noise", "mode"),
    [
        (4, Laplace(), "mixing and noise"),
        (4, None, "only mixing"),
        (1, Laplace(), "only noise"),
        (1, None, "unprotected"),
    ],
)
def test_modes(spd: int, noise: Laplace | None, mode: str) -> None:
    assert make_digest(*client(), 5, spd=spd, noise=noise, generator=generator()).mode == mode


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"spd": 24}, "more than the client's 23 samples"),
        ({"spd": 0}, "at least 1 sample"),
        ({"spd": 2, "weights": (0.5, 0.6)}, "sum to one"),
        ({"spd": 2, "weights": (1.5, -0.5)}, r"lie in \[0, 1\]"),
        ({"spd": 2, "weights": (1.0,)}, "1 numbers were given for 2"),
        ({"weights": "blanced"}, "is not known"),
        ({"strategy": "between"}, "is not known"),
        ({"remainder": "keep"}, "is not known"),
        ({"spd": 2, "weights": (0.0, 1.0), "remainder": "mix"}, "weight zero only"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HoldfastError, match=sentence):
        make_digest(*client(), 5, generator=generator(), **options)


def test_bad_samples_are_refused() -> None:
    features, labels = client()
    with pytest.raises(HoldfastError, match="not finite"):
        make_digest(features.index_fill(0, torch.tensor([3]), math.nan), labels, 5, generator=generator())
    with pytest.raises(HoldfastError, match=r"lie in 0\.\.2"):
        make_digest(features, labels, 3, generator=generator())
    with pytest.raises(HoldfastError, match="as many whole-number labels"):
        make_digest(features, labels[:-1], 5, generator=generator())
    with pytest.raises(HoldfastError, match="positive"):
        Laplace(epsilon=0.0)


def test_a_digest_that_claims_impossible_counts_is_refused() -> None:
    made = make_digest(*client(), 5, generator=generator())
    facts = {name: getattr(made, name) for name in made.__dataclass_fields__}
    for changes, sentence in (
        ({"spd": 99}, "not possible with 23 samples"),
        ({"used": 24, "samples": 24, "spd": 4}, "cannot use 24 of 24"),
        ({"samples": 10**9}, "more than remainders of 5 classes can explain"),
        ({"labels": made.labels * 0.9}, "sum to one"),
        ({"labels": torch.cat([made.labels[:, :1] - 1, made.labels[:, 1:]], 1)}, r"lie in \[0, 1\]"),
        ({"labels": made.labels[:-1]}, "labels of shape"),
    ):
        with pytest.raises(HoldfastError, match=sentence):
            check_digest(Digest(**{**facts, **changes}), "digest of client 7")
