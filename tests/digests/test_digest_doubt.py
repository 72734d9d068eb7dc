"""Poisoned and mislabelled digests: found out by the others' digests, set aside, and nobody honest with them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from feddig_helpers import digest_of, experiment, method_with, reply, sealed, start
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.absence import FedDig
from holdfast.client import samples_in
from holdfast.core.types import State, Tensors
from holdfast.digests import moments as summary
from holdfast.digests.cells import Cells, cells_of, mixed_cells, moment_cells
from holdfast.digests.contradiction import agreements, contradicted, in_words, majority
from holdfast.digests.digest import make_digest
from holdfast.play import resume, run
from holdfast.privacy.noise import system
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment, from_table
from holdfast.trust.jury import Jury

LINE = np.array([[0.0], [1.0], [2.0], [3.0]])  # where four classes lie


def told(means: dict[int, float], counts: float = 10.0, classes: int = 4) -> Cells:
    """A digest on the line: class -> where its mean lies."""
    found = np.zeros((classes, 1))
    for c, value in means.items():
        found[c] = value
    return Cells(np.array([counts * (c in means) for c in range(classes)]), found, np.ones((1, 1)), 10.0)


def agreement_of(client: int, digests: dict[int, Cells]) -> tuple[float, int]:
    return dict(zip(digests, agreements(list(digests.values())), strict=True))[client]


def test_agreement_by_hand() -> None:
    """Others have class 0 at 0 and class 1 at 1. Who has them at .25 and 1: t = (.5 - .25) / .5 and 1, so .75."""
    others = {client: told({0: 0.0, 1: 1.0}) for client in range(3)}
    assert agreement_of(9, {**others, 9: told({0: 0.25, 1: 1.0})}) == (pytest.approx(0.75), 2)
    weighed = told({0: 1.0, 1: 1.0})._replace(counts=np.array([30.0, 10.0, 0.0, 0.0]))
    assert agreement_of(9, {**others, 9: weighed}) == (pytest.approx(-0.5), 2), "30 samples lie at 1, 10 are right"
    assert contradicted({**others, 7: told({0: 0.0, 1: 1.0}), 9: told({0: 1.0, 1: 0.0})}) == {9: -1.0}


def test_nobody_contradicts_who_alone_holds_a_class() -> None:
    """Class 3 of client 9 lies where the others have class 0, and yet nobody can say that it is wrong."""
    others = {client: told({0: 0.0, 1: 1.0, 2: 2.0}) for client in range(5)}
    assert agreement_of(9, {**others, 9: told({3: 0.0})}) == (0.0, 0)
    assert agreement_of(9, {**others, 9: told({3: 0.0, 1: 1.0})}) == (1.0, 1), "judged on what others hold"
    two = {**others, 7: told({3: 3.0}), 8: told({3: 3.0})}
    assert contradicted({**two, 9: told({3: 0.0})}) == {}, "two others could be the liars"
    assert contradicted({**two, 6: told({3: 3.0}), 9: told({3: 0.0})}) == {9: -1.0}


def test_poisoned_digests_that_hold_most_of_a_class_are_still_the_smaller_camp() -> None:
    """Four of nine turn the line around; of class 3 they are four holders, and the honest two."""
    honest = {c: told({0: 0.0, 1: 1.0, 2: 2.0}) for c in range(3)} | {c: told({1: 1.0, 2: 2.0, 3: 3.0}) for c in (3, 4)}
    poisoned = {c: told({0: 3.0, 1: 2.0, 2: 1.0, 3: 0.0}) for c in range(5, 9)}
    assert majority({**honest, **poisoned}) == set(honest)
    assert set(contradicted({**honest, **poisoned})) == set(poisoned)
    assert majority(honest) == set(honest)
    even = {c: told({0: 0.0, 1: 1.0}) for c in range(3)} | {c: told({0: 1.0, 1: 0.0}) for c in range(3, 6)}
    assert majority(even) == set(even), "one word against another"


def test_three_are_too_few_and_a_few_samples_say_nothing() -> None:
    three = {client: told({0: 0.0, 1: 1.0}) for client in range(3)}
    assert agreements(list(three.values())) == [(0.0, 0)] * 3
    assert contradicted({}) == contradicted(three) == {}
    assert agreement_of(9, {**three, 9: told({0: 1.0, 1: 0.0}, counts=3.0)}) == (0.0, 0)


def test_poisoned_digests_do_not_drag_honest_ones_down() -> None:
    """Class 3 is held by one honest client and three liars, who are contradicted everywhere else and go first."""
    honest = {client: told({0: 0.0, 1: 1.0, 2: 2.0}) for client in range(6)} | {6: told({3: 3.0})}
    liars = {client: told({0: 3.0, 1: 2.0, 2: 1.0, 3: 0.0}) for client in (7, 8, 9)}
    assert agreement_of(6, honest | liars)[0] < 0, "three against one"
    assert sorted(contradicted(honest | liars)) == [7, 8, 9]


def test_where_noise_drowns_all_digests_nobody_is_judged() -> None:
    """Means that are noise alone: most agreements are below zero, and no digest is any worse than the others."""
    random = np.random.default_rng(0)
    noise = {c: Cells(np.full(6, 9.0), random.normal(size=(6, 20)), np.eye(20), 9.0) for c in range(9)}
    assert statistics.median(value for value, _ in agreements(list(noise.values()))) < 0
    assert contradicted(noise) == {}


@pytest.mark.parametrize("seed", range(4))
def test_noise_that_is_known_drowns_neither_the_honest_nor_the_poisoned(seed: int) -> None:
    """Twelve members, noise as long as classes lie apart, most of it where records hardly vary; three have the
    labels turned. Each holds some classes, so that what most know well lies beside what few do."""
    random = np.random.default_rng(seed)
    places = random.normal(size=(6, 100)) / 10  # about 1.4 apart
    spread = np.diag(np.r_[np.ones(10), np.full(90, 1e-3)])

    def noised(labels: Sequence[int]) -> Cells:
        counts = random.integers(20, 90, 6) * (random.random(6) < 0.8)
        noise = (6 / np.maximum(counts, 20)) ** 2
        means = places[list(labels)] + np.sqrt(noise)[:, None] * random.normal(size=(6, 100))
        return Cells(counts * 1.0, means, spread, 100.0, noise=noise)

    honest = {client: noised(range(6)) for client in range(12)}
    poisoned = {client: noised(range(5, -1, -1)) for client in range(3)}
    assert contradicted(honest) == {}
    assert majority(honest) == set(honest)
    assert set(contradicted({**honest, **poisoned})) == set(poisoned)


@given(st.integers(4, 9), st.integers(0, 2**31), st.permutations(range(9)))
@settings(max_examples=30)
def test_honest_digests_agree_in_any_order(clients: int, seed: int, order: list[int]) -> None:
    random = np.random.default_rng(seed)
    places = random.normal(size=(5, 6)) * 5

    def honest() -> Cells:
        return Cells(random.integers(0, 30, 5) * 1.0, places + 0.1 * random.normal(size=(5, 6)), np.eye(6), 9.0)

    digests = {client: honest() for client in range(clients)}
    found = dict(zip(digests, agreements(list(digests.values())), strict=True))
    assert all(value > 0.5 for value, judged in found.values() if judged)
    shuffled = {client: digests[client] for client in order if client in digests}
    for client, (value, judged) in zip(shuffled, agreements(list(shuffled.values())), strict=True):
        assert (value, judged) == (pytest.approx(found[client][0]), found[client][1])
    liar = {10: digests[0]._replace(means=places[[1, 2, 3, 4, 0]])}
    assert set(contradicted(shuffled | liar)) == set(contradicted(digests | liar)) <= {10}


@pytest.mark.parametrize("strategy", ["within", "across"])
def test_the_cells_of_a_mixed_digest_are_its_class_means(strategy: str) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 4
    features = torch.eye(4)[labels] + 0.05 * torch.randn(400, 4, generator=generator)
    made = make_digest(features, labels, 5, generator=generator, spd=4, strategy=strategy)  # type: ignore[arg-type]
    cells = mixed_cells(made)
    assert cells.counts == pytest.approx([100, 100, 100, 100, 0])
    assert np.abs(cells.means[:4] - np.eye(4)).max() < 0.05
    assert np.trace(cells.scatter) / cells.rows == pytest.approx(4 * 0.05**2 / 4, rel=0.4)


def test_the_cells_of_moments_are_their_class_means() -> None:
    random = np.random.default_rng(0)
    labels = np.arange(4000) % 2
    features = 0.5 * np.eye(3)[labels] + 0.05 * random.normal(size=(4000, 3))
    cells = moment_cells(summary.make(features, labels, 3, epsilon=10.0, delta=1e-5, source=system()))
    assert cells.counts[:2] == pytest.approx([2000, 2000], rel=0.02)
    assert cells.counts[2] == 0, "mostly noise"
    assert np.abs(cells.means[:2] - 0.5 * np.eye(3)[:2]).max() < 0.02


# In a round --------------------------------------------------------------------------------------------------------


def four_of_a_kind(client: int) -> Tensors:
    """Class 0 around (1, 0) and class 1 around (0, 1), three rows each; client 4 has them the other way round."""
    labels = [[1.0, 0.0], [0.0, 1.0]] if client != 4 else [[0.0, 1.0], [1.0, 0.0]]
    rows = [[1.0, spread] for spread in (-0.01, 0.0, 0.01)], [[spread, 1.0] for spread in (-0.01, 0.0, 0.01)]
    return sealed(digest_of([*rows[0], *rows[1]], [labels[0]] * 3 + [labels[1]] * 3))


def after_digests(method_trust: object, holders: Sequence[int] = range(5)) -> tuple[State, State]:
    method = replace(method_with(FedDig(), clients=5), trust=method_trust)  # type: ignore[arg-type]
    before = replace(start(method), claims=dict.fromkeys(range(5), 40))
    replies = [reply(client, [[0.0, 0.0], [0.0, 0.0]], four_of_a_kind(client)) for client in holders]
    digests, refused = method.absence.receive(before, replies, method)
    assert not refused
    after = replace(before, digests=digests)
    if method.trust.doubts_digests:
        after = method.absence.review(before, after, method)
    return before, method.absence.server_step(before, after, [], method)


def test_a_contradicted_digest_does_not_teach_and_is_named() -> None:
    _, judged = after_digests(Jury())
    feddig = FedDig()
    assert sorted(feddig.believed(judged)) == [0, 1, 2, 3]
    assert feddig.doubts(judged) == {4: "the other digests contradict its digest (agreement -1.00)"}
    assert sorted(judged.digests) == [0, 1, 2, 3, 4], "it is kept, and judged again when another one comes"
    _, plain = after_digests(method_with(FedDig()).trust)
    assert sorted(feddig.believed(plain)) == [0, 1, 2, 3, 4], "other rules believe every digest"
    assert "contradicted" not in plain.absence
    _, without = after_digests(method_with(FedDig()).trust, holders=range(4))
    assert torch.equal(judged.model["w"], without.model["w"]), "as if it had never been sent"
    assert not torch.equal(judged.model["w"], plain.model["w"])


def test_digests_are_judged_once_and_again_when_one_is_new() -> None:
    before, judged = after_digests(Jury())
    method = replace(method_with(FedDig(), clients=5), trust=Jury())
    marked = replace(judged, absence={**judged.absence, "contradicted": torch.full((5,), 0.5, dtype=torch.float64)})
    same = method.absence.review(marked, marked, method)
    assert same.absence["contradicted"].tolist() == [0.5] * 5, "nothing new, nothing to judge"
    mended = {**judged.digests, 4: four_of_a_kind(3)}
    better = method.absence.review(marked, replace(marked, digests=mended), method)
    assert in_words(better.absence) == in_words(before.absence) == {}


# In a run ----------------------------------------------------------------------------------------------------------


def played(**changes: object) -> Experiment:
    usual: dict[str, object] = {
        "clients": 8, "partition": "dirichlet:1", "samples": 1600, "model": "features", "absence": "feddig",
        "trust": "jury", "rounds": 4, "scenario": "sequential", "attack": "falsedigest", "attackers": 2, "workers": 0,
    }  # fmt: skip
    return from_table({**usual, **changes})


@pytest.mark.parametrize("attack", ["falsedigest", "labelflip", "baddigest"])
def test_hostile_digests_neither_stand_in_nor_testify(attack: str, tmp_path: Path) -> None:
    history = run(played(attack=attack), tmp_path / "run")
    hostile = make_plan(history.experiment).hostile
    told = [note for note in history.records[0].notes if "contradict its digest" in note]
    assert [note.split("'s digest is set aside")[0] for note in told] == [f"client {c}" for c in sorted(hostile)]
    named = {c for record in history.records for c, why in record.suspects.items() if "contradict its digest" in why}
    assert named == (set(hostile) if attack == "labelflip" else set()), "nobody is named for a digest alone"
    for record in history.records:
        assert not set(record.stand_ins) & set(hostile)
        if record.round > 1:
            assert sorted(record.credibility) == sorted(set(range(8)) - set(hostile))
    assert resume(tmp_path / "run").records == history.records


@pytest.mark.parametrize("absence", ["feddig:strategy=across", "feddig:mode=moments,epsilon=10"])
def test_every_mode_is_judged(absence: str) -> None:
    plan = make_plan(played(absence=absence, samples=4000))
    model, feddig = plan.model(), plan.method.absence
    assert isinstance(feddig, FedDig)
    clients = [plan.client(c, model, None) for c in range(8)]
    digests = {client.id: feddig.make_digest(client, samples_in(client, 0), 0) for client in clients}
    cells = {c: cells_of(feddig, plan.method, sealed) for c, sealed in digests.items()}
    assert all(judged for _, judged in agreements(list(cells.values())))
    assert sorted(contradicted(cells)) == sorted(plan.hostile)


def test_honest_clients_with_one_class_each_are_not_judged() -> None:
    history = run(experiment(trust="jury", rounds=2))
    assert not history.records[-1].suspects
    assert history.state is not None
    assert bool(history.state.absence["contradicted"].isnan().all())


def test_an_experiment_of_old_has_no_memory_of_doubt() -> None:
    assert in_words({}) == {}
