"""Where a digest's file comes from: site, date, expiry, what it was made for, and the site's signature.

The signature (Ed25519) covers this and the SHA-256 of all that the file holds. A public key in the file itself proves
only that nothing was changed since; that it is the site's is known to whoever got the key from the site before.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import asdict, dataclass, fields
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import HoldfastError, brief, plain
from holdfast.core.files import load_tensors, make_folder, read_metadata, save_tensors
from holdfast.digests.compact import sha256_of

if TYPE_CHECKING:  # only who signs needs the library
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SCHEMA = "holdfast-origin/1"
LONGEST_NAME = 64
LONGEST_LIFE = 36_500  # days


@dataclass(frozen=True)
class Origin:
    """What a digest's file says of itself, signed or not."""

    site: str
    made: str  # a date, as in 2026-11-17
    expires: str  # the last day on which it may be used; empty: never
    task: str
    encoder: str  # as an experiment names it
    shape: tuple[int, ...]  # of a raw sample
    kind: str = "classes"
    class_names: tuple[str, ...] = ()
    key: str = ""  # the public key of the signature, hexadecimal; empty: not signed

    def expired(self, today: date) -> bool:
        return bool(self.expires) and date.fromisoformat(self.expires) < today


def expiry(days: int | None) -> str:
    """The last of so many days from today on; none: it never expires."""
    if days is None:
        return ""
    if not 1 <= days <= LONGEST_LIFE:
        raise HoldfastError(f"--expires: expected 1 to {LONGEST_LIFE} days, got {days}.")
    return (date.today() + timedelta(days=days)).isoformat()


def check_site(name: str) -> str:
    if not name.strip() or len(name) > LONGEST_NAME or plain(name, LONGEST_NAME) != name:
        raise HoldfastError(
            f"--site: expected a name of at most {LONGEST_NAME} printable characters, got {brief(name)}."
        )
    return name


def addressed(content: bytes, origin: Origin, key: Path | None = None) -> bytes:
    """A digest's file with its origin, signed where a key is given."""
    signer = None if key is None else load_key(key)
    if signer is not None:
        origin = Origin(**{**asdict(origin), "key": signer.public_key().public_bytes_raw().hex()})
    tensors, metadata = load_tensors(content), read_metadata(content)
    metadata["origin"] = json.dumps({"schema": SCHEMA, **asdict(origin)}, sort_keys=True)
    if signer is not None:
        metadata["signature"] = signer.sign(message_of(content, metadata["origin"])).hex()
    return save_tensors(tensors, metadata)


def message_of(content: bytes, origin: str) -> bytes:
    """What is signed: the origin, and the SHA-256 of all tensors and of the manifest beside them."""
    manifest = read_metadata(content).get("digest", "")
    return f"{SCHEMA}\n{origin}\n{sha256_of(load_tensors(content), {'digest': manifest})}".encode()


def read_origin(content: bytes, where: str) -> Origin | None:
    """Where a file comes from; none: it does not say. A signature that does not fit the content is refused."""
    metadata = read_metadata(content)
    text = metadata.get("origin")
    if text is None:
        return None
    origin = parse_origin(text, where)
    if bool(origin.key) != ("signature" in metadata):
        raise HoldfastError(f"{where}: it names a key and has no signature, or the other way round; fetch it again.")
    if origin.key and not verified(origin.key, metadata["signature"], message_of(content, text)):
        raise HoldfastError(f"{where}: its signature does not fit its content: it was changed; fetch it again.")
    return origin


def parse_origin(text: str, where: str) -> Origin:
    """The origin in a file's head; anything of another form is refused."""
    try:
        found = json.loads(text)
        known = {field.name for field in fields(Origin)} | {"schema"}
        fine = isinstance(found, dict) and found.keys() == known and found.pop("schema") == SCHEMA
        texts = ("site", "made", "expires", "task", "encoder", "kind", "key")
        fine = fine and all(isinstance(found[name], str) for name in texts)
        names, shape = found["class_names"], found["shape"]
        fine = fine and isinstance(names, list) and all(isinstance(name, str) for name in names)
        fine = fine and isinstance(shape, list) and all(type(side) is int and 0 < side < 1 << 20 for side in shape)
        for day in (found["made"], found["expires"] or found["made"]):
            date.fromisoformat(day)
        if fine:
            check_site(found["site"])
            return Origin(**{**found, "class_names": tuple(names), "shape": tuple(shape)})
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError, HoldfastError):
        pass
    raise HoldfastError(f"{where}: it does not say properly where it comes from; make it again.")


def verified(key: str, signature: str, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    ed25519 = library()
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def make_key(folder: Path, site: str) -> list[Path]:
    """SITE.key, which stays at the site, and SITE.pub, which goes to whoever trains; nothing is overwritten."""
    ed25519 = library()
    from cryptography.hazmat.primitives import serialization as s

    if Path(check_site(site)).name != site:
        raise HoldfastError(f"--site: {site!r} cannot be the name of a file; leave out slashes.")
    paths = [folder / f"{site}.key", folder / f"{site}.pub"]
    for path in paths:
        if path.exists():
            raise HoldfastError(f"{path} is there already; keys are not overwritten, name another folder.")
    made = ed25519.Ed25519PrivateKey.generate()
    make_folder(folder)
    secret = made.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption())
    public = made.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)
    for path, data in zip(paths, (secret, public + b"\n"), strict=True):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
    return paths


def load_key(path: Path) -> Ed25519PrivateKey:
    """A site's secret key, as `holdfast digest key` or `ssh-keygen -t ed25519` writes it."""
    ed25519 = library()
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError:
        raise HoldfastError(f"--key: {path} cannot be read.") from None
    except Exception:  # whatever the library finds wrong, nothing of the file is told
        raise HoldfastError(f"--key: {path} is no Ed25519 key without a password; see `holdfast digest key`.") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise HoldfastError(f"--key: {path} is no Ed25519 key; see `holdfast digest key`.")
    signer: Ed25519PrivateKey = key
    return signer


def fingerprint_of_key(key: str) -> str:
    """The fingerprint of a public key (hexadecimal), as `ssh-keygen -l` shows that of its file.

    >>> fingerprint_of_key("00" * 32)
    'SHA256:kmYcvdi2GkPeWxB6XLjrZB8JHsy2Hm8luHMFp9GMvqk'
    """
    kind, content = b"ssh-ed25519", bytes.fromhex(key)
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (kind, content))
    return f"SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"


def known_keys(folder: Path) -> dict[str, str]:
    """The public keys SITE.pub of a folder, by site."""
    ed25519 = library()
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    if not folder.is_dir():
        raise HoldfastError(f"--keys: {folder} is no folder; put the sites' public keys there, as SITE.pub.")
    found = {}
    for path in sorted(folder.glob("*.pub")):
        try:
            key = load_ssh_public_key(path.read_bytes())
        except Exception:
            key = None
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise HoldfastError(f"--keys: {path} is no public Ed25519 key.")
        found[path.stem] = key.public_bytes_raw().hex()
    if not found:
        raise HoldfastError(f"--keys: {folder} holds no public key SITE.pub.")
    return found


def library() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise HoldfastError("Signatures need cryptography: pip install 'holdfast[sign]'.") from None
    return ed25519
