"""The cryptography of secure sums: what is taken from `cryptography`, and for what."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import HoldfastError
from holdfast.core.failures import Refusal

Words = NDArray[np.uint64]
KEY, TAG, SIGNATURE = 32, 16, 64  # bytes


def library() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
    except ImportError:
        raise HoldfastError("Secure sums need cryptography: pip install 'holdfast[sign]'.") from None
    return ed25519, x25519


def derive(secret: bytes, purpose: bytes) -> bytes:
    """A key of 32 bytes for one purpose (HKDF with SHA-256)."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY, None, b"holdfast secure sum " + purpose).derive(secret)


def exchange_key(seed: bytes) -> Any:
    """The X25519 key that follows from a seed: whoever recovers the seed has the key."""
    return library()[1].X25519PrivateKey.from_private_bytes(derive(seed, b"exchange"))


def public(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes_raw())


def agree(key: Any, other: bytes, purpose: bytes) -> bytes:
    """The key that two members share for one purpose."""
    try:
        shared = key.exchange(library()[1].X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise Refusal("sum", "secure sum: a member's public key is none.") from None
    return derive(shared, purpose)


def stream(key: bytes, count: int) -> Words:
    """So many words of a mask: ChaCha20's keystream. A key is used for one mask only."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    drawn = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    return np.frombuffer(drawn, dtype="<u8").astype(np.uint64)


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """Content for whoever has the key, bound to what it is about. A key seals one letter only."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(bytes(12), content, about)


def unseal(key: bytes, letter: bytes, about: bytes) -> bytes | None:
    """What was sealed; none: it was not sealed with this key, or about something else."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), letter, about)
    except (InvalidTag, ValueError):
        return None


def signed_by(key: str, signature: bytes, message: bytes) -> bool:
    """Whether a long-term key (hexadecimal) signed this."""
    from cryptography.exceptions import InvalidSignature

    try:
        library()[0].Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True)
class Keyring:
    """A member's own long-term key, and which keys of others it got from them beforehand."""

    signer: Any  # Ed25519
    knows: Callable[[int, str], bool]  # a member and its public key, hexadecimal

    @property
    def own(self) -> bytes:
        return bytes(self.signer.public_key().public_bytes_raw())


def simulated_keyring(seed: int, member: int) -> Keyring:
    return Keyring(simulated_key(seed, member), partial(is_simulated, seed))


def is_simulated(seed: int, member: int, key: str) -> bool:
    return key == simulated_public(seed, member)


@lru_cache(maxsize=4096)
def simulated_public(seed: int, member: int) -> str:
    return bytes(simulated_key(seed, member).public_key().public_bytes_raw()).hex()


def simulated_key(seed: int, member: int) -> Any:
    """The long-term key of a simulated member: on one machine there is nobody to prove anything to."""
    drawn = hashlib.sha256(f"holdfast simulated member {seed} {member}".encode()).digest()
    return library()[0].Ed25519PrivateKey.from_private_bytes(drawn)
