"""Figures in the docs come from saved results; a table that was typed is known here by its head, with a reason."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

from saved import DOCS, MADE, text

ROOT = Path(__file__).parents[1]
FIGURE = re.compile(r"\d\.\d|\d %|± \d")

PUBLISHED = "figures that others published"
NOTES = "notes on what was tried while choosing, on seeds for choosing"
QUOTED = "quotes figures of other pages"
WORDS = "words; its numbers are settings"

# The pages whose tables are all of one kind.
WHOLE_PAGES = {
    "reference.md": "written by the code",
    "errors.md": "written by the code",
    "trust-notes.md": NOTES,
    "papers.md": QUOTED,
}
TYPED = {
    ("README.md", "| | nobody leaves | the largest leaves"): "held to its file below",
    ("README.md", "| what | measured |"): QUOTED,
    ("RESULTS.md", "| page | what stands on it | in one figure |"): QUOTED,
    ("absence.md", "| option | usual | what it does |"): WORDS,
    ("hostile.md", "| what | aim | found |"): QUOTED,
    ("privacy.md", "| from what leaves at | they are right"): "follows from the formula; the report has a test of it",
    ("results-leaving.md", "| | none | temporary | forever | sequential | group |"): PUBLISHED,
    ("results-leaving.md", "| | first group | rounds | second group"): NOTES,
    ("results-leaving.md", "| | exact sums | epsilon 10 | epsilon 3 |"): NOTES,
    ("results-privacy.md", "| | epsilon 3 | epsilon 1 |"): NOTES,
    ("results-privacy.md", "| | 10 | 3 | 1 |"): NOTES,
    ("tutorial.md", "| key | known | what it decides |"): WORDS,
}
RESULTS = re.compile(r"results-.*|RESULTS|hostile")  # pages where every table must be made, whatever is in it


def typed_tables(page: Path) -> list[list[str]]:
    """The tables of a page that are not made from a file."""
    rest = re.sub(r"^```.*?^```", "", MADE.sub("", page.read_text()), flags=re.MULTILINE | re.DOTALL)
    return [found.splitlines() for found in re.findall(r"(?:^\|.*\n?)+", rest, re.MULTILINE)]


def test_every_table_of_figures_is_made_from_a_file_or_known_as_typed() -> None:
    unused = {*TYPED}
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        if page.name in WHOLE_PAGES:
            continue
        for head, _, *rows in typed_tables(page):
            known = [key for key in TYPED if key[0] == page.name and head.startswith(key[1])]
            unused -= {*known}
            figures = len(FIGURE.findall("\n".join(rows)))
            assert known or (figures < 4 and not RESULTS.fullmatch(page.stem)), (
                f"{page.name}: {head}: save its figures (benchmarks/saved.py) and put the table between markers, "
                "or say in tests/test_results_pages.py why it is typed"
            )
    assert not unused, "no longer there"


def test_the_readmes_table_has_the_figures_of_its_file() -> None:
    saved = json.loads((DOCS / "results" / "leaving.json").read_text())["rows"]
    [table] = [rows for rows in typed_tables(ROOT / "README.md") if rows[0].startswith("| | nobody leaves")]
    for row, method in ((table[2], "FedAvg"), (table[3], "FedAvg + FedDig")):
        cells = [cell.strip(" *") for cell in row.strip("|").split("|")][1:]
        assert cells == [text(values, 1) for values in saved[method].values()]


def test_every_benchmark_can_be_imported_and_says_what_it_measures() -> None:
    """One that nobody runs for a while would otherwise break unseen."""
    found = [importlib.import_module(path.stem) for path in sorted((ROOT / "benchmarks").glob("*.py"))]
    assert len(found) > 30
    assert not [module.__name__ for module in found if not module.__doc__]
