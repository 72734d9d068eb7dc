"""The moderator's view: where each site stands, by its rounds and by who is connected."""

from __future__ import annotations

from pathlib import Path

from report_helpers import SITES, moderated

from holdfast.report.run_data import read_story
from holdfast.report.sites_now import sites_now
from holdfast.runs.presence import PRESENCE, Presence, read_presence


def test_each_site_is_told_with_its_state_and_since_when(tmp_path: Path) -> None:
    now = sites_now(read_story(moderated(tmp_path)))
    told = [(row["state"], row["since"], row["taken"], row["suspected"]) for row in now["rows"]]
    assert told == [("there", 1, 3, 0), ("paused", 2, 1, 0), ("there", 1, 3, 0), ("suspected", 2, 3, 2)]
    assert now["rows"][3]["reason"] == "round 3: its update is too long"
    assert [row["link"] for row in now["rows"]] == [None] * 4  # of a run on one machine nobody is connected


def test_who_is_connected_is_kept_with_the_time_and_over_a_restart(tmp_path: Path) -> None:
    folder = moderated(tmp_path, rounds=0)
    presence = Presence(folder / PRESENCE)
    presence.saw({"north": True, "south": False}, ["a stranger"])
    presence.waits(["south", "west"], SITES)
    presence.waits([], ["west"])  # another question, to another site
    first = read_presence(folder)
    again = Presence(folder / PRESENCE)
    again.saw({"north": True, "south": True}, [])
    then = read_presence(folder)
    assert then["sites"]["north"] == first["sites"]["north"]
    assert (then["sites"]["south"]["connected"], then["approval"], then["refused"]) == (True, ["south"], [])
    rows = sites_now(read_story(folder))["rows"]
    assert [row["state"] for row in rows] == ["unasked", "approval", "unasked", "unasked"]
    assert rows[0]["link"]["there"]
    (folder / PRESENCE).write_text('{"sites": [1]}')
    assert read_presence(folder) == {}
