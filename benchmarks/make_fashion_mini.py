"""Build fashion-mini.npz: the first 500 train and 100 test images of each class of Fashion-MNIST, in file order.

python benchmarks/make_fashion_mini.py FOLDER_WITH_THE_OFFICIAL_IDX_FILES
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.data.sources.idx import read_idx

TARGET = Path(__file__).parent.parent / "holdfast" / "tasks" / "data" / "fashion-mini.npz"


def first_of_each_class(labels: NDArray[np.uint8], count: int) -> NDArray[np.int64]:
    """Positions of the first `count` samples of each of the ten classes, in file order."""
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:count] for c in range(10)]))


def main(folder: Path) -> None:
    arrays = {}
    for part, prefix, count in (("train", "train", 500), ("test", "t10k", 100)):
        images = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")
        labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")
        keep = first_of_each_class(labels, count)
        arrays |= {f"x_{part}": images[keep], f"y_{part}": labels[keep]}
    np.savez_compressed(TARGET, **arrays)
    print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
