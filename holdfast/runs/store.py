"""A run is a folder that survives anything: kill the process at any moment, resume, and the bits are the same.

experiment.json       what was asked for
schema.json           which schema its tables follow (a task of tables only)
environment.jsonl     versions and machine, one line for each start or resume
rounds.jsonl          one line for each round
checkpoints/          the state between two rounds, the last few
digests/, clients/    what stands in for clients; what clients remember (on one machine they live here)
hostile/              what hostile clients that look back remember together (an experiment with attackers only)
model.safetensors     the final model
manifest.jsonl        SHA-256 of every file but the .jsonl ones
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import safetensors.torch

from holdfast.core.errors import HoldfastError, plain
from holdfast.core.files import (
    Damaged,
    Store,
    append_line,
    drop_unfinished,
    load_tensors,
    make_folder,
    pieces_of,
    read_lines,
    write_file,
)
from holdfast.core.tables import parse_table
from holdfast.core.types import State, Tensors
from holdfast.data.tables.schema import Schema
from holdfast.record import Record
from holdfast.runs.environment import environment
from holdfast.runs.experiment import SCHEMA, Experiment, from_table, of_today
from holdfast.runs.records import checkpoint_of, record_from_json, record_to_json, state_from

CURVES = "curves.json"  # what the final model looks like on the test set
TABLES = "schema.json"  # of a task of tables: its schema's name, version and fingerprint
EXCHANGES = "exchanges.jsonl"  # of a run over Flower: what was asked and answered, and how long it took
KEEP = 2  # checkpoints: the last one, and the one before it in case the last is damaged


@dataclass
class Run:
    """The folder of one run, held by one process at a time."""

    folder: Path
    experiment: Experiment
    schema: int = SCHEMA  # of what its files say; a run keeps the one it began with
    notes: list[str] = field(default_factory=list)  # what was found damaged, and what was done about it
    _lock: IO[str] | None = None
    _digests: dict[int, tuple[Tensors, str]] = field(default_factory=dict)  # as saved, and under which name

    @classmethod
    def create(cls, folder: Path, experiment: Experiment) -> Run:
        refuse_used(folder)
        make_folder(folder)
        run = cls(folder, experiment)
        run._hold()
        try:
            refuse_used(folder)  # again: another process may have been quicker
            text = json.dumps({"schema": SCHEMA, **experiment.as_json()}, indent=1)
            run._store.write("experiment.json", text.encode())
            run._note_environment()
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, folder: Path | str) -> Run:
        """The run in a folder, to be read."""
        folder = Path(folder)
        refuse_file(folder)
        if not (folder / "experiment.json").exists():
            raise HoldfastError(f"{folder} is not a run: it has no experiment.json.")
        table = parse_table(Store(folder).read("experiment.json"), str(folder / "experiment.json"))
        where = str(folder / "experiment.json")
        today, schema = of_today(table, where)
        return cls(folder, from_table(today, where), schema)

    @classmethod
    def resume(cls, folder: Path | str) -> Run:
        """The run in a folder, to go on with."""
        run = cls.open(folder)
        run._hold()
        try:
            run._note_environment()
        except BaseException:
            run.close()
            raise
        return run

    def keep_schema(self, schema: Schema | None) -> None:
        """Write down by which schema the run's tables are read."""
        if schema is not None:
            said = {"name": schema.name, "version": schema.version, "fingerprint": schema.fingerprint}
            self._store.write(TABLES, json.dumps(said, indent=1).encode())

    def check_schema(self, schema: Schema | None) -> None:
        """Refuse to go on by another schema than the one that the run was begun with, as far as it kept it."""
        if schema is None or not (self.folder / TABLES).exists():
            return
        kept = parse_table(self._store.read(TABLES), str(self.folder / TABLES))
        if kept.get("fingerprint") != schema.fingerprint:
            began = plain(f"{kept.get('name')}, version {kept.get('version')}", 120)
            raise HoldfastError(
                f"{self.folder} was begun with {began}, and {schema.where} is {schema.name}, version {schema.version}: "
                "they do not say the same; put the schema back, or start a new run."
            )

    @property
    def finished(self) -> bool:
        return (self.folder / "model.safetensors").exists()

    def save(self, state: State, record: Record, last: bool = False) -> None:
        """Write a round down, then the state after it: a kill between the two repeats the round."""
        self.amend(record)
        if state.round % self.experiment.checkpoint_every == 0 or last or state.round == self.experiment.rounds:
            self._checkpoint(state)

    def amend(self, record: Record) -> None:
        """Write a round's record down again, which then counts in place of the one before."""
        append_line(self.folder / "rounds.jsonl", record_to_json(record, self.schema))

    def last_state(self) -> State | None:
        """The state of the newest checkpoint that is whole; a damaged file is set aside and named."""
        state, damages = None, 0
        for path in sorted((self.folder / "checkpoints").glob("*.safetensors"), reverse=True):
            try:
                state = self._read_state(f"checkpoints/{path.name}")
                break
            except Damaged as damage:
                damages += 1
                self.notes.append(str(damage))
        if damages:
            self.notes.append(
                f"The run goes on from the checkpoint of round {state.round}, the newest that is whole."
                if state
                else "No checkpoint is whole, so the run starts afresh."
            )
        self._forget_after(state.round if state else 0)
        return state

    def states(self) -> list[State]:
        """The states of all checkpoints that are whole, the oldest first."""
        found = []
        for path in sorted((self.folder / "checkpoints").glob("*.safetensors")):
            with suppress(Damaged):
                found.append(self._read_state(f"checkpoints/{path.name}"))
        return found

    def rewrite(self, change: Callable[[State], State]) -> list[str]:
        """Write each checkpoint anew, changed; the names of those that were. One that is damaged is deleted."""
        names = []
        for path in sorted((self.folder / "checkpoints").glob("*.safetensors")):
            name = f"checkpoints/{path.name}"
            with suppress(Damaged):
                state = change(self._read_state(name))
                files = {client: self._digests[client][1] for client in state.digests}
                self._store.write(name, checkpoint_of(state, files))
            names.append(name)
        for path in (self.folder / "checkpoints").glob("*.damaged"):
            path.unlink()
        return names

    def go_back(self, round: int) -> None:
        """Drop what was played after a round: its records, checkpoints and the final model."""
        for path in (self.folder / "checkpoints").glob("*.safetensors"):
            if int(path.stem) > round:
                path.unlink()
        for name in ("model.safetensors", CURVES):
            (self.folder / name).unlink(missing_ok=True)
        self._forget_after(round)

    def records(self) -> list[Record]:
        """The rounds so far, each once."""
        lines = self._round_lines()
        return [record for _, (record, _) in sorted(lines.items())]

    def drop_damaged_model(self) -> None:
        """Set the final model aside if it is damaged: the run then counts as unfinished, and writes it again."""
        if self.finished:
            try:
                self._read("model.safetensors")
            except Damaged as damage:
                self.notes.append(str(damage))

    def finish(self, model: Tensors, buffers: Tensors, about: Mapping[str, str], curves: bytes = b"{}") -> None:
        """Write the final model, weights and buffers under the names of its state_dict, and what it looks like."""
        self._store.write(CURVES, curves)
        self._store.write("model.safetensors", pieces_of({**model, **buffers}, about))

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def _store(self) -> Store:
        return Store(self.folder)

    def _hold(self) -> None:
        try:
            lock = open(self.folder / ".lock", "w")  # noqa: SIM115 (held until close)
        except OSError as error:
            raise HoldfastError(f"Cannot write in {self.folder}: {error.strerror}.") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise HoldfastError(f"Another process is at work on {self.folder}; wait for it or end it first.") from None
        self._lock = lock
        drop_unfinished(self.folder)

    def _note_environment(self) -> None:
        here, before = environment(), read_lines(self.folder / "environment.jsonl")
        if before and (changed := {key for key in here if here[key] != before[-1].get(key)} - {"pid"}):
            self.notes.append(
                f"Since the last start of this run {', '.join(sorted(changed))} changed: bits may differ."
            )
        append_line(self.folder / "environment.jsonl", here)

    def _checkpoint(self, state: State) -> None:
        digests = {client: self._save_digest(client, state) for client in state.digests}
        self._store.write(f"checkpoints/{state.round:06d}.safetensors", checkpoint_of(state, digests))
        for old in sorted((self.folder / "checkpoints").glob("*.safetensors"))[:-KEEP]:
            old.unlink()
        for path in (self.folder / "digests").glob("*"):
            if not path.name.startswith(tuple(f"{client:04d}-" for client in state.digests)):
                path.unlink()  # its client no longer lets a digest stand in for it

    def _save_digest(self, client: int, state: State) -> str:
        """A digest is written once, when it is new."""
        saved = self._digests.get(client)
        if saved is None or saved[0] is not state.digests[client]:
            name = f"digests/{client:04d}-{state.round:06d}.safetensors"
            self._store.write(name, safetensors.torch.save(state.digests[client]))
            saved = self._digests[client] = (state.digests[client], name)
        return saved[1]

    def _read(self, name: str) -> bytes:
        try:
            return self._store.read(name)
        except FileNotFoundError:
            raise Damaged(f"{self.folder / name} is missing.") from None
        except Damaged as damage:
            raise Damaged(f"{damage} It was set aside as {self._store.set_aside(name).name}.") from None

    def _read_state(self, name: str) -> State:
        data = self._read(name)
        try:
            state, files = state_from(data, self.experiment.clients)
        except Damaged as damage:
            aside = self._store.set_aside(name).name
            raise Damaged(f"{self.folder / name} is damaged: {damage} It was set aside as {aside}.") from None
        digests = {}
        for client, file in files.items():
            try:
                digests[client] = load_tensors(self._read(file), self.folder / file)
            except Damaged as damage:
                whose = self.experiment.name_of(client)
                self.notes.append(f"{damage} The run goes on without it until {whose} has sent it again.")
                continue
            self._digests[client] = (digests[client], file)
        return dataclasses.replace(state, digests=digests)

    def _round_lines(self) -> dict[int, tuple[Record, dict[str, object]]]:
        """The newest record of each round and its line; lines that make no record are left out."""
        lines = {}
        for line in read_lines(self.folder / "rounds.jsonl"):
            with suppress(HoldfastError):
                record = record_from_json(line, self.experiment.clients, self.schema)
                lines[record.round] = (record, line)
        return lines

    def _forget_after(self, round: int) -> None:
        """Drop the records of later rounds, whose state was lost: these rounds will be played again."""
        kept = {r: line for r, (_, line) in sorted(self._round_lines().items()) if r <= round}
        if round >= self.experiment.rounds and not kept:
            raise HoldfastError(
                f"{self.folder}: rounds.jsonl says nothing of any round, and all were played; run it anew, or take its "
                "model with `holdfast export`."
            )
        if lost := [str(r) for r in range(1, round + 1) if r not in kept]:
            self.notes.append(f"rounds.jsonl is damaged: what it said of round {', '.join(lost)} is lost.")
        path = self.folder / "rounds.jsonl"
        data = "".join(json.dumps(line) + "\n" for line in kept.values()).encode()
        if path.exists() and path.read_bytes() != data:
            write_file(path, data)


def refuse_file(path: Path) -> None:
    """Refuse a file where the folder of a run is meant; of an experiment, say how it becomes one."""
    if path.is_file():
        what = "an experiment" if path.suffix == ".toml" else "a file"
        raise HoldfastError(f"{path} is {what}, not a run; `holdfast run FILE.toml --out DIR` makes one.")


def refuse_used(folder: Path) -> None:
    """A run starts in a folder of its own, where only clients' policies and ledgers may lie already.

    What a start that was killed at once left there does not count.
    """
    if folder.exists() and not folder.is_dir():
        raise HoldfastError(f"{folder} is a file; --out names a new folder.")
    left = re.compile(
        r"\.lock|manifest\.jsonl|\.experiment\.json\.\d+\.tmp"
        r"|clients(/\d{4})?|(clients/\d{4}/)?privacy(\.toml|-ledger\.json(\.count|\.lock)?)"
    )
    if folder.exists() and any(not left.fullmatch(path.relative_to(folder).as_posix()) for path in folder.rglob("*")):
        raise HoldfastError(
            f"{folder} is not empty; `holdfast resume {folder}` goes on with a run, --out names a new one."
        )
