"""Guidance pictures: what the moderator's producer P_G makes of the digests that it holds."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.types import unpack
from holdfast.digests.digest import open_digest
from holdfast.digests.moment_wire import is_moments
from holdfast.encoders.guidance import GuidanceProducer
from holdfast.models.networks import fill

MOST = 24


def guidance_pictures(folder: Path, digests: Sequence[Path], class_names: Sequence[str]) -> list[dict[str, str]]:
    """Pictures, each with a word about whose digest and of which class; none where the run has no P_G."""
    checkpoints = sorted((folder / "checkpoints").glob("*.safetensors"))
    model = folder / "model.safetensors"
    if not checkpoints or not digests or not model.exists():
        return []
    try:
        with safetensors.safe_open(checkpoints[-1], framework="pt") as file:
            names = [name for name in file.keys() if name.startswith("absence/guidance")]  # noqa: SIM118
            state = unpack({name: file.get_tensor(name) for name in names}, "absence")
        if not state:
            return []
        with safetensors.safe_open(model, framework="pt") as file:
            shape = tuple(json.loads(file.metadata()["shape"]))
        return _draw(state, shape, digests, class_names)
    except (
        OSError,
        KeyError,
        RuntimeError,
        ValueError,
        TypeError,
        safetensors.SafetensorError,
        HoldfastError,
    ) as error:
        return [{"source": "", "words": f"They cannot be shown: {str(error).splitlines()[0]}"}]


def _draw(
    state: Any, shape: tuple[int, ...], digests: Sequence[Path], class_names: Sequence[str]
) -> list[dict[str, str]]:
    each = max(1, MOST // len(digests))
    pictures = []
    producer = None
    for path in digests[:MOST]:
        sealed = safetensors.torch.load_file(path)
        if is_moments(sealed):  # it holds no digests of its own; samples are drawn from it anew each round
            continue
        digest = open_digest({name: tensor for name, tensor in sealed.items() if name != "claim"})
        if producer is None:
            producer = GuidanceProducer(digest.feature_shape, shape).eval()
            fill(producer, unpack(state, "guidance"), unpack(state, "guidance_buffers"))
        spread = torch.linspace(0, len(digest) - 1, min(each, len(digest))).long()
        with torch.inference_mode():
            drawn = producer(digest.features[spread])
        for picture, label in zip(drawn, digest.labels[spread], strict=True):
            number = int(label.argmax())
            name = class_names[number] if number < len(class_names) else str(number)
            words = f"client {int(path.name.split('-')[0])}, mostly {name}"
            pictures.append({"source": as_png(picture), "words": words})
    return pictures


def as_png(picture: torch.Tensor) -> str:
    """A picture (channels, height, width) as a data address, stretched from its darkest to its brightest."""
    from PIL import Image

    low, high = float(picture.min()), float(picture.max())
    values = ((picture - low) / max(high - low, 1e-9) * 255).round().byte()
    flat = values[0] if len(values) != 3 else values.permute(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(flat.contiguous().numpy()).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
