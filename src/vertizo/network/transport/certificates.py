"""Load and check a party's credentials: its certificate, its key and the trusted authority.

A party's folder holds ``authority.pem``, ``certificate.pem`` and ``key.pem``, made by its own
organisation or by `vertizo.network.transport.authority`; or it is a start-up kit of NVIDIA FLARE.
The common name of the certificate is the party's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import (
    Certificate,
    ExtendedKeyUsage,
    ExtensionNotFound,
    load_pem_x509_certificates,
)
from cryptography.x509.oid import ExtendedKeyUsageOID as Use
from cryptography.x509.oid import NameOID

from vertizo.core.errors import ConfigError

AUTHORITY, CERTIFICATE, KEY = "authority.pem", "certificate.pem", "key.pem"
LAYOUTS = (
    (AUTHORITY, CERTIFICATE, KEY),
    ("rootCA.pem", "server.crt", "server.key"),
    ("rootCA.pem", "client.crt", "client.key"),
)


@dataclass(frozen=True)
class Credentials:
    """A party's certificate, its key and the authority that it trusts; all in PEM."""

    authority: bytes = field(repr=False)
    """Certificate of the authority that signed the other parties' certificates."""
    certificate: bytes = field(repr=False)
    """The party's certificate, followed by those between it and the authority."""
    key: bytes = field(repr=False)
    """The private key, not encrypted."""
    name: str
    """The party's name: the common name of its certificate."""
    expires: datetime
    """Earliest expiry of the certificates on the path to the authority."""

    @classmethod
    def load(cls, folder: Path) -> Credentials:
        """Load a folder made by ``vertizo certs``, or a start-up kit of NVIDIA FLARE.

        ConfigError if a file is missing, is no PEM, or does not go with the others; or if the
        certificate does not hold today.
        """
        files = files_of(folder)
        authority, certificate, key = map(read, files)
        trusted = certificates(files[0], authority)
        chain = certificates(files[1], certificate)
        private_key(files[2], key, chain[0], files[1])
        path = path_to(trusted, chain, files)
        now = datetime.now(UTC)
        for one in path:
            check_dates(files[1] if one in chain else files[0], one, now)
        return cls(
            authority=authority,
            certificate=certificate,
            key=key,
            name=common_name(files[1], chain[0]),
            expires=min(one.not_valid_after_utc for one in path),
        )

    def check_use(self, serving: bool) -> None:
        """Raise a `ConfigError` if the certificate may not be used as a server's or a member's."""
        extensions = load_pem_x509_certificates(self.certificate)[0].extensions
        try:
            uses = extensions.get_extension_for_class(ExtendedKeyUsage).value
        except ExtensionNotFound:
            return  # as in FLARE's kits: good for both, the names tell who is who
        wanted = Use.SERVER_AUTH if serving else Use.CLIENT_AUTH
        if wanted not in uses and Use.ANY_EXTENDED_KEY_USAGE not in uses:
            is_for, needed = ("a member", "a server") if serving else ("a server", "a member")
            raise ConfigError(
                f"the certificate of {self.name!r} is for {is_for} only; here it must be {needed}'s"
            )


def files_of(folder: Path) -> list[Path]:
    """Find authority, certificate and key in any of `LAYOUTS`; ConfigError if one is missing."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; name the one with {CERTIFICATE} and {KEY}")
    for place in (folder, folder / "startup"):
        for layout in LAYOUTS:
            files = [place / name for name in layout]
            if not any(file.is_file() for file in files[1:]):
                continue
            for file in files:
                if not file.is_file():
                    raise ConfigError(f"{file} is missing; it goes with the others in {place}")
            return files
    raise ConfigError(
        f"{folder} has no {CERTIFICATE} and {KEY}, and is no start-up kit of NVIDIA FLARE; "
        f"name one party's own folder"
    )


def read(file: Path) -> bytes:
    """Read a file's bytes; raise a `ConfigError` that names it if that fails."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None


def certificates(file: Path, pem: bytes) -> list[Certificate]:
    """Parse the certificates in PEM, at least one; raise a `ConfigError` if that fails."""
    try:
        return load_pem_x509_certificates(pem)
    except ValueError:
        raise ConfigError(
            f"{file} is no certificate in PEM; it should begin with -----BEGIN CERTIFICATE-----"
        ) from None


def private_key(file: Path, pem: bytes, certificate: Certificate, of: Path) -> PrivateKeyTypes:
    """Parse the private key of the certificate in the file ``of``.

    ConfigError if it is encrypted, is no key, or belongs to another certificate.
    """
    try:
        key = load_pem_private_key(pem, None)
    except TypeError:
        raise ConfigError(f"{file} is encrypted; a key without a pass phrase is needed") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{file} is no private key in PEM") from None
    if key.public_key() != certificate.public_key():
        raise ConfigError(f"{file} is not the key of {of}; the two were made for different parties")
    return key


def path_to(
    trusted: list[Certificate], chain: list[Certificate], files: Sequence[Path]
) -> list[Certificate]:
    """Build the chain of certificates from the party's own up to a trusted authority's.

    ConfigError if no chain leads there; it names ``files``, the authority's and the party's.
    """
    path, others = chain[:1], chain[1:]
    while True:
        for authority in trusted:
            if _signed(path[-1], authority):
                return [*path, authority]
        between = next((one for one in others if _signed(path[-1], one)), None)
        if between is None:
            raise ConfigError(
                f"{files[1]} was not signed by {files[0]} "
                f"({trusted[0].subject.rfc4514_string()}) but by "
                f"{path[-1].issuer.rfc4514_string()}"
            )
        others.remove(between)
        path.append(between)


def _signed(certificate: Certificate, by: Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def check_dates(file: Path, certificate: Certificate, now: datetime) -> None:
    """Raise a `ConfigError` unless a certificate is valid at the time ``now``."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    clock = f"this machine's clock says {date_text(now)}"
    if now > ends:
        raise ConfigError(
            f"{file} expired on {date_text(ends)}; {clock}: renew it, or set the clock"
        )
    if now < begins:
        raise ConfigError(
            f"{file} is not valid before {date_text(begins)}; {clock}, which may be wrong"
        )


def date_text(time: datetime) -> str:
    """Format a date and time for people, in UTC."""
    return f"{time:%Y-%m-%d %H:%M} UTC"


def common_name(file: Path, certificate: Certificate) -> str:
    """Return a certificate's common name; raise a `ConfigError` unless it has exactly one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1 or not names[0].value:
        raise ConfigError(
            f"{file} has {len(names)} common names; it must have one, which is the party's name"
        )
    return str(names[0].value)


def common_name_of(certificate: Certificate) -> str:
    """Name any certificate for people: by its common name, or else by its whole subject."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else certificate.subject.rfc4514_string()
