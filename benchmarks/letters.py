"""The letters of ocr-letters, 16 x 8, with each column drawn twice: FedDig's printed encoder needs 16 x 16 at least.

    python benchmarks/letters.py DATA FOLDER [EVERY]

writes FOLDER/ocr-letters.npz, which `--set task=ocr-letters --data FOLDER` then reads: of each EVERY words one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def enlarge(data: Path, folder: Path, every: int) -> None:
    with np.load(data / "ocr-letters.npz", allow_pickle=False) as file:
        kept = file["word"] % every == 0
        letters = {key: file[key][kept] for key in file.files}
    letters["x"] = letters["x"].repeat(2, axis=2)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "ocr-letters.npz", **letters)


if __name__ == "__main__":
    enlarge(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1)
