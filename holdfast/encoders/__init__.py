"""Public encoders P_R and the guidance producer P_G, made without anybody's data.

Networks that are trained belong in models/.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import Any

from torch import Tensor

from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.data.tables.schema import Schema
from holdfast.encoders.autoencoder import Autoencoder, RandomConv
from holdfast.encoders.both import Both
from holdfast.encoders.contract import Encoder, EncoderChoice, measured_bound
from holdfast.encoders.guidance import guidance_producer
from holdfast.encoders.mobilenet import MobileNetV2
from holdfast.encoders.module import Module
from holdfast.encoders.pretrained import Pretrained, installed
from holdfast.encoders.scattering import Scattering
from holdfast.encoders.series import Series
from holdfast.encoders.shapes import draw_shapes
from holdfast.encoders.table import Table
from holdfast.encoders.text import Text

__all__ = [
    "ENCODERS",
    "Encoder",
    "EncoderChoice",
    "draw_shapes",
    "encoder_for",
    "guidance_producer",
    "make_encoder",
    "never_negative",
    "resolved",
]

log = logging.getLogger("holdfast")

ENCODERS: dict[str, type[Any]] = {
    "scattering": Scattering,
    "pretrained": Pretrained,
    "both": Both,
    "series": Series,
    "text": Text,
    "module": Module,
    "autoencoder": Autoencoder,
    "random": RandomConv,
    "mobilenetv2": MobileNetV2,
    "table": Table,
}

SMALL = 64  # pixels: the shorter side of an image that scattering sees whole
MEASURED = 64  # drawn shapes, on which an encoder without a bound is given one


def never_negative(spec: object) -> bool:
    """Whether it is known of this choice that its features cannot be negative.

    >>> never_negative("autoencoder"), never_negative("scattering:64"), never_negative("my.module:MyEncoder")
    (True, False, False)
    """
    return getattr(ENCODERS.get(Choice.parse(spec, "encoder").name), "never_negative", False)


def resolved(choice: Choice, samples: Tensor, schema: Schema | None = None) -> Choice:
    """The choice itself, or what "auto" means for samples such as these: it goes by their kind and size.

    >>> import torch
    >>> str(resolved(Choice("auto"), torch.zeros(2, 1, 28, 28)))
    'scattering'
    """
    if choice.name != "auto":
        return choice
    if str(choice) != "auto":
        raise HoldfastError(f"encoder: 'auto' has no options, got {choice}; name the encoder itself.")
    if schema is not None:
        return Choice("table")
    return Choice(usual_encoder(tuple(samples.shape[1:]), samples.is_floating_point()))


@functools.cache  # said once
def usual_encoder(shape: tuple[int, ...], floats: bool = True) -> str:
    """What "auto" means: for images the pretrained network, unless they are small and grey."""
    name = "scattering"
    if len(shape) == 2:
        name = "series"
    elif len(shape) == 1 and not floats:
        name = "text"
    elif len(shape) == 1:
        raise HoldfastError(
            f"encoder: no public encoder is made for plain vectors of {shape[0]} numbers; describe them as a table "
            'with a schema, or name an encoder of your own, such as "module:Name".'
        )
    elif len(shape) == 3 and shape[0] in (1, 3) and (shape[0] == 3 or min(shape[1:]) > SMALL):
        if installed():
            name = "pretrained"
        else:
            log.warning("encoder: 'auto' is 'scattering' here; pip install holdfast[pretrained] for a far better one.")
    log.info("encoder: 'auto' is %r for samples of shape %s.", name, shape)
    return name


def encoder_for(spec: object, samples: Tensor, schema: Schema | None = None, key: str = "encoder") -> Encoder:
    """The encoder that a choice names, made for samples such as these."""
    choice = resolved(Choice.parse(spec, key), samples, schema)
    return make_encoder(choice, tuple(samples.shape[1:]), key, schema)


def make_encoder(spec: object, shape: tuple[int, ...], key: str = "encoder", schema: Schema | None = None) -> Encoder:
    """The encoder that a choice such as "scattering:64" or "my.module:MyEncoder" names, for samples of this shape.

    >>> make_encoder("scattering:directions=16", (1, 28, 28)).feature_shape
    (16,)
    """
    chosen = choose(ENCODERS, Choice.parse(spec, key), key)
    if isinstance(chosen, Table):
        return chosen.fit_schema(schema, shape)
    if not hasattr(chosen, "fit_shape"):
        raise HoldfastError(f"{key}: {spec!r} has no fit_shape(shape), which gives the encoder for a shape of sample.")
    encoder = chosen.fit_shape(shape)
    if not isinstance(encoder, Encoder):
        raise HoldfastError(f"{key}: fit_shape of {spec!r} must give a holdfast.encoders.Encoder, got {encoder!r}.")
    if encoder.norm_bound is None and len(shape) == 3:
        return replace(encoder, norm_bound=measured_bound(encoder, draw_shapes(MEASURED, shape)))
    return encoder
