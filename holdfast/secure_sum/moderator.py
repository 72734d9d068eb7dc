"""The moderator's part of a secure sum: it passes letters on, and opens the total when enough members let it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError
from holdfast.core.failures import Refusal
from holdfast.secure_sum import keys as crypto
from holdfast.secure_sum.keys import KEY
from holdfast.secure_sum.member import (
    LETTER,
    Terms,
    check_keys,
    pair_mask,
    roll_hash,
    self_mask,
    signed_list,
)
from holdfast.secure_sum.packing import Layout, bytes_of, length_of, signed, unpack
from holdfast.secure_sum.shamir import recover

Letters = Mapping[int, bytes]
FAILED = "sent something in a secure sum that is of no use"
NO_ANSWER = "did not answer in a secure sum"
COMMITMENT = 32
MOST_RECORDS = 1 << 28  # of a member: the numbers of a total need room


@dataclass(frozen=True)
class Answer:
    """A member's answer in one step: one letter, or one for each other member; or whom it blames."""

    letter: bytes = b""
    letters: Letters = field(default_factory=dict)
    records: int = 0
    blamed: int | None = None
    noise: tuple[float, float] | None = None  # epsilon and delta that a member wants of its metrics


LayoutFor = Callable[[int, int, int], Layout]  # by records, members that sent keys, and whose noise is sure
Ask = Callable[[str, Mapping[int, "Question"]], Mapping[int, Answer]]


@dataclass(frozen=True)
class Question:
    """What a member is told in one step."""

    letters: Letters = field(default_factory=dict)
    present: tuple[int, ...] = ()
    records: int = 0


class Failed(HoldfastError):
    """A sum that did not come about; `without` are those who are to be left out when it is taken anew."""

    def __init__(self, text: str, without: Mapping[int, str]) -> None:
        super().__init__(text)
        self.without = without


@dataclass(frozen=True)
class Total:
    """The sum, whose it is, how many members' noise is sure to be in it, and who sent something of no use."""

    values: NDArray[np.int64]
    members: tuple[int, ...]
    honest: int
    faults: Mapping[int, str]
    claims: Mapping[int, int]  # how many records each of its members says it has

    @property
    def records(self) -> int:
        return sum(self.claims.values())


def take_sum(terms: Terms, layout_for: LayoutFor, ask: Ask) -> Total:
    """One secure sum. Who does not answer a step is left out; too few, and it fails as a whole."""
    faults: dict[int, str] = {}
    roll, claims = ask_for_keys(terms, ask, faults)
    records = sum(claims.values())
    agreed = roll_hash(terms.session, roll, records)
    layout, threshold = layout_for(records, len(roll), terms.honest(len(roll))), terms.threshold(len(roll))

    answers = ask("shares", {member: Question(roll, records=records) for member in roll})
    sent: dict[int, Answer] = {}
    for member, answer in answers.items():
        expected = set(roll) - {member}
        fine = set(answer.letters) == expected and all(len(one) == LETTER for one in answer.letters.values())
        keep(faults, sent, member, answer, fine and len(answer.letter) == COMMITMENT)
    enough(terms, sent, roll, len(roll), faults)

    answers = ask("masked", {m: Question({o: a.letters[m] for o, a in sent.items() if o != m}) for m in sent})
    named = {answer.blamed for answer in answers.values()}
    if blamed := {member: FAILED for member in sent if member in named}:
        raise Failed(f"secure sum: member {min(blamed)} sent shares that others cannot open.", blamed)
    masked: dict[int, Answer] = {}
    for member, answer in answers.items():
        keep(faults, masked, member, answer, len(answer.letter) == bytes_of(layout))
    enough(terms, masked, sent, len(roll), faults)

    present = tuple(sorted(masked))
    said = signed_list(agreed, present)
    answers = ask("sign", {member: Question(present=present) for member in present})
    signatures = {m: a.letter for m, a in answers.items() if crypto.signed_by(terms.known[m], a.letter, said)}
    if len(signatures) < threshold:
        raise Failed(f"secure sum: {len(signatures)} members agreed to open it; {threshold} are needed.", faults)
    opened = ask("open", {member: Question(signatures, present) for member in signatures})
    shares = {m: a.letters for m, a in opened.items() if set(a.letters) == set(sent)}
    total = unmasked(masked, sent, roll, agreed, shares, threshold, layout, faults)
    counted = {member: claims[member] for member in present}
    return Total(signed(total, layout), present, terms.honest(len(roll)), faults, counted)


def ask_for_keys(terms: Terms, ask: Ask, faults: dict[int, str]) -> tuple[dict[int, bytes], dict[int, int]]:
    """The keys of those who answer, and how many records each has."""
    roll, claims = {}, {}
    for member, answer in sorted(ask("keys", {member: Question() for member in terms.known}).items()):
        try:
            check_keys(terms, member, answer.letter)
        except Refusal as error:
            faults[member] = str(error)
            continue
        if not 0 <= answer.records <= MOST_RECORDS:
            faults[member] = FAILED
            continue
        roll[member], claims[member] = answer.letter, answer.records
    enough(terms, roll, roll, len(roll), faults)
    return roll, claims


def keep(faults: dict[int, str], kept: dict[int, Answer], member: int, answer: Answer, fine: bool) -> None:
    if fine:
        kept[member] = answer
    else:
        faults[member] = FAILED


def enough(
    terms: Terms, left: Mapping[int, Any], among: Mapping[int, Any], members: int, faults: Mapping[int, str]
) -> None:
    try:
        terms.check_list(left, among, members)
    except Refusal as error:
        raise Failed(str(error), {**dict.fromkeys(set(among) - set(left), NO_ANSWER), **faults}) from None


def unmasked(
    masked: Mapping[int, Answer],
    sent: Mapping[int, Answer],
    roll: Letters,
    agreed: bytes,
    shares: Mapping[int, Letters],
    threshold: int,
    layout: Layout,
    faults: dict[int, str],
) -> NDArray[np.uint64]:
    """The sum of the masked vectors without the masks, which follow from the shares that members opened."""
    count = length_of(layout)
    total = np.zeros(count, dtype=np.uint64)
    for answer in masked.values():
        total += unpack(answer.letter, layout)
    for member in sent:
        held = {giver + 1: letters[member] for giver, letters in shares.items()}
        if member in masked:
            seed, liars = recover(held, threshold, partial(is_seed, agreed, sent[member].letter))
            total -= self_mask(seed, count)
        else:
            seed, liars = recover(held, threshold, partial(is_key, roll[member][KEY : 2 * KEY]))
            for other in masked:
                total += pair_mask(crypto.exchange_key(seed), member, other, roll[other], agreed, count)
        faults.update({place - 1: FAILED for place in liars})
    return total


def is_seed(agreed: bytes, commitment: bytes, seed: bytes) -> bool:
    return hashlib.sha256(agreed + seed).digest() == commitment


def is_key(public: bytes, seed: bytes) -> bool:
    return crypto.public(crypto.exchange_key(seed)) == public
