"""A site signs the updates that it sends, and tests none that no member signed.

What is signed (Ed25519, the keys of `holdfast digest key`) is the experiment, the round, the client, the SHA-256 of the
model that it started from, and the SHA-256 of the update as it leaves. So no update can be taken for one of another
member, round, experiment or model. Members are known by the folder of public keys that a site's policy names. In secure
sums the same keys sign what members send each other (secure_sum/).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from holdfast.client import SECURE_TRAIN, TRAIN
from holdfast.client.secure_sum import JOIN, LETTER
from holdfast.core.errors import HoldfastError
from holdfast.core.failures import Refusal
from holdfast.core.tensors import bytes_of
from holdfast.core.types import Absent, Around, Federation, Late, Message, Reply, Tensors, one_by_one, pack, unpack
from holdfast.digests.compact import sha256_of
from holdfast.digests.origin import known_keys, load_key, verified
from holdfast.flower.engine.codec import as_sent
from holdfast.secure_sum.keys import Keyring
from holdfast.trust.testing import TEST

SCHEMA = "holdfast-update/1"


def base_of(tensors: Tensors) -> str:
    """The SHA-256 of the model and buffers in a question."""
    return sha256_of(pack(model=unpack(tensors, "model"), buffers=unpack(tensors, "buffers")), {})


def statement(experiment: str, round: int, client: int, base: str, delta: Tensors, buffers: Tensors) -> bytes:
    """What the sender of an update signs."""
    about = {"schema": SCHEMA, "experiment": experiment, "round": round, "client": client, "base": base}
    return sha256_of(pack(delta=delta, buffers=buffers), about).encode()


def sign_update(key: Path, experiment: str, message: Message, sent: Tensors) -> str:
    """The signature of the update that answers a message, as it leaves."""
    base = base_of(message.tensors)
    said = statement(experiment, message.round, message.client, base, unpack(sent, "delta"), unpack(sent, "buffers"))
    return load_key(key).sign(said).hex()


def check_relayed(members: Path, experiment: str, message: Message, base: str | None) -> None:
    """Refuse to test anything but updates that members signed, each with a key of its own, and at another model than
    that of the round (`base`), which this site was sent to train on.
    """
    asked = TEST.asked(message)
    signatures = asked.signatures or {}
    named = {name.partition("/")[0] for name in (*asked.delta, *asked.changed)}
    if not signatures or named != signatures.keys() or asked.units or asked.order is not None:
        raise Refusal("unsigned", "a 'test' holds updates without their senders' signatures, or something else.")
    if base is None or base_of(message.tensors) != base:
        raise Refusal("unsigned", "a 'test' is at another model than this site was sent to train on in this round.")
    try:
        keys = known_keys(members)
    except HoldfastError as error:
        raise Refusal("policy", f"policy: members: {error}") from None
    used: set[str] = set()
    for client, signature in signatures.items():
        delta, changed = unpack(asked.delta, client), unpack(asked.changed, client)
        said = statement(experiment, message.round, int(client), base, delta, changed)
        name = next((n for n, key in keys.items() if verified(key, str(signature), said)), None)
        if name is None or name in used:
            raise Refusal(
                "unsigned", f"the update of client {client} is signed by none of {members}, or not by one each."
            )
        used.add(name)


def keyring_from(key: Path | None, members: Path | None) -> Keyring | None:
    """A site's keys for secure sums; none where it has no key of its own, or knows no members."""
    if key is None or members is None:
        return None
    try:
        signer, known = load_key(key), frozenset(known_keys(members).values())
    except HoldfastError as error:
        raise Refusal("policy", f"secure sum: {error}") from None
    return Keyring(signer, lambda member, told: told in known)


class SignedFederation(Around):
    """A federation at the moderator in which an update counts only if the key of its site signed it."""

    def __init__(
        self, federation: Federation, experiment: str, keys: dict[str, str], names: Sequence[str], halved: bool
    ) -> None:
        super().__init__(federation)
        self._experiment, self._keys, self._names = experiment, keys, names
        self._halved = halved  # whether the model travels as float16
        if lacking := [name for name in names if name not in keys]:
            raise HoldfastError(f"members: there is no {lacking[0]}.pub; ask each site for its public key.")

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        return list(self._check(messages, self._federation.ask(messages)))

    def each(self, messages: Sequence[Message]) -> Iterator[Reply | Absent]:
        return self._check(messages, one_by_one(self._federation, messages))

    def _check(self, messages: Sequence[Message], answers: Iterable[Reply | Absent]) -> Iterator[Reply | Absent]:
        bases: dict[int, str] = {}  # clients are sent the same tensors, whose hash is worked out once
        return (self._checked(message, answer, bases) for message, answer in zip(messages, answers, strict=True))

    def _checked(self, message: Message, answer: Reply | Absent, bases: dict[int, str]) -> Reply | Absent:
        if isinstance(answer, Late):
            read = self._checked(answer.asked, answer.reply, bases)
            return answer if isinstance(read, Reply) else read
        if isinstance(answer, Absent):
            return answer
        if message.job == SECURE_TRAIN.name or message.scalars.get("step") == JOIN:
            key = bytes_of(answer.tensors.get(f"sum/{LETTER}", torch.empty(0)))
            known = key.hex() == self._keys[self._names[message.client]]
            return answer if known else Absent(message.client, "showed another key than its site's: it was refused")
        if message.job != TRAIN.name:
            return answer
        first = id(next(iter(message.tensors.values()), None))
        if first not in bases:
            bases[first] = base_of(as_sent(message.tensors, self._halved))
        delta, buffers = unpack(answer.tensors, "delta"), unpack(answer.tensors, "buffers")
        said = statement(self._experiment, message.round, message.client, bases[first], delta, buffers)
        if verified(self._keys[self._names[message.client]], str(answer.scalars.get("signature", "")), said):
            return answer
        return Absent(message.client, "sent an update that the key of its site did not sign: it was refused")
