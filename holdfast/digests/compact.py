"""Small forms of features and soft labels: fewer bits, few non-zero labels, and zlib over the bytes."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.files import grows_too_much
from holdfast.core.tensors import bytes_of
from holdfast.core.types import Tensors, size

Kind = Literal["float32", "float16", "int8", "int6", "int4"]
Scale = Literal["tensor", "coordinate"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SCALES: tuple[Scale, ...] = get_args(Scale)
LEVELS = {"int8": 255, "int6": 63, "int4": 15}  # the largest code; fewer levels leave more for zlib to save
DTYPES = {"float32": torch.float32, "float16": torch.float16, **dict.fromkeys(LEVELS, torch.uint8)}
PER_DIGEST = (
    "features",
    "labels",
    "label_class",
    "label_weight",
)  # what grows with the number of digests, and is compressed
SOME = 1 << 20  # values that are turned from codes into numbers at a time


@dataclass(frozen=True)
class Compact:
    """How features are written: whole, half, or as 8, 6 or 4-bit codes with one scale for all or for each coordinate.

    Codes below 8 bits take less only when compressed.
    """

    features: Kind = "float32"
    scale: Scale = "tensor"
    compress: bool = False


def shrink(features: Tensor, labels: Tensor, most: int, compact: Compact) -> Tensors:
    """Features (m, ...) and soft labels (m, classes), with at most `most` non-zero in a row, as tensors to send."""
    tensors = {**shrink_features(features.contiguous(), compact), **shrink_labels(labels, most)}
    return {name: squeeze(t) if compact.compress and name in PER_DIGEST else t for name, t in tensors.items()}


def restore(
    tensors: Tensors, compact: Compact, shape: tuple[int, ...], most: int, classes: int
) -> tuple[Tensor, Tensor]:
    """The features, of the given shape, and labels that shrink wrote; anything of another kind or shape is refused."""
    whole_size = 4 * shape[0] * (math.prod(shape[1:]) + classes)
    if grows_too_much(size(tensors), whole_size):
        raise HoldfastError(f"its {size(tensors)} bytes would unpack to {whole_size}, which no honest digest's do.")
    columns = min(most, classes)
    kinds: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {"features": (DTYPES[compact.features], shape)}
    if "labels" in tensors:
        kinds["labels"] = (torch.float32, (shape[0], classes))
    else:
        kinds["label_class"] = (torch.uint8 if classes <= 256 else torch.int32, (shape[0], columns))
        kinds["label_weight"] = (torch.float32, (shape[0], columns))
    if compact.features in LEVELS:
        scales = (1 if compact.scale == "tensor" else math.prod(shape[1:]),)
        kinds |= {"low": (torch.float32, scales), "step": (torch.float32, scales)}
    if tensors.keys() != kinds.keys():
        raise HoldfastError(f"it holds {sorted(tensors)}, expected {sorted(kinds)}; make it again.")
    whole = {}
    for name, (dtype, expected) in kinds.items():
        packed = compact.compress and name in PER_DIGEST
        tensor = unsqueeze(tensors[name], dtype, expected) if packed else tensors[name]
        if tensor.dtype != dtype or tuple(tensor.shape) != expected:
            raise HoldfastError(f"{name!r} is {tensor.dtype} {tuple(tensor.shape)}, expected {dtype} {expected}.")
        whole[name] = tensor
    return restore_features(whole), restore_labels(whole, classes)


def sha256_of(tensors: Tensors, facts: Mapping[str, Any]) -> str:
    """SHA-256 over the facts (but a `sha256` among them) and the names, kinds, shapes and bytes of the tensors."""
    words = {name: fact for name, fact in facts.items() if name != "sha256"}
    total = hashlib.sha256(json.dumps(words, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        total.update(
            tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
        )  # no copy: it may be large
    return total.hexdigest()


def shrink_features(features: Tensor, compact: Compact) -> Tensors:
    """Features (m, ...) as tensors to write; codes give x = low + step * code, code in 0..255 with int8.

    >>> shrink_features(torch.tensor([[0.0], [0.2], [1.0]]), Compact("int8"))["features"].flatten().tolist()
    [0, 51, 255]
    """
    if compact.features == "float32":
        return {"features": features}
    if compact.features == "float16":
        half = features.half()
        if not bool(torch.isfinite(half).all()):
            raise HoldfastError("digest: some features are too large for float16; write them as float32 or int8.")
        return {"features": half}
    flat = features.reshape(len(features), -1).double()
    levels = LEVELS[compact.features]
    lowest, highest = flat.amin(0), flat.amax(0)
    if compact.scale == "tensor":
        lowest, highest = lowest.min()[None], highest.max()[None]
    low, step = lowest.float(), ((highest - lowest) / levels).float()  # rounded first: both sides count with the same
    safe = torch.where(step > 0, step, torch.ones_like(step)).double()
    codes = ((flat - low.double()) / safe).round().clamp(0, levels).to(torch.uint8)
    return {"features": codes.view(features.shape), "low": low, "step": step}


def restore_features(tensors: Tensors) -> Tensor:
    """The features that shrink_features wrote, as float32."""
    written = tensors["features"]
    if written.dtype != torch.uint8:
        return written.float()
    flat = written.reshape(len(written), -1)
    low, step = tensors["low"].double(), tensors["step"].double()
    found = torch.empty(flat.shape)
    rows = max(1, SOME // flat.shape[1])
    for part, codes in zip(found.split(rows), flat.split(rows), strict=True):  # doubles of all would take 16 times it
        part.copy_(low + step * codes.double())
    return found.view(written.shape)


def shrink_labels(labels: Tensor, most: int) -> Tensors:
    """Soft labels (m, classes) as class and weight of the non-zero ones, or whole if those are more than `most`.

    >>> small = shrink_labels(torch.tensor([[0.0, 0.75, 0.25]]), 2)
    >>> small["label_class"].tolist(), small["label_weight"].tolist()
    ([[1, 2]], [[0.75, 0.25]])
    """
    classes = labels.shape[1]
    columns = min(most, classes)
    if int((labels != 0).sum(1).max()) > columns:  # labels that a privacy mechanism has blurred
        return {"labels": labels.contiguous()}
    weight, index = labels.sort(dim=1, descending=True, stable=True)
    kind = torch.uint8 if classes <= 256 else torch.int32
    index = torch.where(weight > 0, index, torch.zeros_like(index))  # places left over: class 0, weight 0
    return {"label_class": index[:, :columns].to(kind), "label_weight": weight[:, :columns].contiguous()}


def restore_labels(tensors: Tensors, classes: int) -> Tensor:
    """The soft labels that shrink_labels wrote."""
    if "labels" in tensors:
        return tensors["labels"]
    index = tensors["label_class"].long()
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= classes):
        raise HoldfastError(f"a label names class {int(index.max())}, but there are only {classes} classes.")
    return torch.zeros(len(index), classes).scatter_add_(1, index, tensors["label_weight"].float())


def squeeze(tensor: Tensor) -> Tensor:
    """The tensor's bytes, compressed, as a flat uint8 tensor; coordinate after coordinate, which compresses better."""
    columns = tensor.reshape(len(tensor), -1).T.contiguous()
    return torch.frombuffer(bytearray(zlib.compress(bytes_of(columns), 9)), dtype=torch.uint8)


def unsqueeze(packed: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The tensor that squeeze packed; its size is known and bounded beforehand (see restore)."""
    wanted = math.prod(shape) * dtype.itemsize
    machine = zlib.decompressobj()
    try:
        raw = machine.decompress(bytes_of(packed), wanted + 1)
    except zlib.error:
        raise HoldfastError("its compressed content is damaged.") from None
    if len(raw) != wanted or not machine.eof:
        raise HoldfastError(f"its compressed content does not unpack to the {wanted} bytes it should.")
    return torch.frombuffer(bytearray(raw), dtype=dtype).view(-1, shape[0]).T.contiguous().view(shape)
