"""Where each site of a run stands now, for its moderator: by the rounds that are written down, and who is connected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.record import Record
from holdfast.report.run_data import Story
from holdfast.runs.presence import read_presence

APPROVAL, PAUSED, WITHDREW = "waits for approval", "is paused", "has withdrawn"


def sites_now(story: Story) -> dict[str, Any]:
    """A row for each site: its name, what it does, since when, how often it took part, and why it is suspected."""
    presence = read_presence(story.folder)
    experiment = story.experiment
    waits = set(map(str, presence.get("approval", ())))
    connected: Mapping[str, Any] = presence.get("sites", {})
    rows = []
    for client in range(experiment.clients):
        name = experiment.name_of(client)
        link = connected.get(name) or connected.get(f"site-{client}")
        state, why, since = standing(story.records, client)
        if name in waits or f"site-{client}" in waits:
            state, why = "approval", ""
        taken = sum(took_part(record, client) for record in story.records)
        suspected, reason = suspicions(story.records, client)
        rows.append(
            {
                "name": name,
                "state": state,
                "why": why,
                "since": since,
                "link": None if link is None else {"there": link.get("connected") is True, "since": str(link["since"])},
                "taken": taken,
                "suspected": suspected,
                "reason": reason,
            }
        )
    return {"rows": rows, "turnedAway": [str(why) for why in presence.get("refused", ())]}


def took_part(record: Record, client: int) -> bool:
    return record.was_asked(client) and client not in record.absent and client not in record.refused


def standing(records: Sequence[Record], client: int) -> tuple[str, str, int]:
    """What a client does, why, and since which round: as in the last round that asked it."""
    told = [(record.round, *state_in(record, client)) for record in records if record.was_asked(client)]
    if not told:
        return "unasked", "", 0
    since, state, why = told[-1]
    for round, earlier, _ in reversed(told):
        if earlier != state:
            break
        since = round
    return state, why, since


def state_in(record: Record, client: int) -> tuple[str, str]:
    if client in record.refused:
        return "refused", record.refused[client]
    if (why := record.absent.get(client)) is not None:
        known = {APPROVAL: "approval", PAUSED: "paused", WITHDREW: "withdrawn"}
        return next((state for start, state in known.items() if why.startswith(start)), "away"), why
    return ("suspected", record.suspects[client]) if client in record.suspects else ("there", "")


def suspicions(records: Sequence[Record], client: int) -> tuple[int, str]:
    """In how many rounds a client was suspected, and why the last time."""
    found = [(record.round, record.suspects[client]) for record in records if client in record.suspects]
    return (len(found), f"round {found[-1][0]}: {found[-1][1]}") if found else (0, "")
