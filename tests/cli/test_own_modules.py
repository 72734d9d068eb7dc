"""A user's own modules lie beside the experiment's file, and every command finds them there, wherever it is called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from warm import call

from holdfast.core.errors import HoldfastError
from holdfast.core.modules import files_of, import_path, search
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import load
from holdfast.runs.export import load_model

STUDY = """
import os
import torch
from torch import nn
from shapes import INPUTS
from holdfast import Samples, Task


class Net(nn.Module):
    def __init__(self, hidden: int = 8, broken=False):
        super().__init__()
        if broken:
            raise RuntimeError("no such layer")
        self.layers = nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, 3))

    def forward(self, x):
        return self.layers(x)


def samples(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    return Samples((torch.randn(count, INPUTS, generator=generator) + nn.functional.one_hot(labels, INPUTS),), labels)


def task():
    if os.environ.get("ANOTHER_MACHINE"):
        raise FileNotFoundError("ward.csv")
    return Task("ward", samples(90, 1), samples(30, 2), ("a", "b", "c"), model=Net)


def same_rows(labels, clients, generator):
    return [torch.arange(len(labels)) for _ in range(clients)]


def nobody(round, stage):
    return [7]


class Exploding(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(INPUTS, 3)

    def forward(self, x):
        return self.nowhere(x)


def number():
    return 3
"""
EXPERIMENT = 'task = "study:task"\nclients = 3\npartition = "iid"\nrounds = 1\nworkers = 0\nbatch_size = 8\n'


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "study.py").write_text(STUDY)
    (folder / "shapes.py").write_text("INPUTS = 5\n")
    (folder / "e.toml").write_text(EXPERIMENT)
    (tmp_path / "elsewhere").mkdir()
    np.savez(tmp_path / "elsewhere" / "new.npz", x=np.eye(5, dtype=np.float32)[:3])
    return folder


Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def holdfast(warm_commands: dict[str, str]) -> Call:
    def command(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return call({**warm_commands, **variables}, folder, "holdfast", *words)

    return command


def test_every_command_finds_them_beside_the_experiment(holdfast: Call, study: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for words in (
        ["check", "../study/e.toml"],
        ["partition", "../study/e.toml"],
        ["run", "../study/e.toml", "--out", "r", "--set", "workers=2", "--allow-failures"],
        ["report", "r"],
        ["resume", "r", "--allow-failures"],
        ["predict", "r", "new.npz"],
        ["export", "r", "--safetensors", "ward.safetensors"],
        ["compare", "--file", "../study/e.toml", "--method", "fedavg", "--scenario", "none", "--out", "c"],
    ):
        done = holdfast(elsewhere, *words)
        assert done.returncode == 0, f"{words}: {done.stderr}"
    (elsewhere / "r" / "model.safetensors").unlink()  # as if it had been killed: its task is made again
    done = holdfast(elsewhere, "resume", "r", "--allow-failures")
    assert done.returncode == 0, done.stderr
    assert json.loads((elsewhere / "r" / "experiment.json").read_text())["modules"] == str(study)


def test_a_model_predicts_without_its_task_on_another_machine(
    holdfast: Call, warm_commands: dict[str, str], study: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    assert holdfast(study, "run", "e.toml", "--out", "../elsewhere/r", "--allow-failures").returncode == 0
    assert holdfast(elsewhere, "export", "r", "--safetensors", "ward.safetensors").returncode == 0
    there = holdfast(elsewhere, "predict", "r", "new.npz", "--json")
    away = [elsewhere, "predict", "ward.safetensors", "new.npz", "--json"]
    found = holdfast(*away, "--modules", "../study", ANOTHER_MACHINE="1")
    assert json.loads(found.stdout) == json.loads(there.stdout)
    fresh = [sys.executable, "-c", "from holdfast.cli import main; main()", *map(str, away[1:])]
    known = {**os.environ, "ANOTHER_MACHINE": "1", "PYTHONPATH": os.pathsep.join([str(study), *sys.path])}
    refused = subprocess.run(fresh, cwd=elsewhere, env=known, capture_output=True, text=True)
    assert refused.returncode == 1  # a file from a stranger runs no code that nobody pointed at
    assert "ward.safetensors is built with 'study', code of its makers" in refused.stderr
    code = (
        "import sys; sys.path.append('../study'); from study import Net; from holdfast.runs.export import load_model\n"
        "print(load_model('ward.safetensors').class_names)"
    )
    python = call({**warm_commands, "ANOTHER_MACHINE": "1"}, elsewhere, "python", "-c", code)
    assert python.stdout == "('a', 'b', 'c')\n", python.stderr


def test_a_network_without_an_import_path_is_handed_over(holdfast: Call, study: Path, tmp_path: Path) -> None:
    with open(study / "study.py", "a") as file:
        file.write("\n\ndef nameless():\n    return Task('w', samples(90, 1), samples(30, 2), ('a', 'b', 'c'), ")
        file.write("model=lambda: Net(4))\n")
    done = holdfast(study, "run", "e.toml", "--set", "task=study:nameless", "--out", "r", "--allow-failures")
    assert done.returncode == 0, done.stderr
    with pytest.raises(HoldfastError, match="a network that has no import path"):
        load_model(study / "r")
    search(study)
    model = load_model(study / "r", network=lambda: import_path("study:Net", "model")(4))
    assert model.predict(np.zeros((2, 5), np.float32)).shape == (2, 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("model=study:Net", None),
        ("model=study:number", "model: study:number makes 3, which is no torch.nn.Module."),
        ("model=study:Exploding", "AttributeError: 'Exploding' object has no attribute 'nowhere' (study.py, line 46)"),
        ("model=study:Nothing", "model: module 'study' has no 'Nothing'"),
        ("model=stud:Net", "model: cannot import 'stud' (No module named 'stud'); is it beside the experiment's file"),
        ("model=os:abort", "model: 'os' is a module of Python itself; call yours otherwise."),
        ("partition=study:same_rows", "partition study:same_rows gives some samples to two clients"),
        ("scenario=study:nobody", "scenario study:nobody sends client 7 away, and there is none; clients are 0 to 2."),
        ("scenario=forever:7", "scenario: there is no client '7'; clients are 0 to 2."),
        ("scenario=intervals:away=[[7,90,99]]", "scenario: there is no client 7; clients are 0 to 2."),
        ("task=study:STUDY", "task: module 'study' has no 'STUDY'"),
        ("task=study:Net", "task: study:Net is Net; expected a holdfast.data.task.Task"),
        ("brightness=2", "there is no key 'brightness'; known: task, data"),
    ],
)
def test_each_mistake_is_one_sentence(study: Path, change: str, says: str | None) -> None:
    if says is None:
        make_plan(load(study / "e.toml", [change]))
        return
    with pytest.raises(HoldfastError) as error:
        make_plan(load(study / "e.toml", [change]))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_network_class_takes_options(study: Path) -> None:
    plan = make_plan(load(study / "e.toml", ["model=study:Net", "model.hidden=4"]))
    assert plan.model().layers[0].out_features == 4  # type: ignore[index,union-attr]
    with pytest.raises(
        HoldfastError, match=r"study:Net broken=true cannot be made: RuntimeError: no such layer \(study"
    ):
        make_plan(load(study / "e.toml", ["model=study:Net", "model.broken=true"]))
    with pytest.raises(HoldfastError, match="unexpected keyword argument 'depth'"):
        make_plan(load(study / "e.toml", ["model=study:Net", "model.depth=2"]))


def test_a_task_that_fails_says_where(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANOTHER_MACHINE", "1")
    with pytest.raises(
        HoldfastError, match=r"task: study:task failed: FileNotFoundError: ward.csv \(study.py, line 28\)"
    ):
        make_plan(load(study / "e.toml"))
    (study / "study.py").write_text("import torch\nthis is no Python\n")
    (study / "f.toml").write_text(EXPERIMENT.replace("study:task", "broken:task"))
    (study / "broken.py").write_text("x = 1\ny = nothing\n")
    with pytest.raises(
        HoldfastError, match="task: importing 'broken' failed: NameError: name 'nothing' is not defined"
    ):
        make_plan(load(study / "f.toml"))


def test_two_experiments_have_modules_of_one_name(tmp_path: Path) -> None:
    """The second does not get the first one's, which would be silently wrong."""
    for name, classes in (("one", "ab"), ("two", "xyz")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "e.toml").write_text('task = "samename:task"\nclients = 2\npartition = "iid"\n')
        (tmp_path / name / "shared_name.py").write_text(f"CLASSES = tuple({classes!r})\n")
        (tmp_path / name / "samename.py").write_text(
            "import torch\nfrom holdfast import Samples, Task\nfrom shared_name import CLASSES\n"
            "def task():\n    s = Samples((torch.randn(60, 4),), torch.arange(60) % len(CLASSES))\n"
            "    return Task('t', s, s, CLASSES)\n"
        )
    for name, classes in (("one", "ab"), ("two", "xyz"), ("one", "ab")):
        assert make_plan(load(tmp_path / name / "e.toml")).task.class_names == tuple(classes)


def test_what_belongs_to_a_module(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import b\nfrom package.part import thing\nimport torch\n")
    (tmp_path / "b.py").write_text("def late():\n    from c import thing\n    import a\n")
    (tmp_path / "c.py").write_text("")
    (tmp_path / "unused.py").write_text("")
    (tmp_path / "package").mkdir()
    for name in ("__init__", "part", "other"):
        (tmp_path / "package" / f"{name}.py").write_text("from . import sibling\n")
    found = files_of(["a"], tmp_path)
    assert sorted(found) == ["a.py", "b.py", "c.py", "package/__init__.py", "package/other.py", "package/part.py"]
