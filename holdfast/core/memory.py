"""What a client keeps between rounds (SCAFFOLD's c_i, FedDyn's g_i), in versions named by round.

The moderator says which version is in force: that of the last round in which it accepted the client's update. So a
reply that is lost or refused leaves no trace, and a run that resumes from an older checkpoint finds the older version.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.core.errors import HoldfastError
from holdfast.core.files import MANIFEST, Damaged, Store, load_tensors, make_folder, save_tensors
from holdfast.core.types import Tensors


class Memory:
    """Versions of one client's memory, on disk if there is a folder, else in this process.

    On disk the last `keep` versions stay that were in force: enough to go back to the oldest checkpoint.

    >>> import torch
    >>> memory = Memory()
    >>> memory.read(-1), memory.write(0, {"c": torch.tensor(1.0)})
    ({}, None)
    >>> memory.read(0), memory.write(1, {"c": torch.tensor(2.0)})  # suppose that round 1 was refused:
    ({'c': tensor(1.)}, None)
    >>> memory.read(0)
    {'c': tensor(1.)}
    """

    def __init__(self, folder: Path | None = None, keep: int = 4) -> None:
        self._folder = folder
        self._keep = keep
        self._versions: dict[int, Tensors] = {}
        self._in_force = -1

    @property
    def folder(self) -> Path | None:
        """Where the client keeps its things; None: it has no disk."""
        return self._folder

    def read(self, round: int) -> Tensors:
        """The version written in this round, in force from now on; -1 is the empty memory before the first."""
        self._in_force = round
        if round < 0:
            return {}
        if round in self._versions:
            return self._versions[round]
        if self._folder is None or not self._folder.exists():
            raise HoldfastError(f"the memory of round {round + 1} is gone")
        if not (self._folder / MANIFEST).exists():
            return {}  # nothing but empty memories was ever written here
        store, name = Store(self._folder), f"{round:06d}.safetensors"
        try:
            return load_tensors(store.read(name))
        except FileNotFoundError:
            raise HoldfastError(f"the memory of round {round + 1} is gone") from None
        except Damaged:
            raise HoldfastError(
                f"the memory of round {round + 1} is damaged; set aside as {store.set_aside(name)}"
            ) from None

    def newest_before(self, round: int) -> int:
        """The last round before this one in which a version was written that is still there; -1: none."""
        on_disk = self._folder.glob("*.safetensors") if self._folder is not None else ()
        return max((r for r in (*self._versions, *(int(path.stem) for path in on_disk)) if r < round), default=-1)

    def write(self, round: int, tensors: Tensors) -> None:
        """Keep a new version beside the one in force; an empty memory takes no room."""
        living = (self._in_force, round)
        self._versions = {r: t for r, t in {**self._versions, round: tensors}.items() if r in living}
        if self._folder is None:
            return
        if not tensors:
            make_folder(self._folder)
            return
        Store(self._folder).write(f"{round:06d}.safetensors", save_tensors(tensors, {}))
        versions = sorted(self._folder.glob("*.safetensors"))
        # Newer than the one in force: its update did not count, or a resume has undone its round.
        dead = [path for path in versions if int(path.stem) > self._in_force and int(path.stem) != round]
        counted = [path for path in versions if int(path.stem) <= self._in_force]
        for path in [*dead, *counted[: max(0, len(counted) + 1 - self._keep)]]:
            path.unlink(missing_ok=True)
