"""Every command and snippet of README and docs is run, or, where it would take long, at least read by the command line.

In a page, in order: a fence ```toml or ```python whose first line is `# name.toml` or `# name.py` is saved under that
name; other ```python fences are run; ```sh fences are run; of ```bash fences (long runs, other machines) each line
that begins with holdfast must be a command that exists, with options that exist.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from commands import understand
from warm import call

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def fences(page: Path) -> list[tuple[str, str]]:
    return [(language, text) for language, text in FENCE.findall(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_run(page: Path, tmp_path: Path, warm_commands: dict[str, str]) -> None:
    for language, text in fences(page):
        name = re.match(r"# (\S+\.(toml|py))\n", text)
        if name and language in ("toml", "python"):
            (tmp_path / name[1]).write_text(text)
        elif language in ("python", "sh"):
            command = ["python", "-c", text] if language == "python" else ["bash", "-euc", text]
            done = call(warm_commands, tmp_path, *command)
            assert done.returncode == 0, f"{page.name}:\n{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_long_commands_are_understood(page: Path) -> None:
    for language, text in fences(page):
        if language != "bash":
            continue
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["holdfast"]:
                assert understand(words[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
