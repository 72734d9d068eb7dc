"""Users' own attacks and trust rules: plain functions work, and what does not fit is one sentence that names it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from engine_helpers import experiment
from torch import Tensor

from holdfast.attacks import ATTACKS, Attack, Sight
from holdfast.core.errors import HoldfastError
from holdfast.core.types import State, Update
from holdfast.data.task import Samples
from holdfast.models.networks import weights_of
from holdfast.play import run
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment, from_table
from holdfast.runs.rehearse import rehearse, without_effect
from holdfast.trust import Hearing, Judgement, Trust
from holdfast.trust.base import Testing, judgement


def opposite(sight: Sight) -> Tensor:
    return -sight.own


def nothing(sight: Sight) -> None:
    return None


def short(sight: Sight) -> Tensor:
    return sight.own[:, 1:]


def broken(sight: Sight) -> Tensor:
    raise KeyError("no such thing")


class NoKind:
    def tamper(self, sight: Sight) -> Tensor:
        return sight.own


class WrongKind(NoKind):
    kind = ("updates",)


class NoMethod:
    kind = ("update", "data")

    def tamper(self, sight: Sight) -> Tensor:
        return sight.own


class OnlyKind(NoKind):
    """Neither a dataclass nor made from Attack: it attacks in all rounds."""

    kind = ("update",)


class NeedsMore(OnlyKind):
    def __init__(self, size: int) -> None: ...


@dataclass(frozen=True)
class Turning(Attack):
    kind: ClassVar[tuple[str, ...]] = ("update",)

    def tamper(self, sight: Sight) -> Tensor:
        return -sight.own


class Unnamed(OnlyKind):
    def rewrite(self, *_: Any) -> list[int]:
        return []


class NoSamples:
    kind = ("data",)

    def poison(self, *_: Any) -> Any:
        return None


class TooManyClasses(NoSamples):
    def poison(self, samples: Samples, *_: Any) -> Samples:
        return Samples(samples.inputs, samples.labels + 99)


class NoReport:
    kind = ("tester",)

    def report(self, *_: Any) -> float:
        return 0.5


class ForgetsToReport:
    """Answers the first time, which is the rehearsal."""

    kind = ("tester",)

    def __init__(self) -> None:
        self.asked = 0

    def report(self, honest: dict[int, float], *_: Any) -> Any:
        self.asked += 1
        return honest if self.asked == 1 else None


def attacked(name: str, **changes: object) -> Experiment:
    return experiment(**{"attack": f"{__name__}:{name}", "attackers": 2, "rounds": 2, **changes})


def test_a_plain_function_is_an_attack_on_updates() -> None:
    found = run(attacked("opposite")).records
    assert [record.loss for record in found] == [r.loss for r in run(attacked("x", attack="signflip")).records]
    assert run(attacked("OnlyKind")).records[1].loss == run(experiment(rounds=2)).records[1].loss


def test_an_attack_of_ones_own_has_since_and_until() -> None:
    late = {"name": f"{__name__}:Turning", "since": 1, "until": 2}
    assert run(attacked("x", attack=late, rounds=4)).records[3].loss == (
        run(attacked("x", attack="signflip:since=1,until=2", rounds=4)).records[3].loss
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("NoKind", "NoKind is no attack: it needs a kind, a tuple of some of update, data, tester, digest"),
        ("WrongKind", "WrongKind is no attack: it needs a kind"),
        ("NoMethod", "NoMethod is of kind 'data', so it needs poison."),
        ("NeedsMore", "NeedsMore cannot be made: "),
        ("nothing", "attack: nothing must answer with a tensor of 2 rows of 92 values, as sight.own is; got NoneType."),
        ("short", "attack: short must answer with a tensor of 2 rows of 92 values, as sight.own is; got one of shape"),
        ("broken", "attack: broken failed: KeyError: 'no such thing'."),
        ("Unnamed", "attack: rewrite of Unnamed must answer with named tensors, got list."),
        ("NoSamples", "attack: poison of NoSamples must answer with Samples, got NoneType."),
        ("TooManyClasses", "attack: the model does not fit the poisoned samples of shape (6,) and their labels"),
        ("NoReport", "attack: report of NoReport must answer with an accuracy for each client, got 0.5."),
    ],
)
def test_what_is_no_attack_is_refused_before_round_one(name: str, sentence: str) -> None:
    with pytest.raises(HoldfastError) as error:
        make_plan(attacked(name))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


class NoDigest:
    kind = ("digest",)

    def spoil(self, features: Tensor, *_: Any) -> Tensor:
        return features


def test_attacks_on_digests_are_rehearsed_where_there_are_digests() -> None:
    settings = {"clients": 4, "samples": 200, "absence": "feddig", "attackers": 1}
    make_plan(from_table({**settings, "attack": "falsedigest"}))
    with pytest.raises(HoldfastError, match=r"attack: spoil of NoDigest must answer with features and labels, two"):
        make_plan(from_table({**settings, "attack": f"{__name__}:NoDigest"}))


def test_a_bad_answer_in_a_round_is_a_sentence_too() -> None:
    with pytest.raises(HoldfastError, match="report of ForgetsToReport must answer with an accuracy for each client"):
        run(attacked("ForgetsToReport", trust="fedtest:4"))


@pytest.mark.parametrize("name", sorted(set(ATTACKS) - {"backdoor"}))
def test_every_attack_passes_its_rehearsal(name: str) -> None:
    plan = make_plan(experiment(attack=name, attackers=1, model="mlp:8"))
    assert type(plan.attack) is ATTACKS[name]
    few = plan.task.train.take(torch.arange(4))
    poisoned = rehearse(plan.attack, plan.hostile, plan.method, weights_of(plan.model()), few, None)
    assert (poisoned is not None) is ("data" in plan.attack.kind)


@pytest.mark.parametrize(
    ("attack", "trust", "effect"),
    [
        ("nonsense", "samples", False),
        ("nonsense", "krum", False),
        ("nonsense", "fedtest", True),
        ("nonsense", "jury", True),
        ("nonsense", f"{__name__}:Answering", False),
        ("nonsense", f"{__name__}:Asking", True),
        ("colluder:update=honest", "uniform", False),
        ("liar", "auto", True),
        ("backdoor", "auto", True),
        ("backdoor:into=digests", "auto", False),
    ],
)
def test_whether_an_attack_has_any_effect(attack: str, trust: str, effect: bool) -> None:
    assert (without_effect(experiment(attack=attack, attackers=1, trust=trust)) is None) == effect


def test_digests_are_attacked_where_there_are_some_and_copies_need_an_original() -> None:
    digests = Experiment(attack="baddigest", attackers=1, absence="feddig")  # type: ignore[arg-type]
    assert without_effect(digests) is None
    assert "takes no digests" in (without_effect(experiment(attack="baddigest", attackers=1)) or "")
    assert "there is none" in (without_effect(experiment(attack="mimic", attackers=4)) or "")


def test_what_has_no_effect_is_noted_where_it_is_played() -> None:
    notes = [list(record.notes) for record in run(experiment(attack="falsedigest", attackers=1, rounds=2)).records]
    assert notes == [["attack 'falsedigest' has no effect: absence 'none' takes no digests."], []]


ANSWERS: list[Any] = []


@dataclass(frozen=True)
class Answering(Trust):
    """A user's own rule that answers what the test says."""

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        found = ANSWERS[-1]
        return judgement(updates, found, {}) if isinstance(found, list) else found


@dataclass(frozen=True)
class Asking(Answering):
    """A user's own rule that has clients test."""

    def testing(self, round: int) -> Testing:
        return Testing("accuracy", 10)


class Underived:
    def judge(self, *_: Any) -> None: ...


@dataclass(frozen=True)
class Silent(Trust):
    """A rule that does not judge."""


@pytest.mark.parametrize("name", ["Underived", "Silent", "opposite"])
def test_what_is_no_trust_rule_is_refused_before_round_one(name: str) -> None:
    with pytest.raises(HoldfastError, match=f"trust: .*{name} is no trust rule; derive a class from"):
        make_plan(experiment(trust=f"{__name__}:{name}"))


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (None, "trust rule Answering: judge must answer with a Judgement, got NoneType."),
        ([1.0, float("nan"), 1.0, 1.0], "trust rule Answering gives client 1's update the weight nan; weights are"),
        ([2.0, 2.0, -1.0, 1.0], "trust rule Answering gives client 2's update the weight -0.25; weights are"),
        ([0.0] * 4, "trust rule Answering gives weights that sum to 0; they must sum to 1."),
        (Judgement([], [1.0], {}), "trust rule Answering gives 1 weights to 0 updates."),
        (Judgement([], [], {}, scores={3: float("inf")}), "gives client 3 inf in scores; it must be a finite number."),
    ],
)
def test_a_bad_answer_is_a_sentence_that_names_the_rule(answer: Any, sentence: str) -> None:
    ANSWERS.append(answer)
    with pytest.raises(HoldfastError) as error:
        run(experiment(trust=f"{__name__}:Answering"))
    assert sentence in str(error.value)


def test_masses_of_any_size_are_weights() -> None:
    ANSWERS.append([3.0, 0.0, 1.0, 0.0])
    plan = replace(experiment(trust=f"{__name__}:Answering"), rounds=1)
    assert run(plan).records[0].weights == {0: 0.75, 1: 0.0, 2: 0.25, 3: 0.0}


@pytest.mark.parametrize(("key", "base"), [("algorithm", "FedAvg"), ("absence", "AbsencePolicy")])
def test_what_is_no_algorithm_and_what_stands_in_for_nobody_is_refused_before_round_one(key: str, base: str) -> None:
    for wrong in ("torch:pi", "torch:sqrt", "holdfast.trust:Trust"):
        with pytest.raises(HoldfastError, match=f"{key}: {wrong} is no {key}; derive a class from .*{base}"):
            make_plan(Experiment(**{key: wrong}))
