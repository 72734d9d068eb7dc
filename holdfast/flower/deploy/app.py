"""Writes a small Flower app for an experiment: `flwr run` takes it as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.core.files import make_folder, write_file
from holdfast.core.modules import files_of
from holdfast.core.tables import toml
from holdfast.data.tables.schema import read_schema
from holdfast.flower.engine.moderator import SETTINGS
from holdfast.flower.engine.sites import is_name
from holdfast.runs.deal import counted
from holdfast.runs.experiment import Experiment, is_description, is_schema, own_modules

SCHEMA = "schema.toml"
PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "{title}"
license = "Apache-2.0"
dependencies = ["holdfast[{extras}]"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "holdfast"
fab-include = ["{package}/**/*.py", "{package}/**/*.toml", "README.md"]

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# Each can be changed for one run: flwr run . NAME --run-config 'enough=2'
[tool.flwr.app.config]
{settings}
"""
SERVER = '''"""The moderator: plays the experiment over Flower's grid; a run that is there already is resumed."""

from pathlib import Path

from holdfast.flower import server_app

app = server_app(Path(__file__).parent / "experiment.toml")
'''
CLIENT = '''"""A site: trains on its own data when the moderator asks.

Of an experiment on tables (its task is a schema) each site reads its own, which `holdfast flower site --table` names:
nothing here needs to be changed. Of any other it takes its share of the experiment's task, which is how one tries an
app out. For a site's own data, write `samples` and hand it over: client_app(EXPERIMENT, samples). It is called with the
node config, so a path can be given there (--node-config 'site="site-0" folder="..." images="/data/images.npy"'), and
answers with

    from holdfast.data.task import Samples
    Samples((images,), labels)    # images (N, C, H, W), uint8 or float in [0, 1]; labels (N,), whole numbers

The moderator and each site then still need the task itself: its classes, the shape of a sample, a test set.
"""

from pathlib import Path

from holdfast.flower import client_app

EXPERIMENT = Path(__file__).parent / "experiment.toml"

app = client_app(EXPERIMENT)
'''
README = """# {title}

    flwr run . NAME --stream --run-config 'out="/where/the/run/goes"'

`{package}/experiment.toml` says what is learnt and how, `{package}/client_app.py` where a site's data come from.{own}
Its fingerprint, for the sites' policy files: `holdfast flower fingerprint {package}/experiment.toml`
"""


def write_app(folder: Path, experiment: Experiment, changes: dict[str, Any] | None = None) -> Path:
    """Write the app into a new folder; `changes` are settings of the run."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise HoldfastError(f"{folder} is not empty; name a new folder.")
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:30] or "app"
    package = "app_" + name.replace("-", "_")
    settings = {**SETTINGS, **(changes or {})}
    schema = is_schema(experiment.task)
    described = is_description(experiment.task)
    if experiment.data and not schema and not (described and experiment.names):  # else each site has its own
        settings["data"] = experiment.data
    if experiment.test:
        settings["test"] = experiment.test
    if schema:
        experiment = counted(experiment)
        read_schema(Path(experiment.task))
        if experiment.names and all(map(is_name, experiment.names)):
            settings["sites"] = ",".join(experiment.names)
    title = f"{experiment.method} on {Path(experiment.task).name} with {experiment.clients} sites".replace('"', "'")
    words = {"name": name, "package": package, "title": title, "settings": toml(settings)}
    words["extras"] = "flower" if experiment.protect.name == "none" else "flower,dp"
    own = own_files(experiment)
    words["own"] = f"\nThe experiment's own modules are there too: {', '.join(own)}." if own else ""
    files = {
        "pyproject.toml": PROJECT.format(**words),
        "README.md": README.format(**words),
        f"{package}/__init__.py": f'"""{title}."""\n',
        f"{package}/server_app.py": SERVER,
        f"{package}/client_app.py": CLIENT,
        f"{package}/experiment.toml": experiment_toml(experiment),
    }
    if described:
        description = Path(experiment.task.partition(":")[2])
        files[f"{package}/{description.name}"] = description.read_text(encoding="utf-8")
    if schema:
        files[f"{package}/{SCHEMA}"] = Path(experiment.task).read_text(encoding="utf-8")
    if clash := next((path for path in own if f"{package}/{path}" in files), None):
        raise HoldfastError(f"{clash} is what the app calls a file of its own; call your module otherwise.")
    make_folder(folder / package)
    for path, text in files.items():
        write_file(folder / path, text.encode())
    for path, source in own.items():
        make_folder((folder / package / path).parent)
        write_file(folder / package / path, source.read_bytes())
    return folder


def own_files(experiment: Experiment) -> dict[str, Path]:
    """The user's own modules that the experiment needs, by where they lie beside it; installed ones are not copied."""
    if experiment.modules is None:
        return {}
    return files_of(own_modules(experiment), Path(experiment.modules))


def experiment_toml(experiment: Experiment) -> str:
    """The experiment as a TOML file; folders of this machine are left out."""
    usual = Experiment().as_json()
    always = ("task", "clients", "rounds", "algorithm", "absence", "seed")
    table = {key: value for key, value in experiment.as_json().items() if key in always or value != usual[key]}
    for key in ("data", "test", "modules", "download", "workers"):  # modules lie beside the file
        table.pop(key, None)
    if is_schema(experiment.task):
        table["task"] = SCHEMA
    if is_description(experiment.task):  # its file lies beside the experiment's
        what, _, path = experiment.task.partition(":")
        table["task"] = f"{what}:{Path(path).name}"
    return toml(table) + "\n"
