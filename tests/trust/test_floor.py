"""The floor: medians by hand, who is blamed, what a judgement is without them, and whole runs that are struck late."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from holdfast.core.types import State, Update, unpack
from holdfast.data.task import Samples
from holdfast.play import run
from holdfast.runs.experiment import Experiment
from holdfast.trust.base import judgement
from holdfast.trust.floor import Good, hold, hushed, without
from holdfast.trust.panel import PANEL, PanelRequest
from holdfast.trust.reputation import first_memory, standing
from holdfast.trust.witnesses import WitnessPanel
from holdfast.trust.words import Found

STATE = State(0, {"w": torch.tensor([1.0, 1.0])}, {}, {}, {}, {})


def test_a_judgement_without_some() -> None:
    updates = [Update(i, {"w": torch.ones(2)}, 1, 1) for i in (3, 5, 7)]
    fewer = without(judgement(updates, [1, 1, 2], {}), [3])
    assert fewer is not None
    assert (fewer.weights, fewer.say) == (pytest.approx([0, 1 / 3, 2 / 3]), pytest.approx({3: 0, 5: 1 / 3, 7: 2 / 3}))
    assert without(judgement(updates, [1, 1, 2], {}), [3, 5, 7]) is None


class Weights:
    """Five witnesses that score a model by its first weights, a class for each."""

    hearing = SimpleNamespace(context=SimpleNamespace(rounds=9, called="member {}".format))
    last = noised = False

    def __init__(self, classes: int, explains: float = 0.0, by_digests: bool = False) -> None:
        self.classes, self.explains, self.by_digests, self.many = classes, explains, by_digests, not by_digests

    def ask(self, job: Any, asked: PanelRequest) -> dict[int, dict[str, dict[str, float]]]:
        scores = {name: unpack(asked.models, name)["w"].sigmoid().tolist() for name in asked.names}
        said = {name: {str(c): found[c] for c in range(self.classes)} for name, found in scores.items()}
        return dict.fromkeys(range(10, 15), said)

    def billed(self, judged: Any) -> Any:
        return judged


def test_a_class_that_honest_members_trade_for_theirs_undoes_no_round_and_bars_nobody() -> None:
    """Each of four pushes its own class up and class 0 down, by 0.27 all together: without any of them all is worse."""
    updates = [Update(i, {"w": torch.eye(5)[i + 1] * 1.2 - torch.eye(5)[0] * 1.2}, 1, 1) for i in range(4)]
    judged = judgement(updates, [1, 1, 1, 1], {})

    def again(judged: Any) -> State:
        return replace(before, model={"w": sum(w * u.delta["w"] for w, u in zip(judged.weights, updates, strict=True))})

    before = Good({"w": torch.zeros(5)}, {}, {}).kept_in(
        replace(STATE, model={"w": torch.zeros(5)}, trust=first_memory(4))
    )
    after, held = hold(before, again(judged), judged, Weights(5), again, 0.02)  # type: ignore[arg-type]
    assert after.model["w"].tolist() == pytest.approx([-1.2, 0.3, 0.3, 0.3, 0.3])
    assert standing(after.trust, range(4)).tolist() == [1, 1, 1, 1]
    assert held.notes == ()


def test_four_witnesses_are_not_asked_who_is_to_blame_as_three_could_not_tell() -> None:
    asked = []

    class Four(Weights):
        def ask(self, job: Any, request: PanelRequest) -> dict[int, dict[str, dict[str, float]]]:
            asked.append(job)
            return {j: told for j, told in super().ask(job, request).items() if j < 14}

    updates = [Update(i, {"w": torch.full((2,), -2.0)}, 1, 1) for i in range(4)]
    good = {"w": torch.zeros(2)}
    before = Good(good, {}, {}).kept_in(replace(STATE, model=good, trust=first_memory(4)))
    harmed = replace(before, model={"w": torch.full((2,), -2.0)})
    judged = judgement(updates, [1, 1, 1, 1], {})
    after, held = hold(before, harmed, judged, Four(2), Mock(), 0.02)  # type: ignore[arg-type]
    assert after.model["w"].tolist() == [0, 0]
    assert asked == [PANEL]
    assert [note.split(")")[-1] for note in held.notes] == [" and was undone: the last good model stays"]


@pytest.mark.parametrize("noised", [False, True])
def test_small_losses_add_up_to_harm_but_for_witnesses_whose_noise_does(noised: bool) -> None:
    """Each round loses 0.01 of p at all witnesses, below the bound of 0.02: the third is 0.03 below the first good."""
    panel = Weights(1)
    panel.noised = noised
    judged = judgement([Update(0, {"w": torch.ones(1)}, 1, 1)], [1], {})
    at = Good({"w": torch.tensor([0.0])}, {}, {}).kept_in(replace(STATE, trust=first_memory(1)))
    for chance in (0.49, 0.48, 0.47):
        new = replace(at, model={"w": torch.tensor([chance]).logit()})
        at, _ = hold(at, new, judged, panel, Mock(), 0.02)  # type: ignore[arg-type]
    assert at.model["w"].sigmoid().item() == pytest.approx(0.47 if noised else 0.5)


def test_the_last_model_gives_way_to_the_good_one_where_its_loss_is_within_the_error_too() -> None:
    """One class falls by 0.4 at all five witnesses, the other rises at some: harm that cannot be told for sure."""

    class Unsure(Weights):
        last = True

        def ask(self, job: Any, asked: PanelRequest) -> dict[int, dict[str, dict[str, float]]]:
            rises = {10: 0.0, 11: 0.1, 12: 0.3, 13: 0.5, 14: 0.6}
            new = {j: {"0": 0.1, "1": 0.4 + rise} for j, rise in rises.items()}
            told = {
                name: (lambda j: {"0": 0.5, "1": 0.4}) if name == "good" else new.__getitem__ for name in asked.names
            }
            return {j: {name: tell(j) for name, tell in told.items()} for j in rises}

    updates = [Update(i, {"w": torch.ones(2)}, 1, 1) for i in range(4)]
    judged = judgement(updates, [1, 1, 1, 1], {})
    before = Good(STATE.model, {}, {}).kept_in(replace(STATE, trust=first_memory(4)))
    after, held = hold(
        before, replace(before, model={"w": torch.ones(2) * 2}), judged, Unsure(2), lambda one: before, 0.02
    )  # type: ignore[arg-type]
    assert after.model["w"].tolist() == [1, 1]
    assert "the final model is the last good one" in held.notes[-1]


def test_the_round_is_done_again_without_the_fewest_that_make_it_harmless() -> None:
    """Of four members the first pushes the model to -3, the rest to +1: without it the round helps."""
    updates = [Update(i, {"w": torch.tensor([x, 0.0])}, 1, 1) for i, x in ((0, -9.0), (1, 1.0), (2, 1.1), (3, 0.9))]
    judged = judgement(updates, [1, 1, 1, 1], {})

    def again(judged: Any) -> State:
        shift = sum(w * u.delta["w"] for w, u in zip(judged.weights, judged.updates, strict=True))
        return replace(before, model={"w": STATE.model["w"] + shift})

    before = Good(STATE.model, {}, {}).kept_in(replace(STATE, trust=first_memory(4)))
    after, held = hold(before, again(judged), judged, Weights(1), again, 0.02)  # type: ignore[arg-type]
    assert after.model["w"].tolist() == pytest.approx([2.0, 1.0])
    assert standing(after.trust, range(4)).tolist() == [0, 1, 1, 1]
    assert held.say[0] == 0
    assert "done again without member 0" in held.notes[0]


@pytest.mark.parametrize(
    ("last", "began", "rest", "final"),
    [
        (False, 0.0, (-0.4, 0.4), (-0.4, 0.4)),
        (True, 0.0, (-0.4, 0.4), (0, 0)),  # one class fell by 0.1, the other rose as much: worth -0.05
        (True, 0.0, (0.4, 0.4), (0.4, 0.4)),  # done again it helps
        (True, 0.0, (-0.04, 0.04), (-0.04, 0.04)),  # worth -0.005: less than half of `lose`
        (True, -0.06, (-0.4, 0.4), (0, 0)),  # it began 0.015 below the good model, more than half of `lose`
    ],
)
def test_a_last_round_that_harms_is_held_against_the_model_it_began_with_too(
    last: bool, began: float, rest: tuple[float, float], final: tuple[float, float]
) -> None:
    """The first of four members harms; without it the rest trade one class for the other, or help both."""
    deltas = torch.tensor([[-9.0, 0.0], rest, rest, rest])
    updates = [Update(i, {"w": delta}, 1, 1) for i, delta in enumerate(deltas)]
    judged = judgement(updates, [1, 1, 1, 1], {})
    start = replace(STATE, model={"w": torch.full((2,), began)}, trust=first_memory(4))
    before = Good({"w": torch.zeros(2)}, {}, {}).kept_in(start)

    def again(judged: Any) -> State:
        return replace(before, model={"w": began + torch.tensor(judged.weights) @ deltas})

    panel = Weights(2)
    panel.last = last
    after, held = hold(before, again(judged), judged, panel, again, 0.02)  # type: ignore[arg-type]
    assert after.model["w"].tolist() == pytest.approx(final)
    assert standing(after.trust, range(4)).tolist() == [0, 1, 1, 1]  # charged either way
    assert any("the model before it stays" in note for note in held.notes) == (last and rest[0] < -0.1)


@pytest.mark.parametrize(
    ("explains", "by_digests", "stand", "left_out"),
    [
        (0.4, False, [0, 1, 1, 1], True),
        (0.5, False, [1, 1, 1, 1], True),
        (0.4, True, [0, 1, 1, 1], True),
        (2 / 3, True, [1, 1, 1, 1], False),
    ],
)
def test_who_explains_too_little_of_the_harm_is_not_charged(
    explains: float, by_digests: bool, stand: list[int], left_out: bool
) -> None:
    """All push the model down, from 1 to -0.35: p falls by 0.318; without the loudest to 0.2, by 0.181: 43 % less."""
    updates = [Update(i, {"w": torch.tensor([x, 0.0])}, 1, 1) for i, x in enumerate((-3.0, -0.8, -0.8, -0.8))]
    judged = judgement(updates, [1, 1, 1, 1], {})

    def again(judged: Any) -> State:
        shift = sum(w * u.delta["w"] for w, u in zip(judged.weights, judged.updates, strict=True))
        return replace(before, model={"w": STATE.model["w"] + shift})

    before = Good(STATE.model, {}, {}).kept_in(replace(STATE, trust=first_memory(4)))
    after, held = hold(before, again(judged), judged, Weights(1, explains, by_digests), again, 0.02)  # type: ignore[arg-type]
    assert after.model["w"].tolist() == [1, 1]  # either way the round is undone
    assert standing(after.trust, range(4)).tolist() == stand
    assert ("without member 0" in held.notes[0]) == left_out


@pytest.mark.parametrize(("push", "left_out"), [(-0.3, False), (-4.0, True)])
def test_a_round_that_gains_is_done_again_only_without_who_explains_half_of_what_fell(
    push: float, left_out: bool
) -> None:
    """All four raise four classes by 0.12 and lower the fifth by 0.33: a gain, with a fall. The first lowers the fifth
    by a little more than the others do, or by nearly all of it."""
    rise = torch.tensor([0.0, 0.5, 0.5, 0.5, 0.5])
    rest = -2.0 if push > -1 else -0.4
    deltas = torch.stack([rise + torch.eye(5)[0] * (rest + push if i == 0 else rest) for i in range(4)])
    judged = judgement([Update(i, {"w": delta}, 1, 1) for i, delta in enumerate(deltas)], [1, 1, 1, 1], {})
    before = Good({"w": torch.zeros(5)}, {}, {}).kept_in(
        replace(STATE, model={"w": torch.zeros(5)}, trust=first_memory(4))
    )

    def again(judged: Any) -> State:
        return replace(before, model={"w": torch.tensor(judged.weights) @ deltas})

    after, held = hold(before, again(judged), judged, Weights(5, 1 / 2), again, 0.02)  # type: ignore[arg-type]
    assert any("without member 0" in note for note in held.notes) == left_out
    assert standing(after.trust, range(4)).tolist() == [0 if left_out else 1, 1, 1, 1]


def played(deltas: list[list[float]], panel: Weights, start: float = 0.0) -> tuple[State, Any]:
    """A round of members that send these, from a good model with the same number everywhere."""
    updates = [Update(i, {"w": torch.tensor(delta)}, 1, 1) for i, delta in enumerate(deltas)]
    judged = judgement(updates, [1] * len(updates), {})
    good = {"w": torch.full((len(deltas[0]),), start)}
    before = Good(good, {}, {}).kept_in(replace(STATE, model=good, trust=first_memory(len(updates))))

    def again(judged: Any) -> State:
        shift = sum(w * u.delta["w"] for w, u in zip(judged.weights, judged.updates, strict=True))
        return replace(before, model={"w": start + shift})

    return hold(before, again(judged), judged, panel, again, 0.02)  # type: ignore[arg-type]


@pytest.mark.parametrize("by_digests", [False, True])
def test_a_small_loss_that_all_see_is_harm_where_members_testify(by_digests: bool) -> None:
    """Five teach 0.05 each, the sixth takes 0.4: 0.006 of p are lost, less than `lose`, and 0.012 gained without it."""
    after, held = played([[0.05, 0.05]] * 5 + [[-0.4, -0.4]], Weights(2, 1 / 2, by_digests))
    assert after.model["w"].tolist() == pytest.approx([-0.025, -0.025] if by_digests else [0.05, 0.05])
    assert standing(after.trust, range(6)).tolist() == [1, 1, 1, 1, 1, 1 if by_digests else 0]
    assert [note.split(" (")[0] for note in held.notes] == ([] if by_digests else ["the round harmed"])


@pytest.mark.parametrize("by_digests", [False, True])
def test_who_holds_training_back_is_hushed_where_members_testify(by_digests: bool) -> None:
    """Five teach two classes, the sixth one of them and four times the other away: 1/6 is left, a gain. At the length
    of the rest, sqrt(2) in place of sqrt(17), it takes less; nobody is left out or charged for what does no harm."""
    after, held = played([[1.0, 1.0]] * 5 + [[1.0, -4.0]], Weights(2, 1 / 2, by_digests))
    left = 1.0 if by_digests else math.sqrt(2 / 17)
    assert after.model["w"].tolist() == pytest.approx([(5 + left) / 6, (5 - 4 * left) / 6])
    assert standing(after.trust, range(6)).tolist() == [1] * 6
    assert held.say == pytest.approx(dict.fromkeys(range(6), 1 / 6))
    told = [note.split(" (")[0] for note in held.notes]
    assert told == ([] if by_digests else ["the round was done with no update longer than the median"])


def test_those_who_are_left_are_hushed_too_where_that_is_better_still() -> None:
    """The last takes from both classes and is left out; two loud ones teach a class each and unteach the other: without
    either, one class would fall by more than the other gains, but at the length of the rest they take less."""
    loud = [[8.0, -9.0], [-9.0, 8.0]]
    after, held = played([[1.0, 1.0]] * 5 + loud + [[-7.0, -7.0]], Weights(2, 1 / 2), start=2.0)
    taken = math.sqrt(2) / math.sqrt(8**2 + 9**2)
    assert after.model["w"].tolist() == pytest.approx([2 + (5 - taken) / 7] * 2)
    assert standing(after.trust, range(8)).tolist() == [1] * 7 + [0]
    assert "done again without member 7 and with no update longer than the median (" in held.notes[0]


def test_updates_of_one_length_cannot_be_hushed() -> None:
    updates = [Update(i, {"w": torch.tensor([sign * 2.0])}, 1, 1) for i, sign in enumerate((1, -1, 1))]
    assert hushed(judgement(updates, [1, 1, 1], {})) is None
    loud = hushed(judgement([*updates, Update(3, {"w": torch.tensor([-8.0])}, 1, 1)], [1, 1, 1, 1], {}))
    assert loud is not None
    assert [float(update.delta["w"]) for update in loud.updates] == pytest.approx([2, -2, 2, -2])
    assert loud.weights == [0.25] * 4


def test_what_the_round_could_have_been_is_asked_of_seven_members_or_more() -> None:
    samples = Samples((torch.zeros(1, 2),), torch.tensor([0]))
    asked = [WitnessPanel(None, {}, range(n), 0, 9) for n in (6, 7)]  # type: ignore[arg-type]
    digests = WitnessPanel(None, dict.fromkeys(range(3), samples), range(9), 0, 9)  # type: ignore[arg-type]
    assert [one.many for one in (*asked, digests)] == [False, True, False]


def test_digests_must_explain_two_thirds_and_members_words_half() -> None:
    samples = Samples((torch.zeros(1, 2),), torch.tensor([0]))
    panels = [WitnessPanel(None, dict.fromkeys(range(n), samples), [], 0, 9) for n in (2, 3)]  # type: ignore[arg-type]
    assert [one.explains for one in panels] == [1 / 2, 2 / 3]


def test_the_good_model_moves_up_only_and_what_classes_lost_fades() -> None:
    good = Good({"w": torch.zeros(2)}, {}, {"0": -0.1})
    worse, better = (Found({"0": down, "1": up}, {}, 0.0, 3) for down, up in ((-0.3, 0.1), (-0.1, 0.2)))
    assert good.or_new(STATE, worse) is good
    new = good.or_new(STATE, better)
    assert new.model is STATE.model
    assert new.fallen == pytest.approx({"0": -0.2, "1": 0.0})
    kept = Good.of(new.kept_in(STATE))
    assert torch.equal(kept.model["w"], STATE.model["w"])
    assert kept.fallen == pytest.approx({"0": -0.18, "1": 0.0})


def test_a_late_strike_with_slander_is_undone() -> None:
    settings: dict[str, Any] = {
        "clients": 10, "partition": "dirichlet:1", "rounds": 6, "lr": 0.02, "model": "features", "workers": 0,
        "attack": "slander:since=4", "attackers": 4, "seed": 202,
    }  # fmt: skip
    held = run(Experiment(**settings, trust="jury"))
    free = run(Experiment(**settings, trust="jury:lose=none"))
    assert 5 in [record.round for record in held.records for note in record.notes if "undone" in note]
    assert (held.records[-1].accuracy or 0) > (free.records[-1].accuracy or 1) + 0.03


@pytest.mark.parametrize(("seed", "learnt"), [(201, 2), (212, 5)])
def test_who_holds_training_back_from_the_first_round_on_takes_little(seed: int, learnt: int) -> None:
    """70.7 and 68.5 % before, and that class at 2 and 0 %, while the floor knew only the last good model, and while the
    witnesses' gradient hardly knew a class that the model does not know; 80.0 and 79.6 % without those six."""
    settings: dict[str, Any] = {
        "clients": 20, "partition": "dirichlet:0.5", "rounds": 16, "lr": 0.02, "model": "features", "workers": 0,
        "attack": "mixture:length=3.9,own=-1,against=-0.6,push=0.5", "attackers": 6, "seed": seed,
    }  # fmt: skip
    last = run(Experiment(**settings, trust="jury")).records[-1]
    assert (last.accuracy or 0) > 0.75
    assert (last.by_class[learnt] or 0) > 0.4


def test_liars_on_panels_do_not_hide_what_quiet_strikes_take() -> None:
    """63.0 %, and classes 2 and 5 at 3 and 20 %, while all members of a panel counted alike: eight of the 16 and 17
    holders of these said the opposite of what they saw."""
    settings: dict[str, Any] = {
        "clients": 20, "partition": "dirichlet:0.5", "rounds": 16, "lr": 0.02, "model": "features", "workers": 0,
        "attack": "mixture:length=2,own=-1,against=0,victims=3,since=8", "attackers": 8, "seed": 201,
    }  # fmt: skip
    last = run(Experiment(**settings, trust="jury")).records[-1]
    assert (last.accuracy or 0) > 0.74
    assert min(last.by_class[c] or 0 for c in (2, 5)) > 0.5


def test_a_strike_in_the_last_round_does_not_leave_a_class_fallen() -> None:
    """Done again without those two, the round would leave 72.7 % in place of 77.5 %: class 4 fell by 37 points."""
    settings: dict[str, Any] = {
        "clients": 10, "partition": "dirichlet:0.5", "rounds": 4, "lr": 0.02, "model": "features", "workers": 0,
        "attack": "loudflip:since=3", "attackers": 3, "seed": 204,
    }  # fmt: skip
    *_, before, last = run(Experiment(**settings, trust="jury")).records
    assert "the model before it stays" in last.notes[-1]
    assert last.by_class == before.by_class
