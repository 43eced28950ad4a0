"""What a party keeps secret on its own disk: the root of its randomness, and keys of noise."""

from __future__ import annotations

from pathlib import Path

from vertizo.core.errors import RunError
from vertizo.core.randomness import Stream
from vertizo.run import checkpoint


def root_of(folder: Path) -> Stream:
    """The root of a party's randomness: from the operating system once, then from its folder.

    Raises:
        RunError: the file cannot be read or written, or is not what was written.
    """
    path = folder / "secret.key"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            checkpoint.write_atomically(path, Stream.from_os().key, 0o600)
        key = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} cannot be used: {error.strerror}") from None
    if len(key) != 32:
        raise RunError(f"{path} has {len(key)} bytes; it must have the 32 that were written")
    return Stream(key)


class KeyedBytes:
    """Bytes that nobody can foresee who does not know the key: AES-256 in counter mode.

    A server that was killed computes anew what it had computed since its checkpoint, noise
    included, so that nothing is released a second time with other noise. It therefore keeps the
    key of that noise with the checkpoint, and takes a new one with each: no key is ever used for
    two different courses of events.

    >>> source = KeyedBytes(bytes(32))
    >>> first = source(5)
    >>> source.rekey(bytes(32))
    >>> source(5) == first
    True
    """

    name = "AES-256 with a key from the operating system"

    def __init__(self, key: bytes) -> None:
        self.rekey(key)

    def rekey(self, key: bytes) -> None:
        """Start anew with a key of 32 bytes."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def __call__(self, count: int) -> bytes:
        """So many bytes; never the same again under one key."""
        return self._stream.update(bytes(count))
