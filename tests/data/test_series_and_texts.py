"""Series and texts from a file: read, refused in one sentence, trained on and stood in for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.core.errors import HoldfastError
from holdfast.data.named import load_task
from holdfast.data.sources.series import channels_first
from holdfast.data.task import Samples, Task
from holdfast.play import run
from holdfast.runs.experiment import Experiment, from_table
from holdfast.runs.export import load_model

pytestmark = pytest.mark.usefixtures("own_cache")


def test_series_of_unequal_length(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float64).reshape(2, 4, 3)
    x[1, 2:] = np.nan
    found = channels_first(x, "x")
    assert found.shape == (2, 3, 4)
    assert found[1].T.tolist() == [[12, 13, 14], [15, 16, 17], [15, 16, 17], [15, 16, 17]]
    assert torch.equal(found[0].T, torch.from_numpy(x[0]).float())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ((0, 1, 0), "series 0 holds NaN before its end"),
        ((0, slice(None), 1), "series 0 holds NaN before its end"),
        ((1, slice(None), slice(None)), "series 1 is empty"),
    ],
)
def test_holes_in_series_are_refused(spoil: tuple[object, ...], message: str) -> None:
    x = np.ones((2, 4, 3))
    x[spoil] = np.nan
    with pytest.raises(HoldfastError, match=message):
        channels_first(x, "x")
    with pytest.raises(HoldfastError, match="series 0 holds infinite values"):
        channels_first(np.full((1, 9, 1), np.inf), "x")


def waves(path: Path, **more: object) -> Path:
    """Slow and fast waves of 8 persons."""
    chance = np.random.default_rng(0)
    y = np.arange(160) % 2
    steps = np.arange(40)
    x = np.sin(steps * np.where(y, 0.9, 0.3)[:, None] + chance.uniform(0, 6, (160, 1))) + chance.normal(
        0, 0.3, (160, 40)
    )
    np.savez(path, x=x[:, :, None], y=y, subject=np.arange(160) // 20, **more)
    return path


def test_series_from_a_file_train_and_stand_in(tmp_path: Path) -> None:
    path = waves(tmp_path / "waves.npz")
    task = load_task(f"series:{path}")
    assert (task.shape, task.class_names) == ((1, 40), ("0", "1"))
    table = {"task": f"series:{path}", "partition": "column:subject", "absence": "feddig", "scenario": "sequential"}
    history = run(from_table({**table, "rounds": 6, "lr": 0.1, "workers": 0, "batch_size": 8}), tmp_path / "run")
    assert history.experiment.clients == 8
    assert history.final_accuracy > 0.9
    assert right(tmp_path / "run", path) > 0.9
    kept = load_task(f"series:{waves(tmp_path / 'told.npz', test=np.arange(160) < 30)}")
    assert (len(kept.train), len(kept.test)) == (130, 30)


def right(run: Path, path: Path) -> float:
    """The share of a file's own records that a run's model reads and names rightly, as `holdfast predict` does."""
    model = load_model(run)
    x, labels, _ = model.read(path)
    return float((model.predict(x).argmax(1) == labels).mean())


REPORTS = {"heart": "the heart beats too fast, rhythm irregular", "lung": "shadow in the left lung, patient coughs"}


def reports(path: Path, count: int = 120) -> Path:
    chance = np.random.default_rng(0)
    lines = ["text,label,site"]
    for number in range(count):
        label = ("heart", "lung")[number % 2]
        words = REPORTS[label].replace(",", "").split()
        lines.append(f'"{" ".join(chance.permutation(words)[:4])}, no {number}",{label},{"NS"[number // 2 % 2]}')
    path.write_text("\n".join(lines))
    return path


def test_texts_from_a_file_train_and_stand_in(tmp_path: Path) -> None:
    path = reports(tmp_path / "reports.csv")
    task = load_task(f"text:{path}")
    assert (task.class_names, task.site, task.train.inputs[0].dtype) == (("heart", "lung"), "site", torch.uint8)
    first = bytes(task.train.inputs[0][0].tolist()).rstrip(b"\0").decode()
    assert first.endswith(f", no {first.split()[-1]}")
    table = {"task": f"text:{path}", "partition": "column", "absence": "feddig", "scenario": "sequential"}
    history = run(from_table({**table, "rounds": 6, "lr": 0.1, "workers": 0, "batch_size": 8}), tmp_path / "run")
    assert history.experiment.names == ("N", "S")
    assert history.final_accuracy > 0.9
    assert right(tmp_path / "run", path) > 0.9
    model = load_model(tmp_path / "run")
    assert model.predict(["a shadow in the lung", "the rhythm of the heart"]).argmax(1).tolist() == [1, 0]
    (tmp_path / "new.csv").write_text("report\nirregular rhythm\n")
    assert model.predict(tmp_path / "new.csv").argmax(1).tolist() == [0]
    (tmp_path / "odd.csv").write_text("text,label\nirregular rhythm,kidney\n")
    with pytest.raises(HoldfastError, match=r"line 2: 'kidney' is no class of the model \(heart, lung\)"):
        model.predict(tmp_path / "odd.csv")
    with pytest.raises(HoldfastError, match="the model was trained on texts"):
        model.predict(np.zeros((2, 4096), np.float32))


def test_empty_texts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('text,label\n"a b",x\n"  ",y\n')
    with pytest.raises(HoldfastError, match="line 3: column 'text' is empty"):
        load_task(f"text:{path}")
    path.write_text("words,label\nhello,x\n")
    with pytest.raises(HoldfastError, match="has no column 'text'"):
        load_task(f"text:{path}")
    path.write_bytes(b"text,label\n\xff\xfe,x\n")
    with pytest.raises(HoldfastError, match="not text in UTF-8"):
        load_task(f"text:{path}")


def test_whole_numbers_are_no_pixels() -> None:
    """Bytes of images are divided by 255; token ids, whatever their type, are what they are."""
    ids = torch.tensor([[3, 255, 0]], dtype=torch.uint8)
    (found,), _ = Samples((ids,), torch.zeros(1)).batch(torch.tensor([0]))
    assert (found.dtype, found.tolist()) == (torch.int64, [[3, 255, 0]])
    (found,), _ = Samples((ids.view(1, 1, 1, 3),), torch.zeros(1)).batch(torch.tensor([0]))
    assert torch.allclose(found, torch.tensor([[[[3 / 255, 1.0, 0.0]]]]))


def test_embeddings_read_bytes() -> None:
    """A network on token ids learns from bytes, which division by 255 would have blurred."""
    x = torch.randint(1, 200, (200, 5), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    y = (x[:, 0] % 2).long()
    net = torch.nn.Sequential(torch.nn.Embedding(256, 8), torch.nn.Flatten(), torch.nn.Linear(40, 2))
    task = Task("ids", Samples((x,), y), Samples((x,), y), ("even", "odd"), model=lambda: net)
    history = run(Experiment(task=task, rounds=10, clients=2, partition="iid", lr=0.3, batch_size=8, workers=0))
    assert history.final_accuracy > 0.8
