"""A report as a PDF of A4 pages, drawn with matplotlib, which every installation has: headings, tables, pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

Row = Sequence[str]
WIDTH, HEIGHT, MARGIN = 595.0, 842.0, 57.0  # of a page, in points
INNER = WIDTH - 2 * MARGIN
FACT = 150.0  # width of the first column of a table of facts
GAP, LEADING, SIZE = 11.0, 1.42, 9.0
DARK, QUIET, LINE = "#1d2327", "#5d666d", "#dfdcd6"
PLAIN = "DejaVu Sans"


@lru_cache(maxsize=4)
def _font(name: str) -> Any:
    from matplotlib.font_manager import findfont, get_font

    return get_font(findfont(name))


@lru_cache(maxsize=4096)  # words come again and again
def _word(text: str, size: float, name: str) -> float:
    font = _font(name)
    font.set_size(size, 72)
    font.set_text(text, 0.0)
    return float(font.get_width_height()[0]) / 64


def width_of(text: str, size: float = SIZE, name: str = PLAIN) -> float:
    """How wide a text is, in points."""
    words = text.split(" ")
    space = _word("a a", size, name) - _word("aa", size, name)
    return sum(_word(word, size, name) for word in words) + (len(words) - 1) * space


def wrapped(text: str, width: float, size: float = SIZE, name: str = PLAIN) -> list[str]:
    """A text in lines of at most this width; a word that is longer is divided.

    >>> wrapped("who keeps the data", 50.0), wrapped("a" * 12, 30.0)
    (['who keeps', 'the data'], ['aaaaaa', 'aaaaaa'])
    """
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if width_of(longer, size, name) <= width:
            lines[-1] = longer
            continue
        lines += [""] if lines[-1] else []
        for character in word if width_of(word, size, name) > width else [word]:
            if lines[-1] and width_of(lines[-1] + character, size, name) > width:
                lines.append("")
            lines[-1] += character
    return lines


def columns_of(rows: Sequence[Row]) -> list[float]:
    """The width of each column: what its widest cell needs, the widest columns cut where there is not enough room."""
    needed = [max(width_of(row[at]) for row in rows if at < len(row)) + GAP for at in range(max(map(len, rows)))]
    low, high = 0.0, max(needed)
    while sum(needed) > INNER and high - low > 0.1:  # a most for all, so that they fit
        middle = (low + high) / 2
        low, high = (middle, high) if sum(min(one, middle) for one in needed) <= INNER else (low, middle)
    return [min(one, low) for one in needed] if sum(needed) > INNER else needed


class Paper:
    """Pages that are filled from above; what does not fit goes to the next one."""

    def __init__(self, foot: str) -> None:
        self.foot, self.at = foot, 0.0
        self.pages: list[Any] = []
        self.turn()

    def turn(self) -> None:
        from matplotlib.figure import Figure

        self.pages.append(Figure(figsize=(WIDTH / 72, HEIGHT / 72)))
        self.at = HEIGHT - MARGIN

    def need(self, points: float) -> None:
        if self.at - points < MARGIN:
            self.turn()

    def put(self, x: float, y: float, text: str, size: float = SIZE, color: str = DARK, name: str = PLAIN) -> None:
        family, _, weight = name.partition(":")
        words = {"fontsize": size, "color": color, "family": family, "weight": weight or "normal"}
        self.pages[-1].text(x / WIDTH, y / HEIGHT, text, va="baseline", parse_math=False, **words)

    def text(self, text: str, size: float = SIZE, color: str = DARK, name: str = PLAIN, after: float = 0.0) -> None:
        for line in wrapped(text, INNER, size, name):
            self.need(size * LEADING)
            self.at -= size * LEADING
            self.put(MARGIN, self.at, line, size, color, name)
        self.at -= after

    def verdict(self, text: str, color: str) -> None:
        """The sentence that says it all, with a coloured bar beside it."""
        lines = wrapped(text, INNER - 16, SIZE + 1, PLAIN)
        top = self.at - 4
        for line in lines:
            self.at -= (SIZE + 1) * LEADING
            self.put(MARGIN + 14, self.at, line, SIZE + 1)
        self.at -= 5
        self.rule(MARGIN + 2, top, MARGIN + 2, self.at, color, 4.0)

    def rule(self, x: float, y: float, to_x: float, to_y: float, color: str, width: float) -> None:
        from matplotlib.lines import Line2D

        page = self.pages[-1]
        at = {"transform": page.transFigure, "color": color, "linewidth": width, "solid_capstyle": "butt"}
        page.add_artist(Line2D([x / WIDTH, to_x / WIDTH], [y / HEIGHT, to_y / HEIGHT], **at))

    def table(self, rows: Sequence[Row]) -> None:
        """Sentences, facts in two columns, or a table whose first row is its head."""
        wide = max(map(len, rows)) > 2
        facts = [min(FACT, INNER / 2), INNER - FACT]
        widths = columns_of(rows) if wide else facts if len(rows[0]) == 2 else [INNER]
        for position, row in enumerate(rows):
            head = wide and position == 0
            cells = [wrapped(cell, width - GAP) for cell, width in zip(row, widths, strict=False)]
            tall = max(map(len, cells)) * SIZE * LEADING
            self.need(tall + 6)
            left = MARGIN
            for at, (lines, width) in enumerate(zip(cells, widths, strict=False)):
                quiet = head or (at == 0 and not wide and len(row) == 2)
                for down, line in enumerate(lines, start=1):
                    self.put(left, self.at - down * SIZE * LEADING, line, color=QUIET if quiet else DARK)
                left += width
            self.at -= tall + 4
            self.rule(MARGIN, self.at, WIDTH - MARGIN, self.at, LINE, 0.5)

    def pictures(self, name: str, pixels: Sequence[NDArray[Any]], side: float = 48.0) -> None:
        """Grey or coloured pictures in a row, as many as there is room for."""
        self.need(side + 26)
        self.text(name, color=QUIET, after=4)
        self.at -= side
        for at, one in enumerate(pixels[: int(INNER // (side + 6))]):
            where = ((MARGIN + at * (side + 6)) / WIDTH, self.at / HEIGHT, side / WIDTH, side / HEIGHT)
            axes = self.pages[-1].add_axes(where)
            axes.imshow(one, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_axis_off()
        self.at -= 4

    def content(self, title: str) -> bytes:
        """The file."""
        from matplotlib import rc_context
        from matplotlib.backends.backend_pdf import PdfPages

        file, count = io.BytesIO(), len(self.pages)
        with rc_context({"pdf.fonttype": 42}), PdfPages(file, metadata={"Title": title, "Creator": "Holdfast"}) as pdf:
            for number, page in enumerate(self.pages, start=1):
                said = wrapped(self.foot, INNER - 60, 7.5)[0]
                page.text(MARGIN / WIDTH, 30 / HEIGHT, said, fontsize=7.5, color=QUIET, parse_math=False)
                where = (WIDTH - MARGIN) / WIDTH
                page.text(where, 30 / HEIGHT, f"{number} of {count}", ha="right", fontsize=7.5, color=QUIET)
                pdf.savefig(page)
        return file.getvalue()
