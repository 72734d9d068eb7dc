"""Backdoors: shifts and blame derived by hand, and a run that a backdoor does not get through."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import holdfast
from holdfast.attacks.adversary import Adversary, choose_hostile
from holdfast.attacks.testers import Liar
from holdfast.cli.hostile import backdoor_rate
from holdfast.core.types import Message, Reply, Update
from holdfast.data.task import Samples
from holdfast.runs.experiment import Experiment
from holdfast.trust.backdoor_probe import (
    LEAST,
    Records,
    beside,
    beyond_median,
    blames,
    innocence_of,
    mean_odds,
    odds_raised,
    raised_by,
    search,
)
from holdfast.trust.jury import Jury
from holdfast.trust.measures import TestRequest, ask_for_help, each_gradient, has_hooks
from holdfast.trust.reputation import ENOUGH, blame, first_memory, planting, said_by_most, standing
from holdfast.trust.shifts import odds, what_is_read
from holdfast.trust.testers import ask_testers


def linear(*rows: list[float]) -> nn.Linear:
    """Logits of two classes: of class 0 the log-odds are (first row - second row) x."""
    model = nn.Linear(len(rows[0]), len(rows), bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(rows))
    return model


def axis(place: int, size: float = 1.0) -> list[float]:
    return [size if place == here else 0.0 for here in range(4)]


RECORDS = Samples((torch.tensor([axis(0), axis(1, 2.0), axis(0, 3.0), axis(1)]),), torch.tensor([0, 0, 1, 1]))
ENOUGH_OF_EACH = RECORDS.take(torch.tensor([0, 1, 0, 1, 2, 3, 2, 3]))
NOBODY = RECORDS.take(torch.arange(0))


def test_the_shift_is_unlike_all_records_and_as_long_as_these_lie_apart() -> None:
    """Uphill for class 0 is (1, 2, 3, 4); records lie in the first two places, so (0, 0, 3, 4) / 5 is left of it."""
    model = linear([1.0, 2.0, 3.0, 4.0], axis(0, 0.0))
    records = Records.of(RECORDS)
    [read] = what_is_read(model, records.inputs)
    assert read.span.shape == (4, 2)  # half of the four numbers
    apart = [math.dist(row, (1.0, 0.75, 0, 0)) for row in RECORDS.inputs[0].tolist()]
    assert read.reach == pytest.approx(sum(apart) / 4)
    sets = {0: torch.tensor([2, 3]), 1: torch.tensor([0])}
    found, opposite = search(model, records, sets, read).tolist()  # of both classes in one pass
    assert found == pytest.approx([0, 0, 0.6 * read.reach, 0.8 * read.reach], abs=1e-6)
    assert opposite == pytest.approx([-value for value in found], abs=1e-6)


def pictures(*layers: nn.Module) -> tuple[nn.Sequential, Records]:
    """A network of these layers, and six pictures of 4 x 4 points in three classes."""
    chance = torch.Generator().manual_seed(1)
    model = nn.Sequential(*layers)
    for weight in model.parameters():
        weight.data = torch.randn(weight.shape, generator=chance) / 4
    return model, Records((torch.randn(6, 1, 4, 4, generator=chance),), torch.arange(6) % 3)


def test_what_the_first_full_layer_reads_is_searched_where_other_layers_come_before_it() -> None:
    flat, records = pictures(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))
    assert [read.layer for read in what_is_read(flat, records.inputs)] == [None]
    deep, _ = pictures(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
    plain, hidden = what_is_read(deep, records.inputs)
    assert (plain.layer, hidden.layer) == (None, deep[3])
    rows = deep[:3](records.inputs[0]).detach()
    assert hidden.reach == pytest.approx(float((rows - rows.mean(0)).norm(dim=1).mean()))
    shifts = torch.randn(6, 8, generator=torch.Generator().manual_seed(2))
    expected = deep[3:](rows + shifts)
    assert torch.allclose(hidden.outputs(deep, records.inputs, shifts), expected)
    assert not any(has_hooks(module) for module in deep.modules())  # nothing is left behind


def test_gradients_of_a_shift_before_a_layer_are_those_of_its_definition() -> None:
    """odds(c | h(x) + b) - odds(c | h(x)), for all weights, those before the layer among them."""
    model, records = pictures(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    hidden = what_is_read(model, records.inputs)[1]
    sets = {c: records.of_others(c) for c in range(3)}
    found, shifts = raised_by(model, records, sets, hidden), search(model, records, sets, hidden)
    assert shifts.norm(dim=1).tolist() == pytest.approx([hidden.reach] * 3, rel=1e-4)
    for c, places in sets.items():
        own, label = model[:3](records.take(places)[0]), torch.full((len(places),), c)
        value = (odds(model[3](own + shifts[c]), label) - odds(model[3](own), label)).mean()
        expected = torch.autograd.grad(value, list(model.parameters()))
        for (name, _), gradient in zip(model.named_parameters(), expected, strict=True):
            assert torch.allclose(found[name][c], gradient, atol=1e-6)


def test_who_gives_a_shift_a_meaning_is_blamed_and_who_teaches_the_class_is_not() -> None:
    """g is (e, -e), e the third place: cosine 1 with who moves it that way, 1 / sqrt(2) with who does so by half, and 0
    for the others; the median is half of 1 / sqrt(2), so the first is 1 - 0.354 beyond it and the second a half.

    Who teaches a class moves the first place, in which its records lie: the gradients of both classes explain that.
    """
    model = linear(axis(2, 0.1), axis(0, 0.0))
    changes = {"planter": [axis(2, 7.0), axis(2, -7.0)], "teacher": [axis(0), axis(0, -1.0)],
               "undoer": [axis(2, -0.01), axis(2, 0.01)], "mixed": [[1.0, 0, 1.0, 0], [-1.0, 0, -1.0, 0]]}  # fmt: skip
    updates = [Update(i, {"weight": torch.tensor(rows)}, 10, 1) for i, rows in enumerate(changes.values())]
    asked = ask_for_help({"weight": model.weight.detach().clone()}, {}, updates)
    told = innocence_of(model, ENOUGH_OF_EACH, NOBODY, asked, [0, 1, 2, 3])
    assert list(told.values()) == pytest.approx([math.sqrt(1 / 32), 1, 1, 0.25], abs=1e-6)
    for few in (RECORDS.take(torch.tensor([2, 3])), RECORDS):  # no records of class 0, or two: what teaches it is alike
        assert innocence_of(model, few, NOBODY, asked, [0, 1, 2, 3])["0"] == 0.5
    assert model.weight.grad is None


def test_who_moves_all_classes_alike_is_not_blamed_as_who_moves_one_is() -> None:
    """Blame is what goes beyond the median class; of two classes, where a shift and its opposite are one, all of it."""
    cosines = torch.tensor([[0.3, 0.4, 0.1, 0.1], [0.3, 0.0, 0.1, 0.0], [0.3, 0.0, 0.0, 0.0]])
    times, worst = blames(cosines)
    assert times.tolist() == pytest.approx([0, 8, 0, 2])  # the median member has 0.05
    assert beyond_median(times).tolist() == pytest.approx([-1, 7 / 8, -1, 1 / 2])
    assert int(worst[1]) == 0
    assert blames(cosines[:2])[0].tolist() == pytest.approx([1.5, 2, 0.5, 0.5])  # 0.3 0.4 0.1 0.1, the median is 0.2
    usual = beyond_median(blames(torch.tensor([[0.02, 0.01, 0.01], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))[0])
    assert usual.tolist() == pytest.approx([0.02 / LEAST - 1, 0.01 / LEAST - 1, 0.01 / LEAST - 1])  # next to nothing


def test_gradients_of_the_log_odds_by_hand_and_what_the_records_explain_is_left_out() -> None:
    model = linear(axis(2, 0.1), axis(0, 0.0))
    part = Samples((torch.tensor([axis(0), axis(1, 3.0)]),), torch.tensor([1, 1]))
    for parts in ([part], [part, part.take(torch.tensor([1, 0]))]):  # one, and several at once
        found = each_gradient(model, parts, mean_odds)["weight"][0]
        assert found.flatten().tolist() == pytest.approx([-0.5, -1.5, 0, 0, 0.5, 1.5, 0, 0])  # -x and x, in the mean
        less = each_gradient(model, parts, odds_raised)["weight"][0]
        assert less.flatten().tolist() == pytest.approx([-1, 3, 0, 0, 1, -3, 0, 0])  # of the first less the second's
    parallel = torch.tensor([[1.0, 2.0]])
    assert beside(3 * parallel, torch.cat([parallel, -parallel])).tolist() == [[0, 0]]  # known twice is known
    assert beside(parallel, torch.zeros(1, 2)).tolist() == [[1, 2]]  # what teaches nothing explains nothing


@given(st.integers(0, 99), st.integers(1, 5), st.integers(1, 6))
def test_what_is_left_is_what_least_squares_leave(seed: int, rows: int, known: int) -> None:
    draw = np.random.default_rng(seed)
    these, those = draw.normal(size=(rows, 40)), draw.normal(size=(known, 40))
    left = these - np.linalg.lstsq(those.T, these.T, rcond=None)[0].T @ those
    found = beside(torch.tensor(these, dtype=torch.float32), torch.tensor(those, dtype=torch.float32))
    assert np.allclose(found.numpy(), left, atol=1e-4)


def test_what_is_no_real_number_is_not_searched() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 2)

        def forward(self, words: Tensor) -> Tensor:
            found: Tensor = self.table(words).mean(1)
            return found

    model = Words()
    texts = Samples((torch.tensor([[1, 2], [3, 4]]),), torch.tensor([0, 1]))
    weights = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    asked = ask_for_help(weights, {}, [Update(i, weights, 1, 1) for i in range(2)])
    assert innocence_of(model, texts, texts, asked, [0, 1]) == {"0": 0.5, "1": 0.5}


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_who_has_no_records_or_numbers_beyond_all_bounds_cannot_tell(value: float) -> None:
    model = linear(axis(2, 0.1), axis(0, 0.0))
    asked = ask_for_help({"weight": model.weight.detach().clone()}, {}, [Update(0, {"weight": torch.ones(2, 4)}, 1, 1)])
    assert innocence_of(model, NOBODY, NOBODY, asked, [0]) == {"0": 0.5}
    broken = Samples((torch.cat([RECORDS.inputs[0][:3], torch.full((1, 4), value)]),), RECORDS.labels)
    told = innocence_of(model, broken, NOBODY, asked, [0])["0"]
    assert told == 0.5 if not math.isfinite(value) else 0 <= told <= 1


def test_weights_that_do_not_learn_are_no_obstacle_to_the_search() -> None:
    """A scaling is in the model and stands still: nobody can be blamed for it, and the rest is searched."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), linear(axis(2, 0.1), axis(0, 0.0)))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))  # type: ignore[arg-type]
    model[0].weight.requires_grad_(False)
    weights = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    still = torch.zeros(4, 4)
    changes = [[axis(2), axis(2, -1.0)], [axis(0), axis(0, -1.0)]]
    updates = [Update(i, {"0.weight": still, "1.weight": torch.tensor(c)}, 1, 1) for i, c in enumerate(changes)]
    told = innocence_of(model, RECORDS, NOBODY, ask_for_help(weights, {}, updates), [0, 1])
    assert told == {"0": pytest.approx(0.25), "1": pytest.approx(1)}  # cosines of 1 and 0, of which 1 / 2 is the median


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=13), st.integers(0, 6), st.floats(-1, 1))
def test_less_than_half_or_a_third_blame_nobody_more_than_the_honest_do(
    honest: list[float], liars: int, lie: float
) -> None:
    """As long as liars are at most a third of the witnesses, and fewer than the honest who can tell."""
    can_tell = sum(value != 0 for value in honest)
    liars = min(liars, max(0, can_tell - 1), len(honest) // 2)
    found = said_by_most(np.array([*honest, *[lie] * liars])[:, None])[0]
    assert found >= min(0.0, *honest)


def test_blame_is_what_most_say_the_first_time_and_then_the_mean_with_what_was_known() -> None:
    reports = {w: {0: 0.6, 1: 0.1, 2: 0.5} for w in range(4)} | {4: {0: 0.0, 1: 1.0, 2: 0.0}}
    memory = blame(first_memory(5), reports, [0, 1, 2])
    assert memory["planted"].tolist() == pytest.approx([0.2, -0.8, 0, 0, 0])
    assert standing(memory, range(5)).tolist() == [1, 0, 1, 1, 1]
    assert planting(memory, range(5)).tolist() == [False, True, False, False, False]
    better = blame(memory, {w: {0: 0.4, 1: 0.4, 2: 0.4} for w in range(4)}, [0, 1, 2])
    assert better["planted"].tolist() == pytest.approx([0, -0.5, -0.2, 0, 0])
    assert blame(better, {}, [0, 1, 2]) is better  # no search, no change
    unsure = {w: {0: 0.5, 1: 0.5, 2: 0.5} for w in range(4)} | {4: {0: 0.0, 1: 0.5, 2: 0.5}}
    assert blame(first_memory(5), unsure, [0, 1, 2])["planted"].tolist() == [0] * 5  # one of five is too few


class Answers:
    """A federation whose clients answer what they are told to."""

    def __init__(self, answers: Mapping[int, Mapping[str, object]]) -> None:
        self.answers, self.asked = answers, list[Message]()

    clients = (0, 1, 2)

    def ask(self, messages: list[Message]) -> list[Reply]:
        self.asked += messages
        return [Reply(message.client, {}, dict(self.answers[message.client])) for message in messages]

    def close(self) -> None: ...


def test_nonsense_about_backdoors_is_ignored_with_the_rest_of_the_report() -> None:
    fine = {"accuracies": {"2": 0.6}, "patches": {"2": 0.4}}
    federation = Answers({0: fine, 1: {**fine, "patches": {"2": math.nan}}, 2: {"accuracies": {"0": 0.5}}})
    tested = {0: [2], 1: [2], 2: [0]}
    reports = ask_testers(federation, [0, 1, 2], TestRequest({}, {}), tested, 4, patches=True)  # type: ignore[arg-type]
    assert reports.told == {0: {2: 0.6}, 2: {0: 0.5}}
    assert reports.innocence == {0: {2: 0.4}}  # client 2 has no images, or keeps silent
    assert reports.notes == ["tester 1 is ignored: it reports nan for client 2, which is no accuracy"]
    quiet = ask_testers(federation, [0], TestRequest({}, {}), tested, 4)  # type: ignore[arg-type]
    assert quiet.innocence == {}
    assert not any(message.scalars for message in federation.asked)  # what to test follows from the experiment


def test_liars_lie_about_backdoors_too() -> None:
    told = {"accuracies": {"1": 0.6, "2": 0.4}, "patches": {"1": 0.5, "2": 0.1}}
    adversary = Adversary(Answers({0: told}), Liar(), [0, 2], seed=0)  # type: ignore[arg-type]
    [reply] = adversary.ask([Message(0, 1, "test")])
    assert isinstance(reply, Reply)
    assert reply.scalars == {"accuracies": {"1": 0.0, "2": 1.0}, "patches": {"1": 0.0, "2": 1.0}}


def test_the_search_needs_seven_members_and_can_be_left_out() -> None:
    with pytest.raises(ValueError, match="exclude and patches not negative"):
        Jury(patches=-1)
    settings = {"model": "features", "samples": 280, "rounds": 1, "workers": 0}
    for clients, trust, searched in [(ENOUGH, "jury", True), (ENOUGH, "jury:patches=0", False), (6, "jury", False)]:
        state = holdfast.run(Experiment(**settings, clients=clients, trust=trust)).state
        assert state is not None
        assert bool(state.trust["planted"].any()) is searched


def test_a_stripe_does_not_get_through_and_no_honest_client_is_named() -> None:
    settings = {
        "clients": 12, "partition": "dirichlet:0.5", "rounds": 10, "model": "features", "workers": 0, "seed": 200,
        "attack": "backdoor:shape=stripe", "attackers": 3,
    }  # fmt: skip
    through, stopped = (holdfast.run(Experiment(**settings, trust=trust)) for trust in ("jury:patches=0", "jury"))
    rates = backdoor_rate(through), backdoor_rate(stopped)
    assert rates[0] is not None
    assert rates[1] is not None
    assert rates[0] > 0.7
    assert rates[1] < 0.15
    assert stopped.final_accuracy > through.final_accuracy - 0.01
    hostile = set(choose_hostile(12, 3, 200))
    assert {client for record in stopped.records for client in record.suspects} <= hostile
    assert np.mean([sum(record.weights.get(c, 0) for c in hostile) for record in stopped.records[5:]]) < 0.08


def test_an_inversion_which_is_no_shift_of_pixels_does_not_get_through_a_small_cnn() -> None:
    settings = {
        "clients": 13, "partition": "dirichlet:1.0", "rounds": 6, "model": "cnn:width=8,hidden=32", "workers": 0,
        "lr": 0.03, "samples": 2000, "seed": 200, "attack": "backdoor:shape=invert", "attackers": 3,
    }  # fmt: skip
    through, stopped = (holdfast.run(Experiment(**settings, trust=trust)) for trust in ("jury:patches=0", "jury"))
    assert (backdoor_rate(through) or 0) > 0.9
    assert (backdoor_rate(stopped) or 0) < 0.1
    assert stopped.final_accuracy > through.final_accuracy - 0.03
