"""Folders and lists of pictures: read, described, decoded once, refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.core.errors import HoldfastError
from holdfast.data.named import load_task
from holdfast.data.task import Samples
from holdfast.play import run
from holdfast.runs.experiment import load
from holdfast.runs.export import load_model

pytestmark = pytest.mark.usefixtures("own_cache")


def picture(path: Path, value: int, side: int = 12, colour: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (side, side, 3) if colour else (side, side)
    Image.fromarray(np.full(shape, value, np.uint8)).save(path)
    return path


def by_class(folder: Path, each: int = 10) -> Path:
    for number in range(each):
        picture(folder / "cat" / f"{number}.png", 10 + number)
        picture(folder / "dog" / f"{number}.png", 200 + number)
    return folder


def values_of(samples: Samples) -> list[int]:
    return sorted(samples.inputs[0][:, 0, 0, 0].tolist())


def test_a_folder_by_class(tmp_path: Path) -> None:
    task = load_task(f"images:{by_class(tmp_path / 'pets')}")
    assert (task.name, task.class_names, task.shape, task.site) == ("pets", ("cat", "dog"), (1, 12, 12), None)
    assert (len(task.train), len(task.test)) == (16, 4)
    assert torch.bincount(task.test.labels).tolist() == [2, 2]  # a fifth of each class
    assert sorted(values_of(task.train) + values_of(task.test)) == [*range(10, 20), *range(200, 210)]
    assert bool(((task.train.inputs[0][:, 0, 0, 0] >= 200) == (task.train.labels == 1)).all())
    assert torch.equal(load_task(f"images:{tmp_path / 'pets'}").train.labels, task.train.labels)


def test_folders_of_pictures_an_own_network_adam_and_new_pictures(tmp_path: Path) -> None:
    """docs/encoders.md and docs/tutorial.md: from PNGs by site and class to the class of a new picture."""
    chance = np.random.default_rng(0)
    for number in range(80):
        pixels = chance.integers(0, 120, (12, 12)).astype(np.uint8)
        pixels[3:9, 3:9] += np.uint8(100 * (number % 2))
        place = tmp_path / "xrays" / ("north", "south")[number // 2 % 2] / ("normal", "shadow")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{number}.png")
    (tmp_path / "own_norms.py").write_text(
        "from torch import nn\ndef net():\n    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), "
        "nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 2))\n"
    )
    (tmp_path / "study.toml").write_text(
        'task = "images:xrays"\npartition = "column"\nmodel = "own_norms:net"\noptimizer = "adam"\nlr = 0.01\n'
        'augment = "flip,crop:1"\nrounds = 8\nbatch_size = 8\nworkers = 0\n'
    )
    history = run(load(tmp_path / "study.toml"), tmp_path / "run")
    assert history.experiment.names == ("north", "south")
    assert history.final > 0.9
    model = load_model(tmp_path / "run")
    x, labels, names = model.read(tmp_path / "xrays")
    assert names[0] == "north/normal/0.png"
    assert (model.predict(x).argmax(1) == labels).mean() > 0.9
    large = Image.open(tmp_path / "xrays" / "north" / "shadow" / "1.png").convert("RGB").resize((40, 40))
    large.save(tmp_path / "new.jpg")  # brought to what the model reads
    assert model.predict(tmp_path / "new.jpg").argmax(1).tolist() == [1]
    assert model.read(tmp_path / "new.jpg").labels is None
    (tmp_path / "empty").mkdir()
    with pytest.raises(HoldfastError, match="empty holds no picture"):
        model.predict(tmp_path / "empty")


def test_train_and_test_folders_by_site(tmp_path: Path) -> None:
    for site, first in (("North", 0), ("South", 100)):
        for number in range(4):
            picture(tmp_path / "p" / "train" / site / ("a", "b")[number % 2] / f"{number}.png", first + number)
    picture(tmp_path / "p" / "test" / "South" / "a" / "x.png", 77)
    task = load_task(f"images:{tmp_path / 'p'}")
    assert (task.site, task.fact_values["site"]) == ("site", ("North", "South"))
    assert values_of(task.test) == [77]
    assert bool(((task.train.inputs[0][:, 0, 0, 0] >= 100) == (task.train.facts["site"] == 1)).all())


def test_a_list_of_files_with_facts(tmp_path: Path) -> None:
    lines = ["file;label;site;patient;split"]
    for number in range(12):
        picture(tmp_path / "x" / "deep" / f"{number}.jpg", 20 * number)
        part = "test" if number >= 8 else "train"
        lines.append(f"deep/{number}.jpg;{'ill' if number % 2 else 'well'};{'AB'[number % 2]};p{number // 2};{part}")
    (tmp_path / "x" / "labels.csv").write_text("\n".join(lines))
    task = load_task(f"images:{tmp_path / 'x'}")
    assert (task.class_names, task.site, task.person) == (("ill", "well"), "site", "patient")
    assert (len(task.train), len(task.test)) == (8, 4)
    assert task.train.facts["patient"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert "patient" not in task.fact_values  # nobody's name is shown


def test_a_description_settles_size_colour_and_classes(tmp_path: Path) -> None:
    picture(tmp_path / "x" / "b" / "1.png", 100, side=20)
    picture(tmp_path / "x" / "b" / "2.png", 100, colour=True)
    picture(tmp_path / "x" / "a" / "3.png", 50)
    picture(tmp_path / "x" / "a" / "4.png", 50)
    (tmp_path / "d.toml").write_text('[images]\nclasses = ["c", "b", "a"]\nsize = 16\nchannels = 3\n')
    experiment = tmp_path / "e.toml"
    experiment.write_text('task = "images:d.toml"\ndata = "x"\n')
    keys = load(experiment)
    task = load_task(keys.task, Path(str(keys.data)))
    assert (task.class_names, task.shape) == (("c", "b", "a"), (3, 16, 16))
    assert {*task.train.labels.tolist(), *task.test.labels.tolist()} == {1, 2}
    assert {int(image[0, 8, 8]) for image in task.train.inputs[0]} == {50, 100}


def test_sixteen_bits_are_floats(tmp_path: Path) -> None:
    for name, value in (("a/1", 0), ("a/2", 65535), ("b/3", 32768), ("b/4", 6554)):
        path = tmp_path / "x" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((9, 9), value, np.uint16)).save(path)
    picture(tmp_path / "x" / "b" / "5.png", 255, side=9)  # 8 bits beside it
    task = load_task(f"images:{tmp_path / 'x'}")
    found = torch.cat([task.train.inputs[0], task.test.inputs[0]])
    assert found.dtype == torch.float32
    expected = torch.tensor([0.0, 6554 / 65535, 32768 / 65535, 1.0, 1.0])
    assert torch.allclose(found[:, 0, 4, 4].sort().values, expected, atol=1e-6)


def dicom(path: Path, value: int, inverted: bool = False) -> None:
    pydicom = pytest.importorskip("pydicom")
    file = pydicom.Dataset()
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    file.file_meta.MediaStorageSOPClassUID = file.SOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    file.file_meta.MediaStorageSOPInstanceUID = file.SOPInstanceUID = pydicom.uid.generate_uid()
    file.Rows, file.Columns, file.SamplesPerPixel, file.PixelRepresentation = 10, 8, 1, 0
    file.BitsAllocated, file.BitsStored, file.HighBit = 16, 12, 11
    file.PhotometricInterpretation = "MONOCHROME1" if inverted else "MONOCHROME2"
    file.PixelData = np.full((10, 8), value, np.uint16).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    file.save_as(path, enforce_file_format=True)


def test_dicom(tmp_path: Path) -> None:
    dicom(tmp_path / "x" / "a" / "1.dcm", 4095)
    dicom(tmp_path / "x" / "a" / "2.dcm", 4095, inverted=True)
    dicom(tmp_path / "x" / "b" / "3.dcm", 819)
    dicom(tmp_path / "x" / "b" / "4.dcm", 819)
    task = load_task(f"images:{tmp_path / 'x'}")
    assert task.shape == (1, 10, 8)
    found = torch.cat([task.train.inputs[0], task.test.inputs[0]])[:, 0, 0, 0].sort().values
    assert torch.allclose(found, torch.tensor([0.0, 0.2, 0.2, 1.0]))
    (tmp_path / "x" / "b" / "4.dcm").write_bytes(b"no DICOM")
    with pytest.raises(HoldfastError, match=r"4\.dcm cannot be read as DICOM"):
        load_task(f"images:{tmp_path / 'x'}")


def test_pictures_are_decoded_once_and_mapped(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = by_class(tmp_path / "pets")
    first = load_task(f"images:{folder}")
    (file,) = (own_cache / "images").glob("*.npy")
    content = file.read_bytes()
    monkeypatch.setattr("holdfast.data.sources.images.opened", None)  # nobody decodes any more
    again = load_task(f"images:{folder}")
    assert torch.equal(again.train.inputs[0], first.train.inputs[0])
    again.train.inputs[0].fill_(0)  # as an attack would
    assert file.read_bytes() == content
    monkeypatch.undo()
    monkeypatch.setenv("HOLDFAST_CACHE", "off")
    picture(folder / "cat" / "0.png", 99)
    assert 99 in values_of(load_task(f"images:{folder}").train) + values_of(load_task(f"images:{folder}").test)


def odd_picture(folder: Path) -> None:
    (folder / "cat" / "0.png").write_bytes((folder / "cat" / "0.png").read_bytes()[:50])


def odd_size(folder: Path) -> None:
    picture(folder / "dog" / "9.png", 5, side=13)


def odd_colour(folder: Path) -> None:
    picture(folder / "dog" / "9.png", 5, colour=True)


def one_class(folder: Path) -> None:
    for path in (folder / "dog").iterdir():
        path.unlink()


def no_pictures(folder: Path) -> None:
    for path in [*(folder / "dog").iterdir(), *(folder / "cat").iterdir()]:
        path.unlink()


def other_depth(folder: Path) -> None:
    picture(folder / "dog" / "more" / "9.png", 5)


def bad_list(folder: Path) -> None:
    (folder / "labels.csv").write_text("file,label\n../secret.png,a\n")


def unlabelled(folder: Path) -> None:
    (folder / "labels.csv").write_text("file,label\ncat/1.png,\n")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (odd_picture, r"0\.png cannot be read as a picture"),
        (odd_size, "grey, 13 x 13, but .* is grey, 12 x 12; say size = 128"),
        (odd_colour, "is colour, 12 x 12, but .* is grey, 12 x 12; say channels = 1"),
        (one_class, "all records are of one class"),
        (no_pictures, "holds no picture"),
        (other_depth, "by class, or all by site and class"),
        (bad_list, "is not a file in this folder"),
        (unlabelled, "line 2: column 'label' is empty"),
    ],
)
def test_odd_folders_are_one_sentence(spoil: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    folder = by_class(tmp_path / "pets")
    spoil(folder)
    with pytest.raises(HoldfastError, match=message) as error:
        load_task(f"images:{folder}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[image]\nsize = 3\n", r"one table, \[images\]"),
        ("[images]\nsizes = 3\n", "no key 'sizes'; did you mean 'size'"),
        ("[images]\nsize = 3\n", "size must be 8 to 4096"),
        ("[images]\nchannels = 2\n", "channels must be 1 or 3"),
        ('[images]\nclasses = ["a"]\n', "two or more different names"),
        ('[images]\nclasses = ["cat", "bird"]\n', "label 'dog' is not known"),
    ],
)
def test_odd_descriptions_are_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "d.toml").write_text(text)
    with pytest.raises(HoldfastError, match=message):
        load_task(f"images:{tmp_path / 'd.toml'}", by_class(tmp_path / "pets"))


def test_folders_that_datasets_saved(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "site": datasets.Value("string"),
        }
    )
    parts = {}
    for part, count in (("train", 8), ("test", 4)):
        pictures = [Image.fromarray(np.full((9, 9), 20 * number, np.uint8)) for number in range(count)]
        table = {"image": pictures, "label": [n % 2 for n in range(count)], "site": list("AB") * (count // 2)}
        parts[part] = datasets.Dataset.from_dict(table, features=kinds)
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    task = load_task(f"images:{tmp_path / 'saved'}")
    assert (task.class_names, task.site, task.shape) == (("cat", "dog"), "site", (1, 9, 9))
    assert values_of(task.train) == [20 * number for number in range(8)]
    assert (len(task.test), task.test.labels.tolist()) == (4, [0, 1, 0, 1])
    texts = datasets.Dataset.from_dict({"text": ["a b", "c d"] * 10, "label": ["x", "y"] * 10})
    texts.save_to_disk(str(tmp_path / "texts"))
    assert load_task(f"text:{tmp_path / 'texts'}").class_names == ("x", "y")
    (tmp_path / "texts" / "state.json").write_text("broken")
    with pytest.raises(HoldfastError, match="cannot be read as a data set"):
        load_task(f"text:{tmp_path / 'texts'}")
