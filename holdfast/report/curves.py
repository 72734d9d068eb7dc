"""What `holdfast compare` leaves as curves.png, and the colours that every figure shares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.runs import History

# Okabe and Ito's colours, which the colour-blind can tell apart; dashes help where there are more than eight.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
DASHES = ("-", "--", ":", "-.")


def save_curves(histories: Sequence[History], path: Path) -> None:
    """Save the figure of these runs, as `holdfast report --png` does: accuracy, and below it who was there."""
    from holdfast.report.figures import save_figure
    from holdfast.report.story import Story

    stories = [Story(h.folder or Path("run"), h.experiment, h.records, True, (), (), ()) for h in histories]
    save_figure(stories, path)
