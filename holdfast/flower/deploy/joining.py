"""A site joins: what its operator says is checked before anything starts; its log tells what becomes of it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.core.errors import NOT_DONE, HoldfastError
from holdfast.flower.deploy.keys import is_host
from holdfast.flower.engine.waits import PLAIN

TURNED_AWAY = "Failed to activate SuperNode"  # as Flower says it


def check_address(address: str) -> None:
    """Refuse what is not HOST:PORT.

    >>> check_address("moderator.example:9092"), check_address("[::1]:9092")
    (None, None)
    >>> check_address("nonsense")
    Traceback (most recent call last):
    holdfast.core.errors.HoldfastError: 'nonsense' is not HOST:PORT, as in moderator.example:9092.
    """
    host, _, port = address.rpartition(":")
    if not is_host(host.removeprefix("[").removesuffix("]")) or not (port.isdecimal() and 0 < int(port) < 65536):
        raise HoldfastError(f"{address!r} is not HOST:PORT, as in moderator.example:9092.")


def check_key(path: Path) -> None:
    """Refuse a file that is no site's private key."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise HoldfastError(f"{path} is no site's private key; it is the file that ends in .key, made for this site.")


def check_certificate(path: Path) -> None:
    """Refuse a file that is no certificate, or one that has run out."""
    try:
        ends = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        raise HoldfastError(f"{path} is no certificate; it is the moderator's ca.crt.") from None
    if ends <= datetime.now(UTC):
        raise HoldfastError(f"{path} has run out on {ends:%d %B %Y}; ask the moderator for a new one.")


class News:
    """What a site's log says of its way to the SuperLink, as sentences; the same one is not said twice in a row."""

    def __init__(self, log: Path, site: str, superlink: str) -> None:
        self._log, self._site, self._superlink = log, site, superlink
        self._read = log.stat().st_size if log.exists() else 0  # what an earlier try logged is no news
        self._joined = False
        self._why: list[str] = []  # what Flower said last before its SuperNode ended
        self._explains = False
        self._last = ""

    def read(self) -> list[str]:
        """What is new since the last time."""
        if not self._log.exists():
            return []
        with open(self._log, "rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        said = []
        for line in whole.decode(errors="replace").splitlines():
            plain = re.sub(r"\x1b\[\d+m", "", line).strip()
            self._note(plain)
            sentence = self._sentence(plain)
            if sentence and sentence != self._last:
                said.append(sentence)
                self._last = sentence
        return said

    def _note(self, line: str) -> None:
        """Keep what Flower explains after its exit code, up to an empty line."""
        if "Exit Code:" in line:
            self._why, self._explains = [], True
        elif self._explains and line:
            self._why.append(line)
        else:
            self._explains = False

    def _sentence(self, line: str) -> str:
        link = f"the SuperLink at {self._superlink}"
        if "Starting Flower SuperNode" in line:
            self._joined, self._why = False, []
        elif "SuperNode ID:" in line or ("Connection successful" in line and self._joined):
            self._joined = True
            return f"{self._site} is at work: {link} has let it in."
        elif line.startswith((NOT_DONE, PLAIN)):
            return f"{self._site}: {line}"
        elif "Connection attempt failed" in line:
            return f"{self._site}: {link} cannot be reached; it keeps trying. Its log: {self._log}"
        elif ended := re.match(r"The SuperNode ended with code (\S+);", line):
            why = " ".join(self._why)[:300]
            if TURNED_AWAY in why:
                why += " Its key is not registered, or it was killed less than a minute ago."
            what = f"the SuperNode ended with code {ended[1]} and is started again"
            return f"{self._site}: {what}. {why} Its log: {self._log}"
        return ""
