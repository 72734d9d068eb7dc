"""Where networks compute, and in which precision."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from device_helpers import ELSEWHERE, Device
from flower_helpers import nodes, play
from torch import Tensor, nn

import holdfast
from holdfast import Experiment, HoldfastError
from holdfast.data.task import Samples
from holdfast.flower.deploy.site import client_app
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.learning.device import CPU, seeded, sent_to, share_device
from holdfast.learning.loop import Shuffled
from holdfast.play import usual_workers
from holdfast.runs.export import load_model

TINY: dict[str, Any] = {
    "samples": 120, "clients": 3, "partition": "iid", "model": "features:8", "rounds": 2, "batch_size": 16,
    "workers": 0, "evaluate_every": 2,
}  # fmt: skip
PRECISIONS: tuple[Any, Any] = ("float32", "bfloat16")
CNN = {"name": "cnn", "width": 4, "hidden": 8, "norm": "batch"}


def network() -> nn.Module:
    """With dropout: it draws from its device's own chance."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.Dropout(0.5), nn.Linear(8, 10))


class AtOnce:
    """A thread's work done at once: the stand-in device is known to one thread only."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def submit(self, call: Callable[..., Any], *args: object) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*args))
        return done

    def shutdown(self) -> None: ...


def choose_elsewhere(name: str) -> torch.device:
    return ELSEWHERE


def known_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the system's entropy, so that two runs can be compared."""
    monkeypatch.setattr("holdfast.privacy.dp_steps.normals", lambda count, source: np.linspace(-1, 1, count))
    monkeypatch.setattr("holdfast.privacy.dp_steps.poisson_batch", lambda records, *_: np.arange(0, records, 3))


def final(**keys: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The last state's model and buffers; a round in which somebody failed would prove nothing."""
    history = holdfast.run(Experiment(**{**TINY, **keys}))
    assert history.state is not None
    away = {client: why for record in history.records for client, why in record.absent.items()}
    assert all(why.startswith("away (") for why in away.values()), away
    return history.state.model, history.state.buffers


def same(one: tuple[dict[str, torch.Tensor], ...], other: tuple[dict[str, torch.Tensor], ...]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in pairs)


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "scaffold", "model": CNN, "clip_norm": 1.0},
        {"algorithm": "feddyn", "optimizer": {"name": "adam", "keep": True}, "model": "test_device:network"},
        {"absence": "feddig", "scenario": "sequential",
         "model": {"name": "full", "width": 4, "hidden": 8}, "encoder": "random"},
        {"trust": "fedtest"},
        {"trust": "jury:patches=1", "model": CNN, "clients": 7},
        {"trust": "fltrust", "attack": "signflip", "attackers": 1, "clients": 4},
        {"trust": "jury", "clients": 4},
        {"protect": "dp-sgd", "model": "linear", "epochs": 2},
        {"algorithm": "mime", "model": CNN},
        {"algorithm": "lac", "optimizer": "adam", "accumulate": 2},
    ],
    ids=["scaffold", "feddyn-adam", "feddig", "fedtest", "jury", "fltrust", "panel", "dp-sgd", "mime", "lac"],
)  # fmt: skip
def test_a_run_on_another_device_mixes_no_tensors_and_leaves_float32_in_main_memory(
    keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known_noise(monkeypatch)
    expected = final(**keys)
    monkeypatch.setattr("holdfast.runs.build.choose_device", choose_elsewhere)
    for module in ("holdfast.runs.evaluation", "holdfast.absence.feddig"):
        monkeypatch.setattr(f"{module}.ThreadPoolExecutor", AtOnce)
    with Device():
        found = final(**keys)
    assert "failed in job" not in caplog.text  # nor did a question beside training that is done without
    assert all(
        type(tensor) is torch.Tensor and tensor.device.type == "cpu" for part in found for tensor in part.values()
    )
    for part, other in zip(expected, found, strict=True):
        torch.testing.assert_close(part, other, rtol=1e-4, atol=1e-6)  # its memory formats differ, hence its rounding


def test_the_stand_in_device_refuses_to_mix_tensors() -> None:
    with Device():
        layer = nn.Linear(2, 2).to(ELSEWHERE)
        with pytest.raises(RuntimeError, match="two devices"):
            layer(torch.ones(1, 2))


def test_a_trained_model_predicts_on_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holdfast.run(Experiment(**TINY), tmp_path / "run")
    x = np.zeros((3, 28, 28), np.uint8)
    expected = load_model(tmp_path / "run").predict(x)
    monkeypatch.setattr("holdfast.runs.export.choose_device", choose_elsewhere)
    with Device():
        assert np.array_equal(load_model(tmp_path / "run").predict(x), expected)


@pytest.mark.parametrize(
    ("device", "why"),
    [("gpu", "unknown"), ("cuda:x", "unknown"), ("cpu:1", "unknown"), ("cuda:99", "this machine has no 'cuda:99'")],
)
def test_a_device_that_is_not_there_is_one_sentence(device: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=why):
        holdfast.run(Experiment(**TINY, device=device), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_device_is_no_part_of_the_fingerprint_and_the_precision_is() -> None:
    usual = Experiment(**TINY)
    assert Experiment(**TINY, device="cuda:1").fingerprint == usual.fingerprint
    assert Experiment(**TINY, precision="float32").fingerprint == usual.fingerprint
    assert Experiment(**TINY, precision="bfloat16").fingerprint != usual.fingerprint


class Stopped(Exception):
    """Raised in the middle of a run."""


def stop(record: object) -> None:
    raise Stopped


def test_bfloat16_trains_repeats_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    keys = {"model": CNN, "algorithm": "scaffold", "precision": "bfloat16"}
    once = final(**keys)
    assert all(tensor.dtype in (torch.float32, torch.int64) for part in once for tensor in part.values())
    assert same(once, final(**keys, workers=2))
    assert not same(once, final(**{**keys, "precision": "float32"}))
    with pytest.raises(Stopped):
        holdfast.run(Experiment(**{**TINY, **keys}), tmp_path / "run", watch=stop)
    resumed = holdfast.resume(tmp_path / "run").state
    assert resumed is not None
    assert same(once, (resumed.model, resumed.buffers))


def test_bfloat16_learns_about_as_well_as_float32() -> None:
    keys: dict[str, Any] = {"samples": 600, "rounds": 6, "model": "features:32", "lr": 0.05}
    accuracy = {p: holdfast.run(Experiment(**{**TINY, **keys}, precision=p)).records[-1].accuracy for p in PRECISIONS}
    assert accuracy["float32"] > 0.6
    assert abs(accuracy["bfloat16"] - accuracy["float32"]) < 0.03


def test_bfloat16_computes_in_bfloat16_and_the_loss_is_summed_in_float32() -> None:
    seen = []

    def objective(model: nn.Module, inputs: tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
        output = model(*inputs)
        seen.append(output.dtype)
        return output[:, 0]

    model, samples = nn.Linear(4, 2), Samples((torch.ones(3, 4),), torch.zeros(3))
    for precision in PRECISIONS:
        gradients = Shuffled(torch.Generator(), 3, precision)
        total = gradients.fill_gradients(model, samples, torch.arange(3), objective)
        assert total.dtype == model.weight.dtype == torch.float32
    assert seen == [torch.float32, torch.bfloat16]


def test_dp_sgd_refuses_bfloat16() -> None:
    with pytest.raises(HoldfastError, match="float32"):
        holdfast.run(Experiment(**TINY, protect="dp-sgd", precision="bfloat16"))


def test_a_site_chooses_its_own_device_and_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    experiment = Experiment(**TINY)
    elsewhere = client_app(Experiment(**TINY, device="cuda:99"))
    sites = nodes(tmp_path, 3, device="cpu")
    del sites[102]["device"]
    history = play(tmp_path, experiment, InProcessGrid(elsewhere, sites), gather=1.0)
    assert [set(record.absent) for record in history.records] == [{2}, {2}]


def test_a_seed_draws_as_torchs_own_and_leaves_the_generator_as_it_was() -> None:
    torch.manual_seed(7)
    wanted, rest = torch.rand(3), torch.rand(3)
    torch.manual_seed(8)
    expected = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), wanted)
    with seeded(8, CPU):
        assert torch.equal(torch.rand(3), expected)
    assert torch.equal(torch.rand(3), rest)


class Told:
    """Stands for a tensor of main memory, since pinning needs a GPU: it says what was done with it."""

    def __init__(self, *done: object) -> None:
        self.done = done

    def pin_memory(self) -> Told:
        return Told(*self.done, "pinned")

    def to(self, device: torch.device, non_blocking: bool = False) -> Told:
        return Told(*self.done, device.type, non_blocking)


def test_batches_go_to_a_gpu_from_pinned_memory_and_nobody_waits_for_them() -> None:
    assert cast(Told, sent_to(torch.device("cuda"), cast(Tensor, Told()))).done == ("pinned", "cuda", True)
    assert cast(Told, sent_to(torch.device("cpu"), cast(Tensor, Told()))).done == ("cpu", False)


def test_workers_share_a_gpus_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[float, torch.device]] = []
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: told.append((share, device))
    )
    for device, processes in ((torch.device("cuda:1"), 4), (torch.device("cuda"), 1), (torch.device("cpu"), 4)):
        share_device(device, processes)
    assert told == [(0.25, torch.device("cuda:1"))]


def test_clients_queue_for_an_accelerator_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_WORKERS", raising=False)
    monkeypatch.setattr("holdfast.play.cores", lambda: 6)
    assert [usual_workers(torch.device(kind)) for kind in ("cpu", "cuda", "mps")] == [6, 1, 1]
