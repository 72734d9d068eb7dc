"""A stand-in for an accelerator: it computes on the CPU, and refuses to mix its tensors with those of main memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

ELSEWHERE = torch.device("meta")  # torch has it on every machine, and nothing of Holdfast's computes there


class There(Tensor):
    """A tensor on the stand-in device: a CPU tensor inside, which only Device may touch."""

    inside: Tensor

    @staticmethod
    def __new__(cls, inside: Tensor) -> There:
        made = Tensor._make_wrapper_subclass(
            cls, inside.shape, strides=inside.stride(), storage_offset=inside.storage_offset(), dtype=inside.dtype,
            device=ELSEWHERE, requires_grad=False,
        )  # fmt: skip
        made.inside = inside
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation on the CPU; the result is on the stand-in device if the operation was, or asks for it."""
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
    there = [x for x in tensors if isinstance(x, There)]
    copying = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    here = [x for x in tensors if not isinstance(x, There) and x.dim() > 0]
    if there and here and not copying:
        raise RuntimeError(f"{func}: tensors on two devices, {tuple(there[0].shape)} and {tuple(here[0].shape)}")
    asked = kwargs.get("device")
    to_there = bool(there) if asked is None else torch.device(asked) == ELSEWHERE
    if func is torch.ops.aten.copy_.default:
        to_there = isinstance(args[0], There)
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain = tree_map(lambda x: x.inside if isinstance(x, There) else x, (args, kwargs))
    result = func(*plain[0], **plain[1])
    if func._schema.name.endswith("_") and isinstance(result, Tensor):
        return args[0]
    return tree_map(lambda x: There(x) if isinstance(x, Tensor) and to_there else x, result)


class Device(TorchDispatchMode):
    """While it is on, ELSEWHERE computes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})
