"""A network that crashes in the layout channels-last: the run goes on in the plain one, and says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import holdfast
from holdfast.runs.build import make_plan

TINY = {"clients": 2, "rounds": 2, "samples": 80, "partition": "iid", "workers": 2, "task": "fashion-mini"}
RESNET = """
import torch
from torch import Tensor, nn
from holdfast.data.task import Samples, Task

class Block(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(i, o, 3, stride=2, padding=1), nn.Conv2d(o, o, 3, padding=1)
        self.shortcut = nn.Conv2d(i, o, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.b(torch.relu(self.a(x))) + self.shortcut(x))

def network() -> nn.Module:
    return nn.Sequential(Block(3, 8), Block(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2))

def samples(n: int) -> Samples:
    labels = torch.arange(n) % 2
    dim = torch.rand(n, 3, 96, 96, generator=torch.Generator().manual_seed(n)) / 2
    return Samples((dim + labels[:, None, None, None] / 2,), labels)

task = Task("ours", samples(160), samples(40), ("dark", "bright"), model=network)
"""


class Dies(nn.Module):
    """Stands for a kernel of torch that crashes in one layout: training kills the process."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.convolution.weight.is_contiguous():
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.head(self.convolution(x.expand(-1, 3, -1, -1)).relu().mean((2, 3)))


def dies() -> nn.Module:
    return Dies()


def test_a_crash_at_the_first_batch_starts_the_run_again_in_the_plain_layout(tmp_path: Path) -> None:
    asked = holdfast.Experiment(model="test_layout:dies", **TINY)
    crashed = holdfast.run(asked, tmp_path / "run")
    assert not any(record.absent for record in crashed.records)
    assert [("plain" in " ".join(record.notes)) for record in crashed.records] == [True, False]
    plain = holdfast.run(replace(asked, layout="plain"))
    assert not any(record.notes for record in plain.records)
    assert crashed.state is not None
    assert plain.state is not None
    assert all(torch.equal(weight, plain.state.model[name]) for name, weight in crashed.state.model.items())


def test_a_resumed_run_keeps_the_layout_it_fell_back_to(tmp_path: Path) -> None:
    asked = holdfast.Experiment(model="test_layout:dies", **TINY)

    class Stop(Exception):
        pass

    def stop(_: object) -> None:
        raise Stop

    with pytest.raises(Stop):
        holdfast.run(asked, tmp_path / "run", stop)
    went_on = holdfast.resume(tmp_path / "run")
    assert ["plain" in " ".join(record.notes) for record in went_on.records] == [True, False]
    whole = holdfast.run(replace(asked, layout="plain"))
    assert went_on.state is not None
    assert whole.state is not None
    assert all(torch.equal(weight, whole.state.model[name]) for name, weight in went_on.state.model.items())


class Views(nn.Module):
    """Looks at memory as it lies."""

    def __init__(self, head: int = 64) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(1, 4, 7, stride=7), nn.Linear(head, 10)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.convolution(x).view(len(x), -1))
        return output


class Strides(nn.Module):
    """Weights of its own, and memory read as it lies without an error: another function in the other layout."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(1, 4, 7, stride=7), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        found = self.convolution(x)
        output: Tensor = self.head(found.as_strided((len(x), 64), (64, 1)))
        return output


def shortcut() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 1, stride=2), nn.Flatten(), nn.Linear(4 * 13 * 13, 10))


def test_a_network_is_channels_last_by_itself_where_it_takes_that_well() -> None:
    for asked, layout in (
        ({}, "channels-last"),
        ({"layout": "plain"}, "plain"),
        ({"model": "test_layout:dies"}, "channels-last"),  # nobody can know: its worker finds out
        ({"model": "test_layout:shortcut"}, "plain"),
        ({"model": "test_layout:Views"}, "plain"),
        ({"model": "test_layout:Strides"}, "plain"),
        ({"model": "test_layout:shortcut", "layout": "channels-last"}, "channels-last"),
    ):
        plan = make_plan(holdfast.Experiment(**{**TINY, "model": "cnn", **asked}))
        assert plan.layout == layout
        convolutions = [w for w in plan.model().parameters() if w.dim() == 4 and w.shape[2] > 1]  # 1 x 1 is both
        assert all((weight.stride(1) == 1) == (layout == "channels-last") for weight in convolutions)


def test_a_small_strided_resnet_trains(tmp_path: Path) -> None:
    """Channels-last, this network ended its process by a segmentation fault on some processors (torch 2.13)."""
    (tmp_path / "ours.py").write_text(RESNET)
    (tmp_path / "ours.toml").write_text('task = "ours:task"\nclients = 2\nrounds = 2\npartition = "iid"\nlr = 0.05\n')
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "run", "ours.toml", "--out", "run"]
    done = subprocess.run([*command, "--allow-failures"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nobody trained" not in done.stdout
    assert "died" not in done.stdout + done.stderr
