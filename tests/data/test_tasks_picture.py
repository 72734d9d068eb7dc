"""Pictures of a partition: every number is there where it fits, and nothing is wider than the terminal."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from holdfast.core.errors import HoldfastError
from holdfast.data.class_names import CIFAR100, EMNIST_BY_CLASS, FASHION
from holdfast.data.sources.picture import partition_figure, partition_table

COUNTS = torch.tensor([[0, 100, 25], [400, 0, 1]])


def shown(counts: torch.Tensor, names: tuple[str, ...], width: int, colour: bool = False) -> list[str]:
    stream = io.StringIO()
    colours = "truecolor" if colour else None
    Console(file=stream, width=width, color_system=colours, force_terminal=colour).print(partition_table(counts, names))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_numbers_and_totals_where_they_fit() -> None:
    assert shown(COUNTS, ("cat", "dog", "[bird]"), 80) == [
        "client cat dog [bird] total",
        "     0   · 100     25   125",
        "     1 400   ·      1   401",
    ]


def test_names_are_cut_before_numbers_are_given_up() -> None:
    names = ("cat", "dog", "hippopotamus")
    assert shown(COUNTS, names, 26)[0] == "client cat dog hipp… total"  # 26 signs
    assert shown(COUNTS, names, 25)[0] == "client cat dog hi… total"
    assert shown(COUNTS, names, 24)[0] == "client cat dog hi… total"  # 24 signs
    assert shown(COUNTS, names, 23)[0] == "client 012 total"


def test_blocks_by_the_square_root_where_numbers_do_not_fit() -> None:
    """Of the largest count 400, 100 is a half and 25 a quarter after the root: blocks four and two of eight."""
    lines = shown(COUNTS, ("cat", "dog", "hippopotamus"), 20)
    assert lines[:3] == ["client 012 total", "     0 ·▄▂   125", "     1 █·▁   401"]
    assert "".join(lines[3:]).startswith("█ 400 samples")


@pytest.mark.parametrize("width", [30, 80, 200])
@pytest.mark.parametrize("names", [FASHION, EMNIST_BY_CLASS, CIFAR100])
def test_never_wider_than_the_terminal(names: tuple[str, ...], width: int) -> None:
    counts = torch.randint(0, 5000, (64, len(names)), generator=torch.Generator().manual_seed(0))
    lines = shown(counts, names, width)
    assert max(map(len, lines)) <= width
    for client in range(64):  # one line for each client, with its total
        words = lines[client + 1].split()
        assert (words[0], words[-1]) == (str(client), str(int(counts[client].sum())))


def test_sixty_two_classes_fit_eighty_columns_one_block_each() -> None:
    counts = torch.eye(62, dtype=torch.int64) * 7
    lines = shown(counts, EMNIST_BY_CLASS, 80)
    assert lines[0].split()[1] == "".join(EMNIST_BY_CLASS)
    assert lines[11].split()[1] == "·" * 10 + "█" + "·" * 51


def test_classes_share_a_block_when_it_is_tight() -> None:
    counts = torch.ones(1, 100, dtype=torch.int64)
    lines = shown(counts, CIFAR100, 40)
    assert lines[1].split()[1] == "█" * 25  # 100 classes, four in each
    assert "a column is 4 classes" in " ".join(lines[2:])


def test_a_fuller_cell_is_darker() -> None:
    line = shown(COUNTS, ("a", "b", "c"), 80, colour=True)[2]
    assert "48;2;11;60;112m" in line  # 400 on the darkest shade
    assert "48;2;223;234;245m" in line  # 1 on the lightest


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_figures_are_saved_by_their_ending(tmp_path: Path, ending: str, start: bytes) -> None:
    path = tmp_path / f"picture.{ending}"
    partition_figure(COUNTS, ("a", "b", "c"), path)
    assert path.read_bytes().startswith(start)


def test_figure_has_the_numbers_in_its_cells_and_the_totals(tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    partition_figure(COUNTS, ("cat", "dog", "bird"), path)
    text = path.read_text()
    for word in ("100", "25", "400", "125", "401", "cat", "bird", "total"):
        assert f"<!-- {word} -->" in text
    partition_figure(torch.full((40, 62), 1234), EMNIST_BY_CLASS, path)
    text = path.read_text()
    assert "<!-- 1234 -->" not in text  # no room
    assert "<!-- 76,508 -->" in text  # 62 x 1234


def test_bad_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"\.png, \.pdf, \.svg"):
        partition_figure(COUNTS, ("a", "b", "c"), tmp_path / "picture.bmp")
    with pytest.raises(HoldfastError, match="does not exist"):
        partition_figure(COUNTS, ("a", "b", "c"), tmp_path / "nowhere" / "picture.png")
    with pytest.raises(HoldfastError, match=r"clients x 2 classes, got shape \(2, 3\)"):
        partition_table(COUNTS, ("a", "b"))


def test_matplotlib_waits_until_a_figure_is_asked_for() -> None:
    code = (
        "import sys, holdfast.data.sources.picture, holdfast.data.named; "
        "print({'matplotlib', 'datasets'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
