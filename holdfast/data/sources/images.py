"""Images from a folder: by class, by site and class, or named in a list; decoded once, and read through a memory map.

    FOLDER/CLASS/*.png                    FOLDER/SITE/CLASS/*.png              FOLDER/labels.csv: file,label[,site,...]
    FOLDER/train/CLASS/*.png, test/...    FOLDER/train/SITE/CLASS/*.png, ...

PNG, JPEG, TIFF and BMP through Pillow, 8 bits as bytes and 16 as floats in [0, 1]; DICOM (.dcm) with the extra `dicom`.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from holdfast.core.errors import HoldfastError, plain
from holdfast.core.files import cache_folder
from holdfast.data.sources.described import TEST, TRAIN, Description, Records
from holdfast.data.sources.dicom import read_dicom, size_of_dicom
from holdfast.data.sources.listed import read_list

ENDINGS = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".dcm")
LIST = "labels.csv"
GREY, DEEP = ("1", "L", "LA"), ("I", "I;16", "I;16B", "I;16L", "F")  # Pillow's modes


@dataclass(frozen=True)
class Look:
    """What a picture's head says of it."""

    width: int
    height: int
    grey: bool
    deep: bool  # more than 8 bits

    @property
    def words(self) -> str:
        return f"{'grey' if self.grey else 'colour'}, {self.width} x {self.height}"


def image_records(about: Description, folder: Path) -> Records:
    """The pictures of a folder, their labels, and where each comes from."""
    if not folder.is_dir():
        raise HoldfastError(f"{folder} is not a folder; give the one that holds the pictures.")
    paths, labels, facts = listed(about, folder) if (folder / LIST).is_file() else arranged(about, folder)
    return Records(labels, facts, lambda rows: decoded([paths[row] for row in rows], about), str(folder))


def listed(about: Description, folder: Path) -> tuple[list[Path], list[str], dict[str, list[str]]]:
    """The pictures that a list names; they lie in the folder, and nowhere else."""
    columns = read_list(folder / LIST, ("file", about.label))
    files, labels = columns.pop("file"), columns.pop(about.label)
    paths = [folder / file for file in files]
    for path, file in zip(paths, files, strict=True):
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise HoldfastError(f"{folder / LIST}: {plain(file, 100)!r} is not a file in this folder.")
    return paths, labels, columns


def arranged(about: Description, folder: Path) -> tuple[list[Path], list[str], dict[str, list[str]]]:
    """The pictures of subfolders, whose names are classes, sites, and train or test."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    if not paths:
        raise HoldfastError(f"{folder} holds no picture; a picture ends in {', '.join(ENDINGS)}.")
    places = [path.relative_to(folder).parts[:-1] for path in paths]
    split = {place[0] for place in places if place} <= {TRAIN, "validation", TEST} and any(places)
    facts = {about.split: [place[0] for place in places]} if split else {}
    places = [place[1:] for place in places] if split else places
    depths = {len(place) for place in places}
    if depths == {2}:
        facts[about.site] = [place[0] for place in places]
    elif depths != {1}:
        raise HoldfastError(
            f"{folder}: pictures must lie in folders by class, or all by site and class, or be named in {LIST}."
        )
    return paths, [place[-1] for place in places], facts


def decoded(paths: Sequence[Path], about: Description) -> Tensor:
    """The pictures (n, C, H, W), from the cache if they were decoded before; they need not fit into memory."""
    looks = [look_at(path) for path in paths]
    check_alike(paths, looks, about)
    grey = about.channels == 1 or (not about.channels and looks[0].grey)
    deep = any(look.deep for look in looks)
    sides = (about.size, about.size) if about.size else (looks[0].height, looks[0].width)
    shape = (len(paths), 1 if grey else 3, *sides)
    kind = np.dtype(np.float32 if deep else np.uint8)
    cache = cache_folder("images")
    if cache is None:
        pictures = np.empty(shape, kind)
        fill(pictures, paths, deep)
        return torch.from_numpy(pictures)
    file = cache / f"{name_of(paths, shape, kind)}.npy"
    if not file.is_file():
        handle, unfinished = tempfile.mkstemp(suffix=".npy", dir=cache)
        os.close(handle)
        try:
            pictures = np.lib.format.open_memmap(unfinished, mode="w+", dtype=kind, shape=shape)
            fill(pictures, paths, deep)
            pictures.flush()
            os.replace(unfinished, file)
        except OSError as error:
            raise HoldfastError(f"{cache}: no room for the decoded pictures ({error}); set HOLDFAST_CACHE.") from None
        finally:
            Path(unfinished).unlink(missing_ok=True)
    # Copy on write: who stamps or poisons a picture changes the memory, never the file.
    return torch.from_numpy(np.load(file, mmap_mode="c", allow_pickle=False))


def name_of(paths: Sequence[Path], shape: tuple[int, ...], kind: np.dtype[Any]) -> str:
    """A name for what is decoded: which files, when they were written, and to what."""
    found = hashlib.sha256(f"1 {shape} {kind}".encode())
    for path in paths:
        facts = path.stat()
        found.update(f"|{path.resolve()}|{facts.st_size}|{facts.st_mtime_ns}".encode())
    return found.hexdigest()


def check_alike(paths: Sequence[Path], looks: Sequence[Look], about: Description) -> None:
    """Refuse pictures that differ in a way that the description does not settle."""
    first = looks[0]
    for path, look in zip(paths, looks, strict=True):
        if not about.size and (look.width, look.height) != (first.width, first.height):
            what = "size = 128"
        elif not about.channels and look.grey != first.grey:
            what = "channels = 1"
        else:
            continue
        raise HoldfastError(
            f"{path} is {look.words}, but {paths[0]} is {first.words}; say {what} under [images] in a description "
            "(docs/encoders.md) to bring all to one."
        )


def fill(pictures: NDArray[Any], paths: Sequence[Path], deep: bool) -> None:
    """Decode each picture into its place; where some have more than 8 bits, all become floats."""
    channels, height, width = pictures.shape[1:]
    for place, path in enumerate(paths):
        image = opened(path)
        if image.mode in DEEP:
            image = Image.fromarray(in_unit(image))
        else:
            image = image.convert("L" if channels == 1 else "RGB")
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        values = np.asarray(image)
        values = values / np.float32(255) if deep and values.dtype == np.uint8 else values
        pictures[place] = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def in_unit(image: Image.Image) -> NDArray[np.float32]:
    """Grey values of more than 8 bits, in [0, 1]; mode F is DICOM's, which is so already."""
    values: NDArray[np.float32] = np.asarray(image, dtype=np.float32)
    if image.mode != "F":
        values = (values.clip(0, 65535) / 65535).astype(np.float32)
    return values


def look_at(path: Path) -> Look:
    """What a picture's head says of it; its pixels are not read."""
    if path.suffix.lower() == ".dcm":
        width, height, grey, deep = size_of_dicom(path)
        return Look(width, height, grey, deep)
    try:
        with Image.open(path) as image:
            return Look(image.width, image.height, image.mode in (*GREY, *DEEP), image.mode in DEEP)
    except Exception as error:  # a stranger's bytes: Pillow has many words for what is wrong with them
        raise broken(path, error) from None


def opened(path: Path) -> Image.Image:
    """The picture, decoded."""
    if path.suffix.lower() == ".dcm":
        return Image.fromarray(read_dicom(path))
    try:
        with Image.open(path) as image:
            image.load()
            return image.copy()
    except Exception as error:
        raise broken(path, error) from None


def broken(path: Path, error: Exception) -> HoldfastError:
    return HoldfastError(f"{path} cannot be read as a picture ({plain(str(error), 100)}); mend it or take it away.")
