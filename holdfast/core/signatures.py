"""A file signed with a site's key, in OpenSSH's own format (PROTOCOL.sshsig), so that `ssh-keygen -Y verify` reads it.

Keys are those of `holdfast digest key` (Ed25519) and of `holdfast flower keys` (ECDSA, P-384), both as OpenSSH writes
them. A signature names its purpose (the namespace), so that one of a page can never be taken for one of a request.
What is signed: "SSHSIG", the purpose, a reserved text, the name of the hash, and the SHA-512 of the content.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError

PAGE, WITHDRAWAL, RECEIPT = "holdfast-page", "holdfast-withdrawal", "holdfast-receipt"
MAGIC, HASH = b"SSHSIG", b"sha512"
BEGIN, END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
ED25519, P384 = b"ssh-ed25519", b"ecdsa-sha2-nistp384"
LONGEST = 4096  # characters of a signature


def sign(key: Path, purpose: str, content: bytes) -> str:
    """The signature of a content with a secret key, as text."""
    library()
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        secret = load_ssh_private_key(key.read_bytes(), None)
    except OSError:
        raise HoldfastError(f"{key} cannot be read.") from None
    except Exception:  # whatever the library finds wrong, nothing of the file is told
        raise HoldfastError(f"{key} is no OpenSSH key without a password; see `holdfast digest key`.") from None
    said = _statement(purpose, content)
    if isinstance(secret, ed25519.Ed25519PrivateKey):
        name, made = ED25519, secret.sign(said)
    elif isinstance(secret, ec.EllipticCurvePrivateKey) and isinstance(secret.curve, ec.SECP384R1):
        name, made = P384, b"".join(map(_mpint, decode_dss_signature(secret.sign(said, ec.ECDSA(SHA384())))))
    else:
        raise HoldfastError(f"{key} is no key of `holdfast digest key` or `holdfast flower keys`.")
    public = base64.b64decode(_openssh(secret.public_key()).split()[1])
    parts = [public, purpose.encode(), b"", HASH, _text(name) + _text(made)]
    blob = base64.b64encode(MAGIC + (1).to_bytes(4, "big") + b"".join(map(_text, parts))).decode()
    lines = [blob[start : start + 70] for start in range(0, len(blob), 70)]
    return "\n".join([BEGIN, *lines, END, ""])


def signer(signature: str, purpose: str, content: bytes) -> str:
    """The public key that signed a content, as `ssh-ed25519 AAAA...`; whose key it is, the caller must know."""
    library()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        public, named, made_by, made = _taken_apart(signature)
        if named != purpose.encode():
            raise HoldfastError("the signature was made for another purpose")
        kind = _read(public)[0]
        key = load_ssh_public_key(kind + b" " + base64.b64encode(public))
        said = _statement(purpose, content)
        if made_by == ED25519 and isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(made, said)
        elif made_by == P384 and isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1):
            r, rest = _read(made)
            s, rest = _read(rest)
            numbers = (int.from_bytes(r, "big"), int.from_bytes(s, "big"))
            key.verify(encode_dss_signature(*numbers), said, ec.ECDSA(SHA384()))
        else:
            raise HoldfastError("the signature is of a kind that is not known")
        return _openssh(key)
    except InvalidSignature:
        raise HoldfastError("the signature does not fit the content: one of them was changed") from None
    except HoldfastError:
        raise
    except Exception:  # a stranger's bytes
        raise HoldfastError("the signature is damaged") from None


def public_key(path: Path) -> str:
    """The public key in a file SITE.pub, without its comment."""
    try:
        words = path.read_text(encoding="utf-8").split()
        kind = _read(base64.b64decode(words[1], validate=True))[0]
    except OSError:
        raise HoldfastError(f"{path} cannot be read.") from None
    except (ValueError, IndexError, binascii.Error):
        kind = b""
    if kind not in (ED25519, P384) or words[0].encode() != kind:
        raise HoldfastError(f"{path} is no public key of `holdfast digest key` or `holdfast flower keys` (SITE.pub).")
    return f"{words[0]} {words[1]}"


def fingerprint(public: str) -> str:
    """A public key in short, as `ssh-keygen -l` shows it."""
    read = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(read).decode().rstrip('=')}"


def public_half(key: Path) -> str:
    """The public key that belongs to a secret one."""
    return signer(sign(key, PAGE, b""), PAGE, b"")


def beside(file: Path) -> Path:
    """Where the signature of a file lies."""
    return file.with_name(file.name + ".sig")


def fault_of(file: Path, known: str) -> str:
    """Why a page or receipt cannot be relied upon as signed by this public key; nothing: it can."""
    if not file.is_file():
        raise HoldfastError(f"{file} does not exist.")
    if not beside(file).is_file():
        return f"there is no signature {beside(file).name} beside it"
    text = beside(file).read_bytes().decode(errors="replace")
    fault = ""
    for purpose in (PAGE, RECEIPT):
        try:
            by = signer(text, purpose, file.read_bytes())
            return "" if by == known else f"it was signed by another key, {fingerprint(by)}"
        except HoldfastError as error:
            fault = fault if "purpose" in str(error) and fault else str(error)
    return fault


def _statement(purpose: str, content: bytes) -> bytes:
    return MAGIC + b"".join(map(_text, (purpose.encode(), b"", HASH, hashlib.sha512(content).digest())))


def _taken_apart(signature: str) -> tuple[bytes, bytes, bytes, bytes]:
    """Public key, purpose, and kind and bytes of the signature itself."""
    inner = signature.strip().removeprefix(BEGIN).removesuffix(END)
    if len(signature) > LONGEST or len(inner) + len(BEGIN) + len(END) != len(signature.strip()):
        raise ValueError
    blob = base64.b64decode("".join(inner.split()), validate=True)
    if blob[:10] != MAGIC + (1).to_bytes(4, "big"):
        raise ValueError
    found, rest = [], blob[10:]
    for _ in range(5):
        part, rest = _read(rest)
        found.append(part)
    public, purpose, _, hashed, whole = found
    kind, last = _read(whole)
    made, more = _read(last)
    if rest or more or hashed != HASH:
        raise ValueError
    return public, purpose, kind, made


def _text(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part


def _mpint(number: int) -> bytes:
    return _text(number.to_bytes(number.bit_length() // 8 + 1, "big"))


def _read(data: bytes) -> tuple[bytes, bytes]:
    size = int.from_bytes(data[:4], "big")
    if len(data) < 4 + size:
        raise ValueError
    return data[4 : 4 + size], data[4 + size :]


def _openssh(key: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    text: bytes = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return text.decode()


def library() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise HoldfastError("Signatures need cryptography: pip install 'holdfast[sign]'.") from None
