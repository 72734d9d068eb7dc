"""A certificate authority, the moderator's certificate, and a key for each site.

ca.crt, ca.key              the authority: ca.crt goes to every site, ca.key stays with the moderator
server.crt, server.key      the moderator's certificate
SITE.key, SITE.pub          one pair for each site: the site keeps SITE.key, the moderator registers SITE.pub
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.core.errors import HoldfastError
from holdfast.core.files import make_folder
from holdfast.flower.engine.sites import check_names

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OURS = ("ca", "server")  # names of the moderator's own keys
LONGEST = 36500  # days: a hundred years
LABEL = r"\w([\w-]{0,61}\w)?"  # a part of a host's name


def make_keys(folder: Path, sites: Sequence[str], hosts: Sequence[str] = (), days: int = 365) -> list[Path]:
    """Write certificates for a moderator reachable under `hosts`, and keys for the sites; nothing is overwritten."""
    check_names(sites)
    for site in sites:
        if site.lower() in OURS:
            raise HoldfastError(f"A site cannot be called {site!r}: {site}.key is the moderator's; name it otherwise.")
    for host in hosts:
        if not is_host(host):
            raise HoldfastError(
                f"{host!r} is no name or address of a machine; without a port, as in moderator.example."
            )
    if not 1 <= days <= LONGEST:
        raise HoldfastError(f"Certificates can hold for 1 to {LONGEST} days, not for {days}.")
    names = ["ca.crt", "ca.key", "server.crt", "server.key"]
    names += [f"{site}.{end}" for site in sites for end in ("key", "pub")]
    for name in names:
        if (folder / name).exists():
            raise HoldfastError(f"{folder / name} is there already; keys are not overwritten, name a new folder.")
    make_folder(folder)
    authority, server = new_key(), new_key()
    ca = certificate("Holdfast authority", authority, "Holdfast authority", authority, days, ())
    mine = certificate("Holdfast moderator", server, "Holdfast authority", authority, days, [*LOOPBACK, *hosts])
    content = {
        "ca.crt": ca.public_bytes(serialization.Encoding.PEM),
        "ca.key": pem(authority),
        "server.crt": mine.public_bytes(serialization.Encoding.PEM),
        "server.key": pem(server),
    }
    for site in sites:
        key = new_key()
        content[f"{site}.key"] = pem(key, ssh=True)
        content[f"{site}.pub"] = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    return [write_private(folder / name, data) for name, data in content.items()]


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def pem(key: ec.EllipticCurvePrivateKey, ssh: bool = False) -> bytes:
    form = serialization.PrivateFormat.OpenSSH if ssh else serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    authority: ec.EllipticCurvePrivateKey,
    days: int,
    hosts: Sequence[str],
) -> x509.Certificate:
    """A certificate for a key; one without hosts is an authority's own."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=not hosts, path_length=0 if not hosts else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .add_extension(usage(signs=not hosts), critical=True)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([general(host) for host in hosts]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(authority, hashes.SHA384())


def usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def is_host(host: str) -> bool:
    """Whether this is an address, or a name that a certificate can carry.

    >>> [is_host(host) for host in ("::1", "moderator.example", "*.example", "bad host name", "example:9092")]
    [True, True, True, False, False]
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        name = host.removeprefix("*.")
        return len(host) <= 253 and re.fullmatch(rf"{LABEL}(\.{LABEL})*", name, re.ASCII) is not None
    return True


def write_private(path: Path, data: bytes) -> Path:
    """Write a file that only its owner can read, unless it is public anyway."""
    mode = 0o644 if path.suffix in (".crt", ".pub") else 0o600
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    return path
