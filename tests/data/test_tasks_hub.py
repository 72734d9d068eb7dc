"""Downloads: what the hub's tables become, and what is said when it cannot be reached."""

from __future__ import annotations

import gzip
import socket
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.core.errors import HoldfastError
from holdfast.data.named import BY_CLASS_FILES, DATA_SETS, load_task
from holdfast.data.sources import hub
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment

datasets = pytest.importorskip("datasets")


def table(images: np.ndarray, labels: list[int], image: str = "image", label: str = "label") -> Any:
    features = datasets.Features({image: datasets.Image(), label: datasets.ClassLabel(num_classes=100)})
    return datasets.Dataset.from_dict({image: list(images), label: labels}, features)


def test_grey_and_colour_images_survive_the_table() -> None:
    grey = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    images, labels = hub.columns(table(grey, [2, 0, 1]), "image", "label", "here")
    assert np.array_equal(images, grey)
    assert labels.tolist() == [2, 0, 1]
    colour = np.random.default_rng(0).integers(0, 256, (1003, 2, 2, 3), np.uint8)  # more than one slice
    images, _ = hub.columns(table(colour, [0] * 1003), "image", "label", "here")
    assert np.array_equal(images, colour)


def test_bad_tables_are_refused() -> None:
    grey = np.zeros((2, 4, 5), np.uint8)
    with pytest.raises(HoldfastError, match="has no column 'img', only image, label"):
        hub.columns(table(grey, [0, 1]), "img", "label", "here")
    with pytest.raises(HoldfastError, match="here: is empty"):
        hub.columns(table(grey[:0], []), "image", "label", "here")
    uneven = datasets.Dataset.from_dict(
        {"image": [np.zeros((2, 2), np.uint8), np.zeros((3, 2), np.uint8)], "label": [0, 1]},
        datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    with pytest.raises(HoldfastError, match="differ in size"):
        hub.columns(uneven, "image", "label", "here")


def test_a_download_becomes_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    colour = np.random.default_rng(0).integers(0, 256, (3, 2, 2, 3), np.uint8)
    part = table(colour, [99, 0, 1], "img", "fine_label")
    asked = []

    def load_dataset(repository: str) -> Any:
        asked.append(repository)
        return datasets.DatasetDict({"train": part, "test": part})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = load_task("cifar100", tmp_path, download=True)
    assert asked == ["uoft-cs/cifar100"]
    assert np.array_equal(task.train.inputs[0], colour.transpose(0, 3, 1, 2))
    assert task.class_names[int(task.test.labels[0])] == "worm"


def test_emnist_is_downloaded_as_files_and_put_upright(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = np.arange(4 * 6, dtype=np.uint8).reshape(4, 2, 3), np.array([61, 0, 10, 36], np.uint8)
    for name in BY_CLASS_FILES:
        array = images if "images" in name else labels
        header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(header + array.tobytes(), mtime=0))
    import huggingface_hub

    def hf_hub_download(repository: str, file: str, repo_type: str) -> str:
        assert (repository, repo_type) == ("Royc30ne/emnist-byclass", "dataset")
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    task = load_task("emnist", None, download=True)
    assert np.array_equal(task.train.inputs[0][:, 0], images.transpose(0, 2, 1))
    assert [task.class_names[label] for label in task.train.labels.tolist()] == ["z", "0", "A", "a"]


def test_a_failed_download_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(repository: str) -> Any:
        raise ConnectionError("no route to host.\nmany more lines")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(HoldfastError) as caught:
        load_task("mnist", tmp_path, download=True)
    sentence = str(caught.value)
    assert "the download of ylecun/mnist failed (no route to host)" in sentence
    assert "train-images-idx3-ubyte" in sentence
    assert "\n" not in sentence


def test_every_named_data_set_is_embedded_can_be_downloaded_or_must_be_brought(tmp_path: Path) -> None:
    embedded, brought = {"fashion-mini", "heart"}, {"har", "ocr-letters", "pneumoniamnist"}
    assert {*hub.TABLES, *hub.FILES, *embedded, *brought} == set(DATA_SETS)
    with pytest.raises(HoldfastError, match=r"found no har\.npz in .*; put the files there\.$"):
        load_task("har", tmp_path)


class NoSocket:
    def __init__(self, *_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")


@pytest.mark.parametrize("name", [*hub.TABLES, *hub.FILES])
def test_the_network_is_never_contacted_unasked(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who names a known data set and has no files is told what to do; nothing is looked up or opened."""
    monkeypatch.setattr(socket, "socket", NoSocket)
    monkeypatch.setattr(socket, "getaddrinfo", NoSocket)
    monkeypatch.setattr(socket, "create_connection", NoSocket)
    for data in (None, str(tmp_path)):
        with pytest.raises(HoldfastError, match=r"or say download = true to fetch them from huggingface\.co"):
            make_plan(Experiment(task=name, data=data))
    monkeypatch.setattr(hub, "installed", lambda: False)
    with pytest.raises(HoldfastError, match=r"a package is missing: pip install 'holdfast\[hub\]'"):
        make_plan(Experiment(task=name, download=True))


def test_downloading_decides_no_result() -> None:
    assert Experiment(download=True).fingerprint == Experiment().fingerprint
