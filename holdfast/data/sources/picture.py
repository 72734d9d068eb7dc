"""Pictures of a partition: how many samples of each class each client holds, in the terminal and in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.style import Style
from rich.table import Table
from rich.text import Text
from torch import Tensor

from holdfast.core.errors import HoldfastError

# Light to dark blue, told apart by lightness alone; what nobody holds stays uncoloured.
SHADES = ("#dfeaf5", "#c8dcef", "#a9cae5", "#84b4da", "#5a98c8", "#3579b1", "#185a96", "#0b3c70")
INK = "#10243a"
BLOCKS = "▁▂▃▄▅▆▇█"
ENDINGS = (".png", ".pdf", ".svg")


def partition_table(counts: Tensor | Sequence[Sequence[int]], class_names: Sequence[str]) -> PartitionTable:
    """The counts (clients x classes) for the terminal: numbers where they fit, else one block for each class."""
    return PartitionTable(_numbers(counts, class_names), tuple(class_names))


@dataclass(frozen=True)
class PartitionTable:
    """A rich renderable that looks at the width it is given."""

    counts: NDArray[np.int64]
    class_names: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for longest in (10, 5, 3):
            if self.width(longest) <= options.max_width:
                yield self.numbers(longest)
                return
        yield from self.blocks(options.max_width)

    def width(self, longest: int) -> int:
        """Signs in a line of numbers(longest)."""
        digits = [len(str(most)) for most in self.counts.max(0)]
        names = [cell_len(_short(name, longest)) for name in self.class_names]
        total = max(len(str(self.counts.sum(1).max())), len("total"))
        return len("client ") + sum(max(pair) + 1 for pair in zip(digits, names, strict=True)) + total

    def numbers(self, longest: int) -> Table:
        """One cell for each client and class, shaded, with its number; names are cut where they are longer."""
        table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False, header_style="bold")
        table.add_column("client", justify="right")
        for name in self.class_names:
            table.add_column(Text(_short(name, longest)), justify="right", no_wrap=True)
        table.add_column("total", justify="right")
        for client, levels in enumerate(_levels(self.counts)):
            row = self.counts[client].tolist()
            cells = [_cell(number, level) for number, level in zip(row, levels, strict=True)]
            table.add_row(str(client), *cells, str(sum(row)))
        return table

    def blocks(self, width: int) -> Iterator[RenderableType]:
        """One block for each class, as high as the client's count; neighbouring classes share one when it is tight."""
        totals = self.counts.sum(1)
        room = max(width - len("client ") - max(len(f" {totals.max()}"), len(" total")), 1)
        together = -(-len(self.class_names) // room)
        starts = range(0, len(self.class_names), together)
        counts = np.add.reduceat(self.counts, list(starts), axis=1)
        signs = together == 1 and all(len(name) == 1 for name in self.class_names)
        table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False, header_style="bold")
        table.add_column("client", justify="right")
        heads = self.class_names if signs else [str(column % 10) for column in range(len(starts))]
        table.add_column(Text("".join(heads)), no_wrap=True)
        table.add_column("total", justify="right")
        for client, levels in enumerate(_levels(counts)):
            bar = Text()
            for level in levels:
                bar.append("·" if level < 0 else BLOCKS[level], Style(dim=level < 0))
            table.add_row(str(client), bar, str(totals[client]))
        yield table
        shared = f"; a column is {together} classes" if together > 1 else ""
        yield Text(f"█ {counts.max()} samples, · none, heights by square root{shared}", Style(dim=True))


def partition_figure(counts: Tensor | Sequence[Sequence[int]], class_names: Sequence[str], path: Path) -> None:
    """Save the counts (clients x classes) as a PNG, PDF or SVG picture, by the ending of the path."""
    numbers = _numbers(counts, class_names)
    if path.suffix.lower() not in ENDINGS:
        raise HoldfastError(f"{path}: a picture is saved as {', '.join(ENDINGS)}; choose one of these endings.")
    if not path.parent.is_dir():
        raise HoldfastError(f"{path}: the folder {path.parent} does not exist; make it first.")
    _draw(numbers, class_names).savefig(path, dpi=150)


def _draw(counts: NDArray[np.int64], class_names: Sequence[str]) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm
    from matplotlib.figure import Figure

    clients, classes = counts.shape
    large = classes <= 20 and clients <= 32  # a cell has room for a number
    width, height, size = (0.62, 0.34, 9) if large else (0.2, 0.2, 7)  # of a cell in inches, of letters in points
    figure = Figure(figsize=(2.0 + width * classes, 1.4 + height * clients), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = LinearSegmentedColormap.from_list("holdfast", list(SHADES), bad="#f6f7f9")
    most = max(int(counts.max()), 1)
    image = axes.pcolormesh(
        np.ma.masked_equal(counts, 0), cmap=colours, norm=PowerNorm(0.5, 0, most), edgecolors="white", linewidth=1
    )
    axes.invert_yaxis()
    tilt = 0 if all(len(name) <= 2 for name in class_names) else 35 if large else 90
    axes.set_xticks(np.arange(classes) + 0.5, class_names, rotation=tilt, ha="right" if tilt == 35 else "center")
    axes.set_yticks(np.arange(clients) + 0.5, [str(client) for client in range(clients)])
    axes.tick_params(length=0, labelsize=size)
    axes.set_ylabel("client")
    axes.set_title("Samples of each class held by each client", loc="left", fontsize=11)
    axes.set_frame_on(False)
    right = classes + 0.75 / width  # totals end here, so that their digits stand below each other
    axes.text(right, -0.15, "total", va="bottom", ha="right", fontsize=size, weight="bold")
    for client, total in enumerate(counts.sum(1)):
        axes.text(right, client + 0.5, f"{total:,}", va="center", ha="right", fontsize=size)
    if large:
        for client, c in np.argwhere(counts):
            colour = "white" if counts[client, c] > 0.42 * most else INK
            axes.text(c + 0.5, client + 0.5, str(counts[client, c]), ha="center", va="center", fontsize=8, color=colour)
    else:
        figure.colorbar(image, ax=axes, label="samples", shrink=0.6, pad=0.01, aspect=30)
    return figure


def _numbers(counts: Tensor | Sequence[Sequence[int]], class_names: Sequence[str]) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = torch.as_tensor(counts, dtype=torch.int64).numpy()
    if numbers.ndim != 2 or numbers.shape[1] != len(class_names) or numbers.size == 0 or numbers.min() < 0:
        raise HoldfastError(
            f"A picture of a partition needs counts of clients x {len(class_names)} classes, got shape {numbers.shape}."
        )
    return numbers


def _levels(counts: NDArray[np.int64]) -> list[list[int]]:
    """-1 for nothing, else 0 to 7 by the square root of the count, so that small holdings can still be told apart."""
    scaled = np.sqrt(counts / max(int(counts.max()), 1))
    levels: list[list[int]] = np.where(counts == 0, -1, np.ceil(scaled * 8).astype(int) - 1).tolist()
    return levels


def _cell(number: int, level: int) -> Text:
    if level < 0:
        return Text("·", Style(dim=True))
    return Text(str(number), Style(color="#ffffff" if level >= 5 else INK, bgcolor=SHADES[level]))


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"
