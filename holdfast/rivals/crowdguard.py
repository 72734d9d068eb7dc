"""CrowdGuard: members look at each other's models layer by layer, and vote (Rieger, Krauss et al., NDSS 2024).

At validator v, with d one of two distances (cosine, Euclidean) between what a layer says of a record in two models:

    r_m(record, layer)  = d(model m, sent model) / d(own model of v, sent model)          0 where the latter is 0
    x_m(class, layer)   = sign(z) z^2,  z = mean of r_m over the records of the class - 1

The rows x_m of all models but its own, and their median, are standardised and brought to their first principal
component. While t test, Levene or Kolmogorov-Smirnov (p < 0.01, of the distances from the median above and below it),
box plot (5.5) or three deviations find something, those on the far side of the widest gap from the median are dropped,
at most (n - 1) / 2 in all, the farthest first. Dropped by either distance: a vote against.

At the moderator votes are clustered, so that lying voters fall apart: single linkage into two, the larger cluster;
in it the largest group of equal votes has its way. Ties at the last link all fall apart here.

Rule from the authors' tutorial in OpenFL, which compares with a network that was never trained in place of the model
that was sent; and once more than half would be dropped, it pardons the farthest, not the nearest, and then drops none.
There enclaves keep models and data from each other's eyes, and validators use their training records; here members see
models in the open, and use records that they hold out, as FedTest's testers do.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from holdfast.core.types import State, Tensors, Update, unpack
from holdfast.data.task import Samples
from holdfast.learning.device import batch_on
from holdfast.models.networks import fill
from holdfast.rivals.flame import linked
from holdfast.rivals.two_samples import kolmogorov_smirnov, levene, t_test
from holdfast.trust.base import Hearing, Judgement, Testing, Trust
from holdfast.trust.measures import MEASURES, TestRequest, ask_for_accuracies, classes_of
from holdfast.trust.relayed import relay, signed_of
from holdfast.trust.robust.merging import judge_weighed
from holdfast.trust.testers import ask_testers

LEAST, WHISKERS, DEVIATIONS = 0.01, 5.5, 3.0  # below which a p value, beyond which a value says: hostile


@dataclass(frozen=True)
class CrowdGuard(Trust):
    """Members compare models layer by layer on their own records and vote; the largest group of like votes decides."""

    needs_classes: ClassVar[bool] = True

    most: int = 200  # records that a validator looks at

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"most must be at least 1, got {self.most}.")

    def testing(self, round: int) -> Testing | None:
        return Testing("layers", self.most)

    def judge(self, updates: Sequence[Update], hearing: Hearing, state: State) -> Judgement:
        signed = signed_of(hearing.received)
        sent = signed or updates  # nobody vouches for stand-ins
        clients = [update.client for update in sent]
        present = [update.client for update in sent if not update.synthetic]
        asked = (relay if signed else ask_for_accuracies)(state.model, state.buffers, sent)
        tested = {voter: [client for client in clients if client != voter] for voter in present}
        reports = ask_testers(hearing.federation, [v for v in present if tested[v]], asked, tested, state.round)
        votes = [[told.get(c, 1.0) >= 0.5 for c in clients] for told in reports.told.values()]
        kept = dict(zip(clients, decided(votes), strict=True)) if votes else {}
        masses = [float(kept.get(update.client, True)) for update in updates]
        notes = list(reports.notes)
        if not sum(masses):
            masses = [1.0] * len(updates)
            notes.append("the votes leave nobody, so all have the same weight in this round")
        scores = {c: statistics.fmean(vote[i] for vote in votes) for i, c in enumerate(clients)} if votes else {}
        found = replace(judge_weighed(updates, masses, notes), scores=scores, memory=state.trust)
        return replace(found, bytes_up=reports.bytes_up, bytes_down=reports.bytes_down)


def decided(votes: Sequence[Sequence[bool]]) -> list[bool]:
    """The vote of the largest group of equal ones within the larger cluster.

    Three agree, one differs in one vote, and a liar condemns all others: it is farthest.

    >>> decided([[True, True, False]] * 3 + [[True, False, False], [False, False, True]])
    [True, True, False]
    """
    rows = torch.tensor(votes, dtype=torch.float64)
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    groups = [list(range(len(votes)))]
    for bound in distances.flatten().unique().tolist():
        finer = linked(distances, bound)
        if len(finer) == 1:
            break
        groups = finer
    inside = [tuple(votes[place]) for place in max(groups, key=len)]
    return list(Counter(inside).most_common(1)[0][0])


@torch.inference_mode()
def votes_by_layers(model: nn.Module, samples: Samples, asked: TestRequest, clients: Sequence[int]) -> dict[str, float]:
    """1 for each model that nothing speaks against, 0 for the others."""
    own = next(client for client in asked.clients if client not in clients)
    inputs, labels = batch_on(model, samples, torch.arange(len(samples)))
    classes = classes_of(labels)
    model.eval()
    sent = layers_of(model, asked, None, inputs)
    said = {client: layers_of(model, asked, client, inputs) for client in (own, *clients)}
    dropped: set[int] = set()
    for distance in (cosine, euclidean):
        apart = torch.stack([torch.stack([distance(a, b) for a, b in zip(said[c], sent, strict=True)]) for c in said])
        rows = differences(apart[1:], apart[0], classes)
        dropped |= {clients[place] for place in outliers(rows)}
    return {str(client): float(client not in dropped) for client in clients}


def layers_of(model: nn.Module, asked: TestRequest, client: int | None, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What each convolution and linear layer says of each record, (records, values); no client: in the sent model."""
    delta: Tensors = {} if client is None else unpack(asked.delta, str(client))
    changed = {name: asked.model[name] + change for name, change in delta.items()}
    own = {} if client is None else unpack(asked.changed, str(client))
    fill(model, {**asked.model, **changed}, {**asked.buffers, **own})
    heard: list[Tensor] = []
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(lambda *told: heard.append(told[2].flatten(1).double())) for layer in layers]
    try:
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return heard


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return 1 - nn.functional.cosine_similarity(a, b, dim=1)


def euclidean(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).square().sum(1).sqrt()


def differences(apart: Tensor, own: Tensor, classes: Tensor) -> Tensor:
    """The rows x_m (models, classes x layers) of distances (models, layers, records), relative to one's own.

    Two records of one class, one layer: own distances 1 and 2, the model's 3 and 2: (3 + 1) / 2 - 1 = 1; none: -1.

    >>> own = torch.tensor([[1.0, 2.0]])
    >>> differences(torch.stack([torch.tensor([[3.0, 2.0]]), torch.zeros(1, 2)]), own, torch.zeros(2))
    tensor([[ 1.],
            [-1.]])
    """
    relation = torch.where(own == 0, 0.0, apart / own)
    means = [relation[:, :, classes == c].mean(2) for c in classes.unique()]
    z = torch.cat(means, dim=1) - 1
    return z.sign() * z.square()


def outliers(rows: Tensor) -> list[int]:
    """The places of the rows that are dropped, round after round, at most half of all with one's own."""
    most, dropped = len(rows) // 2, list[int]()
    while len(left := [place for place in range(len(rows)) if place not in dropped]) > 1:
        inside = rows[left]
        line = first_component(torch.cat([inside, middle(inside)[None]])).tolist()
        if not suspicious(line):
            break
        far = beyond_the_gap(line)
        room = most - len(dropped)
        dropped += [left[place] for place in sorted(far, key=lambda p: -abs(line[p] - line[-1]))[:room]]
        if not far or len(far) >= room:
            break
    return sorted(dropped)


def middle(rows: Tensor) -> Tensor:
    return rows.quantile(0.5, dim=0)


def first_component(rows: Tensor) -> Tensor:
    """Each row along the direction in which the standardised rows differ most; its largest share counts upwards."""
    centred = rows - rows.mean(0)
    spread = centred.std(0, correction=0)
    scaled = centred / torch.where(spread > 1e-12, spread, 1.0)
    direction = torch.linalg.svd(scaled, full_matrices=False).Vh[0]
    found: Tensor = scaled @ (direction * direction[direction.abs().argmax()].sign())
    return found


def suspicious(line: Sequence[float]) -> bool:
    """Whether a test finds that the values above their median are unlike those below, or an outlier.

    >>> suspicious([0.0, 1.0, 2.0, 3.0, 4.0]), suspicious([0.0, 1.0, 2.0, 3.0, 40.0])
    (False, True)
    """
    at = statistics.median(line)
    above, below = [v - at for v in line if v >= at], [at - v for v in line if v < at]
    if any(test(above, below) < LEAST for test in (t_test, levene, kolmogorov_smirnov)):
        return True
    values = torch.tensor(line, dtype=torch.float64)
    low, high = values.quantile(torch.tensor([0.25, 0.75], dtype=torch.float64)).tolist()
    whisker = WHISKERS * (high - low)
    if any(v < low - whisker or v > high + whisker for v in line):
        return True
    deviation = statistics.pstdev(line)
    return deviation > 0 and max(abs(v - statistics.fmean(line)) for v in line) / deviation >= DEVIATIONS


def beyond_the_gap(line: Sequence[float]) -> list[int]:
    """The places across the widest gap from the last value, which is the median's: single linkage into two.

    >>> beyond_the_gap([0.0, 9.0, 1.0, 8.0, 0.5])
    [1, 3]
    """
    order = sorted(line)
    gaps = [b - a for a, b in itertools.pairwise(order)]
    if not gaps or max(gaps) == 0:
        return []
    edge = order[gaps.index(max(gaps))]
    return [place for place, value in enumerate(line) if (value > edge) != (line[-1] > edge)]


MEASURES["layers"] = votes_by_layers
