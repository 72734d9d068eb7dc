"""The tournament: what is played, how places and intervals come about, and the files it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.reproducing_tournament import play_tournament
from holdfast.core.errors import HoldfastError
from holdfast.reproduce.results import Cell
from holdfast.reproduce.tournament import ON_REQUEST, SCENARIOS, SHORTLIST, ranks_of, tournament
from holdfast.runs.experiment import from_table

PARTS = ["FedDig", "ensemble of last models", "heart", "sequential"]


def test_what_is_played() -> None:
    whole = tournament("full")
    assert len(whole.rows) == len(SHORTLIST) <= 15
    assert len(whole.columns) == 4 * len(SCENARIOS)
    for row in (*SHORTLIST, *ON_REQUEST):
        from_table({**whole.base, **row.keys, **whole.columns[0].keys})
    some = tournament("small", ["FedMix", "group"])
    assert [row.name for row in some.rows] == ["FedMix"]
    assert [column.name for column in some.columns] == ["fashion-mini, group", "heart, group"]
    with pytest.raises(HoldfastError, match="no 'FedDik'"):
        tournament("small", ["FedDik"])
    with pytest.raises(HoldfastError, match="'small' and 'full'"):
        tournament("paper")


def test_the_interval_of_a_mean_rank() -> None:
    sure = ranks_of([Cell("a", "x", (2.0,) * 9), Cell("b", "x", (1.0,) * 9)])
    assert sure == {"a": (1.0, 1.0, 1.0), "b": (2.0, 2.0, 2.0)}
    torn = ranks_of([Cell("a", "x", (2.0, 1.0) * 8), Cell("b", "x", (1.0, 2.0) * 8)])
    mean, low, high = torn["a"]
    assert (mean, low + high) == (1.5, pytest.approx(3, abs=0.1))
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / 16**0.5, rel=0.15)  # of 16 draws of 1 or 2


def test_the_files_of_a_tournament(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play_tournament("small", None, tmp_path, "0", ["rounds=2", "evaluate_every=1"], True, PARTS)
    found = json.loads(capsys.readouterr().out)
    assert {cell["row"] for cell in found["cells"]} == {"FedDig", "ensemble of last models"}
    assert {cell["row"] for cell in found["of_those_away"]} == {"FedDig"}
    assert set(found["ranks"]) == {"FedDig", "ensemble of last models"}
    assert "heart, sequential: " in found["findings"][0]
    assert "## Ranks" in (tmp_path / "table.md").read_text()
    page = (tmp_path / "page.html").read_text()
    assert page.count("<table>") == 3
    assert "<script" not in page
