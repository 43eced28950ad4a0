"""A test authority: certificates for parties that try the network, or that trust one of them.

Organisations have authorities of their own and make the same three files with those.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from vertizo.core.errors import ConfigError
from vertizo.network.certificates import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    certificates,
    check_dates,
    check_key,
    date_text,
    read,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, ExtensionType, Name

FOLDER = "authority"
AUTHORITY_DAYS = 3650
EARLIER = timedelta(hours=1)
"""New certificates hold from so long ago, because clocks differ."""
THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Issued:
    """A certificate that was just made.

    Args:
        name: the party's.
        hosts: host names and addresses that it may serve under; none for a member.
        expires: until when it holds.
        folder: where it lies, to be handed to the party.
    """

    name: str
    hosts: tuple[str, ...]
    expires: datetime
    folder: Path


def issue(
    folder: Path,
    server: str | None,
    members: Sequence[str],
    hosts: Sequence[str],
    days: int,
    now: datetime | None = None,
) -> list[Issued]:
    """Make a folder of credentials for each party, under a test authority in ``folder/authority``.

    An authority that is already there is used again, and no party is ever overwritten.

    Args:
        folder: to make them in.
        server: the label holder's name, or None to add members only.
        members: the clients' names.
        hosts: under which members reach the server; without any, this machine alone.
        days: how long the parties' certificates hold.
        now: the time that counts as now.

    Raises:
        ConfigError: a name that is no good or was used, or an authority that cannot be used.
    """
    now = datetime.now(UTC) if now is None else now
    names = [*([] if server is None else [server]), *members]
    _check_wishes(folder, names, server, hosts, days)
    signer, signer_key = _authority(folder, now)
    ends = now + timedelta(days=days)
    if ends > (last := signer.not_valid_after_utc):
        raise ConfigError(f"days is {days}; the authority itself expires on {date_text(last)}")
    made = []
    for name in names:
        served = tuple(dict.fromkeys([*(hosts or THIS_MACHINE), name])) if name == server else ()
        files = _party(name, served, signer, signer_key, now, ends)
        made.append(Issued(name, served, ends, _store(folder, name, files)))
    return made


def _check_wishes(
    folder: Path, names: list[str], server: str | None, hosts: Sequence[str], days: int
) -> None:
    if not names:
        raise ConfigError("no party was named; name the server, or members, or both")
    if days < 1:
        raise ConfigError(f"days is {days}; a certificate must hold for 1 or more")
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
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _authority(folder: Path, now: datetime) -> tuple[Certificate, EllipticCurvePrivateKey]:
    """The folder's authority, made if there is none."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    place = folder / FOLDER
    if not place.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject("Vertizo test authority")
        extensions: list[tuple[ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (_key_usage(signs_certificates=True), True),
        ]
        ends = now + timedelta(days=AUTHORITY_DAYS)
        made = _sign(subject, key, subject, key, now - EARLIER, ends, extensions)
        _store(folder, FOLDER, {AUTHORITY: _pem(made), KEY: _key_pem(key)})
    pem = read(place / AUTHORITY)
    authority = certificates(place / AUTHORITY, pem)[0]
    key_pem = read(place / KEY)
    check_key(place / KEY, key_pem, authority, place / AUTHORITY)
    check_dates(place / AUTHORITY, authority, now)
    signer_key = load_pem_private_key(key_pem, None)
    if not isinstance(signer_key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{place / KEY} was not made by vertizo; use another folder")
    return authority, signer_key


def _party(
    name: str,
    hosts: tuple[str, ...],
    signer: Certificate,
    signer_key: EllipticCurvePrivateKey,
    now: datetime,
    ends: datetime,
) -> dict[str, bytes]:
    """The three files of a server (which has hosts) or a member."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID as Use

    key = ec.generate_private_key(ec.SECP256R1())
    extensions: list[tuple[ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(signs_certificates=False), True),
        # one use only, so that no member can pose as the server
        (x509.ExtendedKeyUsage([Use.SERVER_AUTH if hosts else Use.CLIENT_AUTH]), False),
    ]
    if hosts:
        alternatives = [
            x509.IPAddress(ipaddress.ip_address(host)) if _is_address(host) else x509.DNSName(host)
            for host in hosts
        ]
        extensions.append((x509.SubjectAlternativeName(alternatives), False))
    made = _sign(_subject(name), key, signer.subject, signer_key, now - EARLIER, ends, extensions)
    return {AUTHORITY: _pem(signer), CERTIFICATE: _pem(made), KEY: _key_pem(key)}


def _subject(name: str) -> Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(signs_certificates: bool) -> ExtensionType:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _sign(
    subject: Name,
    key: EllipticCurvePrivateKey,
    signer: Name,
    signer_key: EllipticCurvePrivateKey,
    begins: datetime,
    ends: datetime,
    extensions: list[tuple[ExtensionType, bool]],
) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), False
        )
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer_key, hashes.SHA256())


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization as forms

    return key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())


def _store(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    """Write a party's folder as a whole, or not at all; keys are for the owner's eyes only."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder))
        try:
            for file, content in files.items():
                mode = 0o600 if file == KEY else 0o644
                descriptor = os.open(draft / file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                with os.fdopen(descriptor, "wb") as opened:
                    opened.write(content)
            draft.rename(folder / name)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except OSError as error:
        raise ConfigError(f"{folder / name} cannot be written: {error.strerror}") from None
    return folder / name
