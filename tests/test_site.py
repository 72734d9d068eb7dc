"""The site is built without a warning and asks nobody outside; tutorials are page, script and notebook at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest
from warm import call

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
