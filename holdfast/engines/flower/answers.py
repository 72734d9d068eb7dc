"""What comes back from Flower, read as a reply or as an absence with its reason."""

from __future__ import annotations

import math

from flwr.app import Message as Packet

from holdfast.core import Absent, Message, Reply
from holdfast.engines.flower.codec import Letter, decode
from holdfast.errors import HoldfastError
from holdfast.failures import absence

ERRORS = {1: "its app could not be loaded", 3: "its reply was not uploaded in time", 5: "its node is gone"}
NOTES, NOTE = 50, 2000  # at most so many notes of a reply, each of at most so many characters


def read_answer(packet: Packet, message: Message, bound: int) -> Reply | Absent:
    """The reply in a packet; whatever is not one that fits the message is an absence with the reason."""
    if packet.has_error():
        return Absent(message.client, reason_of(packet.error.code, packet.error.reason))
    try:
        letter = decode(packet.content, bound)
    except HoldfastError as error:
        return Absent(message.client, f"sent a message that was refused: {error}")
    if letter.error:
        return absence(message, letter.error)
    if (letter.client, letter.round, letter.job) != (message.client, message.round, message.job):
        said = f"job {letter.job!r} of round {letter.round + 1} as client {letter.client}"
        return Absent(message.client, f"answered to another question ({said}): its reply was refused")
    if fault := find_fault(letter):
        return Absent(message.client, f"sent a message that was refused: {fault}")
    return letter.reply()


def find_fault(letter: Letter) -> str | None:
    """What is wrong with the words of a reply: those that the moderator reads must be what they are read as."""
    if not (math.isfinite(letter.seconds) and letter.seconds >= 0):
        return f"it says that it took {letter.seconds} s"
    notes = letter.scalars.get("notes", [])
    if not isinstance(notes, list) or len(notes) > NOTES or not all(is_note(note) for note in notes):
        return "its notes are not a short list of short texts"
    for key in ("loss", "accuracy"):
        value = letter.scalars.get(key, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"its {key} is {str(value)[:40]!r}, not a number"
    if letter.job == "evaluate" and not 0 <= letter.scalars.get("accuracy", -1) <= 1:
        return f"its accuracy is {letter.scalars.get('accuracy')}, not between 0 and 1"
    return None


def is_note(note: object) -> bool:
    return isinstance(note, str) and len(note) <= NOTE


def reason_of(code: int, reason: str | None) -> str:
    """Flower's error as the end of a sentence that begins with the client.

    >>> reason_of(5, "Node unavailable")
    'its node is gone (Node unavailable)'
    """
    return f"{ERRORS.get(code, f'failed with error {code} of Flower')} ({(reason or 'no reason given')[:500]})"
