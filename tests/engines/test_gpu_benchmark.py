"""The script that users with an accelerator run and send in ends, and says what it found."""

from __future__ import annotations

import gpu
import pytest


def test_it_runs_at_a_tiny_size(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--device", "cpu", "--pictures", "8", "--rounds", "1"]
    monkeypatch.setattr("sys.argv", ["gpu.py", *words])
    monkeypatch.setenv(gpu.PICTURES, "")  # what it sets is undone
    gpu.main()
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in said[1:]] == [["cpu", "float32"], ["cpu", "bfloat16"]]
