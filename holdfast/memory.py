"""What a client keeps between rounds (SCAFFOLD's c_i, FedDyn's g_i), in versions named by round.

The moderator says which version counts: that of the last round in which it accepted the client's update. So a reply
that is lost, late or refused leaves no trace, and a run that resumes from an older checkpoint finds the older version.
"""

from __future__ import annotations

from pathlib import Path

import safetensors.torch

from holdfast.core import Tensors
from holdfast.errors import HoldfastError
from holdfast.files import Damaged, Store


class Memory:
    """Versions of one client's memory, on disk if there is a folder, else in this process."""

    def __init__(self, folder: Path | None = None, keep: int = 4) -> None:
        self._folder = folder
        self._keep = keep
        self._versions: dict[int, Tensors] = {}

    def read(self, round: int) -> Tensors:
        """The version written in this round; -1 is the empty memory before the first."""
        if round < 0:
            return {}
        if round in self._versions:
            return self._versions[round]
        name = f"{round:06d}.safetensors"
        if self._folder is None or not (self._folder / name).exists():
            raise HoldfastError(f"the memory of round {round} is gone")
        store = Store(self._folder)
        try:
            return safetensors.torch.load(store.read(name))
        except Damaged:
            raise HoldfastError(
                f"the memory of round {round} is damaged; set aside as {store.set_aside(name)}"
            ) from None

    def write(self, round: int, tensors: Tensors) -> None:
        """Keep a new version and forget the oldest; an empty memory takes no room."""
        if not tensors:
            return
        self._versions = {r: t for r, t in self._versions.items() if r < round}
        self._versions[round] = tensors
        for old in sorted(self._versions)[: -self._keep]:
            del self._versions[old]
        if self._folder is not None:
            Store(self._folder).write(f"{round:06d}.safetensors", safetensors.torch.save(tensors))
            versions = sorted(self._folder.glob("*.safetensors"))
            stale = [path for path in versions if int(path.stem) > round]  # of a future that a resume has undone
            for path in [*versions[: max(0, len(versions) - len(stale) - self._keep)], *stale]:
                path.unlink(missing_ok=True)
