"""The experiment's model: how to build it, what it reads, and whether this machine can hold it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from holdfast.absence import AbsencePolicy
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError, plain
from holdfast.data.task import Samples, Task
from holdfast.encoders import Encoder, encoder_for
from holdfast.models.networks import MODELS, Layout, Model
from holdfast.runs.experiment import Experiment


def choose_model(
    experiment: Experiment, task: Task, absence: AbsencePolicy
) -> tuple[Callable[[], nn.Module], tuple[str, ...], Encoder | None, Layout]:
    """How to build the model, what it reads, the public encoder if it reads features, and the layout of its weights.

    Unless the experiment says otherwise, only Holdfast's own models are channels-last: torch's kernels for that layout
    crash on some networks and processors.
    """
    choice = experiment.model
    own: Layout = "plain" if experiment.layout == "auto" else experiment.layout
    if choice.name == "auto" and absence.needs_features:
        choice = Choice("features")
    if choice.name == "auto" and task.model is not None:
        return task.model, ("image",), None, own
    if choice.name == "auto":
        choice = Choice("cnn" if len(task.shape) == 3 and min(task.shape[1:]) >= 8 else "mlp")
    chosen = choose(MODELS, choice, "model")  # a user's own may be any function that makes a module
    inputs: tuple[str, ...] = chosen.inputs if isinstance(chosen, Model) else ("image",)
    if absence.needs_features and "features" not in inputs:
        raise HoldfastError(
            f"absence {experiment.absence.name!r} needs a model that reads features, and {choice} does not: "
            "choose model = 'features' or 'full', or absence = 'none'."
        )
    if not isinstance(chosen, Model):
        return chosen, inputs, None, own
    encoder = None
    if "features" in inputs:
        encoder = encoder_for(experiment.encoder, task.train.inputs[0], task.schema)
    shape = encoder.feature_shape if encoder else ()
    build = partial(chosen.build, task.shape, task.outputs, shape)
    refuse_giant(build, choice)
    known = experiment.layout == "auto" and type(chosen) in MODELS.values()
    return build, inputs, encoder, "channels-last" if known else own


def refuse_giant(build: Callable[[], nn.Module], choice: Choice) -> None:
    """Refuse a model that this machine cannot hold, before it is made: a run needs at least four copies of it."""
    try:
        with torch.device("meta"):  # shapes without memory
            size = sum(weight.numel() * weight.element_size() for weight in build().parameters())
    except (RuntimeError, TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        reason = plain(str(error).split("\n")[0], 200)
        raise HoldfastError(f"model: {choice} cannot be made ({reason}).") from None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * size > memory:
        raise HoldfastError(
            f"model: {choice} has weights of {size / 1e9:,.0f} GB, and a run holds at least four copies, more than the "
            f"{memory / 1e9:,.0f} GB of this machine; make it smaller."
        )


def read_inputs(inputs: tuple[str, ...], encoder: Encoder | None, raw: Samples) -> Samples:
    """Raw samples as the model reads them: the image, its encoded features, or both."""
    if encoder is None:
        return raw
    encoded = encoder.encode(raw.inputs[0])
    return replace(raw, inputs=(raw.inputs[0], encoded) if "image" in inputs else (encoded,))
