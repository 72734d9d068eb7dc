"""The container, the composition and the service of deploy/, as far as they can be checked without a daemon."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from commands import understand
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")


def test_the_dockerfile_has_nothing_to_complain_of() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([linter, "--no-color", DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_holds_no_more_than_the_lock_and_the_wheel() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert [line for line in ignored if not line.startswith("#")] == ["*", "!requirements.lock", "!dist/*.whl"]
    copied = re.findall(r"^COPY (\S+) ", DOCKERFILE, re.MULTILINE)
    assert copied == ["requirements.lock", "dist/"]


def test_the_locked_versions_are_what_the_wheel_asks_for() -> None:
    """So that `pip install --constraint` in the image finds an answer."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extras] = re.findall(r"\.whl\)\[([\w,]+)\]", DOCKERFILE)
    asked = [
        *project["dependencies"],
        *(e for extra in extras.split(",") for e in project["optional-dependencies"][extra]),
    ]
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line]
    locked = {plain(name): version for name, version in (line.split("==") for line in lines)}
    assert len(asked) > 10
    for entry in map(Requirement, asked):
        assert entry.specifier.contains(locked[plain(entry.name)]), entry
    assert re.search(r"^RUN pip install .*grep '\^torch=='", DOCKERFILE, re.MULTILINE)


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_services_of_the_composition_say_what_holdfast_and_flower_understand() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]
    sites = {name: service for name, service in services.items() if name.startswith("site-")}
    assert len(sites) == 3
    for name, service in sites.items():
        assert understand(service["command"])
        assert service["command"][2] == name
        assert f"./{name}:/site:ro" in service["volumes"]
        assert "ports" not in service
    [entrypoint] = services["superlink"]["entrypoint"]
    told = subprocess.run(
        [Path(sys.executable).parent / entrypoint, "--help"], capture_output=True, text=True, check=True
    ).stdout
    for option in services["superlink"]["command"]:
        assert option.partition("=")[0] in told


def test_the_service_says_what_holdfast_understands(tmp_path: Path) -> None:
    unit = (DEPLOY / "holdfast-site@.service").read_text()
    [start] = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    program, *words = shlex.split(start)
    assert understand(words)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd here")
    (tmp_path / "holdfast-site@.service").write_text(unit.replace(program, sys.executable))
    command = ["systemd-analyze", "verify", str(tmp_path / "holdfast-site@.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "holdfast-site" not in done.stderr, done.stderr


def test_the_bill_of_materials_names_all_that_is_locked_with_its_licence() -> None:
    done = subprocess.run([sys.executable, "deploy/bom.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    bill = json.loads(done.stdout)
    locked = re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert [one["name"] for one in bill["components"]] == locked
    stated = {one["name"]: json.dumps(one["licenses"]) for one in bill["components"]}
    assert "Apache" in stated["flwr"]
    assert len({one["bom-ref"] for one in bill["components"]}) == len(locked)
    assert sum("unknown" in words for words in stated.values()) <= 0.1 * len(locked)
