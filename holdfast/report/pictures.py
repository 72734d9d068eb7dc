"""What guidance looks like, and what mixing and noise do to features: the FedDig paper's Figures 4, 9, 10, 11 and 13.

The guidance producer P_G is the one a run of model `full` has learnt; without guidance there is nothing to see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.core.randomness import rng
from holdfast.core.types import State, unpack
from holdfast.data.task import Samples
from holdfast.digests.mixing import Laplace, Strategy, laplace_noise
from holdfast.encoders import Encoder, encoder_for
from holdfast.learning.device import outputs
from holdfast.models.networks import fill
from holdfast.runs.build import make_plan
from holdfast.runs.history import History
from holdfast.runs.plan import Plan

SPDS = (1, 2, 4, 8)
SWEEP = tuple((1.0 - k / 10, k / 10) for k in range(11))
BY_EYE = 0.005  # the paper's nominal epsilon


@dataclass(frozen=True)
class Studio:
    """All that the pictures are made with: the encoder, the guidance producer, and some client's samples."""

    encoder: Encoder
    producer: nn.Module
    samples: Samples
    seed: int

    @cached_property
    def features(self) -> Tensor:
        return self.encoder.encode(self.samples.inputs[0])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.samples.inputs[0].shape[1:])

    @property
    def tau(self) -> float:
        """The client's largest feature value, in the scale of the noise."""
        return float(self.features.abs().max())

    @torch.no_grad()
    def guidance(self, features: Tensor) -> Tensor:
        """G = P_G(D_R), pictures (n, C, H, W) in [0, 1]."""
        self.producer.eval()
        return outputs(self.producer, features)


def studio_of(history: History) -> Studio:
    """The studio of a run of FedDig with guidance, with the samples of its largest client."""
    plan, state = make_plan(history.experiment), history.state
    if plan.method.bench.producer is None or state is None:
        raise HoldfastError("pictures: this run has no guidance producer; run it with absence 'feddig', model 'full'.")
    return Studio(
        encoder_for(plan.experiment.encoder, plan.task.train.inputs[0], plan.task.schema),
        producer_of(plan, state),
        plan.task.train.take(plan.parts[plan.stage.largest][0]),
        history.experiment.seed,
    )


def producer_of(plan: Plan, state: State) -> nn.Module:
    """P_G as the run left it."""
    producer = plan.method.bench.producer
    assert producer is not None
    fill(producer, unpack(state.absence, "guidance"), unpack(state.absence, "guidance_buffers"))
    return producer


def guide_group(studio: Studio, group: Tensor, weights: Sequence[float], noise: Laplace | None = None) -> Tensor:
    """The guidance of one digest that is mixed from these samples with these weights."""
    return studio.guidance(mixed_group(studio, group, weights, noise))[0]


def mixed_group(studio: Studio, group: Tensor, weights: Sequence[float], noise: Laplace | None) -> Tensor:
    """D_R of one digest, (1, *feature_shape): mixed from these samples in this order."""
    features = studio.features[group]
    shares = torch.tensor(list(weights), dtype=torch.float64)
    mixed: Tensor = torch.tensordot(shares, features.double(), dims=1)[None].float()
    if noise is None:
        return mixed
    return mixed + laplace_noise(noise, studio.tau, mixed.shape).float()


def groups(studio: Studio, spd: int, count: int, strategy: Strategy = "across") -> Tensor:
    """Some samples in groups of SpD, (count, spd), of the same class within a group if `within`."""
    labels = studio.samples.labels
    order = torch.randperm(len(labels), generator=rng(studio.seed, -1, -1, "pictures"))
    if strategy == "across":
        return order[: count * spd].view(-1, spd)
    rows = [order[labels[order] == label] for label in labels.unique()]
    return torch.stack([row[:spd] for row in rows if len(row) >= spd][:count])


# The figures ------------------------------------------------------------------------------------------------------


def save_pictures(history: History, out: Path) -> list[Path]:
    """All the figures of one run, and where they are."""
    studio = studio_of(history)
    figures = {
        "guidance-spd.png": figure_spd(studio),
        "guidance-weights.png": figure_weights(studio),
        "guidance-protection.png": figure_protection(studio),
        "noise-variance.png": figure_variance(studio),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(out / name)
    return [out / name for name in figures]


def figure_spd(studio: Studio, count: int = 4) -> Any:
    """Figures 11 and 13: for each SpD some digests, the guidance first and the raw samples mixed into it after it."""
    sheet = Sheet(studio.shape, count * len(SPDS), 1 + max(SPDS))
    for block, spd in enumerate(SPDS):
        for place, group in enumerate(groups(studio, spd, count)):
            row = block * count + place
            sheet.put(row, 0, guide_group(studio, group, [1 / spd] * spd))
            for column, sample in enumerate(group):
                sheet.put(row, 1 + column, studio.samples.inputs[0][sample])
        sheet.say(block * count, 0, f"SpD {spd}: guidance G, and the raw samples R that are mixed into it")
    return sheet.figure()


def figure_weights(studio: Studio, count: int = 4) -> Any:
    """Figure 9: the guidance of two samples, mixed with weights from (1, 0) to (0, 1)."""
    sheet = Sheet(studio.shape, count, 2 + len(SWEEP))
    for row, group in enumerate(groups(studio, 2, count)):
        sheet.put(row, 0, studio.samples.inputs[0][group[0]])
        sheet.put(row, 1 + len(SWEEP), studio.samples.inputs[0][group[1]])
        for column, weights in enumerate(SWEEP):
            sheet.put(row, 1 + column, guide_group(studio, group, weights))
    sheet.say(0, 0, "first R")
    sheet.say(0, 1 + len(SWEEP), "second R")
    for column, weights in enumerate(SWEEP):
        sheet.say(0, 1 + column, f"{weights[0]:.1f} | {weights[1]:.1f}")
    return sheet.figure()


def figure_protection(studio: Studio, count: int = 8) -> Any:
    """Figure 10: raw samples, and guidance under noise alone, mixing within a class, mixing across, and both."""
    weak, strong = Laplace(BY_EYE), Laplace(BY_EYE / 10)
    ways: list[tuple[str, int, Strategy, Laplace | None]] = [
        ("features alone: raw sample R above, its guidance G below", 1, "across", None),
        (f"only noise, nominal epsilon {weak.epsilon:g}", 1, "across", weak),
        (f"only noise, nominal epsilon {strong.epsilon:g}", 1, "across", strong),
        ("only mixing, 4 within a class (the first R of each)", 4, "within", None),
        ("only mixing, 4 across classes", 4, "across", None),
        (f"mixing 4 across classes, and noise, nominal epsilon {weak.epsilon:g}", 4, "across", weak),
    ]
    sheet = Sheet(studio.shape, 2 * len(ways), count)
    for number, (title, spd, strategy, noise) in enumerate(ways):
        for column, group in enumerate(groups(studio, spd, count, strategy)):
            sheet.put(2 * number, column, studio.samples.inputs[0][group[0]])
            sheet.put(2 * number + 1, column, guide_group(studio, group, [1 / spd] * spd, noise))
        sheet.say(2 * number, 0, title)
    return sheet.figure()


def figure_variance(studio: Studio, spd: int = 4) -> Any:
    """Figure 4: how much mixing moves each feature element, against the same variance everywhere for Laplace."""
    figure, axes = plain_canvas(6.4, 3.2)
    mixing, laplace = noise_variances(studio, spd)
    order = np.argsort(mixing)
    axes.bar(np.arange(len(order)), mixing[order], width=1.0, color="#0072B2", label=f"mixing, SpD {spd}")
    axes.axhline(laplace, color="#D55E00", label=f"Laplace, nominal epsilon {BY_EYE:g}, S 20,000")
    axes.set_yscale("log")
    axes.set_xlabel("feature element, by its variance")
    axes.set_ylabel("variance of what is added")
    axes.legend(frameon=False, fontsize="small")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


def noise_variances(studio: Studio, spd: int) -> tuple[np.ndarray[Any, Any], float]:
    """For each feature element the variance of (digest - the sample in it), and Laplace's, 2 (tau / (S epsilon))^2.

    For independent samples of variance v the first is v (1 - 1/SpD): the other samples are the noise.
    """
    features = studio.features.flatten(1).double()
    places = torch.randperm(len(features), generator=rng(studio.seed, -1, -1, "pictures"))
    plan = places[: len(features) // spd * spd].view(-1, spd)
    moved = features[plan].mean(1, keepdim=True) - features[plan]
    laplace = 2 * Laplace(BY_EYE).scale(studio.tau) ** 2
    return moved.flatten(0, 1).var(0).numpy(), laplace


class Sheet:
    """Rows of pictures on white, drawn as one image: a set of axes for each takes matplotlib half a minute."""

    def __init__(self, shape: tuple[int, ...], rows: int, columns: int) -> None:
        _, height, width = shape
        self._cell = (height + height // 3 + 2, width + 2)  # room for a line of text above each row
        self._pixels = np.ones((rows * self._cell[0], columns * self._cell[1], 3))
        self._texts: list[tuple[float, float, str]] = []

    def put(self, row: int, column: int, picture: Tensor) -> None:
        """One picture, (C, H, W), bytes or floats in [0, 1]."""
        scale = 255.0 if picture.dtype == torch.uint8 else 1.0
        values = (picture.float() / scale).clamp(0, 1).permute(1, 2, 0).numpy()
        bottom, left = (row + 1) * self._cell[0] - 1, column * self._cell[1] + 1
        self._pixels[bottom - values.shape[0] : bottom, left : left + values.shape[1]] = values

    def say(self, row: int, column: int, text: str) -> None:
        """Words above a picture."""
        self._texts.append((column * self._cell[1] + 1, row * self._cell[0] + self._cell[0] * 0.18, text))

    def figure(self) -> Any:
        height, width = self._pixels.shape[:2]
        figure, axes = plain_canvas(width / 40, height / 40)
        axes.imshow(self._pixels, interpolation="nearest")
        axes.set_axis_off()
        for x, y, text in self._texts:
            axes.text(x, y, text, fontsize=8, va="bottom")
        return figure


def plain_canvas(width: float, height: float) -> tuple[Any, Any]:
    """A figure with one set of axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()
