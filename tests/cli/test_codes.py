"""Errors have codes that stay: every sentence finds its own, and the page tells what the registry does."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from holdfast.cli import app, main
from holdfast.cli.codes import PAGE, page, said_by_code
from holdfast.core.codes import FAMILIES, GAP, code_for, registry


def test_every_sentence_finds_its_code_again() -> None:
    modules = {family.number: f"holdfast.{next(iter(family.modules), '?')}" for family in FAMILIES}
    lost = {
        code: found
        for code, words in registry().items()
        if (found := code_for(words.replace(GAP, "17"), modules[int(code[2:4])])) != code
    }
    assert lost == {}


def test_the_page_is_what_the_registry_says() -> None:
    assert PAGE.read_text() == page(registry()), "docs/errors.md is not what the code says: make reference"


def test_nearly_all_sentences_of_the_code_have_a_number() -> None:
    said = [text for sentences in said_by_code().values() for text in sentences]
    known = set(registry().values())
    missing = [text for text in said if text not in known]
    assert len(missing) < 0.1 * len(said), f"make reference gives these their codes: {missing[:5]}"


def test_the_command_line_shows_and_explains_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["holdfast", "explain", "nonsense"])
    with pytest.raises(SystemExit, match="1"):
        main()
    said = capsys.readouterr().err.split()
    assert said[0] == "Error:"
    code = said[-1].strip("()")
    assert registry()[code] == "{} is no code of an error; they look like HF1203."
    told = CliRunner().invoke(app, ["explain", code.lower()]).output
    assert told.startswith(f"{code}: … is no code of an error")
    assert "Cure: " in told
    assert "Cause: " in CliRunner().invoke(app, ["explain", "HF2100"]).output
