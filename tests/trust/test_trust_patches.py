"""Backdoors: squares stamped by hand, blame derived by hand, and a run that a backdoor does not get through."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast
from holdfast.attacks.adversary import Adversary, choose_hostile
from holdfast.attacks.testers import Liar
from holdfast.cli.hostile import backdoor_rate
from holdfast.core.types import Message, Reply, Update
from holdfast.data.task import Samples
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment
from holdfast.trust.backdoor_probe import (
    Pair,
    Stamped,
    fit_for_squares,
    gradients,
    innocence_of,
    stamp_everywhere,
)
from holdfast.trust.jury import Jury
from holdfast.trust.measures import TestRequest, ask_for_help
from holdfast.trust.reputation import blame, first_memory, planting, standing
from holdfast.trust.testers import ask_testers


def test_every_point_is_stamped_once_and_nothing_else_changes() -> None:
    for shape, dtype, bright in [((1, 28, 28), torch.uint8, 255), ((3, 32, 32), torch.float32, 1.0)]:
        images = torch.zeros(2, *shape, dtype=dtype)
        made = stamp_everywhere(Samples((images,), torch.tensor([3, 5])))
        pictures = made.inputs[0].view(-1, 2, *shape)
        assert len(pictures) == 50  # as they are, and 7 x 7 places
        assert torch.equal(pictures[0], images)
        assert torch.equal(pictures[1:].double().sum(0), torch.full_like(images, bright).double())
        assert pictures.dtype == dtype
        assert made.labels.tolist() == [3, 5] * 50


@pytest.mark.parametrize(
    ("shape", "fits"), [((1, 28, 28), True), ((3, 7, 9), True), ((1, 6, 28), False), ((20,), False)]
)
def test_only_images_can_be_stamped(shape: tuple[int, ...], fits: bool) -> None:
    assert fit_for_squares(shape) is fits


def test_the_gradient_of_a_difference_of_log_odds_by_hand() -> None:
    """Two classes, logits (w x, 0): the log-odds of class 0 are w x, and the gradient of a difference x1 - x0."""
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.3], [0.0]]))
    samples = Samples((torch.tensor([[5.0], [1.0], [2.0], [4.0]]),), torch.zeros(4, dtype=torch.long))
    pairs = [Pair(of=0, further=2, plain=torch.tensor([0, 1])), Pair(of=1, further=3, plain=torch.tensor([0]))]
    one, other = (found["weight"][:, 0].tolist() for found in gradients(model, samples, pairs))
    assert one == pytest.approx([0.0, 0.0])  # (2 + 4) / 2 - (5 + 1) / 2
    assert other == pytest.approx([1.0, -1.0])  # -(4 - 5): for class 1 the log-odds are -w x
    assert model.weight.grad is None
    assert list(gradients(model, samples, [])) == []


class Corner(nn.Module):
    """Three classes of 7 x 7 points; a place's brightness speaks for a class as far as a weight says so."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 49))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weight.T


def test_who_teaches_the_square_is_blamed_and_who_teaches_the_class_is_not() -> None:
    """Place 48 speaks a little for class 2 already. There g is 1 at (2, 48), and nearly -1/2 at (0, 48) and (1, 48)."""
    model = Corner()
    with torch.no_grad():
        model.weight[2, 48] = 0.1
    weights = {"weight": model.weight.detach().clone()}
    planter, teacher, undoer, mixed = (torch.zeros(3, 49) for _ in range(4))
    planter[2, 48] = 7.0
    teacher[2, :48] = 1.0  # more of class 2 everywhere else
    undoer[2, 48] = -0.01
    mixed[2, 48], mixed[2, 0] = 1.0, 1.0
    updates = [Update(i, {"weight": d}, 10, 1) for i, d in enumerate([planter, teacher, undoer, mixed])]
    images = Samples((torch.zeros(6, 1, 7, 7),), torch.tensor([0, 0, 1, 1, 0, 1]))
    stamped = Stamped(stamp_everywhere(images), 6)
    told = innocence_of(model, stamped, ask_for_help(weights, {}, updates), [0, 1, 2, 3])
    share = 1 / math.sqrt(1 + 2 * 0.25)  # of g along (2, 48): the others are half as long each
    assert told["0"] == pytest.approx(0.5 - 0.5 * share, abs=0.01)
    assert told["2"] == pytest.approx(0.5, abs=1e-6)  # the larger of the two classes: it has no part in the other one
    assert told["1"] == pytest.approx(0.5, abs=1e-6)
    assert told["3"] == pytest.approx(0.5 - 0.5 * share / math.sqrt(2), abs=0.01)


def test_a_witness_with_one_class_and_a_model_without_gradient_blame_nobody() -> None:
    model = Corner()
    updates = [Update(i, {"weight": torch.ones(3, 49)}, 10, 1) for i in range(2)]
    tensors = ask_for_help({"weight": torch.zeros(3, 49)}, {}, updates)
    for label in range(3):
        images = Samples((torch.ones(4, 1, 7, 7),), torch.full((4,), label))  # a bright square changes nothing
        assert innocence_of(model, Stamped(stamp_everywhere(images), 4), tensors, [0, 1]) == {"0": 0.5, "1": 0.5}


def test_blame_is_believed_at_once_forgiven_slowly_and_one_liar_changes_nothing() -> None:
    reports = {w: {0: 0.5, 1: 0.3, 2: 0.5} for w in range(4)} | {4: {0: 0.0, 1: 1.0, 2: 0.0}}
    memory = blame(first_memory(5), reports, [0, 1, 2], 0.03)
    assert memory["planted"].tolist() == pytest.approx([0, -0.4, 0, 0, 0])
    assert standing(memory, range(5)).tolist() == [1, 0, 1, 1, 1]
    assert planting(memory, range(5)).tolist() == [False, True, False, False, False]
    better = blame(memory, {w: {0: 0.5, 1: 0.5, 2: 0.5} for w in range(4)}, [0, 1, 2], 0.03)
    assert better["planted"].tolist() == pytest.approx([0, -0.4 * 0.97, 0, 0, 0])
    assert blame(better, {}, [0, 1, 2], 0.03) is better  # no search, no change


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


def test_the_search_needs_images_and_can_be_left_out() -> None:
    with pytest.raises(ValueError, match="exclude and patches not negative"):
        Jury(patches=-1)
    vectors = {"task": "fashion-mini", "clients": 4, "model": "features", "samples": 200, "trust": "jury:patches=0"}
    assert make_plan(Experiment(**vectors)).client(0, nn.Identity(), None).stamped is None
    stamped = make_plan(Experiment(**{**vectors, "trust": "jury"})).client(0, nn.Identity(), None).stamped
    assert stamped is not None
    assert len(stamped.samples) == 50 * stamped.images


def test_a_backdoor_does_not_get_through_and_no_honest_client_is_named() -> None:
    settings = {
        "clients": 12, "partition": "dirichlet:0.5", "rounds": 14, "model": "features", "workers": 0, "seed": 100,
        "attack": "backdoor", "attackers": 3,
    }  # fmt: skip
    through, stopped = (holdfast.run(Experiment(**settings, trust=trust)) for trust in ("jury:patches=0", "jury"))
    rates = backdoor_rate(through), backdoor_rate(stopped)
    assert rates[0] is not None
    assert rates[1] is not None
    assert rates[0] > 0.25
    assert rates[1] < 0.1
    assert stopped.final_accuracy > through.final_accuracy - 0.01
    hostile = set(choose_hostile(12, 3, 100))
    assert {client for record in stopped.records for client in record.suspects} <= hostile
    assert np.mean([sum(record.weights.get(c, 0) for c in hostile) for record in stopped.records[7:]]) < 0.08
