"""What a moderator may ask a site: only what follows from the experiment that the site knows, and each thing once.

The site keeps a book of all letters, `book.jsonl` beside its memory of the experiment: what was asked, and the code of
the refusal where there was one. The very same question (a lost reply, a moderator that was killed) may come again: what
it draws out is known already, so it is answered and not counted twice. In place of it another one of the same round is
refused, but for trainings, of which there may be `max_rounds` in all.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.client import Client
from holdfast.core.failures import Refusal
from holdfast.core.files import append_line, make_folder, read_lines
from holdfast.core.types import Message, Tensors
from holdfast.privacy.dp_sgd import hash_of
from holdfast.round import Method
from holdfast.runs.experiment import Experiment
from holdfast.trust.measures import held_out, tested_in

BOOK = "book.jsonl"
OLD_BOOK = "trainings.jsonl"  # of earlier versions, which counted trainings only
WORD = 40  # characters of a stranger's word that are written down
GROUPS = {  # what the tensors of a question may be
    "train": {"model", "buffers", "server", "memory"},
    "digest": set(),
    "evaluate": {"model", "buffers"},
    "test": {"model", "buffers", "delta", "changed", "units", "order"},
}


class Book:
    """All that a site was asked for one experiment, by its own count."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def refuse(self, job: str, round: int, client: int, code: str) -> None:
        """Enter a letter that is refused."""
        self._write({"job": job[:WORD], "round": round, "client": client, "refused": code})

    def admit(self, message: Message, max_rounds: int | None) -> None:
        """Enter one more job before it is done, or refuse it: the moderator's own count is not taken for it."""
        asked = hash_of(message)
        lines = [*read_lines(self._folder / OLD_BOOK), *read_lines(self._folder / BOOK)]
        done = [
            line for line in lines if not {"refused", "table"} & line.keys() and line.get("job", "train") == message.job
        ]
        if any(line.get("asked") == asked for line in done):
            return
        if message.job == "train" and max_rounds is not None and len(done) >= max_rounds:
            raise Refusal("rounds", f"policy: all {max_rounds} trainings for this experiment are used.")
        if message.job != "train" and any(line.get("round") == message.round for line in done):
            raise Refusal("twice", f"round {message.round + 1} has had its {message.job!r}, with another question.")
        self._write({"job": message.job, "round": message.round, "client": message.client, "asked": asked})

    def holds_other(self, table: str) -> bool:
        """Enter the SHA-256 of the site's table where it is new; whether an earlier one was another."""
        seen = [line["table"] for line in read_lines(self._folder / BOOK) if "table" in line]
        if not seen or seen[-1] != table:
            self._write({"table": table})
        return bool(seen) and seen[0] != table

    def _write(self, line: dict[str, object]) -> None:
        make_folder(self._folder)
        append_line(self._folder / BOOK, line)


def check_question(message: Message, experiment: Experiment, method: Method) -> None:
    """Refuse a question that the experiment does not have."""
    job, round = message.job, message.round
    if job not in GROUPS or not 0 <= round < experiment.rounds:
        raise Refusal("job", f"there is no job {job[:WORD]!r} in round {round + 1} of {experiment.rounds}.")
    due = (round + 1) % experiment.evaluate_every == 0 or round + 1 == experiment.rounds
    other = job == ("train" if method.algorithm.one_message else "digest")
    if other or (job == "evaluate" and not due) or (job == "test" and method.trust.testing(round) is None):
        raise Refusal("job", f"the experiment has no {job!r} in round {round + 1}.")
    groups = {name.partition("/")[0] for name in message.tensors}
    if not groups <= GROUPS[job]:
        raise Refusal("question", f"a {job!r} comes with the tensors {sorted(groups - GROUPS[job])[0][:WORD]!r}.")
    if job == "train":
        check_training(message, method)
    elif message.scalars and not recalls_home(message, method):
        raise Refusal("question", f"a {job!r} says {sorted(message.scalars)[0][:WORD]!r}, which the site decides.")
    if job == "test":
        check_tested(message, experiment.clients)


def check_training(message: Message, method: Method) -> None:
    """Refuse to train in another way than the experiment says."""
    said = message.scalars
    known = said.keys() == {"accepted", "lr", "digest"} and type(said["accepted"]) is int
    if not known or type(said["digest"]) is not bool or not -1 <= said["accepted"] < message.round:
        raise Refusal("question", "a 'train' says more, less or something else than `accepted`, `lr` and `digest`.")
    if said["lr"] != method.learning_in(message.round).lr:
        raise Refusal("question", "a 'train' names another learning rate than the experiment.")


def recalls_home(message: Message, method: Method) -> bool:
    """Whether an 'evaluate' says which version of what it keeps at home the site is to test with, and no more."""
    said = message.scalars
    known = said.keys() == {"accepted"} and type(said["accepted"]) is int and method.keeps_home
    return known and message.job == "evaluate" and -1 <= said["accepted"] <= message.round


def check_tested(message: Message, clients: int) -> None:
    """Refuse more models than there are members, and directions that are no unit vectors: a cosine must be one."""
    tensors = message.tensors
    try:
        order = tested_in(tensors, own=-1)
    except (ValueError, IndexError):
        raise Refusal("question", "a 'test' names clients that are no numbers.") from None
    if len(set(order)) != len(order) or not all(0 <= client < clients for client in order):
        raise Refusal("question", f"a 'test' names clients that are not {clients} members, each once.")
    stacks = {name: tensor for name, tensor in tensors.items() if name.startswith("units/")}
    if stacks and longest_row(stacks, len(order)) > 1.001:
        raise Refusal("question", "a 'test' has directions that are longer than 1.")


def longest_row(stacks: Tensors, rows: int) -> float:
    """The length of the longest of the vectors that are stacked name by name."""
    if any(tensor.dim() == 0 or len(tensor) != rows for tensor in stacks.values()):
        raise Refusal("question", "a 'test' has more or fewer directions than clients.")
    squares = [tensor.double().flatten(1).square().sum(1) for tensor in stacks.values()]
    longest = sum(squares[1:], squares[0]).sqrt().max() if rows else 0.0
    return float(longest)


def check_records(client: Client, message: Message, least: int) -> None:
    """Refuse a job that would answer for so few records that the answer speaks of single ones."""
    samples = (
        len(client.train) if message.job in ("train", "digest") else len(held_out(client.validation, client.train))
    )
    most = client.trust.testing(message.round) if message.job == "test" else None
    used = samples if most is None else min(samples, most.most)
    if used < least:
        raise Refusal("few", f"{message.job!r} uses {used} records, fewer than min_records = {least} of the policy.")
