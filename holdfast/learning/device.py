"""Where networks compute and in which precision: the one place that knows of devices.

A network lives on its device for the whole run. Samples, messages and everything that is averaged, judged or saved stay
in main memory as float32: batches are moved to the network's device when they are used, and results are moved back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.core.types import Tensors
from holdfast.data.task import Samples

Precision = Literal["float32", "bfloat16"]
CPU = torch.device("cpu")


def choose_device(name: str) -> torch.device:
    """The device of this name on this machine; auto is an accelerator if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if has("cuda") else "mps" if has("mps") else "cpu")
    if not re.fullmatch(r"cpu|mps|cuda(:\d{1,3})?", name):
        raise HoldfastError(f"device: {name[:40]!r} is unknown; choose auto, cpu, cuda, cuda:1 (by number) or mps.")
    if not has(name):
        raise HoldfastError(f"device: this machine has no {name!r}; choose another one, or auto.")
    return torch.device(name)


def has(name: str) -> bool:
    """Whether this machine has this device."""
    kind, _, number = name.partition(":")
    if kind == "cuda":
        return torch.cuda.is_available() and int(number or 0) < torch.cuda.device_count()
    return kind == "cpu" or torch.backends.mps.is_available()


def device_of(model: nn.Module) -> torch.device:
    """Where a network lives."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return CPU if first is None else first.device


def batch_on(model: nn.Module, samples: Samples, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """The inputs and labels of some samples, where the network lives."""
    device = device_of(model)
    inputs, labels = samples.batch(index)
    return tuple(sent_to(device, tensor) for tensor in inputs), sent_to(device, labels)


def sent_to(device: torch.device, tensor: Tensor) -> Tensor:
    """A tensor of main memory on the device; to a GPU from pinned memory, while it computes on."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def share_device(device: torch.device, processes: int) -> None:
    """Let this process take no more than its share of a GPU's memory: beyond it, it fails and not the others."""
    if device.type == "cuda" and processes > 1:
        torch.cuda.set_per_process_memory_fraction(1 / processes, device)


def outputs(model: nn.Module, *inputs: Tensor) -> Tensor:
    """What a network says of these inputs, in main memory; gradients find their way back."""
    device = device_of(model)
    output: Tensor = model(*(tensor.to(device) for tensor in inputs))
    return output.cpu()


def moved(tensors: Tensors, device: torch.device) -> Tensors:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """What a forward pass and its loss run in: matrix products in bfloat16, weights and sums in float32."""
    return nullcontext() if precision == "float32" else torch.autocast(device.type, torch.bfloat16)


def gains_from_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 can be faster here: a CPU needs instructions for it; accelerators are taken at their word."""
    return device.type != "cpu" or bool(torch.cpu._is_avx512_bf16_supported())


def widened(tensor: Tensor) -> Tensor:
    """Float32 again, where autocast left bfloat16."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def undisturbed(device: torch.device) -> AbstractContextManager[object]:
    """What draws in it draws what comes after it, too: the generators are left as they were."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """A network's own chance (dropout) drawn from this seed, on any device; the generators are left as they were."""
    with undisturbed(device):
        if device.type == "cpu":  # torch.manual_seed also notes the call for every kind of accelerator: 0.7 ms
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        yield
