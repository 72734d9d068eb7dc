"""What a run's folder says of its rounds and of the state between two: written as JSON and safetensors, read strictly.

A folder may come from a stranger. Whatever is not what a run of so many clients writes is refused, and texts are made
fit for a terminal.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.core.errors import HoldfastError, brief, plain
from holdfast.core.files import Damaged, Piece, load_tensors, pieces_of, read_metadata
from holdfast.core.types import State, pack, unpack
from holdfast.data.metrics import ACCURACY, Measure
from holdfast.record import Record
from holdfast.runs.experiment import FIRST_ROUND, SCHEMA

GROUPS = ("model", "buffers", "algorithm", "absence", "trust", "server_optimizer", "selection")
TEXTS = ("absent", "refused", "suspects", "chosen_for")  # of a record: client -> words
NUMBERS = ("weights", "scores", "credibility", "client_seconds")  # client -> number
OLD = {"accuracy": "metrics", "class_accuracy": "class_metrics", "client_accuracy": "client_metrics"}
MOST = 2**53


def record_to_json(record: Record, schema: int = SCHEMA) -> dict[str, Any]:
    return {**dataclasses.asdict(record), "round": record.round - 1 + FIRST_ROUND[schema]}


def scalars(record: Record, class_names: Sequence[str] = ()) -> Iterator[tuple[str, float]]:
    """Every number of a round under a name with its group in front.

    >>> one = Record(1, {1: "away"}, {}, [], {0: 1.0}, {}, {}, 0.5, 10, 20, {}, metrics={"accuracy": 0.25})
    >>> dict(scalars(one))["accuracy"], dict(scalars(one))["clients/absent"]
    (0.25, 1.0)
    """
    yield from record.metrics.items()
    for metric, value in record.absent_metrics.items():
        yield f"absent/{metric}", value
    for metric, value in record.total_metrics.items():
        yield f"clients/{metric}", value
    if record.loss is not None:
        yield "loss", record.loss
    yield "bytes/up", float(record.bytes_up)
    yield "bytes/down", float(record.bytes_down)
    for part, value in record.seconds.items():
        yield f"seconds/{part}", value
    for kind in ("absent", "late", "refused", "stand_ins", "suspects"):
        yield f"clients/{kind}", float(len(getattr(record, kind)))
    if record.asked is not None:
        yield "clients/asked", float(len(record.asked))
    groups = {name: getattr(record, name) for name in ("weights", "scores", "credibility", "client_seconds")}
    groups |= {f"client_{metric}": found for metric, found in record.client_metrics.items()}
    for group, found in groups.items():
        for client, value in found.items():
            yield f"{group}/{client}", value
    for metric, values in record.class_metrics.items():
        for number, one in enumerate(values):
            if one is not None:
                yield f"class_{metric}/{class_names[number] if number < len(class_names) else number}", one


def record_from_json(line: Mapping[str, Any], clients: int, schema: int = SCHEMA) -> Record:
    """A round's record; JSON has text for keys, clients are numbers."""
    line = of_today(line)
    fields = {field.name: field for field in dataclasses.fields(Record)}
    for name, field in fields.items():
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and name not in line:
            raise HoldfastError(f"record: {name} is missing.")
    values: dict[str, Any] = {}
    for name, value in line.items():
        if name not in fields:
            raise HoldfastError(f"record: there is no {brief(name)}.")
        try:
            values[name] = _round(value, schema) if name == "round" else _read(name, value, clients)
        except (TypeError, ValueError, AttributeError):
            raise HoldfastError(f"record: {name} is not what a run writes.") from None
    return Record(**values)


def of_today(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """A line whose only metric is accuracy, in keys of its own, as runs before version 0.2 wrote it."""
    if not any(key in line for key in OLD):
        return line
    told = {new: {ACCURACY.name: line[old]} for old, new in OLD.items() if line.get(old) is not None}
    measure = {"measure": dataclasses.asdict(ACCURACY)} if "metrics" in told else {}
    return {**{key: value for key, value in line.items() if key not in OLD}, **told, **measure}


def _read(name: str, value: Any, clients: int) -> Any:
    """One field of a record."""
    if name in ("loss", "chance", "asked", "measure", "interval", "threshold") and value is None:
        return None
    if name == "measure":
        return _measure(value)
    if name in ("metrics", "absent_metrics", "total_metrics"):
        return {_name(metric): _number(one) for metric, one in value.items()}
    if name == "client_metrics":
        return {_name(metric): _by_client(found, clients) for metric, found in value.items()}
    if name == "class_metrics":
        return {_name(m): [None if one is None else _number(one) for one in _list(v)] for m, v in value.items()}
    if name in TEXTS:
        return {_client(client, clients): plain(_text(why)) for client, why in value.items()}
    if name in ("client_samples", "client_steps", "late"):
        return {_client(client, clients): _whole(one) for client, one in value.items()}
    if name == "client_intervals":
        return {_client(client, clients): _interval(one) for client, one in value.items()}
    if name == "interval":
        return _interval(value)
    if name in NUMBERS:
        return _by_client(value, clients)
    if name == "seconds":
        return {plain(_text(part), 40): _number(one) for part, one in value.items()}
    if name == "notes":
        return [plain(_text(note)) for note in _list(value)]
    if name in ("stand_ins", "asked"):
        return [_client(client, clients) for client in _list(value)]
    return _number(value) if name in ("loss", "chance", "threshold") else _whole(value)


def _round(value: object, schema: int) -> int:
    """The number of a round, counted from 1."""
    if (later := _whole(value) - FIRST_ROUND[schema]) < 0:
        raise ValueError
    return later + 1


def _measure(value: Mapping[str, Any]) -> Measure:
    if set(value) != {"name", "unit", "smaller_is_better"} or not isinstance(value["smaller_is_better"], bool):
        raise ValueError
    return Measure(_name(value["name"]), _name(value["unit"]), value["smaller_is_better"])


def _by_client(value: Mapping[str, Any], clients: int) -> dict[int, float]:
    return {_client(client, clients): _number(one) for client, one in value.items()}


def _interval(value: object) -> list[float]:
    low, high = map(_number, _list(value))
    if low > high:
        raise ValueError
    return [low, high]


def _name(value: object) -> str:
    return plain(_text(value), 40)


def checkpoint_of(state: State, digests: Mapping[int, str]) -> list[Piece]:
    """A checkpoint in pieces: the state, with the names of the files that hold its digests."""
    facts = {
        "round": str(state.round),
        "accepted": json.dumps({str(client): last for client, last in state.accepted.items()}),
        "absent": json.dumps(list(state.absent)),
        "claims": json.dumps({str(client): samples for client, samples in state.claims.items()}),
        "pace": json.dumps({str(client): seconds for client, seconds in state.pace.items()}),
        "digests": json.dumps({str(client): file for client, file in digests.items()}),
    }
    return pieces_of(pack(**{group: getattr(state, group) for group in GROUPS}), facts)


def state_from(data: bytes, clients: int) -> tuple[State, dict[int, str]]:
    """The state of a checkpoint, and the files that hold its digests; one of another form is Damaged."""
    tensors, facts = load_tensors(data), read_metadata(data)
    try:
        by_client = ("accepted", "claims", "digests", "pace")
        accepted, claims, names, pace = (json.loads(facts.get(name, "{}")) for name in by_client)
        files = {_client(client, clients): _text(file) for client, file in names.items()}
        groups: dict[str, Any] = {group: unpack(tensors, group) for group in GROUPS}
        state = State(
            _whole(int(facts["round"])),
            **groups,
            accepted={_client(client, clients): _whole(last) for client, last in accepted.items()},
            absent=tuple(_client(client, clients) for client in _list(json.loads(facts["absent"]))),
            claims={_client(client, clients): _whole(samples) for client, samples in claims.items()},
            pace=_by_client(pace, clients),
        )
        return state, files
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise Damaged("What it says of the run is not what a run writes.") from None


def _client(value: object, clients: int) -> int:
    client = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 20 else value
    if type(client) is not int or not 0 <= client < clients:
        raise ValueError
    return client


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise ValueError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value
