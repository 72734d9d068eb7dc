"""What a moderator may ask a site: only what follows from the experiment that the site knows, and no more often.

The site keeps a book of all letters, `book.jsonl` beside its memory of the experiment: what was asked, and the code of
the refusal where there was one. The very same question (a lost reply, a moderator that was killed) may come again: what
it draws out is known already, so it is answered and not counted twice. Another one of the same round is refused, but
for trainings, of which there may be `max_rounds` in all, for a search for who harms, which goes on up to four times
(its last question once more, where something is taken out of the model), and for jobs of several steps (secure sums)
that know themselves what is out of turn. Rounds count from 1.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.client import SECURE_TRAIN, TRAIN, Client
from holdfast.context import Context
from holdfast.core.failures import Refusal
from holdfast.core.files import append_line, make_folder, read_lines
from holdfast.core.types import Message
from holdfast.jobs import JOBS, job_named
from holdfast.privacy.dp_sgd import hash_of

BOOK = "book.jsonl"
OLD_BOOK = "trainings.jsonl"  # of earlier versions, which counted trainings only
WORD = 40  # characters of a stranger's word that are written down


class Book:
    """All that a site was asked for one experiment, by its own count."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def refuse(self, job: str, round: int, client: int, code: str) -> None:
        """Enter a letter that is refused."""
        self._write({"job": job[:WORD], "round": round + 1, "client": client, "refused": code})

    def base_in(self, round: int) -> str | None:
        """The SHA-256 of the model that it was last sent to train on in a round, where it keeps these."""
        lines = [line for line in read_lines(self._folder / BOOK) if line.get("job") == TRAIN.name and "base" in line]
        return next((str(line["base"]) for line in reversed(lines) if line.get("round") == round + 1), None)

    def admit(self, message: Message, max_rounds: int | None, base: str | None = None) -> None:
        """Enter one more job before it is done, or refuse it: the moderator's own count is not taken for it."""
        asked = hash_of(message)
        lines = [*read_lines(self._folder / OLD_BOOK), *read_lines(self._folder / BOOK)]
        done = [
            line
            for line in lines
            if not {"refused", "table"} & line.keys() and line.get("job", TRAIN.name) == message.job
        ]
        if any(line.get("asked") == asked for line in done):
            return
        trains = message.job in (TRAIN.name, SECURE_TRAIN.name)
        if trains and max_rounds is not None and len(done) >= max_rounds:
            raise Refusal("rounds", f"policy: all {max_rounds} trainings for this experiment are used.")
        job, before = job_named(message.job), sum(line.get("round") == message.round + 1 for line in done)
        if not (message.job == TRAIN.name or job.steps) and before >= job.times:
            raise Refusal("twice", f"round {message.round + 1} has had its {message.job!r}, with another question.")
        line = {"job": message.job, "round": message.round + 1, "client": message.client, "asked": asked}
        self._write(line if base is None else {**line, "base": base})

    def holds_other(self, table: str) -> bool:
        """Enter the SHA-256 of the site's table where it is new; whether an earlier one was another."""
        seen = [line["table"] for line in read_lines(self._folder / BOOK) if "table" in line]
        if not seen or seen[-1] != table:
            self._write({"table": table})
        return bool(seen) and seen[0] != table

    def _write(self, line: dict[str, object]) -> None:
        make_folder(self._folder)
        append_line(self._folder / BOOK, line)


def check_question(message: Message, client: Client, context: Context) -> None:
    """Refuse a question that the experiment does not have."""
    round = message.round
    if message.job not in JOBS or not 0 <= round < context.rounds:
        raise Refusal("job", f"there is no job {message.job[:WORD]!r} in round {round + 1} of {context.rounds}.")
    job = JOBS[message.job]
    if not job.due(round, client, context):
        raise Refusal("job", f"the experiment has no {job.name!r} in round {round + 1}.")
    job.check(job.asked(message), round, client, context)


def check_records(client: Client, message: Message, least: int) -> None:
    """Refuse a job that would answer for so few records that the answer speaks of single ones."""
    used = job_named(message.job).records(client, message.round)
    if used < least:
        bound = f"fewer than min_records = {least} of the policy; with min_records = {used} in it this site answers"
        raise Refusal("few", f"{message.job!r} uses {used} records, {bound}.")
