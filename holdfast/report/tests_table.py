"""The last test of a run as the page shows it: overall, at each client, and on the data of those who are away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.core.types import not_there
from holdfast.data.contract import Kind
from holdfast.data.kinds import KINDS, Hazards
from holdfast.data.metrics import Measure
from holdfast.record import Record

MOST = 100  # clients in the table


def known_measures() -> dict[str, Measure]:
    """How Holdfast's own metrics are read; a user's own are plain numbers, but for the leading one."""
    kinds: list[Kind] = [Hazards((1.0,)) if kind is Hazards else kind() for kind in KINDS.values()]
    return {metric.name: metric.measure for kind in kinds for metric in kind.all_metrics(2)}


def last_test(records: Sequence[Record], name_of: Callable[[int], str]) -> dict[str, Any] | None:
    """Rows of (name, samples, leading metric, its interval, other metrics) as texts; none before the first test."""
    record = next((record for record in reversed(records) if record.measure is not None), None)
    if record is None or record.measure is None:
        return None
    measures = {**known_measures(), record.measure.name: record.measure}
    names = dict.fromkeys([record.measure.name, *record.metrics, *record.total_metrics, *record.client_metrics])
    named = [measures.get(name, Measure(name)) for name in names]
    clients = sorted(record.client_samples)
    away = {client for client, why in record.absent.items() if not_there(why)} & set(clients)

    def row(name: str, samples: str, values: Mapping[str, float], interval: Sequence[float] | None) -> list[str]:
        texts = [measure.text(values[measure.name]) if measure.name in values else "–" for measure in named]
        return [name, samples, texts[0], interval_text(record.measure, interval), *texts[1:]]

    rows = [row("overall", "", record.metrics, record.interval)]
    if record.absent_metrics:
        count = sum(record.client_samples[client] for client in away)
        rows.append(row(f"those who are away ({len(away)})", f"{count:,}", record.absent_metrics, None))
    if record.total_metrics:
        count = sum(record.client_samples.values())
        rows.append(row(f"all clients together ({len(clients)})", f"{count:,}", record.total_metrics, None))
        clients = []
    for client in clients[:MOST]:
        own = {name: found[client] for name, found in record.client_metrics.items() if client in found}
        told = f"{name_of(client)}, away" if client in away else name_of(client)
        rows.append(row(told, f"{record.client_samples[client]:,}", own, record.client_intervals.get(client)))
    more = len(clients) - MOST
    return {
        "round": record.round,
        "head": ["", "samples", named[0].words, "95 % interval", *(measure.words for measure in named[1:])],
        "rows": rows,
        "more": max(0, more),
        "threshold": record.threshold,
    }


def interval_text(measure: Measure | None, interval: Sequence[float] | None) -> str:
    if measure is None or interval is None:
        return "–"
    return f"{measure.number(interval[0])} to {measure.number(interval[1])}"
