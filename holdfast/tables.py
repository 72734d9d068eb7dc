"""Tables as TOML files and as Flower's command line have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml(table: dict[str, Any]) -> str:
    """A flat table as TOML, one key a line.

    >>> print(toml({"lr": 0.1, "algorithm": {"name": "fedprox", "mu": 0.1}, "max_norm": None}))
    lr = 0.1
    algorithm = {name = "fedprox", mu = 0.1}
    """
    return "\n".join(f"{key} = {value_toml(value)}" for key, value in table.items() if value is not None)


def pairs(table: Mapping[str, Any]) -> str:
    """A table as Flower's command line reads it.

    >>> pairs({"site": "north", "partition-id": 0})
    'site="north" partition-id=0'
    """
    return " ".join(f"{key}={value_toml(value)}" for key, value in table.items())


def value_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {value_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(value_toml(item) for item in value) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)  # JSON has no infinity
