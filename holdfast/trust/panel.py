"""The jobs of a panel: members tell, class by class, how well models do on their held-out samples (`trust/floor.py`).

Three questions of a round: "panel", the new model beside the last good one and beside that of the round with nobody
louder than the median, once; "replay", where the new one harms, the average without each member in turn; "confirm", the
round without the most blamed one, two, three ... of them beside the last good one. The last two are asked again,
without those left out so far, as long as the model still loses, PASSES times at most. The third is asked once more
where those who are left are hushed, and where something is taken out of the model (unlearning.py): the model without
all, half, a quarter ... of it beside that with it. In the last round the first and the third also have the model that
it began with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from holdfast.context import Bench, Context
from holdfast.core.failures import Refusal
from holdfast.core.tensors import view_of
from holdfast.core.types import Tensors, unpack
from holdfast.data.task import Samples, joined
from holdfast.jobs import Job, register
from holdfast.learning.device import outputs
from holdfast.models.networks import fill
from holdfast.trust.measures import classes_of, held_out_and_more, some_of
from holdfast.trust.testing import Tester

Scores = Mapping[str, Mapping[str, float]]  # model -> class -> from 0 to 1
SHARP = 4.5  # x the rms of the outputs: sharp enough that p is near 0 or 1 for most samples
PASSES = 4  # of the search for who harms, in a round: a site answers no more
KEPT = 100  # models whose scores a member remembers: the good one is asked about again and again
NEW, GOOD, BEFORE, HUSHED, ALL = "new", "good", "before", "hushed", "all"  # others: the member, or the number, left out


@dataclass(frozen=True)
class PanelRequest:
    """Models under their names: "new/layer.weight"."""

    models: Tensors
    buffers: Tensors = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name.split("/", 1)[0] for name in self.models))

    def mark(self, name: str) -> bytes:
        """What tells this model from others."""
        found = hashlib.sha256()
        for tensors in (self.models, self.buffers):
            for part, tensor in unpack(tensors, name).items():
                found.update(f"{part} {tensor.dtype} {tuple(tensor.shape)} ".encode())
                found.update(view_of(tensor))
        return found.digest()


@dataclass(frozen=True)
class PanelReply:
    """The mean of p(true class) of each model for each class that the member holds; none: its policy keeps it home."""

    samples: int
    scores: dict[str, dict[str, float]] | None = None


def class_scores(
    model: nn.Module, samples: Samples, asked: PanelRequest, known: Collection[str] = ()
) -> dict[str, dict[str, float]]:
    """Of each model and class the mean of p(true class), with outputs at the same scale for all models.

        p = softmax(SHARP z / rms(z)),    z the outputs less their mean over classes

    Bounded, unlike the loss; smoother than accuracy, of which a few samples tell little; and blind to how sure a model
    is of itself: an update that only makes weights larger raises p as it is, and accuracy not at all. Those whose
    scores are known are left out.
    """
    return all_class_scores(model, {0: samples}, asked, known)[0]


@torch.inference_mode()
def all_class_scores(
    model: nn.Module, held: Mapping[int, Samples], asked: PanelRequest, known: Collection[str] = ()
) -> dict[int, dict[str, dict[str, float]]]:
    """As class_scores, of several holders' samples, each at its own scale: one pass of each model."""
    inputs, labels = joined(list(held.values()))
    classes, sizes = classes_of(labels).long(), torch.tensor([len(one) for one in held.values()])
    owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    found: dict[int, dict[str, dict[str, float]]] = {holder: {} for holder in held}
    for name in [name for name in asked.names if name not in known]:
        fill(model, unpack(asked.models, name), unpack(asked.buffers, name))
        model.eval()
        output = outputs(model, *inputs)
        centred = output - output.mean(1, keepdim=True)
        scale = mean_by(owner, centred.square().mean(1)).sqrt().clamp_min(1e-30)
        chance = (SHARP * centred / scale[owner, None]).softmax(1).gather(1, classes[:, None]).squeeze(1)
        pairs, place = torch.unique(owner * output.shape[1] + classes, return_inverse=True)
        means = mean_by(place, chance.nan_to_num(0.0))
        holders = list(held)
        for pair, value in zip(pairs.tolist(), means.tolist(), strict=True):
            own, c = divmod(pair, output.shape[1])
            found[holders[own]].setdefault(name, {})[str(c)] = value
    return found


def digest_scores(
    bench: Bench, digests: Mapping[int, Samples], asked: PanelRequest, most: int
) -> dict[int, dict[str, dict[str, float]]]:
    """As all_class_scores, of at most so many rows of each digest: models of the last question are known, if the
    digests are the same."""
    marks = {name: asked.mark(name) for name in asked.names}
    rows = {holder: (*samples.inputs, samples.labels) for holder, samples in digests.items()}
    before, scored = bench.scored
    same = before.keys() == rows.keys() and all(
        mine is other for holder in rows for mine, other in zip(rows[holder], before[holder], strict=True)
    )
    known = {name: scored[mark] for name, mark in marks.items() if same and mark in scored}
    some = {holder: some_of(samples, most) for holder, samples in digests.items()}
    found = all_class_scores(bench.model, some, asked, known)
    for holder, told in found.items():
        told |= {name: scores[holder] for name, scores in known.items()}
    bench.scored = rows, {mark: {h: told[name] for h, told in found.items()} for name, mark in marks.items()}
    return found


def mean_by(group: Tensor, values: Tensor) -> Tensor:
    """The mean of the values of each group, which are numbered from 0.

    >>> mean_by(torch.tensor([0, 1, 1]), torch.tensor([5.0, 1.0, 2.0]))
    tensor([5.0000, 1.5000])
    """
    counts = torch.bincount(group)
    return torch.zeros(len(counts), dtype=values.dtype).index_add_(0, group, values) / counts.clamp_min(1)


class Panel(Job[Tester, PanelRequest, PanelReply]):
    request, reply = PanelRequest, PanelReply

    def __init__(self, name: str, models: Collection[str], counted: bool = False, times: int = 1) -> None:
        self.name, self._models, self._counted, self.times = name, models, counted, times

    def due(self, round: int, client: Tester, context: Context) -> bool:
        return client.trust.panel is not None

    def check(self, asked: PanelRequest, round: int, client: Tester, context: Context) -> None:
        """Refuse other models than the question has, some of them one for each member at most."""
        known = {*self._models, *(map(str, range(context.clients)) if self._counted else ())}
        if round + 1 < context.rounds:
            known -= {BEFORE}
        if not set(asked.names) <= known:
            raise Refusal("question", f"a {self.name!r} names models that the rule does not have.")

    def records(self, client: Tester, round: int) -> int:
        return len(self._samples(client))

    def perform(self, client: Tester, asked: PanelRequest, round: int) -> PanelReply:
        if client.trust.panel is None:
            raise Refusal("job", f"client {client.id} is asked as a panel, but the run's trust rule has none.")
        samples = self._samples(client)
        marks = {name: asked.mark(name) for name in asked.names}
        scores = {name: client.scored[mark] for name, mark in marks.items() if mark in client.scored}
        scores |= class_scores(client.model, samples, asked, known=scores)
        told = {name: scores[name] for name in marks}
        for name, mark in marks.items():  # the newest last
            client.scored.pop(mark, None)
            client.scored[mark] = told[name]
        for mark in [*client.scored][:-KEPT]:
            del client.scored[mark]
        return PanelReply(len(samples), told)

    def _samples(self, client: Tester) -> Samples:
        return held_out_and_more(client.validation, client.train, client.trust.panel or 0)


PANEL = register(Panel("panel", (NEW, GOOD, BEFORE, HUSHED)))
REPLAY = register(Panel("replay", (ALL,), counted=True, times=PASSES))
CONFIRM = register(Panel("confirm", (NEW, GOOD, BEFORE, HUSHED), counted=True, times=PASSES + 2))
