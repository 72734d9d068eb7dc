"""Heads that are trained at the moderator, on records drawn from what digests say or on mixed rows themselves.

ccvr         a linear layer on records drawn from N(m_c, S_c), by the classes' shares     (Luo et al., NeurIPS 2021)
fishermix    cosines to class directions in Fisher's subspace V = U' W^-1/2, U the strongest directions between classes
             in W's metric, on records drawn there; W shrunken by 0.05                    (GH-OFL, ICLR 2026)
server-step  Holdfast's own: the network on mixed rows, stretched, or on records drawn from moments
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.core.randomness import rng
from holdfast.core.types import Tensors
from holdfast.data.task import Samples
from holdfast.heads.evidence import Evidence
from holdfast.heads.solved import NEVER, shrunken
from holdfast.learning.loop import train
from holdfast.learning.objective import TaskLoss
from holdfast.learning.schedules import Cosine
from holdfast.learning.settings import Learning
from holdfast.models.heads import Scores
from holdfast.models.networks import buffers_of, weights_of

EPOCHS, FEWEST_STEPS = 20, 1_000  # where records are few, more epochs
FEWEST, MOST = 4_000, 20_000  # records that are drawn
FISHER_SHRINK = 0.05
SHARP = 16.0  # of cosines, at first; it is learnt
LEARNING = Learning(epochs=1, lr=0.02)
SMOOTH = (
    0.1  # share of a mixed row's label that goes to all classes alike: a row is surer of its class than records are
)


def drawn(evidence: Evidence, generator: torch.Generator) -> Samples:
    """Records from each class's Gaussian, in proportion to its count; none is longer than features are, 1."""
    total = float(evidence.counts.sum())
    counts = evidence.counts * min(max(total, FEWEST), MOST) / total
    found, labels = [], []
    for c in evidence.held.nonzero().flatten().tolist():
        number = max(1, round(float(counts[c])))
        root = torch.linalg.cholesky(shrunken(evidence.covariances[c], 1e-3))
        noise = torch.randn(number, len(root), generator=generator, dtype=torch.float64)
        found.append(evidence.means[c] + noise @ root.T)
        labels.append(torch.full((number,), c))
    features = torch.cat(found)
    return Samples(((features / features.norm(dim=1, keepdim=True).clamp(min=1.0)).float(),), torch.cat(labels))


def ccvr(evidence: Evidence, seed: int = 0) -> Tensors:
    """Softmax regression on drawn records."""
    width, classes = evidence.means.shape[1], len(evidence.counts)
    layer = Scores(width, classes, "linear")
    with torch.no_grad():
        layer.bias[~evidence.held] = NEVER
    spread = Wide(layer, width**0.5)
    fit(spread, drawn(evidence, rng(seed, -1, -1, "ccvr")), seed)
    return {"weight": layer.weight.detach() * spread.factor, "bias": layer.bias.detach().clone()}


def fishermix(evidence: Evidence, seed: int = 0) -> Tensors:
    """Cosines in Fisher's subspace."""
    width, classes = evidence.means.shape[1], len(evidence.counts)
    layer = Scores(width, classes, "cosine")
    values, vectors = torch.linalg.eigh(shrunken(evidence.within, FISHER_SHRINK))
    whiten = vectors @ torch.diag(values.clamp(min=1e-12).rsqrt()) @ vectors.T
    shares = evidence.counts / evidence.counts.sum()
    away = (evidence.means - shares @ evidence.means) @ whiten
    between = torch.einsum("c,ck,cl->kl", shares, away, away)
    strongest = torch.linalg.eigh(between).eigenvectors.flip(1)[:, : len(layer.subspace)]
    with torch.no_grad():
        layer.subspace.copy_((strongest.T @ whiten).float())
        layer.weight.copy_(SHARP * functional.normalize((evidence.means @ whiten @ strongest).float(), dim=1))
        layer.bias.copy_(torch.where(evidence.held, 0.0, NEVER))
    fit(layer, drawn(evidence, rng(seed, -1, -1, "fishermix")), seed)
    return {**weights_of(layer), **buffers_of(layer)}


def server_step(model: nn.Module, samples: Samples, seed: int = 0, learning: Learning = LEARNING) -> Tensors:
    """The network's weights and buffers after a few epochs on what the digests hold."""
    if samples.labels.is_floating_point():
        samples = replace(samples, labels=(1 - SMOOTH) * samples.labels + SMOOTH / samples.labels.shape[1])
    fit(model, samples, seed, learning)
    return {**weights_of(model), **buffers_of(model)}


def fit(model: nn.Module, samples: Samples, seed: int, learning: Learning = LEARNING) -> None:
    """A few epochs, the learning rate falling as half a cosine."""
    chance, schedule = rng(seed, -1, -1, "head"), Cosine()
    epochs = max(EPOCHS, -(-FEWEST_STEPS // learning.steps(len(samples))))
    for epoch in range(epochs):
        rate = learning.lr * schedule(epoch, epochs)
        train(model, samples, replace(learning, epochs=1, lr=rate), chance, TaskLoss())


class Wide(nn.Module):
    """A layer on features that were spread out first: those of length one are small for a learning rate."""

    def __init__(self, layer: nn.Module, factor: float) -> None:
        super().__init__()
        self.layer, self.factor = layer, factor

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.layer(features * self.factor)
        return output
