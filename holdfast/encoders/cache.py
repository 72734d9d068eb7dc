"""Features of costly encoders on this machine's disk: no sample is encoded twice, whoever holds it in which run.

A sample is known by the hash of its own values, an encoder by its fingerprint. What one call had to compute becomes one
file of keys and features. The environment's HOLDFAST_CACHE names the folder, or says "off"; features of records are
as confidential as the records, so only the user can read the folder.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.files import cache_folder, save_tensors, write_file

log = logging.getLogger("holdfast")
KEY = 16  # bytes of a sample's hash
EVERY = 10.0  # seconds between two words on how far it is
MOST = 4096  # samples in a file: what is lost if the machine goes down meanwhile


@dataclass(frozen=True)
class Kept:
    """A costly encoder with what it has computed before.

    Every batch is filled up to the same size, since kernels for other sizes differ in the last bits: so features do not
    depend on which samples are encoded together, nor by how many threads.
    """

    name: str
    fingerprint: str
    compute: Callable[[Tensor], Tensor]
    batch: int
    threads: int

    def encode(self, samples: Tensor) -> Tensor:
        """Features of the samples: those on disk are read, the others computed and written."""
        folder = cache_folder(f"features/{self.fingerprint[:32]}")
        keys = keys_of(samples)
        known = read_known(folder) if folder else {}
        found = {key: known[key] for key in keys if key in known}
        rows = {key: row for row, key in enumerate(keys) if key not in found}
        for new, features in self.computed(samples, rows):
            found.update(zip(new, features, strict=True))
            if folder is not None:
                keep(folder, new, features)
        return torch.stack([found[key] for key in keys])

    def encode_ahead(self, samples: Tensor, rows: Tensor) -> None:
        """Compute and keep what is not on disk yet; without a disk, nothing is done."""
        folder = cache_folder(f"features/{self.fingerprint[:32]}")
        if folder is None:
            return
        known = read_known(folder)
        keys = [key for some in rows.split(MOST) for key in keys_of(samples[some])]
        lacking = {key: row for key, row in zip(keys, rows.tolist(), strict=True) if key not in known}
        for new, features in self.computed(samples, lacking):
            keep(folder, new, features)

    def computed(self, samples: Tensor, rows: dict[bytes, int]) -> Iterator[tuple[list[bytes], Tensor]]:
        """The features of these rows, some thousand at a time, with a word on how far it is where it takes long."""
        start = said = time.monotonic()
        items = list(rows.items())
        with ThreadPoolExecutor(max(1, self.threads), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for first in range(0, len(items), MOST):
                part = items[first : first + MOST]
                batches = [[row for _, row in part[at : at + self.batch]] for at in range(0, len(part), self.batch)]
                done: list[Tensor] = []
                for features in pool.map(lambda index: self._batch(samples[index]), batches):
                    done.append(features)
                    if time.monotonic() - said > EVERY:
                        said, count = time.monotonic(), first + sum(map(len, done))
                        left = (said - start) / count * (len(items) - count)
                        said_of = (self.name, count, len(items), left)
                        log.warning("encoder %r: %d of %d samples encoded, about %.0f s left.", *said_of)
                yield [key for key, _ in part], torch.cat(done)

    def _batch(self, samples: Tensor) -> Tensor:
        return self.compute(filled_up(samples, self.batch))[: len(samples)]


def filled_up(samples: Tensor, count: int) -> Tensor:
    """Samples, and zeros behind them."""
    lacking = count - len(samples)
    return torch.cat([samples, samples.new_zeros(lacking, *samples.shape[1:])]) if lacking else samples


def keys_of(samples: Tensor) -> list[bytes]:
    """A hash of each sample's values, shape and type."""
    about = f"{samples.dtype}|{tuple(samples.shape[1:])}|".encode()
    return [
        hashlib.blake2b(about + sample.contiguous().view(-1).numpy().tobytes(), digest_size=KEY).digest()
        for sample in samples
    ]


def keep(folder: Path, keys: list[bytes], features: Tensor) -> None:
    """Write features down for the next time; a disk that refuses costs only time."""
    table = torch.from_numpy(np.frombuffer(b"".join(keys), dtype=np.uint8).copy()).view(-1, KEY)
    name = hashlib.blake2b(b"".join(keys), digest_size=KEY).hexdigest()
    try:
        write_file(folder / f"{name}.safetensors", save_tensors({"keys": table, "features": features}, {}))
    except (HoldfastError, OSError) as error:
        log.warning("The features could not be kept for the next run: %s", error)


def read_known(folder: Path) -> dict[bytes, Tensor]:
    """All features that are there, by key; a damaged file is as good as none."""
    known: dict[bytes, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        known.update(read_one(path))
    return known


@lru_cache(maxsize=4096)
def read_one(path: Path) -> dict[bytes, Tensor]:
    """The features of one file, by key; a file of this name always says the same."""
    try:
        with safe_open(path, framework="pt") as file:
            keys, features = file.get_tensor("keys"), file.get_tensor("features")
    except (SafetensorError, OSError):
        log.warning("%s is damaged; what it held is encoded again.", path)
        return {}
    table = keys.numpy().tobytes()
    if keys.dtype != torch.uint8 or len(table) != KEY * len(features) or not bool(features.isfinite().all()):
        log.warning("%s is damaged; what it held is encoded again.", path)
        return {}
    return {table[KEY * row : KEY * (row + 1)]: feature for row, feature in enumerate(features)}
