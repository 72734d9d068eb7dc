"""What comes back from Flower, read as a reply or as an absence with its reason."""

from __future__ import annotations

from flwr.app import Message as Packet

from holdfast.core.errors import HoldfastError
from holdfast.core.failures import absence
from holdfast.core.types import WITHDREW, Absent, Message, Reply
from holdfast.engines.checked import checked
from holdfast.flower.engine.codec import decode

GONE = 5  # Flower's code for a node that it has not heard from
ERRORS = {1: "its app could not be loaded", 3: "its reply was not uploaded in time", GONE: "its node is gone"}
WAITS = "waits for approval"


def awaits(answer: Reply | Absent) -> bool:
    """Whether a site does not answer because its people have not approved the experiment yet."""
    return isinstance(answer, Absent) and answer.reason.startswith(WAITS)


def read_answer(packet: Packet, message: Message, bound: int, site: str = "its site") -> Reply | Absent:
    """The reply in a packet; whatever is not one that fits the message is an absence with the reason."""
    if packet.has_error():
        return Absent(message.client, reason_of(packet.error.code, packet.error.reason))
    try:
        letter = decode(packet.content, bound)
    except HoldfastError as error:
        return Absent(message.client, f"sent a message that was refused: {error}")
    if letter.error == "withdrawn":
        return Absent(message.client, f"{WITHDREW}: its digest is deleted, and it is not asked again")
    if letter.error == "approval":
        return Absent(message.client, f"{WAITS} at {site}")
    if letter.error == "paused":
        return Absent(message.client, "is paused by its people")
    if letter.error:
        return absence(message, letter.error)
    if (letter.client, letter.round, letter.job) != (message.client, message.round, message.job):
        said = f"job {letter.job!r} of round {letter.round + 1} as client {letter.client}"
        return Absent(message.client, f"answered to another question ({said}): its reply was refused")
    return checked(letter.reply(), message)


def reason_of(code: int, reason: str | None) -> str:
    """Flower's error as the end of a sentence that begins with the client.

    >>> reason_of(5, "Node unavailable")
    'its node is gone (Node unavailable)'
    """
    return f"{ERRORS.get(code, f'failed with error {code} of Flower')} ({(reason or 'no reason given')[:500]})"
