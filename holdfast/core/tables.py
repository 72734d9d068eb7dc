"""Tables: read from TOML and JSON files, and written as TOML files and as Flower's command line have them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError, plain

LARGEST = 1 << 22  # bytes of a file that people write


def read_table(path: Path) -> dict[str, Any]:
    """The keys and values of a TOML file, or of a JSON one; whatever is wrong with it is one sentence."""
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise HoldfastError(f"Cannot read {path}: {error.strerror}.") from None
    if len(data) > LARGEST:
        raise HoldfastError(f"{path} has more than {LARGEST} bytes, so it is none that people write.")
    return parse_table(data, str(path), path.suffix.lower() == ".json")


def parse_table(data: bytes, where: str, as_json: bool = True) -> dict[str, Any]:
    """The keys and values in a file's content."""
    kind = "JSON" if as_json else "TOML"
    try:
        text = data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
        table = json.loads(text) if as_json else tomllib.loads(text)
    except UnicodeDecodeError:
        raise HoldfastError(f"{where} is not text in UTF-8.") from None
    except RecursionError:
        raise HoldfastError(f"{where} is not valid {kind}: it is nested too deeply.") from None
    except ValueError as error:
        raise HoldfastError(f"{where} is not valid {kind}: {plain(str(error), 200)}.") from None
    if not isinstance(table, dict):
        raise HoldfastError(f"{where} must hold keys and values.")
    if "\\u0000" in text or "\\U00000000" in text:  # no name of a file or of anything else has it
        raise HoldfastError(f"{where} holds the character NUL (\\u0000), which is part of no text.")
    return table


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
