"""Updates in few bytes: forms of a float32 tensor that lose nothing, used where they are smaller.

int8        a unit as float32, then whole multiples of it from -127 to 127, a byte each
sparse:N    the places of N values as int32, rising, then the values as float32; everything else is 0
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.learning.compress import from_levels, to_levels

INT8, SPARSE = "int8", "sparse:"


def compact(tensor: Tensor) -> tuple[str, Tensor] | None:
    """The smallest form of a tensor and its bytes, if it is smaller than the tensor and gives the same bits."""
    if tensor.dtype != torch.float32 or tensor.numel() < 2 or not bool(tensor.isfinite().all()):
        return None
    flat = tensor.detach().cpu().contiguous().flatten()
    if len(flat) >= 2**31:
        return None
    places = flat.view(torch.int32).nonzero().flatten()  # a minus zero is a value
    if 8 * len(places) < len(flat):
        parts = [places.to(torch.int32), flat[places]]
        return f"{SPARSE}{len(places)}", torch.cat([part.view(torch.uint8) for part in parts])
    levels, unit = to_levels(flat)
    if not torch.equal(from_levels(levels, unit).view(torch.int32), flat.view(torch.int32)):
        return None
    return INT8, torch.cat([unit.reshape(1).view(torch.uint8), levels.view(torch.uint8)])


def bytes_in(form: str, count: int) -> int | None:
    """The bytes of a form of so many values; none: it is no form of them."""
    if form == INT8:
        return 4 + count
    number = form.removeprefix(SPARSE)
    if not form.startswith(SPARSE) or not number.isdecimal() or len(number) > 10 or int(number) > count:
        return None
    return 8 * int(number)


def expand(form: str, raw: Tensor, count: int) -> Tensor:
    """The values, flat; places that are not rising or beyond the end are refused."""
    if form == INT8:
        return from_levels(raw[4:].clone().view(torch.int8), raw[:4].clone().view(torch.float32)[0])
    few = len(raw) // 8
    places = raw[: 4 * few].clone().view(torch.int32).long()
    rising = bool((places[1:] > places[:-1]).all()) if few else True
    if not rising or (few and (int(places[0]) < 0 or int(places[-1]) >= count)):
        raise HoldfastError("the places of its sparse values are not rising, or beyond the tensor's end")
    return torch.zeros(count).index_copy_(0, places, raw[4 * few :].clone().view(torch.float32))
