"""Versions and machine: what may change the bits of a run."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from holdfast.learning.device import choose_device


def environment() -> dict[str, Any]:
    """What may matter to the bits."""
    packages = {}
    for name in ("holdfast", "torch", "numpy", "safetensors", "flwr"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "pid": os.getpid(),
        "packages": packages,
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        "system": platform.platform(),
        "device": str(choose_device("auto")),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
