"""Pictures in DICOM files, for those who installed the extra: ``pip install holdfast[dicom]``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError, plain


def size_of_dicom(path: Path) -> tuple[int, int, bool, bool]:
    """Width, height, whether it is grey, and whether it has more than 8 bits."""
    head = _read(path, stop_before_pixels=True)
    frames = int(head.get("NumberOfFrames", 1) or 1)
    if "Rows" not in head or frames != 1:
        raise HoldfastError(
            f"{path} holds {frames if 'Rows' in head else 'no'} pictures; one is expected in each file."
        )
    grey = int(head.get("SamplesPerPixel", 1)) == 1
    return int(head.Columns), int(head.Rows), grey, grey


def read_dicom(path: Path) -> NDArray[Any]:
    """Grey: float32 in [0, 1] over the range of the stored bits, black is 0; colour: bytes (H, W, 3)."""
    file = _read(path)
    try:
        pixels = file.pixel_array
    except Exception as error:  # compressed in a way that needs more libraries, or damaged
        raise HoldfastError(f"{path}: its pixels cannot be read ({plain(str(error), 100)}).") from None
    if pixels.ndim == 3:
        if pixels.dtype != np.uint8 or str(file.PhotometricInterpretation) != "RGB":
            raise HoldfastError(f"{path}: colours are read as 8 bit RGB only; convert it.")
        return np.asarray(pixels)
    bits = int(file.BitsStored)
    least = -(2 ** (bits - 1)) if int(file.PixelRepresentation) else 0
    values = ((pixels.astype(np.float32) - least) / (2**bits - 1)).clip(0, 1)
    inverted = str(file.PhotometricInterpretation) == "MONOCHROME1"
    return np.asarray(1 - values if inverted else values)


def _read(path: Path, **options: Any) -> Any:
    try:
        import pydicom
    except ImportError:
        raise HoldfastError(f"{path} is a DICOM file; pip install holdfast[dicom] to read it.") from None
    try:
        return pydicom.dcmread(path, **options)
    except Exception as error:  # a stranger's bytes
        raise HoldfastError(f"{path} cannot be read as DICOM ({plain(str(error), 100)}).") from None
