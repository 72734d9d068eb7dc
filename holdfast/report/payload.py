"""Runs as the page reads them: one JSON object, compact (20 runs x 300 rounds x 64 clients fit in a few megabytes)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.attacks.adversary import choose_hostile
from holdfast.core.types import by_scenario
from holdfast.data.metrics import Measure
from holdfast.record import Record
from holdfast.report.privacy import privacy_words
from holdfast.report.run_data import Story
from holdfast.report.tests_table import last_test
from holdfast.report.words import colour_places, headline, labels, situation

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
STEPS = len(DIGITS) ** 2 - 1
CODES = [high + low for high in DIGITS for low in DIGITS]
GAP = "--"
MOST_HAPPENINGS = 200  # rows of a run's table; a rule that suspects everyone every round must not fill the page


def payload(stories: Sequence[Story]) -> dict[str, Any]:
    """Everything the page shows."""
    names = labels(stories)
    colours = colour_places(names)
    told = [{**run_payload(story, name), "colour": colours[name]} for story, name in zip(stories, names, strict=True)]
    seen: list[str] = []
    for run in told:  # two comparisons may have runs of the same name
        seen.append(run["folder"])
        times = seen.count(run["folder"])
        run["id"] = run["folder"] if times == 1 else f"{run['folder']} ({times})"
    return {"headline": headline(stories), "runs": told}


def run_payload(story: Story, name: str) -> dict[str, Any]:
    experiment, records = story.experiment, story.records
    clients, classes = range(experiment.clients), range(len(story.class_names))
    weights = by_client(records, clients, lambda record: record.weights)
    scores = by_client(records, clients, lambda record: record.scores)
    credibility = by_client(records, clients, lambda record: record.credibility)
    at_clients = by_client(records, clients, lambda record: record.by_client)
    of_classes = [[value_at(record.by_class, c) for record in records] for c in classes]
    measure = story.history.measure
    of_class = next((r.class_measure for r in reversed(records) if r.class_measure is not None), measure)
    parts = dict.fromkeys(part for record in records for part in record.seconds)
    return {
        "label": name,
        "folder": story.folder.name,
        "scenario": situation(experiment),
        "seed": experiment.seed,
        "clients": experiment.clients,
        "names": [experiment.name_of(client) for client in clients],
        "hostile": list(choose_hostile(experiment.clients, experiment.attackers, experiment.seed)),
        "planned": experiment.rounds,
        "finished": story.finished,
        "metric": measure_words(measure),
        "final": short(story.final),
        "classes": list(story.class_names),
        "rounds": [record.round for record in records],
        "values": [short(record.leading) for record in records],
        "loss": [short(record.loss) for record in records],
        "presence": ["".join(presence(record, client) for record in records) for client in clients],
        "clientValues": grid(at_clients, *span(at_clients, measure)),
        "classMetric": measure_words(of_class),
        "classValues": grid(of_classes, *span(of_classes, of_class)),
        "weights": grid(weights, 0.0, largest(weights)),
        "scores": grid(scores, -largest([[-v for v in row if v is not None] for row in scores]), largest(scores)),
        "credibility": grid(credibility, 0.0, 1.0),
        "seconds": {part: [short(record.seconds.get(part, 0.0)) for record in records] for part in parts},
        "up": [record.bytes_up for record in records],
        "down": [record.bytes_down for record in records],
        "lastTest": last_test(records, experiment.name_of),
        "curves": dict(story.curves),
        "happenings": happenings(records),
        "digests": list(story.digests),
        "privacy": privacy_words(story),
        "guidance": list(story.guidance),
        "experiment": {key: value for key, value in experiment.as_json().items() if value is not None},
        "environments": list(story.environments),
    }


def measure_words(measure: Measure) -> dict[str, Any]:
    return {"name": measure.words, "unit": measure.unit, "smaller": measure.smaller_is_better}


def presence(record: Record, client: int) -> str:
    """One letter: p there, s suspected, r refused, q refused and replaced by a digest, d replaced, a away, n not."""
    if not record.was_asked(client):
        return "n"
    stands_in = client in record.stand_ins
    if client in record.refused:
        return "q" if stands_in else "r"
    if client in record.absent:
        return "d" if stands_in else "a"
    return "s" if client in record.suspects else "p"


def by_client(
    records: Sequence[Record], clients: Iterable[int], pick: Callable[[Record], Mapping[int, float]]
) -> list[list[float | None]]:
    return [[pick(record).get(client) for record in records] for client in clients]


def value_at(values: Sequence[float | None], position: int) -> float | None:
    return values[position] if position < len(values) else None


def largest(rows: Iterable[Iterable[float | None]]) -> float:
    return max((value for row in rows for value in row if value is not None), default=0.0)


def span(rows: Sequence[Sequence[float | None]], measure: Measure) -> tuple[float, float]:
    """The least and largest value that a grid shows: of a share all that there can be."""
    values = [value for row in rows for value in row if value is not None]
    return (0.0, 1.0) if measure.is_share or not values else (min(values), max(values))


def grid(rows: Sequence[Sequence[float | None]], low: float, high: float) -> dict[str, Any] | None:
    """Values between low and high, two letters each (1,296 steps), as rows of text; None where there is no value.

    >>> grid([[0.0, None, 1.0]], 0.0, 1.0)
    {'low': 0.0, 'high': 1.0, 'rows': ['00--zz']}
    """
    if all(value is None for row in rows for value in row):
        return None
    high = high if high > low else low + 1.0
    scale = STEPS / (high - low)
    text = ["".join(GAP if v is None else CODES[round((v - low) * scale)] for v in row) for row in rows]
    return {"low": short(low), "high": short(high), "rows": text}


def short(value: float | None) -> float | None:
    """Four digits are enough to look at; what is not finite is not there.

    >>> short(0.123456), short(float("nan"))
    (0.1235, None)
    """
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None


def happenings(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Suspects, refusals, failures and notes, each once with its rounds; sentences that differ in numbers are one."""
    found: dict[tuple[str, int | None, str], tuple[str, list[int]]] = {}
    for record in records:
        told: list[tuple[str, int | None, str]] = [("note", None, note) for note in record.notes]
        told += [("suspected", client, why) for client, why in record.suspects.items()]
        told += [("refused", client, why) for client, why in record.refused.items()]
        told += [("absent", c, why) for c, why in record.absent.items() if not by_scenario(why)]
        for kind, client, why in told:
            key = (kind, client, re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", "#", why))
            _, rounds = found.get(key, ("", []))
            found[key] = (why, [*rounds, record.round] if rounds[-1:] != [record.round] else rounds)
    rows: list[dict[str, Any]] = [
        {"kind": kind, "client": client, "why": why, "rounds": ranges(rounds), "count": len(rounds)}
        for (kind, client, _), (why, rounds) in found.items()
    ]
    rows.sort(key=lambda row: -row["count"])
    if len(rows) > MOST_HAPPENINGS:
        left = len(rows) - MOST_HAPPENINGS
        more = {"kind": "note", "client": None, "why": f"{left} more are in rounds.jsonl", "rounds": "", "count": 0}
        rows = [*rows[:MOST_HAPPENINGS], more]
    return rows


def ranges(rounds: Sequence[int], most: int = 6) -> str:
    """Rounds as ranges.

    >>> ranges([1, 2, 3, 7])
    '1–3, 7'
    """
    spans: list[list[int]] = []
    for number in rounds:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [str(a) if a == b else f"{a}–{b}" for a, b in spans[:most]]
    return ", ".join(texts) + (f" and {len(spans) - most} more" if len(spans) > most else "")
