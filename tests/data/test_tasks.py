"""Tasks by name: what is on the disk is what is learnt, and bad data is refused with a sentence."""

from __future__ import annotations

import gzip
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.core.errors import HoldfastError
from holdfast.data import class_names
from holdfast.data.named import (
    BALANCED_FILES,
    BY_CLASS_FILES,
    DATA_SETS,
    EMBEDDED_FILE,
    MNIST_FILES,
    known_tasks,
    load_task,
)
from holdfast.data.sources import hub
from holdfast.data.sources.idx import read_idx
from holdfast.data.task import Samples, Task

MINE = Task(
    "mine",
    Samples((torch.zeros(4, 2),), torch.tensor([0, 1, 0, 1])),
    Samples((torch.zeros(2, 2),), torch.tensor([0, 1])),
    ("no", "yes"),
)
NOT_FINITE = Task("bad", Samples((torch.full((1, 2), torch.nan),), torch.tensor([0])), MINE.test, ("no", "yes"))
LABEL_TWO = Task("bad", Samples((torch.zeros(1, 2),), torch.tensor([2])), MINE.test, ("no", "yes"))
UNEVEN = Task("bad", Samples((torch.zeros(3, 2),), torch.tensor([0])), MINE.test, ("no", "yes"))


def make_mine() -> Task:
    return MINE


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_idx(folder: Path, names: tuple[str, ...], compress: bool = False) -> dict[str, np.ndarray]:
    """Six training and three test images of 2 x 3 points, whose values tell where they are."""
    arrays = {}
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in zip(names, (6, 6, 3, 3), strict=True):
        array = np.arange(count * 6).reshape(count, 2, 3) if "images" in name else np.arange(count) % 3
        data = idx_bytes(array)
        (folder / (name + ".gz" * compress)).write_bytes(gzip.compress(data, mtime=0) if compress else data)
        arrays[name] = array.astype(np.uint8)
    return arrays


def write_npz(path: Path, **changes: object) -> Path:
    arrays: dict[str, object] = {
        "x_train": np.arange(4 * 2 * 3 * 3, dtype=np.uint8).reshape(4, 2, 3, 3),
        "y_train": np.array([0, 1, 2, 1], np.uint8),
        "x_test": np.zeros((2, 2, 3, 3), np.uint8),
        "y_test": np.array([2, 0], np.uint8),
    }
    arrays |= changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def refusal(name: str, data: Path | None = None) -> str:
    with pytest.raises(HoldfastError) as caught:
        load_task(name, data)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_the_embedded_task_is_balanced_small_and_carries_its_notice() -> None:
    task = load_task("fashion-mini")
    assert task.train.inputs[0].shape == (5000, 1, 28, 28)
    assert task.train.inputs[0].dtype == torch.uint8
    assert task.train.labels.bincount().tolist() == [500] * 10
    assert task.test.labels.bincount().tolist() == [100] * 10
    assert task.train.labels[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]  # the order of the official file
    assert task.class_names[9] == "Ankle boot"
    assert EMBEDDED_FILE.stat().st_size < 4_000_000
    notice = (EMBEDDED_FILE.parent / "LICENSE-fashion-mnist.txt").read_text("utf-8")
    assert "Copyright © 2017 Zalando SE" in notice
    assert "Permission is hereby granted, free of charge" in notice


def test_every_known_task_has_a_line_and_all_its_class_names() -> None:
    classes = {name: len(data_set.class_names) for name, data_set in DATA_SETS.items()}
    assert classes == {
        "fashion-mini": 10,
        "heart": 2,
        "fashion-mnist": 10,
        "mnist": 10,
        "emnist": 62,
        "emnist-balanced": 47,
        "har": 6,
        "ocr-letters": 26,
        "pneumoniamnist": 2,
        "cifar10": 10,
        "cifar100": 100,
    }
    assert all(len(set(data_set.class_names)) == len(data_set.class_names) for data_set in DATA_SETS.values())
    assert [name for name, _ in known_tasks()] == [*DATA_SETS, "tcga-brca"]
    assert all(f"{classes[name]} classes" in line for name, line in known_tasks() if name in DATA_SETS)


def test_class_names_stand_in_the_order_of_the_labels() -> None:
    assert (class_names.EMNIST_BY_CLASS[10], class_names.EMNIST_BY_CLASS[36]) == ("A", "a")
    assert class_names.EMNIST_BALANCED[36:] == ("a", "b", "d", "e", "f", "g", "h", "n", "q", "r", "t")
    assert list(class_names.CIFAR100) == sorted(class_names.CIFAR100)  # label 0 is apple, 99 is worm
    assert (class_names.CIFAR100[1], class_names.CIFAR100[52]) == ("aquarium fish", "oak tree")


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("subfolder", [".", "mnist", "MNIST/raw"])
def test_idx_files_are_found_and_read(tmp_path: Path, subfolder: str, compress: bool) -> None:
    arrays = write_idx(tmp_path / subfolder, MNIST_FILES, compress)
    task = load_task("mnist", tmp_path)
    assert np.array_equal(task.train.inputs[0][:, 0], arrays["train-images-idx3-ubyte"])
    assert np.array_equal(task.test.labels, arrays["t10k-labels-idx1-ubyte"])
    assert task.train.labels.dtype == torch.int64
    assert task.shape == (1, 2, 3)


@pytest.mark.parametrize(("name", "files"), [("emnist", BY_CLASS_FILES), ("emnist-balanced", BALANCED_FILES)])
def test_emnist_is_put_upright(tmp_path: Path, name: str, files: tuple[str, ...]) -> None:
    arrays = write_idx(tmp_path / "emnist", files, compress=True)
    task = load_task(name, tmp_path)
    assert task.shape == (1, 3, 2)
    assert np.array_equal(task.train.inputs[0][:, 0], arrays[files[0]].transpose(0, 2, 1))
    assert task.train.inputs[0].is_contiguous()


def test_the_subfolder_goes_before_the_folder(tmp_path: Path) -> None:
    write_idx(tmp_path, MNIST_FILES)
    write_idx(tmp_path / "fashion-mnist", MNIST_FILES)
    (tmp_path / "fashion-mnist" / MNIST_FILES[1]).write_bytes(idx_bytes(np.full(6, 7)))
    assert load_task("fashion-mnist", tmp_path).train.labels.tolist() == [7] * 6
    assert load_task("mnist", tmp_path).train.labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_fashion_mnist_is_not_taken_for_mnist(tmp_path: Path) -> None:
    write_idx(tmp_path, MNIST_FILES)
    images, labels = np.zeros((10, 2, 3)), np.array([9, 0, 0, 3, 0, 2, 7, 2, 5, 5])
    (tmp_path / MNIST_FILES[0]).write_bytes(idx_bytes(images))
    (tmp_path / MNIST_FILES[1]).write_bytes(idx_bytes(labels))
    assert len(load_task("fashion-mnist", tmp_path).train) == 10
    assert "are of fashion-mnist" in refusal("mnist", tmp_path)


def test_one_missing_idx_file_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path, MNIST_FILES)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    assert refusal("mnist", tmp_path).endswith("but not t10k-labels-idx1-ubyte; add what is missing.")


def test_an_npz_of_the_task_or_beginning_with_its_name(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "cifar10-small.npz")
    write_npz(tmp_path / "cifar100.npz", y_train=np.array([99, 0, 0, 0]))
    task = load_task("cifar10", tmp_path)
    stored = np.load(path)["x_train"]
    assert task.shape == (3, 2, 3)
    assert all(int(task.train.inputs[0][n, c, 1, 2]) == stored[n, 1, 2, c] for n in range(4) for c in range(3))
    assert load_task("cifar100", tmp_path).train.labels[0] == 99
    write_npz(tmp_path / "cifar10k.npz")  # a word of its own, not this task
    assert len(load_task("cifar10", tmp_path).train) == 4
    write_npz(tmp_path / "cifar10_large.npz")
    assert "holds cifar10-small.npz, cifar10_large.npz" in refusal("cifar10", tmp_path)
    write_npz(tmp_path / "cifar10.npz", y_train=np.array([9, 9, 9, 9]))
    assert load_task("cifar10", tmp_path).train.labels[0] == 9  # the exact name goes first


def test_balanced_emnist_is_not_taken_for_emnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "installed", lambda: False)
    write_npz(tmp_path / "emnist-balanced.npz")
    assert load_task("emnist-balanced", tmp_path).classes == 47
    assert "found no emnist-byclass-train-images-idx3-ubyte" in refusal("emnist", tmp_path)


def test_without_files_and_without_the_extra_the_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "installed", lambda: False)
    sentence = refusal("mnist", tmp_path)
    assert str(tmp_path) in sentence
    assert all(file in sentence for file in (*MNIST_FILES, "mnist.npz"))
    assert "download = true" in sentence
    assert "no data folder was given" in refusal("cifar10", None)
    assert "does not exist" in refusal("mnist", tmp_path / "nowhere")


def test_unknown_names_get_the_nearest_one() -> None:
    assert "did you mean 'fashion-mini'?" in refusal("fashion-mimi")
    assert "known: fashion-mini, heart, fashion-mnist" in refusal("zzzzzzzz")
    assert "is not known" in refusal(":x")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not an idx file"),
        (b"PK\x03\x04", "not an idx file"),
        (struct.pack(">BBBBI", 0, 0, 0x0D, 1, 1) + b"\0" * 4, "kind 0x0d"),
        (struct.pack(">BBBB", 0, 0, 8, 3), "ends inside its header"),
        (idx_bytes(np.zeros((2, 2, 3)))[:-1], "says 2 x 2 x 3 = 12 bytes, but 11 follow"),
        (idx_bytes(np.zeros((2, 2, 3))) + b"\0", "but more follow"),
        (gzip.compress(idx_bytes(np.zeros((2, 2, 3))), mtime=0)[:-9], "cannot be read"),
        (struct.pack(">BBBB3I", 0, 0, 8, 3, 2**31, 2**31, 2**31), "is damaged"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(HoldfastError, match=words) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_a_flipped_byte_in_a_compressed_file_is_noticed(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(idx_bytes(np.arange(200)), mtime=0))
    data[60] ^= 0xFF
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(HoldfastError, match="cannot be read"):
        read_idx(tmp_path / "file")


def test_own_vectors_and_names(tmp_path: Path) -> None:
    path = write_npz(
        tmp_path / "mine.npz",
        x_train=np.array([[1.5, -2], [0, 0], [3, 4], [5, 6]]),
        x_test=np.zeros((2, 2)),
        y_train=np.array([[0.0], [1.0], [0.0], [1.0]]),
        y_test=np.array([1, 1]),
        class_names=np.array(["sick", "well", "unseen"]),
    )
    task = load_task(str(path))
    assert task.name == "mine"
    assert task.class_names == ("sick", "well", "unseen")
    assert task.train.inputs[0].dtype == torch.float32
    assert task.train.inputs[0][0].tolist() == [1.5, -2.0]
    assert task.train.labels.tolist() == [0, 1, 0, 1]


def test_own_float_images_without_names(tmp_path: Path) -> None:
    images = np.linspace(0, 1, 4 * 2 * 3).reshape(4, 2, 3)
    task = load_task(str(write_npz(tmp_path / "mine.npz", x_train=images, x_test=images[:2])))
    assert task.shape == (1, 2, 3)
    assert task.class_names == ("0", "1", "2")
    assert torch.equal(task.train.inputs[0][:, 0], torch.tensor(images, dtype=torch.float32))


IMAGES = np.zeros((4, 2, 3, 3))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("x_test", None, "has no key 'x_test'"),
        ("x_train", np.zeros((4, 2, 3, 3), np.int32), "holds int32"),
        ("x_train", np.zeros((4, 5), np.uint8), "vectors must be floats"),
        ("x_train", np.zeros(4), "has shape (4,)"),
        ("x_train", np.zeros((0, 2, 3, 3), np.uint8), "is empty"),
        ("x_train", np.zeros((4, 3, 32, 32), np.uint8), "store images as (N, H, W, C)"),
        ("x_train", np.where(np.arange(4)[:, None, None, None] == 2, np.nan, IMAGES), "sample 2 holds NaN"),
        ("x_train", IMAGES + 1e300, "sample 0 holds NaN or infinite"),
        ("x_train", IMAGES - 0.5, "these span -0.5 to -0.5"),
        ("x_train", IMAGES + 255.0, "must lie in [0, 1]"),
        ("x_test", np.zeros((2, 2, 4, 3), np.uint8), "uint8 of shape (3, 2, 4) but those of"),
        ("x_test", np.zeros((2, 2, 3, 3)), "float32 of shape (3, 2, 3) but those of"),
        ("y_train", np.array([0, 1, 2]), "3 labels for 4 samples"),
        ("y_test", np.array([], np.int64), "is empty"),
        ("y_train", np.array([0, 1, 2, 1.5]), "must be whole numbers"),
        ("y_train", np.array([0, 1, 2, np.nan]), "must be whole numbers"),
        ("y_train", np.array(["0", "1", "2", "1"]), "expected whole numbers"),
        ("y_train", np.eye(4), "expected whole numbers of shape (N,)"),
        ("y_train", np.array([0, 1, 2, -1]), "label -1 is out of range"),
        ("y_train", np.array([0, 1, 2, 2**63], np.uint64), "label 9223372036854775808 is out of range"),
        ("y_train", np.array([0, 1, 3, 1]), "no sample has label 2"),
        ("y_train", np.array([0, 0, 0, 0]), "only one class"),
        ("y_test", np.array([3, 0]), "label 3 is out of range"),
        ("class_names", np.array(["a", "a", "b"]), "different texts"),
        ("class_names", np.array([1, 2, 3]), "different texts"),
        ("class_names", np.array(["a", "b"]), "label 2 is out of range"),
        ("class_names", np.array(["a", "b", 3], object), "holds Python objects"),
        ("y_train", np.array([0, 1, None, 1], object), "holds Python objects"),
    ],
)
def test_bad_arrays_are_refused_by_file_and_key(tmp_path: Path, key: str, value: object, words: str) -> None:
    path = write_npz(tmp_path / "mine.npz", **{key: value})
    sentence = refusal(str(path))
    assert words in sentence
    assert str(path) in sentence
    if words != "label 2 is out of range":  # two names for three classes: it is the label that is shown
        assert key in sentence


def test_labels_beyond_a_known_data_set_are_refused(tmp_path: Path) -> None:
    write_npz(tmp_path / "cifar10.npz", y_test=np.array([10, 0]))
    sentence = refusal("cifar10", tmp_path)
    assert "key y_test: label 10 is out of range; cifar10 has 10 classes, 0 to 9" in sentence


def test_damaged_npz_files_are_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "mine.npz")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "is not a readable npz file" in refusal(str(path))
    flipped = bytearray(whole)
    with zipfile.ZipFile(write_npz(path)) as file:
        start = file.getinfo("x_test.npy").header_offset
    flipped[start + 200] ^= 0xFF
    path.write_bytes(flipped)
    assert "key x_test: damaged" in refusal(str(path))
    path.write_bytes(b"")
    assert "is not a readable npz file" in refusal(str(path))
    with path.open("wb") as stream:
        np.save(stream, np.zeros(3))
    assert "holds one array only" in refusal(str(path))
    assert "does not exist" in refusal(str(tmp_path / "none.npz"))


def test_own_objects_by_import_path() -> None:
    assert load_task(f"{__name__}:MINE") is MINE
    assert load_task(f"{__name__}:make_mine") is MINE
    assert "expected a holdfast.data.task.Task" in refusal(f"{__name__}:IMAGES")
    assert "has no 'Nothing'" in refusal(f"{__name__}:Nothing")
    assert "cannot import 'no_such_module'" in refusal("no_such_module:x")


@pytest.mark.parametrize(
    ("name", "words"),
    [("NOT_FINITE", "holds NaN"), ("LABEL_TWO", "whole numbers 0 to 1"), ("UNEVEN", "3 samples for 1 labels")],
)
def test_own_objects_are_checked(name: str, words: str) -> None:
    assert words in refusal(f"{__name__}:{name}")
