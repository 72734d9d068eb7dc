"""The site is built without a warning and asks nobody outside; tutorials are page, script and notebook at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest
from browser import browser, complaints, screen
from saved import DOCS, MADE, keep, made_anew, record, save
from warm import call

from holdfast.cli.checking import KINDS
from holdfast.core.rivals import RIVALS

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "examples" / "tutorials").glob("*.py"))
FETCHED = re.compile(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["'](?:https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-f", "site/mkdocs.yml", "-d", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_no_page_asks_anybody_outside(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        assert not FETCHED.search(page.read_text()), page.name


def test_formulas_methods_and_names_are_there(site: Path) -> None:
    scaffold = (site / "methods" / "scaffold.html").read_text()
    assert scaffold.count("<math") > 5
    assert "arithmatex" not in scaffold
    assert "holdfast/algorithms/scaffold.py" in scaffold
    assert 'href="scaffold.html"' in (site / "methods" / "index.html").read_text()
    assert 'id="holdfast.data.metrics.WholeMetric"' in (site / "api.html").read_text()
    for path in TUTORIALS:
        assert (site / "tutorials" / f"{path.stem}.html").exists()
        assert f"tutorials/{path.stem}.html" in (site / "llms.txt").read_text()


@pytest.mark.browser
def test_pages_opened_as_files_can_be_searched_and_fit_a_phone(site: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as driver:
        driver.get(f"file://{site}/index.html")
        box = driver.find_element("css selector", ".md-search__input")
        box.click()
        box.send_keys("scaffold")
        wait = """
          const done = arguments[0], look = () => document.querySelector(".md-search-result__item h1");
          const timer = setInterval(() => look() && (clearInterval(timer), done(look().textContent)), 50);
        """
        assert driver.execute_async_script(wait) == "SCAFFOLD"
        screen(driver, 390, 800)
        for name in ("index.html", "methods/scaffold.html", "hostile.html", "errors.html"):
            driver.get(f"file://{site}/{name}")
            wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert driver.execute_script(wide) == 0, name
        assert not complaints(driver)


OF_THE_FEDERATION = (
    "algorithm",
    "absence",
    "trust",
    "protect",
    "server_optimizer",
    "selection",
    "workload",
    "compress",
    "late",
)
PLAIN = {"none", "all", "uniform", "usual"}  # no rule of their own; equal weights have a page all the same


def test_every_method_has_a_page_with_its_rule_state_travel_check_and_figures() -> None:
    methods = [(kind, name) for kind in OF_THE_FEDERATION for name in KINDS[kind][1] if name not in PLAIN]
    methods += [(kind, name) for kind, names in RIVALS.items() for name in names]
    assert len(methods) > 50
    for kind, name in methods:
        page = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
        assert page.startswith(f"---\nkind: {kind}\nname: {name}\n---\n"), name
        for part in ("$", "**State**", "**Travels**", "**Checked against**", "**Measured**"):
            assert part in page, f"{name}: {part}"
        checks = re.findall(r"`(tests/[\w/]+\.py)` \(([^)]*)\)", page.partition("**Checked against**")[2])
        assert checks, f"{name}: no test is named"
        for file, tests in checks:
            there = set(re.findall(r"^def (test_\w+)", (ROOT / file).read_text(), re.MULTILINE))
            assert set(re.findall(r"\w+", tests)) <= there, f"{name}: {file} has not all of {tests}"


def test_tables_of_results_are_made_of_saved_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = set()
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        assert made_anew(text) == text, f"{page.name}: run `make reference`"
        named |= {found[1].removeprefix("../") for found in MADE.findall(text)}
    assert named == {f"results/{path.name}" for path in (DOCS / "results").glob("*.json")}
    monkeypatch.setattr("saved.DOCS", tmp_path)
    save("two", {("a", "%"): [80.0, 82.0], ("b", "%"): [7.0]}, seeds=[0, 1], command="python two.py")
    made = made_anew("before\n<!-- results/two.json -->\ntyped\n<!-- end -->\nafter\n")
    assert "| a | 81.0 ± 1.4 |\n| b | 7.0 |\n" in made
    assert "`python two.py`, seeds 0 and 1; Holdfast" in made
    assert "typed" not in made
    page = tmp_path / "page.md"
    page.write_text("before\n| | % | way |\n|---|---|---|\n| a | 81 ± 1 | by hand |\n\nafter\n")
    (tmp_path / "results").mkdir(exist_ok=True)
    record("old", page, 2, [0, 1], "python old.py", "2026-11-16")
    assert "<!-- results/old.json -->\n|  | % | way |\n|---|---:|---|\n| a | 81 ± 1 | by hand |\n" in page.read_text()
    assert "recorded from the run of 2026-11-16, whose values of each seed were not kept" in page.read_text()
    some = made_anew("<!-- ../results/two.json: b -->\n<!-- end -->\n")
    assert "| b | 7.0 |" in some
    assert "| a |" not in some
    # A tournament: a table for each task, and the means over the scenarios in which somebody is away, seed by seed.
    cells = [("a", "x, none", [9, 9]), ("a", "x, group", [1, 2]), ("a", "x, markov", [3, 4]), ("a", "y, group", [6, 6])]
    played = [{"row": row, "column": column, "values": values} for row, column, values in cells]
    found = {"ranks": {"a": [1.5, 1, 2]}, "seeds": [0, 1], "cells": played, "of_those_away": played[1:2]}
    (tmp_path / "results.json").write_text(json.dumps(found))
    kept = json.loads(keep("cup", tmp_path, "holdfast").read_text())["rows"]["a"]
    assert kept == {
        "mean rank": [1.5],
        "95 %: from": [1],
        "to": [2],
        "x": [2, 3],
        "y": [6, 6],
        "mean of these": [4, 4.5],
    }
    assert sorted(path.name for path in (tmp_path / "results").glob("cup-*")) == [
        "cup-x-away.json",
        "cup-x.json",
        "cup-y.json",
    ]


def test_of_a_figures_curves_the_end_the_best_round_and_the_rounds_to_the_mark_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saved.DOCS", tmp_path)
    climbs, stays = [0.1, 0.5, 0.5, 0.5], [0.1, 0.2, 0.1, 0.3]
    about = {"scale": 1.0, "final": 0.5, "kept": None}
    curves = [{"method": "FedAvg", "attackers": 0, "accuracy": climbs, "seeds": [climbs], **about}]
    curves += [{**curves[0], "method": "FedTest", "attackers": 3, "accuracy": stays, "seeds": [stays], "kept": 0.125}]
    (tmp_path / "results.json").write_text(json.dumps({"curves": curves, "seeds": [0]}))
    rows = json.loads(keep("figure", tmp_path, "holdfast").read_text())["rows"]
    assert rows["FedAvg, none malicious"]["80 % of the mark in"] == "2"
    assert rows["FedTest, 3 malicious"] == {
        "rounds": "4",
        "last three": [20.0],
        "best": [30.0],
        "80 % of the mark in": "more than 4",
        "the mark in": "more than 4",
        "malicious clients' weight": [12.5],
    }


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_as_a_script_and_is_a_notebook(
    path: Path, tmp_path: Path, warm_commands: dict[str, str]
) -> None:
    done = call(warm_commands, tmp_path, "python", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout
    kinds = [cell.cell_type for cell in jupytext.read(path).cells]
    assert kinds[0] == "markdown"
    assert kinds.count("code") > 1
