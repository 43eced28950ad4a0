"""Sign a party's statements with the key of its certificate, and verify such signatures.

A signature has the form that ``openssl dgst -sha256 -sign`` makes, so that it can be verified
without vertizo.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import Certificate

from vertizo.core.errors import ConfigError, RunError
from vertizo.network.transport.certificates import (
    Credentials,
    certificates,
    common_name,
    date_text,
    path_to,
    read,
)

DIGEST = hashes.SHA256()


class Signed(NamedTuple):
    """The party that signed, and the authority that vouches for its name."""

    name: str
    authority: str


def sign(content: bytes, by: Credentials) -> bytes:
    """Sign content; raise a `ConfigError` unless the key is RSA or of an elliptic curve."""
    key = load_pem_private_key(by.key, None)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(content, ec.ECDSA(DIGEST))
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(content, padding.PKCS1v15(), DIGEST)
    raise ConfigError(f"the key of {by.name!r} is neither RSA nor of an elliptic curve (ECDSA)")


def verify(
    content: bytes, signature: bytes, certificate: Path, authority: Path, when: datetime
) -> Signed:
    """Verify the signature of some content, and return who made it.

    ``certificate`` is the PEM file of the party's certificate and of those between it and that of
    ``authority``, whom the reader trusts; all must have been valid ``when`` the statement was made.

    Raises:
        ConfigError: a file is no certificate, was not valid then, or is not the authority's.
        RunError: that key did not sign this content.
    """
    chain = certificates(certificate, read(certificate))
    trusted = certificates(authority, read(authority))
    for one in path_to(trusted, chain, (authority, certificate)):
        begins, ends = one.not_valid_before_utc, one.not_valid_after_utc
        if not begins <= when <= ends:
            raise ConfigError(
                f"{certificate if one in chain else authority} holds from {date_text(begins)} to "
                f"{date_text(ends)}, and what was signed is of {date_text(when)}"
            )
    name = common_name(certificate, chain[0])
    if not _is_signed(content, signature, chain[0]):
        raise RunError(
            f"the signature was not made of this content by {name!r}: one of them was changed, or "
            "another party signed"
        )
    return Signed(name, trusted[0].subject.rfc4514_string())


def _is_signed(content: bytes, signature: bytes, by: Certificate) -> bool:
    key = by.public_key()
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, content, ec.ECDSA(DIGEST))
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, content, padding.PKCS1v15(), DIGEST)
        else:
            return False
    except InvalidSignature:
        return False
    return True
