"""What people look at: one page, figures, a live view.

What is written during a run belongs in runs/.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def save_report(runs: Sequence[Path | str], page: Path | None, figures: Sequence[Path] = ()) -> list[str]:
    """Write the page and the figures of some runs, and give back what happened in words."""
    from holdfast.core.errors import HoldfastError
    from holdfast.core.files import write_file
    from holdfast.report.figures import KINDS, save_figure
    from holdfast.report.page import page as page_of
    from holdfast.report.payload import payload
    from holdfast.report.run_data import find_runs, read_story

    folders = find_runs([Path(run) for run in runs])
    for path in figures:
        if path.suffix.lower() not in KINDS:
            raise HoldfastError(f"{path} must end in .png, .pdf or .svg, which says what kind of figure it is.")
    for path in (*figures, *((page,) if page else ())):
        if not path.parent.is_dir():
            raise HoldfastError(f"{path.parent} does not exist; make that folder first, or name another file.")
    stories = [read_story(folder) for folder in folders]
    content = payload(stories)
    if page is not None:
        write_file(page, page_of(content).encode())
    for path in figures:
        save_figure(stories, path)
    headline: list[str] = content["headline"]
    return headline
