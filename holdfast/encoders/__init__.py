"""Public encoders P_R and the guidance producer P_G, made without anybody's data.

Networks that are trained belong in models/.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.data.tables.schema import Schema
from holdfast.encoders.autoencoder import Autoencoder, RandomConv
from holdfast.encoders.contract import Encoder, EncoderChoice, measured_bound
from holdfast.encoders.guidance import guidance_producer
from holdfast.encoders.mobilenet import MobileNetV2
from holdfast.encoders.scattering import Scattering
from holdfast.encoders.shapes import draw_shapes
from holdfast.encoders.table import Table

__all__ = ["ENCODERS", "Encoder", "EncoderChoice", "draw_shapes", "guidance_producer", "make_encoder", "never_negative"]

ENCODERS: dict[str, type[Any]] = {
    "scattering": Scattering,
    "autoencoder": Autoencoder,
    "random": RandomConv,
    "mobilenetv2": MobileNetV2,
    "table": Table,
}

MEASURED = 64  # drawn shapes, on which an encoder without a bound is given one


def never_negative(spec: object) -> bool:
    """Whether it is known of this choice that its features cannot be negative.

    >>> never_negative("autoencoder"), never_negative("scattering:64"), never_negative("my.module:MyEncoder")
    (True, False, False)
    """
    return getattr(ENCODERS.get(Choice.parse(spec, "encoder").name), "never_negative", False)


def make_encoder(spec: object, shape: tuple[int, ...], key: str = "encoder", schema: Schema | None = None) -> Encoder:
    """The encoder that a choice such as "scattering:64" or "my.module:MyEncoder" names, for images of this shape.

    >>> make_encoder("scattering:directions=16", (1, 28, 28)).feature_shape
    (16,)
    """
    chosen = choose(ENCODERS, Choice.parse(spec, key), key)
    if isinstance(chosen, Table):
        return chosen.fit_schema(schema, shape)
    if not hasattr(chosen, "fit_shape"):
        raise HoldfastError(f"{key}: {spec!r} has no fit_shape(shape), which gives the encoder for a shape of image.")
    encoder = chosen.fit_shape(shape)
    if not isinstance(encoder, Encoder):
        raise HoldfastError(f"{key}: fit_shape of {spec!r} must give a holdfast.encoders.Encoder, got {encoder!r}.")
    if encoder.norm_bound is None and len(shape) == 3:
        return replace(encoder, norm_bound=measured_bound(encoder, draw_shapes(MEASURED, shape)))
    return encoder
