"""The warm commands of the tests are true to the real ones: arguments, folder, streams and codes."""

from __future__ import annotations

from pathlib import Path

from warm import call

from holdfast import __version__


def test_a_command_ends_as_it_would_by_itself(warm_commands: dict[str, str], tmp_path: Path) -> None:
    good = call(warm_commands, tmp_path, "holdfast", "--version")
    assert (good.returncode, good.stdout, good.stderr) == (0, f"holdfast {__version__}\n", "")
    bad = call(warm_commands, tmp_path, "holdfast", "run", "nowhere.toml")
    assert bad.returncode == 1
    assert "nowhere.toml" in bad.stderr
    assert "Traceback" not in bad.stderr


def test_python_has_its_own_folder_and_environment(warm_commands: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'seen'\n")
    (tmp_path / "script.py").write_text("import os, beside\nraise SystemExit(beside.WORD + os.environ['MORE'])\n")
    done = call({**warm_commands, "MORE": "1"}, tmp_path, "python", "script.py")
    assert (done.returncode, done.stderr) == (1, "seen1\n")
    assert call(warm_commands, tmp_path, "python", "-c", "1 / 0").returncode == 1
    assert call(warm_commands, tmp_path, "bash", "-euc", "python -c 'import beside, sys; sys.exit(3)'").returncode == 3
