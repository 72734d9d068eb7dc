"""A member that withdraws: what a run's folder keeps of it is deleted, and `forgotten.jsonl` says what was done.

Its digest goes from every file of the run: digests/, what the client itself keeps in clients/ (where it lives on this
machine; its ledger stays, as what was released was released), and checkpoints, which are written anew without what they
hold of the client alone. What the model has learnt from it does not go by deleting files: see play.forget.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from holdfast.core.files import append_line, read_lines
from holdfast.core.types import WITHDREW, Absent, Around, Federation, Message, Reply, one_by_one, reached
from holdfast.privacy.gate import LEDGER, POLICY
from holdfast.record import Record
from holdfast.runs.store import Run

LOG = "forgotten.jsonl"
TRAINED_AGAIN = "trained again without it"
REPLAYED = "played again without it, from round {}"
STILL_KNOWS = "still knows"
NEVER_KNEW = "never knew it"
PAGES = ("report.html", "privacy.html")  # made of the run's files; they can be made again
TITLE = b"What leaves the house"  # of a privacy page, which may show a member's records and have any name


@dataclass(frozen=True)
class Forgotten:
    """What was done for one member that withdrew."""

    client: int
    name: str
    when: str
    deleted: tuple[str, ...]  # files
    model: str  # what became of what the model knew

    @property
    def sentence(self) -> str:
        """What was done, for a report."""
        knows = "still knows what it learnt from it" if self.model == STILL_KNOWS else self.model
        return f"{self.name} withdrew: {len(self.deleted)} files of it were deleted; the model {knows}."


def forgotten_in(folder: Path | None) -> list[Forgotten]:
    """All that were forgotten in a run, the newest word on each."""
    lines = [] if folder is None else read_lines(folder / LOG)
    found = {}
    for line in lines:
        client, deleted = line.get("client"), line.get("deleted")
        if type(client) is int and isinstance(deleted, list):
            name, when, model = (str(line.get(word, "")) for word in ("name", "when", "model"))
            found[client] = Forgotten(client, name, when, tuple(map(str, deleted)), model)
    return list(found.values())


def write_forgotten(folder: Path, client: int, name: str, deleted: Sequence[str], model: str) -> Forgotten:
    done = Forgotten(client, name, datetime.now(UTC).isoformat(timespec="seconds"), tuple(deleted), model)
    append_line(folder / LOG, asdict(done))
    return done


def delete_files(run: Run, client: int) -> list[str]:
    """Delete what the run's folder keeps of a client alone; the names of what was deleted or written anew."""
    folder, gone = run.folder, run.rewrite(lambda state: state.without([client]))
    own = [folder / name / f"{client:04d}" for name in ("clients", "late")]
    for path in (path for home in own if home.is_dir() for path in sorted(home.iterdir())):
        if not path.name.startswith((LEDGER, POLICY)):
            gone += [f.relative_to(folder).as_posix() for f in sorted(path.rglob("*")) if f.is_file()]
            gone += [path.relative_to(folder).as_posix()] if path.is_file() else []
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    aside = [*(folder / "checkpoints").glob("*.damaged"), *pages_in(folder)]
    for path in [*sorted((folder / "digests").glob(f"{client:04d}-*")), *aside]:
        if path.is_file():
            gone.append(path.relative_to(folder).as_posix())
            path.unlink()
    return gone


def pages_in(folder: Path) -> list[Path]:
    """Reports and privacy pages beside a run's files, with their signatures."""
    named = [folder / name for name in PAGES]
    others = [path for end in ("html", "pdf") for path in folder.glob(f"*.{end}") if TITLE in path.read_bytes()]
    pages = sorted({*named, *others})
    return [*pages, *(page.with_name(page.name + ".sig") for page in pages)]


def first_heard(records: Sequence[Record], client: int) -> int | None:
    """The first round, counted from 1, in which a client answered, so that the model may have learnt from it."""
    return min((r.round for r in records if r.was_asked(client) and client not in r.absent), default=None)


class Without(Around):
    """A federation in which some have withdrawn: nobody asks them."""

    def __init__(self, federation: Federation, withdrawn: Sequence[int]) -> None:
        super().__init__(federation)
        self._withdrawn = frozenset(withdrawn)

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        return list(reached(messages, self._gone(messages), WITHDREW, self._federation.ask))

    def each(self, messages: Sequence[Message]) -> Iterator[Reply | Absent]:
        return reached(messages, self._gone(messages), WITHDREW, partial(one_by_one, self._federation))

    def _gone(self, messages: Sequence[Message]) -> list[bool]:
        return [message.client in self._withdrawn for message in messages]
