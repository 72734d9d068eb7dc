"""The robust rules as choices: named updates in, judgement out; misfits refused before round 1."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from round_bench import SIZES, first_state, make_clients, make_method

from holdfast.algorithms import ALGORITHMS
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.core.types import State, Update
from holdfast.data.task import Samples
from holdfast.engines.inline import Inline
from holdfast.learning.settings import Learning
from holdfast.method import Method
from holdfast.round import play_round
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment
from holdfast.trust import TRUSTS, Hearing, Judgement, Trust
from holdfast.trust.base import check_rule
from holdfast.trust.robust.aggregates import clip_norms, geometric_median, krum, median, multi_krum, trimmed_mean
from holdfast.trust.robust.merging import middle_buffers
from holdfast.trust.server_test import own_samples

LEARNING = Learning(epochs=1, batch_size=4, lr=0.1, momentum=0.9)
NOBODY = Hearing(make_method(ALGORITHMS["fedavg"](), LEARNING, 9), Inline({}))
MERGING = ("median", "trimmed", "clipping", "normclip", "nnm", "arc", "bucketing", "demoa", "bulyan", "fltrust")
WEIGHING = ("samples", "uniform", "krum", "multikrum", "geomedian", "fedtest", "servertest")


def rows(n: int = 9, d: int = 5) -> torch.Tensor:
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(1))
    x[-1] = 50.0
    return x


def updates(x: torch.Tensor) -> list[Update]:
    return [Update(i, {"a": row[:3].view(3, 1), "b": row[3:]}, samples=i + 1, steps=2) for i, row in enumerate(x)]


def bare(memory: dict[str, torch.Tensor] | None = None) -> State:
    return State(0, {"a": torch.zeros(3, 1), "b": torch.zeros(2)}, {}, {}, {}, memory or {})


def rule(spec: str) -> Trust:
    made = choose(TRUSTS, Choice.parse(spec, "trust"), "trust")
    assert isinstance(made, Trust)
    return made


def root(count: int) -> Samples:
    generator = torch.Generator().manual_seed(9)
    return Samples((torch.randn(count, 2, generator=generator),), torch.arange(count) % 2)


def mean_of(judged: Judgement) -> torch.Tensor:
    flat = [torch.cat([u.delta["a"].flatten(), u.delta["b"]]) for u in judged.updates]
    return sum((w * row for w, row in zip(judged.weights, flat, strict=True)), torch.zeros(5))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("median", median(rows())),
        ("trimmed:2", trimmed_mean(rows(), 2)),
        ("trimmed", trimmed_mean(rows(), 1)),  # a fifth of nine
        ("krum:2", krum(rows(), 2)),
        ("multikrum:f=2,m=3", multi_krum(rows(), 2, 3)),
        ("geomedian", geometric_median(rows())),
    ],
)
def test_a_choice_is_its_rule_on_named_updates(spec: str, expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    judged = rule(spec).judge(updates(rows()), NOBODY, bare())
    assert torch.allclose(mean_of(judged), expected[0], atol=1e-5)
    assert list(judged.say.values()) == pytest.approx(expected[1].tolist())
    assert sum(judged.weights) == pytest.approx(1)


def test_norm_clipping_shortens_to_the_median_length_and_says_who_lost() -> None:
    judged = rule("normclip").judge(updates(rows()), NOBODY, bare())
    assert torch.allclose(mean_of(judged), clip_norms(rows()).updates.mean(0), atol=1e-6)
    assert judged.say[8] < 0.05
    assert sum(judged.say.values()) == pytest.approx(1)


def test_centred_clipping_remembers_its_centre() -> None:
    trust = rule("clipping:tau=1.0")
    first = trust.judge(updates(rows()), NOBODY, bare())
    assert torch.allclose(first.memory["centre"], mean_of(first), atol=1e-6)
    second = trust.judge(updates(rows()), NOBODY, bare(first.memory))
    assert not torch.allclose(second.memory["centre"], first.memory["centre"])
    by_hand = first.memory["centre"] + clip_norms(rows() - first.memory["centre"], 1.0).updates.mean(0)
    assert torch.allclose(second.memory["centre"], by_hand, atol=1e-5)
    same = updates(torch.ones(3, 5))  # median distance zero: stays where it is
    assert rule("clipping").judge(same, NOBODY, bare({"centre": torch.ones(5)})).memory["centre"].tolist() == [1.0] * 5


def test_a_far_update_moves_no_robust_rule() -> None:
    honest = rows()[:-1].mean(0)
    for spec in (
        "median",
        "trimmed",
        "krum",
        "multikrum",
        "geomedian",
        "clipping",
        "nnm",
        "nnm:median",
        "bulyan",
        "arc",
        "arc:median",
        "bucketing",
        "bucketing:trimmed",
        "bucketing:median",
        "demoa",
        "demoa:trimmed",
    ):
        judged = rule(spec).judge(updates(rows()), NOBODY, bare())
        assert (mean_of(judged) - honest).norm() < 3, spec
    assert (rows().mean(0) - honest).norm() > 10


def test_where_clients_are_away_f_is_lowered_and_that_is_said() -> None:
    judged = rule("krum:3").judge(updates(rows()[:5]), NOBODY, bare())
    assert judged.notes == ["5 updates are too few for krum with f = 3: f was 1 in this round"]
    judged = rule("krum:3").judge(updates(rows()[:2]), NOBODY, bare())
    assert judged.notes == ["2 updates are too few for krum: they are averaged"]
    assert judged.weights == [0.5, 0.5]


def test_merged_buffers_are_the_median() -> None:
    many = [Update(i, {}, 1, 1, {"m": torch.tensor([v]), "n": torch.tensor(i)}) for i, v in enumerate([1.0, 2.0, 9e9])]
    assert middle_buffers(many) == {"m": torch.tensor([2.0]), "n": torch.tensor(1)}
    assert middle_buffers(updates(rows())) == {}


def made(algorithm: str, spec: str, sizes: tuple[int, ...] = SIZES) -> Method:
    method = make_method(ALGORITHMS[algorithm](), LEARNING, len(sizes))
    method = replace(method, trust=rule(spec), own_samples=root)
    check_rule(method.trust, spec, method)
    return method


@pytest.mark.parametrize("spec", MERGING)
@pytest.mark.parametrize("algorithm", ["fednova", "scaffold", "lac", "mime", "mimelite"])
def test_merging_is_refused_where_each_clients_own_update_is_needed(spec: str, algorithm: str) -> None:
    with pytest.raises(HoldfastError, match=f"{spec}.*merges"):
        made(algorithm, spec)


@pytest.mark.parametrize("spec", [*WEIGHING, *MERGING])
@pytest.mark.parametrize(
    "algorithm", [name for name in ALGORITHMS if name not in ("fedbn", "oneshot")]
)  # they ask nobody
def test_every_other_combination_plays(spec: str, algorithm: str) -> None:
    kind = ALGORITHMS[algorithm]
    if (spec in MERGING and kind.needs_each_update) or (kind.asks_gradients and rule(spec).testing(0) is not None):
        return
    method = made(algorithm, spec)
    federation = Inline(make_clients(method.algorithm, LEARNING))
    state = replace(first_state(method), trust=method.trust.begin(len(SIZES)))
    for _ in range(2):
        state, record = play_round(state, federation, method)
    assert sum(record.weights.values()) == pytest.approx(1)
    assert set(record.weights) == {0, 1, 2}
    assert not any("diverged" in note for note in record.notes)


def test_feddyn_counts_the_clients_behind_a_merged_update() -> None:
    """h <- h - alpha (|S|/N) mean: with one merged update in place of all, |S| must stay the number of clients."""
    same = [Update(i, {"w": torch.tensor([2.0])}, 1, 1) for i in range(3)]
    state = State(0, {"w": torch.zeros(1)}, {}, {}, {}, {})
    judged = rule("median").judge(same, NOBODY, state)
    algorithm = ALGORITHMS["feddyn"]()
    zero = {"w": torch.zeros(1)}
    merged = algorithm.aggregate(zero, judged.updates, judged.weights, zero, 3, LEARNING)
    plain = algorithm.aggregate(zero, same, [1 / 3] * 3, zero, 3, LEARNING)
    assert torch.allclose(merged[1]["w"], plain[1]["w"])


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("krum:9", "needs 21 clients"),
        ("bulyan:1", "needs 7"),
        ("nnm:then=krum,f=1", "needs 5"),
        ("arc:then=krum,f=1", "needs 5"),
        ("arc:f=2", "needs 5"),
        ("bucketing:then=trimmed,f=1", "needs 3 clients, got 2"),  # two buckets
        ("demoa:then=nnm,f=2", "needs 5"),
        ("multikrum:m=0", "m,"),
        ("krum:f=-1", r"trust 'krum': f, the hostile clients to withstand, must not be negative, got -1\."),
        ("trimmed:-2", "must not be negative, got -2"),
        ("fedtest:testers=100", "trust 'fedtest': 100 testers are more than the 3 clients"),
    ],
)
def test_too_many_hostile_clients_are_refused_before_round_one(spec: str, word: str) -> None:
    with pytest.raises(HoldfastError, match=word):
        made("fedavg", spec)


@pytest.mark.parametrize("name", ["servertest", "fltrust"])
def test_more_samples_than_there_are_are_refused(name: str) -> None:
    settings = Experiment(clients=3, trust=f"{name}:201", samples=200, model="linear", workers=0)  # type: ignore[arg-type]
    with pytest.raises(HoldfastError, match=f"trust '{name}': the task has 200 samples, not 201; say fewer"):
        make_plan(settings)
    method = make_plan(replace(settings, samples=50, trust=Choice(name))).method
    assert len(own_samples(name, None, method)) == 50


def test_what_is_wrong_with_fedtests_options_is_said_of_the_right_one() -> None:
    with pytest.raises(HoldfastError, match=r"decay, the share of the old score, must be in \[0, 1\), got 1\.0\.$"):
        rule("fedtest:decay=1")
    with pytest.raises(HoldfastError, match=r"power must be in \(0, 64\], got 65\.0; as published: 4\.$"):
        rule("fedtest:power=65")


@pytest.mark.parametrize(
    "spec",
    [
        "geomedian:0",
        "normclip:0",
        "clipping:0",
        "servertest:0",
        "fltrust:0",
        "clipping:momentum=1",
        "bucketing:size=0",
        "demoa:alpha=0",
        "demoa:p=2",
    ],
)
def test_options_out_of_range_are_refused(spec: str) -> None:
    with pytest.raises(HoldfastError, match=r"must be|above zero"):
        rule(spec)


def test_accuracy_based_weights_are_in_proportion_to_the_accuracy_on_the_moderators_samples() -> None:
    method = made("fedavg", "servertest:40")
    federation = Inline(make_clients(method.algorithm, LEARNING))
    _, record = play_round(replace(first_state(method)), federation, method)
    total = sum(record.scores.values())
    assert record.weights == pytest.approx({c: s / total for c, s in record.scores.items()})
    assert len(set(record.scores.values())) > 1


def test_an_experiment_gives_the_rule_its_own_samples_from_training_and_seed_alone() -> None:
    settings = Experiment(clients=3, trust="servertest:20", model="linear", workers=0)
    a, b = (own_samples("servertest", 20, make_plan(settings).method) for _ in range(2))
    assert len(a) == 20
    assert torch.equal(a.inputs[0], b.inputs[0])
    other = own_samples("servertest", 20, make_plan(replace(settings, seed=1)).method)
    assert not torch.equal(a.labels, other.labels)
    with pytest.raises(HoldfastError, match="merges"):
        make_plan(replace(settings, trust=Choice("median"), algorithm=Choice("scaffold")))
