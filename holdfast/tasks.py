"""Where tasks lived before version 0.2.0: take `Task` and `Samples` from `holdfast` itself."""

from __future__ import annotations

import warnings
from typing import Any

from holdfast.data import task


def __getattr__(name: str) -> Any:
    found = getattr(task, name)
    warnings.warn(
        f"holdfast.tasks.{name} has moved: use `from holdfast import {name}`.", DeprecationWarning, stacklevel=2
    )
    return found
