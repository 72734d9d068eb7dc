"""A member's part of one secure sum; it refuses whatever could open its vector."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.failures import Refusal
from holdfast.secure_sum import keys as crypto
from holdfast.secure_sum.keys import KEY, SIGNATURE, Words
from holdfast.secure_sum.packing import Layout, length_of, pack
from holdfast.secure_sum.shamir import SECRET, SHARE, split

FEWEST = 3  # members: of a sum over two, each knows the other's part
LETTER = 2 * SHARE + crypto.TAG
ROLL = 2 * KEY + SIGNATURE  # bytes of a member's signed keys


@dataclass(frozen=True)
class Terms:
    """What all members of a sum agree on."""

    experiment: str
    purpose: str  # which numbers of which records are summed
    attempt: int
    known: Mapping[int, str]  # member -> its long-term public key, hexadecimal
    colluding: int  # t
    dropouts: int  # members that may drop out once all have shown their keys, or the sum fails
    told: str = ""  # a hash of what all members work from, such as the model

    def __post_init__(self) -> None:
        if len(self.known) < FEWEST:
            raise Refusal("sum", f"a secure sum needs {FEWEST} members at least, and {len(self.known)} are asked.")
        if not 0 <= self.colluding <= len(self.known) - 2:
            raise Refusal("sum", f"a secure sum of {len(self.known)} members cannot stand {self.colluding} in league.")
        if len(set(self.known.values())) < len(self.known):
            raise Refusal("sum", "secure sum: two members have one long-term key.")

    @property
    def session(self) -> bytes:
        said = [self.experiment, self.purpose, self.attempt, sorted(self.known.items()), self.colluding, self.dropouts]
        said.append(self.told)
        return hashlib.sha256(json.dumps(said).encode()).digest()

    def threshold(self, members: int) -> int:
        """Signatures and shares that opening needs, of so many members that sent keys.

        >>> [Terms("", "", 0, {i: str(i) for i in range(20)}, 1, 1).threshold(n) for n in (3, 4, 5, 20)]
        [3, 3, 4, 11]
        """
        return (members + self.colluding) // 2 + 1

    def fewest(self, members: int) -> int:
        """The shortest list that is opened, of so many members that sent keys: all of them agree on their number."""
        return max(FEWEST, self.colluding + 2, self.threshold(members), members - self.dropouts)

    def honest(self, members: int) -> int:
        """Whose noise is in a total for sure, whomever a moderator that is in league with t members says to be gone."""
        return self.fewest(members) - self.colluding

    def check_list(self, present: Collection[int], among: Collection[int], members: int) -> None:
        """Refuse those that are left of a sum's members, if they are too few for the last step or for the noise."""
        least = self.fewest(members)
        if not set(present) <= set(among) or len(present) < least:
            raise Refusal("sum", f"secure sum: a list of {len(present)} members is too short; {least} are needed.")


def signed_keys(session: bytes, member: int, content: bytes) -> bytes:
    return b"keys" + session + member.to_bytes(4, "big") + content


def signed_list(roll: bytes, present: Collection[int]) -> bytes:
    return b"list" + roll + json.dumps(sorted(present)).encode()


def roll_hash(session: bytes, roll: Mapping[int, bytes], extent: int) -> bytes:
    """SHA-256 of all members' keys and of the records that the total is of."""
    found = hashlib.sha256(session + extent.to_bytes(8, "big"))
    for member, content in sorted(roll.items()):
        found.update(member.to_bytes(4, "big") + content)
    return found.digest()


class Blame(Exception):
    """A member sent something that is of no use; the sum is taken anew without it."""

    def __init__(self, member: int) -> None:
        super().__init__(f"member {member}")
        self.member = member


@dataclass
class Member:
    """One member in one sum. `opened` is what it has opened so far, by purpose: it outlives the sum."""

    terms: Terms
    id: int
    signer: Any  # its long-term Ed25519 key
    opened: dict[str, tuple[int, ...]]
    extent: int = 0  # records that the total is of, as all agreed
    _roll: dict[int, bytes] = field(default_factory=dict)
    _hash: bytes = b""
    _held: dict[int, bytes] = field(default_factory=dict)  # of each member that sent shares: two shares
    _listed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        mine = bytes(self.signer.public_key().public_bytes_raw()).hex()
        if self.terms.known.get(self.id) != mine:
            raise Refusal("sum", "secure sum: it names this member with another key than its own, or not at all.")
        self._refuse_overlap()
        self._self_seed, self._pair_seed = secrets.token_bytes(SECRET), secrets.token_bytes(SECRET)
        self._letters, self._pairs = (
            crypto.exchange_key(secrets.token_bytes(SECRET)),
            crypto.exchange_key(self._pair_seed),
        )

    def _refuse_overlap(self, present: Collection[int] | None = None) -> None:
        """The same members' total once more is another release, with other noise; other members' gives some away."""
        before = self.opened.get(self.terms.purpose, ())
        if not set(before) <= set(self.terms.known) or (before and present is not None and set(before) != set(present)):
            raise Refusal(
                "overlap",
                f"secure sum: {self.terms.purpose} was opened before with other members; the difference of the "
                "two would be single members' numbers.",
            )

    def keys(self) -> bytes:
        """Its public keys for this sum, signed."""
        content = crypto.public(self._letters) + crypto.public(self._pairs)
        return content + bytes(self.signer.sign(signed_keys(self.terms.session, self.id, content)))

    def shares(self, roll: Mapping[int, bytes], extent: int) -> tuple[dict[int, bytes], bytes]:
        """Its secrets in sealed shares for the others, and a hash by which the self-mask's seed is known again."""
        if self._roll:
            raise Refusal("sum", "secure sum: its shares were asked for before; a sum has one list of keys.")
        for member, content in roll.items():
            check_keys(self.terms, member, content)
        if roll.get(self.id, b"")[: 2 * KEY] != self.keys()[: 2 * KEY]:
            raise Refusal("sum-key", "secure sum: the list of keys has another key in place of this member's own.")
        if len({content[: 2 * KEY] for content in roll.values()}) < len(roll):
            raise Refusal("sum-key", "secure sum: two members have one key.")
        self.terms.check_list(roll, roll, len(roll))
        if not 0 <= extent < 1 << 62:
            raise Refusal("sum", f"secure sum: a total of {extent} records was asked for.")
        self.extent = extent
        self._roll, self._hash = dict(roll), roll_hash(self.terms.session, roll, extent)
        places = [member + 1 for member in roll]
        threshold = self.terms.threshold(len(roll))
        own, pair = (split(seed, places, threshold) for seed in (self._self_seed, self._pair_seed))
        both = {member: own[member + 1] + pair[member + 1] for member in roll}
        self._held[self.id] = both.pop(self.id)
        sealed = {
            other: crypto.seal(self._key(other, sends=True), content, self._hash) for other, content in both.items()
        }
        return sealed, hashlib.sha256(self._hash + self._self_seed).digest()

    def _key(self, other: int, sends: bool) -> bytes:
        """The key for letters from this member to another, or the other way."""
        way = (self.id, other) if sends else (other, self.id)
        return crypto.agree(self._letters, self._roll[other][:KEY], self._hash + json.dumps(way).encode())

    @property
    def members(self) -> int:
        """How many sent keys."""
        return len(self._roll)

    def masked(self, letters: Mapping[int, bytes], layout: Layout, make: Callable[[int], NDArray[np.int64]]) -> bytes:
        """Its masked vector; `make` gives the vector, told of how many members' noise is sure to be in the total.

        That number follows from the keys, on which all agree: who has been sent shares may differ from one to the next.
        """
        if not self._roll or len(self._held) > 1 or self.id in letters:
            raise Refusal("sum", "secure sum: a masked vector was asked for out of turn.")
        self._refuse_overlap()
        self.terms.check_list({*letters, self.id}, self._roll, len(self._roll))
        for other, letter in letters.items():
            content = crypto.unseal(self._key(other, sends=False), letter, self._hash)
            if content is None or len(content) != 2 * SHARE:
                raise Blame(other)
            self._held[other] = content
        vector = make(self.terms.honest(len(self._roll)))
        total = vector.astype(np.int64).view(np.uint64) + self_mask(self._self_seed, length_of(layout))
        for other in letters:
            total += pair_mask(self._pairs, self.id, other, self._roll[other], self._hash, len(total))
        return pack(total, layout)

    def sign(self, present: Collection[int]) -> bytes:
        """Its signature under the list of those whose masked vectors arrived; it signs one list only."""
        if len(self._held) < FEWEST or self._listed:
            raise Refusal("sum", "secure sum: a list was to be signed out of turn; a member signs one.")
        if self.id not in present:
            raise Refusal("sum", "secure sum: a list was to be signed that this member is not on.")
        self.terms.check_list(present, self._held, len(self._roll))
        self._refuse_overlap(present)
        self._listed = tuple(sorted(present))
        return bytes(self.signer.sign(signed_list(self._hash, self._listed)))

    def open(self, signatures: Mapping[int, bytes]) -> dict[int, bytes]:
        """Of each member on the signed list its share of the self-mask, of the others that of the pairwise key."""
        said, known = signed_list(self._hash, self._listed), self.terms.known
        enough = self.terms.threshold(len(self._roll))
        fine = [m for m, one in signatures.items() if m in self._listed and crypto.signed_by(known[m], one, said)]
        if not self._listed or len(fine) < enough:
            raise Refusal("sum", f"secure sum: {len(fine)} members signed this list, and {enough} are needed.")
        self._refuse_overlap(self._listed)
        self.opened[self.terms.purpose] = self._listed
        return {m: two[:SHARE] if m in self._listed else two[SHARE:] for m, two in self._held.items()}


def check_keys(terms: Terms, member: int, content: bytes) -> None:
    """Refuse keys that the member's long-term key did not sign for this sum."""
    said = signed_keys(terms.session, member, content[: 2 * KEY])
    fine = member in terms.known and len(content) == ROLL
    if not fine or not crypto.signed_by(terms.known[member], content[2 * KEY :], said):
        raise Refusal("sum-key", f"secure sum: the key that is said to be member {member}'s is not signed by it.")


def self_mask(seed: bytes, count: int) -> Words:
    return crypto.stream(crypto.derive(seed, b"self-mask"), count)


def pair_mask(key: Any, member: int, other: int, keys: bytes, roll: bytes, count: int) -> Words:
    """What a member adds for another one; the other subtracts the same."""
    mask = crypto.stream(crypto.agree(key, keys[KEY : 2 * KEY], b"pairwise mask" + roll), count)
    return mask if member < other else np.uint64(0) - mask
