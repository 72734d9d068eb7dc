"""The experiment's model: how to build it, what it reads, and whether this machine can hold it."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from holdfast.absence import AbsencePolicy
from holdfast.core.config import Choice, choose, convert
from holdfast.core.errors import HoldfastError, brief, plain
from holdfast.core.modules import import_path, told
from holdfast.data.kinds import Regression
from holdfast.data.task import Samples, Task, evenly
from holdfast.encoders import Encoder, encoder_for
from holdfast.models.layouts import layout_for
from holdfast.models.networks import MODELS, WIDE, Layout, Model
from holdfast.models.scaling import InRange, standardised
from holdfast.runs.experiment import Experiment
from holdfast.runs.one_message import model_of_head, sends_one_message
from holdfast.runs.scaling import columns_of


def choose_model(
    experiment: Experiment, task: Task, absence: AbsencePolicy
) -> tuple[Callable[[], nn.Module], tuple[str, ...], Encoder | None, Layout]:
    """How to build the model, behind its scaling where the members' columns are standardised; and as choose_network."""
    build, inputs, encoder, layout = choose_network(experiment, task, absence)
    if experiment.scaling == "federated":
        build = partial(standardised, build, columns_of(experiment, task, inputs, encoder))
    return build, inputs, encoder, layout


def target_range(experiment: Experiment, task: Task) -> InRange | None:
    """The public range of the numbers that a table's model predicts, where its schema says one; heads need none."""
    if task.schema is None or task.kind.name != Regression.name or sends_one_message(experiment):
        return None
    low, high = task.schema.target.low, task.schema.target.high
    return InRange(low, high) if math.isfinite(low) and math.isfinite(high) else None


def choose_network(
    experiment: Experiment, task: Task, absence: AbsencePolicy
) -> tuple[Callable[[], nn.Module], tuple[str, ...], Encoder | None, Layout]:
    """How to build the model, what it reads, the public encoder if it reads features, and the layout of its weights.

    Unless the experiment says otherwise, Holdfast's own models are channels-last, and others if they take that well.
    """
    choice = name_model(experiment, task, absence)
    if choice.name == "auto" and task.model is not None:
        build = partial(make_network, task.model, "the task's own")
        return build, ("image",), None, own_layout(experiment, task, build)
    chosen = own_network(choice) or choose(MODELS, choice, "model")
    inputs: tuple[str, ...] = chosen.inputs if isinstance(chosen, Model) else ("image",)
    if absence.needs_features and "features" not in inputs:
        raise HoldfastError(
            f"absence {experiment.absence.name!r} needs a model that reads features, and {choice} does not: "
            "choose model = 'features' or 'full', or absence = 'none'."
        )
    if not isinstance(chosen, Model):
        build = partial(make_network, chosen, str(choice))
        return build, inputs, None, own_layout(experiment, task, build)
    encoder = None
    if "features" in inputs:
        encoder = encoder_for(experiment.encoder, task.train.inputs[0], task.schema)
    shape = encoder.feature_shape if encoder else ()
    build = partial(chosen.build, task.shape, task.outputs, shape)
    refuse_giant(build, choice)
    known = experiment.layout == "auto" and type(chosen) in MODELS.values()
    return build, inputs, encoder, "channels-last" if known else own_layout(experiment, task, build)


def own_layout(experiment: Experiment, task: Task, build: Callable[[], nn.Module]) -> Layout:
    """The layout of a network that is not one of Holdfast's own."""
    return layout_for(build, task.shape, experiment.seed) if experiment.layout == "auto" else experiment.layout


def name_model(experiment: Experiment, task: Task, absence: AbsencePolicy) -> Choice:
    """Which model is meant; auto where it is the task's own."""
    if sends_one_message(experiment):
        return model_of_head(experiment, task, absence)
    if experiment.model.name != "auto":
        return experiment.model
    if absence.needs_features:
        if task.model is not None:
            raise HoldfastError(
                f"absence {experiment.absence.name!r} needs a model that reads features, and the task's own does not: "
                "say model = 'features' to train that one in its place, or absence = 'none'."
            )
        return reader_of_features(experiment, task)
    if task.model is not None:
        return experiment.model
    return Choice("cnn" if len(task.shape) == 3 and min(task.shape[1:]) >= 8 else "mlp")


def reader_of_features(experiment: Experiment, task: Task) -> Choice:
    """The network on features where none is named: a wide one, unless a table's few columns or noise on each weight
    speak against it."""
    narrow = task.schema is not None or experiment.protect.name == "dp-sgd"
    return Choice("features") if narrow else Choice("features", argument=str(WIDE))


def own_network(choice: Choice) -> Callable[[], nn.Module] | None:
    """A user's own network by import path: a class of modules, or any function that makes one, with its options."""
    module, _, name = choice.head.partition(":")
    if choice.name in MODELS or not name.isidentifier():
        return None
    found = import_path(f"{module}:{name}", "model")
    if isinstance(found, Model) or (isinstance(found, type) and issubclass(found, Model)):
        return None
    if not callable(found) or isinstance(found, nn.Module):
        raise HoldfastError(f"model: {choice.head} must be a class of torch.nn.Module or a function that makes one.")
    return partial(found, **read_options(found, choice.options))


def read_options(make: Callable[..., object], options: dict[str, Any]) -> dict[str, Any]:
    """Options of a user's own class or function; text from the command line becomes what the parameter's type says."""
    try:
        parameters = inspect.signature(make, eval_str=True).parameters
    except (TypeError, ValueError, NameError):
        return options
    read = dict(options)
    for name, value in options.items():
        parameter = parameters.get(name)
        if parameter is None or not isinstance(value, str):
            continue
        usual = type(parameter.default)
        kind = usual if parameter.annotation is inspect.Parameter.empty else parameter.annotation
        if kind in (int, float, bool):
            read[name] = convert(value, kind, f"model.{name}")
    return read


def make_network(make: Callable[[], object], named: str) -> nn.Module:
    """What a user's own class or function makes; what is no network is one sentence."""
    try:
        network = make()
    except Exception as error:
        raise HoldfastError(f"model: {named} cannot be made: {told(error)}.") from error
    if not isinstance(network, nn.Module):
        raise HoldfastError(f"model: {named} makes {brief(network)}, which is no torch.nn.Module.")
    refuse_odd(network, named)
    return network


def refuse_odd(network: nn.Module, named: str) -> None:
    """Refuse a network whose weights nobody can learn or average."""
    lazy = [n for n, weight in network.named_parameters() if is_lazy(weight)]
    odd = [n for n, w in network.named_parameters() if n not in lazy and not w.is_floating_point()]
    odd += [n for n, buffer in network.named_buffers() if not is_lazy(buffer) and buffer.is_complex()]
    if lazy:
        raise HoldfastError(f"model: {named} leaves the size of {brief(lazy[0])} open (a lazy layer); say it.")
    if odd:
        raise HoldfastError(f"model: {named} has other than real numbers in {brief(odd[0])}, which cannot be averaged.")
    if not any(weight.requires_grad for weight in network.parameters()):
        raise HoldfastError(f"model: {named} has no weights that learn.")


def refuse_giant(build: Callable[[], nn.Module], choice: Choice) -> None:
    """Refuse a model that this machine cannot hold, before it is made: a run needs at least four copies of it."""
    try:
        with torch.device("meta"):  # shapes without memory
            network = build()
        refuse_odd(network, str(choice))
        size = sum(weight.numel() * weight.element_size() for weight in network.parameters())
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
    raw = evenly(raw)
    if encoder is None:
        return raw
    encoded = encoder.encode(raw.inputs[0])
    return replace(raw, inputs=(raw.inputs[0], encoded) if "image" in inputs else (encoded,))
