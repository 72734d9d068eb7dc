"""Tasks by name: an embedded one, known data sets from a folder, a user's own npz file or object."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.core.errors import HoldfastError, nearest, plain
from holdfast.core.modules import import_path, told
from holdfast.data import class_names
from holdfast.data.sources import hub, tcga
from holdfast.data.sources.arrays import KEYS, Array, read_npz, task_from
from holdfast.data.sources.described import (
    WHAT,
    Description,
    Records,
    bare_task,
    own_samples,
    quick,
    read_description,
    task_of_records,
)
from holdfast.data.sources.idx import read_idx
from holdfast.data.sources.images import image_records
from holdfast.data.sources.saved import is_saved, saved_records
from holdfast.data.sources.series import array_records
from holdfast.data.sources.texts import text_records
from holdfast.data.tables.schema import read_schema
from holdfast.data.tables.source import table_task
from holdfast.data.task import Kind, Metric, Samples, Task

EMBEDDED = "fashion-mini"
EMBEDDED_FILE = Path(__file__).parent / "embedded" / "fashion-mini.npz"
HEART = "heart"
HEART_FILE = Path(__file__).parent / "embedded" / "heart.csv"


RECORDS = {"images": image_records, "series": array_records, "text": text_records}


@dataclass(frozen=True)
class DataSet:
    """A known data set, and how its official idx files are called (train images, train labels, test images, ...)."""

    description: str
    class_names: tuple[str, ...]
    idx_files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # other subfolders where tools are known to put them
    transposed: bool = False
    first_labels: tuple[int, ...] = ()  # of the training file: MNIST and Fashion-MNIST call their files the same
    shape: tuple[int, ...] = (1, 28, 28)  # of a sample
    described: Description | None = None  # of a file with x, y and facts


def _idx_files(train: str, test: str) -> tuple[str, ...]:
    return tuple(f"{part}-{kind}-ubyte" for part in (train, test) for kind in ("images-idx3", "labels-idx1"))


MNIST_FILES = _idx_files("train", "t10k")
BY_CLASS_FILES = _idx_files("emnist-byclass-train", "emnist-byclass-test")
BALANCED_FILES = _idx_files("emnist-balanced-train", "emnist-balanced-test")

DATA_SETS = {
    EMBEDDED: DataSet("5,000 + 1,000 grey images of clothes, 10 classes; comes with Holdfast", class_names.FASHION),
    HEART: DataSet(
        "920 patients of four hospitals, 2 classes: healthy or ill; comes with Holdfast", ("healthy", "ill")
    ),
    "fashion-mnist": DataSet(
        "60,000 + 10,000 grey images of clothes, 10 classes",
        class_names.FASHION,
        MNIST_FILES,
        ("FashionMNIST/raw",),
        first_labels=(9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
    ),
    "mnist": DataSet(
        "60,000 + 10,000 grey images of handwritten digits, 10 classes",
        class_names.DIGITS,
        MNIST_FILES,
        ("MNIST/raw",),
        first_labels=(5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
    ),
    "emnist": DataSet(
        "697,932 + 116,323 grey images of handwritten digits and letters, 62 classes (ByClass)",
        class_names.EMNIST_BY_CLASS,
        BY_CLASS_FILES,
        ("EMNIST/raw", "gzip"),
        transposed=True,
    ),
    "emnist-balanced": DataSet(
        "112,800 + 18,800 grey images of handwritten digits and letters, 47 classes (Balanced)",
        class_names.EMNIST_BALANCED,
        BALANCED_FILES,
        ("emnist", "EMNIST/raw", "gzip"),
        transposed=True,
    ),
    "har": DataSet(
        "10,119 windows of smartphone sensors, 6 classes; 30 persons, each a client of its own",
        class_names.HAR,
        shape=(9, 128),
        described=Description("series", "har", class_names.HAR, site="subject", split=""),
    ),
    "ocr-letters": DataSet(
        "52,152 grey images of handwritten letters, 26 classes; fold 0 is the test",
        class_names.LETTERS,
        shape=(1, 16, 8),
        described=Description("images", "ocr-letters", class_names.LETTERS, person="word"),
    ),
    "pneumoniamnist": DataSet(
        "5,232 + 624 grey chest X-rays, 2 classes (MedMNIST)", class_names.PNEUMONIA, folders=("medmnist",)
    ),
    "cifar10": DataSet("50,000 + 10,000 colour photographs, 10 classes", class_names.CIFAR10, shape=(3, 32, 32)),
    "cifar100": DataSet("50,000 + 10,000 colour photographs, 100 classes", class_names.CIFAR100, shape=(3, 32, 32)),
}


def known_tasks() -> list[tuple[str, str]]:
    """Each known name with one line about it."""
    survival = (tcga.NAME, "1,088 patients with breast cancer in six regions, survival (from FLamby's files)")
    return [*((name, data_set.description) for name, data_set in DATA_SETS.items()), survival]


def load_task(
    name: str,
    data: Path | None = None,
    download: bool = False,
    test: Path | None = None,
    members: tuple[str, ...] = (),
) -> Task:
    """The task of a known name (its files are looked for in the folder `data`), of ``file.npz`` or ``module:name``.

    A name that ends in .toml is a schema, `data` then the table (or a folder of tables) that follows it, `test` the
    moderator's own table to test on, and `members` those whose tables are elsewhere.
    After ``images:``, ``series:`` and ``text:`` comes the folder or file, or a description that `data` follows.
    """
    if test is not None and not name.endswith(".toml"):
        raise HoldfastError(f"test: only a task that is a schema takes a table of its own to test on; {name} is none.")
    if name == EMBEDDED:
        return task_from(name, read_npz(EMBEDDED_FILE), DATA_SETS[name].class_names)
    if name == HEART:
        return table_task(read_schema(HEART_FILE.with_suffix(".toml")), HEART_FILE)
    if name == tcga.NAME:
        return tcga.tcga_task(data)
    if name in DATA_SETS:
        return _known(name, data, download)
    source, colon, path = name.partition(":")
    if colon and source in WHAT:
        return described_task(source, Path(path), data, test, members)
    if name.endswith(".toml"):
        return table_task(read_schema(Path(name)), data, test=test, members=members)
    if name.endswith(".npz"):
        return task_from(Path(name).stem, read_npz(Path(name)))
    module, colon, attribute = name.partition(":")
    if colon and module and attribute:
        return _own(name)
    raise HoldfastError(
        f"task: {name!r} is not known (nor is it file.npz, a table's schema.toml, images:FOLDER, series:FILE, "
        "text:FILE or package.module:name); "
        f"{nearest(name, DATA_SETS)}"
    )


def reads_data(name: str) -> bool:
    """Whether a task looks for its files where an experiment's `data` says; the others bring them.

    >>> reads_data("mnist"), reads_data("images:about.toml"), reads_data("heart"), reads_data("study:task")
    (True, True, False, False)
    """
    source, colon, _ = name.partition(":")
    return source in WHAT if colon else name not in (EMBEDDED, HEART) and not name.endswith(".npz")


def described_task(
    what: str, path: Path, data: Path | None, test: Path | None = None, members: tuple[str, ...] = ()
) -> Task:
    """The task of images, series or texts; without a description, all is taken from the data."""
    if path.suffix != ".toml":
        return task_of_records(*records_at(quick(what, path), data or path))
    about = read_description(path, what)
    if data is None:
        return bare_task(about, members, None if test is None else records_at(about, test)[1])
    if test is not None:
        raise HoldfastError("test: where `data` is given, a column or folder of it says what the test is.")
    return task_of_records(*records_at(about, data))


def own_records(task: str, path: Path) -> Samples:
    """The records of a real site, as an experiment's task describes them."""
    what, _, file = task.partition(":")
    return own_samples(*records_at(read_description(Path(file), what), path))


def records_at(about: Description, path: Path) -> tuple[Description, Records]:
    """A description with the records that follow it."""
    if is_saved(path):
        return about, saved_records(about, path)
    return about, RECORDS[about.what](about, path)


def _known(name: str, data: Path | None, download: bool) -> Task:
    data_set = DATA_SETS[name]
    if data is not None and not data.is_dir():
        raise HoldfastError(f"data: the folder {data} does not exist; give the folder that holds the files of {name}.")
    places = [] if data is None else [data / name, *(data / folder for folder in data_set.folders), data]
    for place in places:
        paths = _find_idx(name, place)
        if paths:
            return task_from(name, _read_idx_files(name, paths), data_set.class_names)
        path = _find_npz(name, place)
        if path and data_set.described is not None:
            return task_of_records(data_set.described, array_records(data_set.described, path))
        if path:
            return task_from(name, read_npz(path), data_set.class_names)
    wanted = f"{name}.npz" if not data_set.idx_files else f"{', '.join(data_set.idx_files)} (.gz or not) or {name}.npz"
    if data is None:
        missing, remedy = f"task {name!r}: no data folder was given to look in for {wanted}", "say data = FOLDER"
    else:
        missing, remedy = f"task {name!r}: found no {wanted} in {data} or its subfolder {name}", "put the files there"
    if name not in (*hub.TABLES, *hub.FILES):
        raise HoldfastError(f"{missing}; {remedy}.")
    if not download:  # the network is never contacted unasked
        raise HoldfastError(f"{missing}; {remedy}, or say download = true to fetch them from {hub.HOST}.")
    if not hub.installed():
        raise HoldfastError(f"{missing}, and to download them a package is missing: pip install 'holdfast[hub]'.")
    if name in hub.TABLES:
        return task_from(name, hub.download_table(name, missing), data_set.class_names)
    paths = hub.download_files(name, list(data_set.idx_files), missing)
    return task_from(name, _read_idx_files(name, paths), data_set.class_names)


def _find_idx(name: str, place: Path) -> list[Path]:
    """The four idx files in a folder, or none; some but not all of them is an error."""
    files = DATA_SETS[name].idx_files
    found = [path for path in (_plain_or_gz(place, file) for file in files) if path]
    if found and len(found) < len(files):
        here = [path.name.removesuffix(".gz") for path in found]
        lacking = ", ".join(file for file in files if file not in here)
        raise HoldfastError(f"task {name!r}: {place} holds {', '.join(here)} but not {lacking}; add what is missing.")
    return found


def _plain_or_gz(place: Path, file: str) -> Path | None:
    candidates = (place / file, place / f"{file}.gz")
    return next((path for path in candidates if path.is_file()), None)


def _find_npz(name: str, place: Path) -> Path | None:
    """``name.npz``, or the one npz file whose name begins with this task's name, such as cifar10-12k.npz."""
    if (place / f"{name}.npz").is_file():
        return place / f"{name}.npz"
    found = [path for path in sorted(place.glob(f"{name}*.npz")) if _task_of(path) == name]
    if len(found) > 1:
        files = ", ".join(path.name for path in found)
        raise HoldfastError(
            f"task {name!r}: {place} holds {files}; keep one, or give the path of the one meant as the task."
        )
    return found[0] if found else None


def _task_of(path: Path) -> str | None:
    """The longest known name that a file's name begins with, as a whole word: cifar100-12k is not of cifar10."""
    fitting = [n for n in DATA_SETS if path.stem.startswith(n) and not path.stem[len(n) :][:1].isalnum()]
    return max(fitting, key=len, default=None)


def _read_idx_files(name: str, paths: list[Path]) -> dict[str, Array]:
    arrays = {}
    for key, path in zip(KEYS, paths, strict=True):
        values = read_idx(path)
        if key.startswith("x"):
            if values.ndim != 3:
                raise HoldfastError(f"{path} holds an array of {values.ndim} axes; images (N, H, W) were expected.")
            if DATA_SETS[name].transposed:
                values = np.swapaxes(values, 1, 2)
        arrays[key] = Array(values, str(path))
    first = tuple(arrays["y_train"].values[:10].tolist())
    for other, data_set in DATA_SETS.items():
        if other != name and data_set.first_labels == first:
            raise HoldfastError(f"task {name!r}: the files in {paths[0].parent} are of {other}; name the right one.")
    return arrays


def _own(name: str) -> Task:
    """A user's own task: an object, or a function without arguments that makes it."""
    made = import_path(name, "task")
    try:
        task = made if isinstance(made, Task) or not callable(made) else made()
    except HoldfastError:
        raise
    except Exception as error:
        raise HoldfastError(f"task: {name} failed: {told(error)}.") from error
    return check_own(task, name)


def check_own(task: object, name: str) -> Task:
    """A user's own task, with its labels as its kind reads them; what is wrong with it is a sentence."""
    if not isinstance(task, Task):
        raise HoldfastError(
            f"task: {name} is {type(task).__name__}; expected a holdfast.data.task.Task or a function for it."
        )
    refuse_odd(task, name)
    read: dict[str, Any] = {}  # parts whose labels the kind reads as something else
    for part, samples in (("train", task.train), ("test", task.test)):
        where = f"task: {name}, {part}"
        if part == "test" and len(samples) == 0:
            continue  # the moderator has none: then the clients' own samples speak
        if len(samples) == 0 or not samples.inputs:
            raise HoldfastError(f"{where}: is empty; at least one sample is needed.")
        for position, tensor in enumerate(samples.inputs):
            if len(tensor) != len(samples):
                raise HoldfastError(f"{where}: input {position} has {len(tensor)} samples for {len(samples)} labels.")
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise HoldfastError(f"{where}: input {position} holds NaN or infinite values; mend or drop them.")
        for fact, numbers in samples.facts.items():
            if len(numbers) != len(samples):
                raise HoldfastError(
                    f"{where}: the fact {fact!r} has {len(numbers)} numbers for {len(samples)} samples."
                )
        labels = task.kind.read(samples.labels, task.classes, where)
        if labels is not samples.labels:
            read[part] = replace(samples, labels=labels)
    return replace(task, **read) if read else task


def refuse_odd(task: Task, name: str) -> None:
    """Refuse a kind, class names or metrics that are none, or that do not go together."""
    if not isinstance(task.kind, Kind):
        raise HoldfastError(
            f"task: {name}: its kind must be an object of a class derived from holdfast.data.task.Kind."
        )
    if task.kind.has_names != bool(task.class_names):
        needed = "needs class_names" if task.kind.has_names else "has no classes, so leave out class_names"
        raise HoldfastError(f"task: {name}: a task of kind {task.kind.name!r} {needed}.")
    for fact in (task.site, task.person):
        if fact is not None and fact not in task.train.facts:
            raise HoldfastError(f"task: {name}: its samples have no fact {fact!r}; give it in Samples(facts=...).")
    if not task.metrics or not all(isinstance(metric, Metric) for metric in task.metrics):
        raise HoldfastError(f"task: {name}: metrics must be objects of classes derived from holdfast.data.task.Metric.")
    names = [getattr(metric, "name", "") for metric in task.metrics]
    texts = [*names, *(metric.unit for metric in task.metrics)]
    if not all(names) or not all(isinstance(text, str) and plain(text, 40) == text for text in texts):
        raise HoldfastError(f"task: {name}: each metric needs a name, and a unit if any, of at most 40 characters.")
    if len({*names}) < len(names):
        raise HoldfastError(f"task: {name}: two of its metrics have one name ({', '.join(names)}).")
