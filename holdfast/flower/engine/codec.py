"""Messages and replies as Flower's records: raw bytes and JSON in a fixed schema, never pickle.

A record of arrays holds one blob for each group of tensors (``model``, ``delta``): the group's tensors one after the
other. Flower stores and sends a blob by its hash, so the model that goes to every site is uploaded once. A large one is
cut into pieces (``delta``, ``delta/1``, ...), since Flower takes three times an array's size to put it together. A
record of words holds the rest: what each blob is made of, client, round, job, and the scalars as JSON.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from holdfast.core.errors import HoldfastError
from holdfast.core.tensors import half_of
from holdfast.core.types import Message, Reply, Scalars, Tensors, size
from holdfast.engines.arena import DTYPES
from holdfast.flower.engine.compact import INT8, bytes_in, compact, expand

SCHEMA = 1
RAW = "holdfast.raw"
BOUND = 1 << 30  # bytes of one message, unless the run says otherwise
WORDS_BOUND = 1 << 22  # bytes of a message's JSON
AXES = 16  # of a tensor, at most: with many more, torch fails
COMPACT = {"delta"}  # what travels in the smallest form that loses nothing
HALVES = {"model", "server", "delta", "extra"}  # what may travel as float16: weights and changes of weights
Bytes = npt.NDArray[np.uint8]
PIECE = 1 << 24  # bytes of one array, at most
Blobs = dict[tuple[object, ...], tuple[list[list[Any]], list[Array]]]  # a group, its tensors' ids -> its layout, blob
KINDS: dict[str, type] = {
    "schema": int,
    "client": int,
    "round": int,
    "job": str,
    "scalars": str,
    "layout": str,
    "seconds": float,
    "half": bool,
    "experiment": str,
    "error": str,
    "head": str,
}


@dataclass(frozen=True)
class Letter:
    """What travels, in either direction."""

    client: int
    round: int
    job: str
    tensors: Tensors = field(default_factory=dict)
    scalars: Scalars = field(default_factory=dict)
    seconds: float = 0.0
    half: bool = False  # of a question: whether the answer may come as float16
    experiment: str = ""  # fingerprint of what is being played
    error: str = ""  # of an answer: why there is none
    head: str = ""  # of the site's ledger: in an answer the newest, in a question the last that the moderator saw

    def message(self) -> Message:
        return Message(self.client, self.round, self.job, self.tensors, self.scalars)

    def reply(self) -> Reply:
        return Reply(self.client, self.tensors, self.scalars, self.seconds)


def encode(letter: Letter, *, halve: bool = False, bound: int = BOUND, known: Blobs | None = None) -> RecordDict:
    """A letter as Flower's records; with `halve`, weights and their changes as float16.

    `known` are the blobs of letters that are sent together with this one: a model for all is in memory once.

    >>> letter = Letter(0, 3, "train", {"model/w": torch.tensor([1.0, 2.5])}, {"lr": 0.1})
    >>> decode(encode(letter)).tensors, decode(encode(letter)).scalars
    ({'model/w': tensor([1.0000, 2.5000])}, {'lr': 0.1})
    """
    if size(letter.tensors) > bound:
        raise HoldfastError(
            f"the tensors of job {letter.job!r} take {size(letter.tensors)} bytes, above the bound of {bound}; "
            "raise `max-bytes` of the run if the model is really that large."
        )
    groups: dict[str, Tensors] = {}
    for name, tensor in letter.tensors.items():
        groups.setdefault(name.partition("/")[0], {})[name] = tensor
    known = {} if known is None else known
    arrays: dict[str, Array] = {}
    layout = {}
    for group, tensors in groups.items():
        key = (group, *map(id, tensors.values()))
        if key not in known:
            known[key] = encode_group(group, tensors, halve)
        layout[group], blob = known[key]
        arrays |= zip(piece_names(group, len(blob)), blob, strict=True)
    words: dict[str, Any] = {
        "schema": SCHEMA,
        "client": letter.client,
        "round": letter.round,
        "job": letter.job,
        "scalars": json.dumps(letter.scalars),
        "layout": json.dumps(layout),
        "seconds": letter.seconds,
        "half": letter.half,
        "experiment": letter.experiment,
        "error": letter.error,
        "head": letter.head,
    }
    return RecordDict({"tensors": ArrayRecord(arrays), "words": ConfigRecord(words)})


def piece_names(group: str, count: int) -> list[str]:
    """How the pieces of a group's blob are called.

    >>> piece_names("delta", 3)
    ['delta', 'delta/1', 'delta/2']
    """
    return [group, *(f"{group}/{number}" for number in range(1, count))]


def encode_group(group: str, tensors: Tensors, halve: bool) -> tuple[list[list[Any]], list[Array]]:
    """What a group is made of, and the pieces of its blob."""
    layout, parts = [], []
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES or tensor.layout != torch.strided:
            raise HoldfastError(f"{name} is a {tensor.layout} tensor of {dtype}, which cannot travel; convert it.")
        form = compact(tensor) if group in COMPACT else None
        if form is None:
            sent = half_of(tensor) if halve and group in HALVES else tensor
            form = str(sent.dtype).removeprefix("torch."), bytes_of(sent)
        layout.append([name, dtype, list(tensor.shape), form[0]])
        parts.append(form[1].numpy())
    total = sum(len(part) for part in parts)
    ends = [(start, min(start + PIECE, total)) for start in range(0, max(1, total), PIECE)]
    return layout, [
        Array("uint8", (end - start,), RAW, piece(parts, start, end).numpy().tobytes()) for start, end in ends
    ]


def decode(records: RecordDict, bound: int = BOUND) -> Letter:
    """The letter that encode wrote; anything of another form or size is refused with the reason."""
    if set(records) != {"tensors", "words"}:
        raise HoldfastError(f"it holds the records {sorted(records)}, expected tensors and words")
    arrays, words = records["tensors"], records["words"]
    if not isinstance(arrays, ArrayRecord) or not isinstance(words, ConfigRecord):
        raise HoldfastError("its records are not arrays and words")
    total = sum(len(array.data) for array in arrays.values())
    if total > bound:
        raise HoldfastError(f"it has {total} bytes, above the bound of {bound}")
    values = read_words(words)
    layout = read_json(values.pop("layout"), "layout")
    counts = Counter(name.partition("/")[0] for name in arrays)
    pieces = {group: piece_names(group, counts[group]) for group in layout}
    if set(arrays) != {name for names in pieces.values() for name in names}:
        raise HoldfastError(f"its layout names the groups {sorted(layout)}, but it holds {sorted(arrays)}")
    tensors: Tensors = {}
    left = bound  # bytes that all tensors together may take, however few they were sent in
    for group, entries in layout.items():
        blob = [arrays[name] for name in pieces[group]]
        if odd := [array.stype for array in blob if array.stype != RAW]:
            raise HoldfastError(f"group {group!r} is of the kind {odd[0]!r}, expected raw bytes")
        tensors |= read_group(group, entries, [np.frombuffer(array.data, np.uint8) for array in blob], left)
        left = bound - size(tensors)
    scalars = read_json(values.pop("scalars"), "scalars")
    del values["schema"]
    return Letter(tensors=tensors, scalars=scalars, **values)


def read_words(words: ConfigRecord) -> dict[str, Any]:
    """The words, each there and of its kind, none besides."""
    if set(words) != set(KINDS):
        odd = sorted(set(words) ^ set(KINDS))[0]
        raise HoldfastError(f"its word {odd!r} is {'missing' if odd in KINDS else 'not known'}")
    for key, kind in KINDS.items():
        if type(words[key]) is not kind:
            raise HoldfastError(f"its word {key!r} is {type(words[key]).__name__}, expected {kind.__name__}")
    if words["schema"] != SCHEMA:
        raise HoldfastError(f"it is of schema {words['schema']!r}, expected {SCHEMA}; use one version of Holdfast")
    return dict(words)


def read_json(text: str, what: str) -> dict[str, Any]:
    if len(text) > WORDS_BOUND:
        raise HoldfastError(f"its {what} has {len(text)} characters, above the bound of {WORDS_BOUND}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise HoldfastError(f"its {what} is not JSON") from None
    if not isinstance(value, dict):
        raise HoldfastError(f"its {what} is not a JSON object")
    return value


def read_group(group: str, entries: object, data: Sequence[Bytes], bound: int) -> Tensors:
    """The tensors of one blob, each a copy of its own, aligned as torch aligns: kernels then give the same bits."""
    if not isinstance(entries, list) or not all(fits(entry, group) for entry in entries):
        raise HoldfastError(f"the layout of group {group!r} is not a list of name, type, shape and type sent")
    tensors: Tensors = {}
    start, total = 0, sum(map(len, data))
    for name, dtype, shape, sent_as in entries:
        count = math.prod(shape)
        small = bytes_in(sent_as, count) if sent_as not in DTYPES or (sent_as, dtype) == (INT8, "float32") else None
        end = start + (count * DTYPES[sent_as].itemsize if small is None else small)
        room = (
            size(tensors) + math.prod(max(1, length) for length in shape) * DTYPES[dtype].itemsize
        )  # torch counts empty axes, too
        if end > total or room > bound or name in tensors:
            raise HoldfastError(f"{name} does not fit into the bytes of its group")
        if small is None:
            tensors[name] = piece(data, start, end).view(DTYPES[sent_as]).reshape(shape).to(DTYPES[dtype])
        else:
            tensors[name] = expand(sent_as, piece(data, start, end), count).reshape(shape)
        start = end
    if start != total:
        raise HoldfastError(f"group {group!r} has {total} bytes, but its layout says {start}")
    return tensors


def piece(parts: Sequence[Bytes], start: int, end: int) -> torch.Tensor:
    """Some of the bytes of parts that lie one after the other, copied once.

    >>> piece([np.array([1, 2], np.uint8), np.array([3, 4], np.uint8)], 1, 3).tolist()
    [2, 3]
    """
    found, at = torch.empty(end - start, dtype=torch.uint8), 0
    for part in parts:
        low, high = max(start, at), min(end, at + len(part))
        if low < high:
            found.numpy()[low - start : high - start] = part[low - at : high - at]
        at += len(part)
    return found


def fits(entry: object, group: str) -> bool:
    """Whether a layout's entry is [name, type, shape, type sent], as encode writes it."""
    if not isinstance(entry, list) or len(entry) != 4 or not all(isinstance(entry[i], str) for i in (0, 1, 3)):
        return False
    name, dtype, shape, sent_as = entry
    few = isinstance(shape, list) and len(shape) <= AXES
    whole = few and all(type(length) is int and length >= 0 for length in shape)
    if not whole or name.partition("/")[0] != group or dtype not in DTYPES:
        return False
    if dtype == "float32" and group in COMPACT and bytes_in(sent_as, math.prod(shape)) is not None:
        return True
    return sent_as in (dtype, *(["float16"] if dtype == "float32" and group in HALVES else []))


def as_sent(tensors: Tensors, halve: bool) -> Tensors:
    """The tensors as they are after the way there."""
    if not halve:
        return tensors
    return {n: half_of(t).to(t.dtype) if n.partition("/")[0] in HALVES else t for n, t in tensors.items()}


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def wire_size(records: RecordDict) -> int:
    """Bytes of the blobs and words, without Flower's own envelope."""
    arrays = sum(len(array.data) for record in records.array_records.values() for array in record.values())
    words = sum(len(str(value)) for record in records.config_records.values() for value in record.values())
    return arrays + words
