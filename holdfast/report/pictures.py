"""What guidance looks like, and what mixing and noise do to features: the FedDig paper's Figures 4, 9, 10, 11 and 13.

The guidance producer P_G is the one a run of model `full` has learnt; without guidance there is nothing to see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.core import State, unpack
from holdfast.encoders import Encoder, make_encoder
from holdfast.errors import HoldfastError
from holdfast.mixing import Laplace, Strategy, laplace_noise
from holdfast.models import fill
from holdfast.plan import Plan, make_plan
from holdfast.randomness import rng
from holdfast.runs import History
from holdfast.tasks import Samples

SPDS = (1, 2, 4, 8)
SWEEP = tuple((1.0 - k / 10, k / 10) for k in range(0, 11))
BY_EYE = 0.005  # the paper's nominal epsilon


@dataclass(frozen=True)
class Studio:
    """All that the pictures are made with: the encoder, the guidance producer, and some client's samples."""

    encoder: Encoder
    producer: nn.Module
    samples: Samples
    classes: int
    seed: int

    def features(self) -> Tensor:
        return self.encoder.encode(self.samples.inputs[0])

    @torch.no_grad()
    def guidance(self, features: Tensor) -> Tensor:
        """G = P_G(D_R), pictures (n, C, H, W) in [0, 1]."""
        self.producer.eval()
        made: Tensor = self.producer(features)
        return made


def studio_of(history: History) -> Studio:
    """The studio of a run of FedDig with guidance, with the samples of its largest client."""
    plan, state = make_plan(history.experiment), history.state
    if plan.method.bench.producer is None or state is None:
        raise HoldfastError("pictures: this run has no guidance producer; run it with absence 'feddig', model 'full'.")
    return Studio(
        make_encoder(history.experiment.encoder, plan.task.shape),
        producer_of(plan, state),
        plan.task.train.take(plan.parts[plan.stage.largest][0]),
        plan.task.classes,
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
    features = studio.encoder.encode(studio.samples.inputs[0][group])
    shares = torch.tensor(list(weights), dtype=torch.float64)
    mixed = torch.tensordot(shares, features.double(), dims=1)[None].float()
    if noise is None:
        return mixed
    return mixed + laplace_noise(noise, float(studio.features().abs().max()), mixed.shape).float()


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
    figure, rows = canvas(1 + max(SPDS), count * len(SPDS), "guidance G, and the raw samples R mixed into it")
    for block, spd in enumerate(SPDS):
        for row, group in enumerate(groups(studio, spd, count)):
            line = rows[block * count + row]
            show(line[0], guide_group(studio, group, [1 / spd] * spd))
            if row == 0:
                line[0].set_title(f"SpD {spd}", fontsize=9, loc="left")
            for place, sample in zip(line[1:], group, strict=False):
                show(place, studio.samples.inputs[0][sample])
    return figure


def figure_weights(studio: Studio, count: int = 4) -> Any:
    """Figure 9: the guidance of two samples, mixed with weights from (1, 0) to (0, 1)."""
    figure, rows = canvas(2 + len(SWEEP), count, "guidance of two samples, by their weights")
    for number, (line, group) in enumerate(zip(rows, groups(studio, 2, count), strict=True)):
        show(line[0], studio.samples.inputs[0][group[0]])
        show(line[-1], studio.samples.inputs[0][group[1]])
        for place, weights in zip(line[1:-1], SWEEP, strict=True):
            show(place, guide_group(studio, group, weights))
            if number == 0:
                place.set_title(f"{weights[0]:.1f} | {weights[1]:.1f}", fontsize=7)
        if number == 0:
            line[0].set_title("R", fontsize=8)
            line[-1].set_title("R", fontsize=8)
    return figure


def figure_protection(studio: Studio, count: int = 8) -> Any:
    """Figure 10: raw samples, and guidance under noise alone, mixing within a class, mixing across, and both."""
    strong, weak = Laplace(BY_EYE), Laplace(BY_EYE / 10)
    ways: list[tuple[str, int, Strategy, Laplace | None]] = [
        ("features alone", 1, "across", None),
        (f"noise, epsilon {strong.epsilon:g}", 1, "across", strong),
        (f"noise, epsilon {weak.epsilon:g}", 1, "across", weak),
        ("4 within a class", 4, "within", None),
        ("4 across classes", 4, "across", None),
        ("4 across, and noise", 4, "across", strong),
    ]
    figure, rows = canvas(count, 2 * len(ways), "the first raw sample R of each digest, and its guidance G")
    for number, (title, spd, strategy, noise) in enumerate(ways):
        for place, group in enumerate(groups(studio, spd, count, strategy)):
            show(rows[2 * number][place], studio.samples.inputs[0][group[0]])
            show(rows[2 * number + 1][place], guide_group(studio, group, [1 / spd] * spd, noise))
        rows[2 * number][0].set_title(title, fontsize=8, loc="left")
    return figure


def figure_variance(studio: Studio, spd: int = 4) -> Any:
    """Figure 4: how much mixing moves each feature element, against the same variance everywhere for Laplace."""
    figure, axes = plain_canvas(6.4, 3.2)
    mixing, laplace = noise_variances(studio, spd)
    order = np.argsort(mixing)
    axes.bar(np.arange(len(order)), mixing[order], width=1.0, color="#0072B2", label=f"mixing, SpD {spd}")
    axes.axhline(laplace, color="#D55E00", label=f"Laplace, nominal epsilon {BY_EYE:g}, S 20,000")
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
    features = studio.features().flatten(1).double()
    places = torch.randperm(len(features), generator=rng(studio.seed, -1, -1, "pictures"))
    plan = places[: len(features) // spd * spd].view(-1, spd)
    moved = features[plan].mean(1, keepdim=True) - features[plan]
    laplace = 2 * Laplace(BY_EYE).scale(float(features.abs().max())) ** 2
    return moved.flatten(0, 1).var(0).numpy(), laplace


def show(axes: Any, picture: Tensor) -> None:
    """One picture, (C, H, W), bytes or floats in [0, 1]."""
    scale = 255.0 if picture.dtype == torch.uint8 else 1.0
    values = (picture.float() / scale).clamp(0, 1).permute(1, 2, 0).numpy()
    if values.shape[2] == 1:
        axes.imshow(values[:, :, 0], cmap="gray", vmin=0, vmax=1)
    else:
        axes.imshow(values)


def canvas(columns: int, down: int, title: str) -> tuple[Any, Any]:
    """A figure with rows of empty places for pictures."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.75 * columns + 0.3, 0.75 * down + 0.9), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    places = figure.subplots(down, columns, squeeze=False)
    for place in places.flat:
        place.set_axis_off()
    return figure, places


def plain_canvas(width: float, height: float) -> tuple[Any, Any]:
    """A figure with one set of axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()
