"""A test certificate authority: issues certificates for trials, or where all trust its owner.

Organisations with an authority of their own make the same three files with that.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import Certificate
from cryptography.x509.oid import ExtendedKeyUsageOID as Use
from cryptography.x509.oid import NameOID

from vertizo.core.errors import ConfigError
from vertizo.network.transport.certificates import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    certificates,
    check_dates,
    date_text,
    private_key,
    read,
)

FOLDER = "authority"
AUTHORITY_DAYS = 3650
EARLIER = timedelta(hours=1)
"""New certificates are valid from this long before they are made, because clocks differ."""
Signer = tuple[Certificate, ec.EllipticCurvePrivateKey]
THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Issued:
    """A certificate that was just issued to the party of that name."""

    name: str
    hosts: tuple[str, ...]
    """Host names and IP addresses that the party may serve under; empty for a member."""
    expires: datetime
    folder: Path
    """The folder with the party's three files, to be handed to the party."""


def issue(
    folder: Path,
    server: str | None,
    members: Sequence[str],
    hosts: Sequence[str],
    days: int,
    now: datetime | None = None,
) -> list[Issued]:
    """Make a folder of credentials for each party, under a test authority in ``folder/authority``.

    An existing authority is used again; an existing party's folder is never overwritten. Members
    reach the server under ``hosts``, or, without any, on this machine alone. With ``server`` None
    only members' certificates are made. ConfigError if a name is invalid or taken, or the authority
    cannot be used.
    """
    now = datetime.now(UTC) if now is None else now
    names = [*([] if server is None else [server]), *members]
    _check_wishes(folder, names, server, hosts, days)
    authority = _authority(folder, now)
    ends = now + timedelta(days=days)
    if ends > (last := authority[0].not_valid_after_utc):
        raise ConfigError(f"days is {days}; the authority itself expires on {date_text(last)}")
    made = []
    for name in names:
        served = tuple(dict.fromkeys([*(hosts or THIS_MACHINE), name])) if name == server else ()
        certificate, key = _certificate(name, authority, now - EARLIER, ends, served)
        files = {AUTHORITY: _pem(authority[0]), CERTIFICATE: _pem(certificate), KEY: _pem(key)}
        made.append(Issued(name, served, ends, _store(folder, name, files)))
    return made


def _check_wishes(
    folder: Path, names: list[str], server: str | None, hosts: Sequence[str], days: int
) -> None:
    """Raise a `ConfigError` for arguments that cannot be met, before any file is written."""
    if not names:
        raise ConfigError("no party was named; name the server, or members, or both")
    if days < 1:
        raise ConfigError(f"days is {days}; a certificate must hold for 1 or more")
    if days > AUTHORITY_DAYS:
        raise ConfigError(f"days is {days}; the authority holds for {AUTHORITY_DAYS}, use fewer")
    if hosts and server is None:
        raise ConfigError(f"hosts are {list(hosts)}, which go with a server; name it as well")
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name) or name == FOLDER:
            raise ConfigError(
                f"{name!r} cannot be a party's name; letters, digits, '.', '_' and '-' can, up to "
                f"63, with a letter or a digit first, and not {FOLDER!r}"
            )
        if names.count(name) > 1:
            raise ConfigError(f"{name!r} was named {names.count(name)} times; names must differ")
        if (folder / name).exists():
            raise ConfigError(
                f"{folder / name} is there already and is not overwritten; "
                f"name new parties only, or remove it first"
            )
    for host in hosts:
        if not _is_address(host) and not re.fullmatch(r"[A-Za-z0-9_*][A-Za-z0-9._-]{0,252}", host):
            raise ConfigError(
                f"host {host!r} is neither a host name nor an IP address (leave out the port)"
            )


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def _authority(folder: Path, now: datetime) -> Signer:
    """Load the folder's authority, or make one if there is none."""
    place = folder / FOLDER
    if not place.exists():
        ends = now + timedelta(days=AUTHORITY_DAYS)
        made, key = _certificate("Vertizo test authority", None, now - EARLIER, ends)
        _store(folder, FOLDER, {AUTHORITY: _pem(made), KEY: _pem(key)})
    authority = certificates(place / AUTHORITY, read(place / AUTHORITY))[0]
    signer_key = private_key(place / KEY, read(place / KEY), authority, place / AUTHORITY)
    check_dates(place / AUTHORITY, authority, now)
    if not isinstance(signer_key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{place / KEY} was not made by vertizo; use another folder")
    return authority, signer_key


def _certificate(
    name: str,
    authority: Signer | None,
    begins: datetime,
    ends: datetime,
    hosts: tuple[str, ...] = (),
) -> Signer:
    """Make a key and its certificate: a server's (with ``hosts``), a member's, or an authority's.

    Without ``authority`` the certificate signs itself and may sign others.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signs = authority is None
    issuer, signer = (subject, key) if authority is None else (authority[0].subject, authority[1])
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        **dict.fromkeys((*unused, "encipher_only", "decipher_only"), False),
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
        )
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), True)
        .add_extension(usage, True)
    )
    if not signs:  # one use only, so that no member can pose as the server
        use = Use.SERVER_AUTH if hosts else Use.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), False)
    if hosts:
        alternatives = [
            x509.IPAddress(ipaddress.ip_address(host)) if _is_address(host) else x509.DNSName(host)
            for host in hosts
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
    return builder.sign(signer, hashes.SHA256()), key


def _pem(made: Certificate | ec.EllipticCurvePrivateKey) -> bytes:
    if isinstance(made, Certificate):
        return made.public_bytes(forms.Encoding.PEM)
    return made.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())


def _store(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    """Write a party's folder atomically; only the owner may read the key file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=folder) as place:
            draft = Path(place) / name
            draft.mkdir(mode=0o700)
            for file, content in files.items():
                mode = 0o600 if file == KEY else 0o644
                descriptor = os.open(draft / file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                with os.fdopen(descriptor, "wb") as opened:
                    opened.write(content)
            draft.rename(folder / name)
    except OSError as error:
        raise ConfigError(f"{folder / name} cannot be written: {error.strerror}") from None
    return folder / name
