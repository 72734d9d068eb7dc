"""What a client tells others of a failure: a code and its fixed sentence, never a word of the error itself.

The text of an error may quote the data ("could not convert string to float: 'Anna Muster 1961'"). So it stays where the
data are, in a terminal and a log; what travels is a code, and whoever receives it looks its sentence up here.
"""

from __future__ import annotations

import logging
import traceback
from contextlib import suppress
from pathlib import Path

from holdfast.core.errors import NOT_DONE, HoldfastError
from holdfast.core.types import Absent, Message

log = logging.getLogger("holdfast")
LOG = "failures.log"  # in a run's folder: the full errors of its clients
SENTENCES = {
    "internal": "an error in its code or data, which its own log describes",
    "data": "its data or its copy of the experiment cannot be loaded; its own log says why",
    "memory": "it ran out of memory",
    "disk": "it cannot write to its disk",
    "message": "it could not read the message",
    "experiment": "it has another experiment than the moderator; install the same app on both",
    "stranger": "its policy does not allow this experiment; its `experiments` does not name the fingerprint",
    "policy": "its policy file cannot be used, so it does nothing",
    "identity": "it was asked as another client than the one it is in this experiment",
    "job": "this experiment has no such job, or not in this round",
    "question": "what it was asked does not follow from the experiment",
    "rounds": "its policy allows no more trainings for this experiment: max_rounds are used",
    "twice": "it was asked something else in this job of this round already",
    "closed": "its policy limits epsilon and does not name this job in `open`",
    "few": "it has fewer records for this than its policy lets an answer be about (min_records)",
    "unprotected": "its policy lets updates leave only with noise: ask for protect = 'dp-sgd'",
    "budget": "its privacy budget does not allow it; nothing was released",
    "delta": "delta promises too little: it must not exceed 1e-3, nor 1 / records",
    "mode": "its policy does not allow this mode; nothing was released",
    "mixing": "its policy asks for more records in each mixture; nothing was released",
    "ledger": "its privacy ledger cannot be read or written; nothing was released",
    "behind": "its privacy ledger is older than one that was seen before; nothing was released",
    "undeclared": "its answer held something that no channel declares, so nothing left",
    "approval": "it waits for approval by the people at its site",
    "paused": "its people have paused it",
    "withdrawn": "it has withdrawn from this experiment",
    "declined": "the people at its site refused this experiment",
    "unsigned": "it was asked to test an update that no member signed for this experiment, round and model",
    "sum": "a step of a secure sum was not what it can go along with: too few members, or out of turn",
    "sum-key": "in a secure sum it was shown a key that no member it knows of has or signed; or it has no keys itself",
    "overlap": "it has opened a secure sum of the same records before; the difference would be single members'",
    "withheld": "its policy lets nothing leave about why",
    "digest-kept": "it keeps its digest: its policy does not let one leave",
    "schema": "its schema of the table says something else than the experiment's; agree on one version",
    "table-changed": "its table is another one than when it first took part",
    "memory-lost": "its memory of earlier rounds is gone or damaged, so it starts with an empty one",
}
ABOUT_THE_QUESTION = (  # codes that follow from what was asked and from the policy, never from records
    *("message", "experiment", "stranger", "policy", "identity", "job", "question", "rounds", "twice", "closed"),
    *("unprotected", "budget", "delta", "mode", "unsigned", "approval", "declined", "withdrawn", "digest-kept"),
    *("behind", "withheld", "paused", "sum", "sum-key", "overlap"),
)
UNKNOWN = "it says something that this version of Holdfast does not know"


class Refusal(HoldfastError):
    """An error with a code that may be told to others; its text is for the own terminal and log."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        assert code in SENTENCES
        self.code = code


def code_of(error: BaseException) -> str:
    """What may be told of an error; unless it says otherwise, hardly anything.

    >>> code_of(ValueError("Anna Muster, 1961")), code_of(MemoryError()), code_of(Refusal("few", "3 records"))
    ('internal', 'memory', 'few')
    """
    if isinstance(error, MemoryError):
        return "memory"
    return error.code if isinstance(error, HoldfastError) else "internal"


def sentence_of(code: object) -> str:
    """The fixed sentence of a code that somebody sent; whatever else was sent is not repeated."""
    return SENTENCES.get(code, UNKNOWN) if isinstance(code, str) else UNKNOWN


def absence(message: Message, code: object) -> Absent:
    """A client that failed in its job, with the reason as far as it may be told."""
    return Absent(message.client, f"failed in job {message.job!r} of round {message.round + 1}: {sentence_of(code)}")


def full_text(error: BaseException) -> str:
    """All that is known of an error, for the log of whoever holds the data."""
    return "".join(traceback.format_exception(error))


def write_down(folder: Path | None, message: Message, text: str) -> None:
    """Keep the full error of a client of this machine: in the run's log, or on the terminal if there is no folder."""
    what = f"client {message.client} failed in job {message.job!r} of round {message.round + 1}:\n{text}"
    log.log(logging.WARNING if folder is None else logging.DEBUG, "%s", what)
    append(folder, what)


def tell_home(folder: Path | None, text: str) -> None:
    """Say at home what others are told as a code only; a client's folder is clients/NNNN of a run or of a site."""
    log.log(logging.WARNING if folder is None else logging.INFO, "%s %s", NOT_DONE, " ".join(text.split()))
    append(folder and folder.absolute().parents[1], text)


def append(folder: Path | None, text: str) -> None:
    """Add to the log in a folder; a full disk must not end the run here, its own files will say so."""
    if folder is not None:
        with suppress(OSError), open(folder / LOG, "a", encoding="utf-8") as file:
            file.write(text.rstrip() + "\n\n")
