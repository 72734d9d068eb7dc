"""An encoder of one's own under the strict modes: on vectors, with a bound that holds and with one that does not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from holdfast.audit.findings import as_json, examine
from holdfast.audit.target import subject_of
from holdfast.data.task import Samples, Task
from holdfast.encoders.contract import Encoder
from holdfast.play import run
from holdfast.privacy.noise import system
from holdfast.runs.experiment import from_table

STRICT = ["moments", "dp-full", "dp-label-public"]


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * nn.functional.normalize(x)


@dataclass(frozen=True)
class Unit:
    """Vectors of length one."""

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        return Encoder("unit", shape, shape, f"unit {shape}", Times(1.0), norm_bound=1.0)


@dataclass(frozen=True)
class Long:
    """Vectors of length ten: longer than any strict mode lets through, so they are shortened."""

    def fit_shape(self, shape: tuple[int, ...]) -> Encoder:
        return Encoder("long", shape, shape, f"long {shape}", Times(10.0))


def vectors() -> Task:
    """Four classes of six-dimensional vectors."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(600) % 4
    data = Samples((4 * torch.eye(6)[labels] + torch.randn(600, 6, generator=generator),), labels)
    return Task("vectors", data, data.take(torch.arange(200)), tuple("abcd"))


@pytest.mark.parametrize("encoder", ["Unit", "Long"])
@pytest.mark.parametrize("mode", STRICT)
def test_strict_digests_of_vectors_stand_in(mode: str, encoder: str, tmp_path: Path) -> None:
    table = {
        "task": "test_own_encoder:vectors", "encoder": f"test_own_encoder:{encoder}", "model": "features:8",
        "absence": {"name": "feddig", "mode": mode, "epsilon": 10.0, "spd": 16}, "scenario": "sequential", "clients": 3,
        "partition": "iid", "rounds": 6, "batch_size": 16, "workers": 0,
    }  # fmt: skip
    experiment = from_table(table)
    history = run(experiment)
    assert history.final_accuracy > 0.5  # all clients are gone; four classes
    assert not history.records[0].notes
    (tmp_path / "e.json").write_text(json.dumps(experiment.as_json()))
    said = as_json(examine(subject_of(tmp_path / "e.json"), system(), trials=20, see=False))
    assert (said["clip"], said["verdict"]) == (1.0, "NO GUARANTEE")
    assert said["epsilon_protected"] <= 10.0 + 1e-9
