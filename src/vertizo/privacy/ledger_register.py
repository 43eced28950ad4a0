"""Which records which ledger is for, so that nobody gets a second budget unnoticed.

The register lies beside the witnesses, in the user's state folder. A ledger's file in it has a line
of JSON, which says where the ledger is and what it states, and then a keyed digest of each record's
key, in ascending order. The digests' own key, ``secret.key``, lies there too. Whoever reads the
whole folder can try whether a record that they know of is in a ledger, as whoever reads the table
can; the files without ``secret.key`` tell how many records there are, and nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from vertizo.core.errors import RunError
from vertizo.privacy import ledger_file
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.ledger_budget import LedgerBudget
from vertizo.privacy.ledger_witness import Witness, state_folder, sync_folder

Digests = np.ndarray[Any, np.dtype[np.uint64]]

KEY_BYTES = 32
DIGEST_BYTES = 8
"""Of a record. Of 33 million records and as many others, two are taken for one with probability
10⁻⁴, which refuses a ledger that could have been made."""


@dataclass(frozen=True)
class Registered:
    """A ledger that the register knows."""

    identity: str
    ledger: str
    """Where its file was when it was used last."""
    name: str
    """Of its records."""
    epsilon: float
    delta: float
    order: str
    """Digest of the records in the order of their numbers, hex."""
    digests: Digests = field(compare=False, repr=False)
    """Of the single records, ascending."""

    def shared_with(self, digests: Digests) -> int:
        """How many of these records, ascending, it is for as well."""
        return len(np.intersect1d(self.digests, digests))


class Register:
    """The ledgers that were made or used in one state folder.

    Args:
        witness_folder: as of `vertizo.privacy.ledger_witness.Witness`.
    """

    def __init__(self, witness_folder: Path | None = None) -> None:
        self._witnesses = witness_folder
        self._folder = (state_folder() if witness_folder is None else witness_folder) / "records"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else looks a record up or registers one inside.

        Raises:
            RunError: the folder cannot be used.
        """
        with self._reported("used"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            with self._reported("used"):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def check_free(self, keys: Iterable[str]) -> None:
        """Raise RunError if some ledger is for any of these records, and say what to do."""
        digests = np.unique(self._digests(keys))
        for known in self._all():
            shared = known.shared_with(digests)
            if shared:
                raise RunError(
                    f"{shared} of {len(digests)} records are charged to the ledger {known.ledger} "
                    f"already (ε = {bound_text(known.epsilon, 6)} at δ = {known.delta:g}); set "
                    "privacy.ledger to that file, or state an ε beside it, which adds to it: "
                    "`vertizo privacy ledger create FILE CONFIG --further`"
                )

    def add(self, identity: str, path: Path, budget: LedgerBudget, keys: Sequence[str]) -> None:
        """Register a ledger for these records, in the order of their numbers.

        Raises:
            RunError: it cannot be written.
        """
        digests = self._digests(keys)
        about = {
            "ledger": str(path.absolute()),
            "name": budget.name,
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "order": _order(digests),
        }
        head = json.dumps(about, ensure_ascii=False).encode() + b"\n"
        self._write(identity, head + np.unique(digests).astype("<u8").tobytes())

    def claim(
        self, identity: str, path: Path, budget: LedgerBudget, keys: Sequence[str]
    ) -> tuple[Registered, ...]:
        """Find that a ledger is for these records; one that is not registered here is now.

        Returns:
            The other ledgers that are for some of them as well.

        Raises:
            RunError: it is for other records, or it is new here and others are for some of them.
        """
        digests = self._digests(keys)
        known = self._read(identity)
        if known is None:
            self.check_free(keys)
        elif known.order != _order(digests):
            raise RunError(
                f"the ledger {path} is for {len(known.digests)} records of other keys, or in "
                f"another order, than this run's {len(digests)}; its records are those of "
                f"{known.name}"
            )
        if known is None or known.ledger != str(path.absolute()):
            self.add(identity, path, budget, keys)
        return self.beside(identity)

    def beside(self, identity: str) -> tuple[Registered, ...]:
        """The other ledgers that are for some records of this one; none if it is not known here.

        Raises:
            RunError: the register cannot be read.
        """
        known = self._read(identity)
        if known is None:
            return ()
        others = (one for one in self._all() if one.identity != identity)
        return tuple(one for one in others if one.shared_with(known.digests))

    def _never_was(self, known: Registered) -> bool:
        """Whether a ledger's file is gone and nothing was ever charged to it."""
        if Path(known.ledger).exists():
            return False
        witness = Witness(known.identity, self._witnesses)
        if not witness.exists():
            return False
        try:
            return witness.open().sequence <= 1  # the first entry names a run
        finally:
            witness.close()

    def forget_unused(self) -> None:
        """Forget ledgers that are gone and were charged nothing.

        Raises:
            RunError: the register cannot be read or written.
        """
        for known in self._all():
            if self._never_was(known):
                with self._reported("written"):
                    (self._folder / known.identity).unlink()

    def _all(self) -> list[Registered]:
        with self._reported("read"):
            if not self._folder.is_dir():
                return []
            names = sorted(path.name for path in self._folder.iterdir())
        found = (self._read(name) for name in names if len(name) == 32)
        return [known for known in found if known is not None]

    def _read(self, identity: str) -> Registered | None:
        path = self._folder / identity
        with self._reported("read"):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                return None
        head, _, rest = content.partition(b"\n")
        try:
            return Registered(identity, **json.loads(head), digests=np.frombuffer(rest, "<u8"))
        except (ValueError, TypeError):
            raise RunError(f"{path} is damaged: it does not say what a ledger is for") from None

    def _digests(self, keys: Iterable[str]) -> Digests:
        secret = self._secret()
        parts = (
            blake2b(key.encode(), key=secret, digest_size=DIGEST_BYTES).digest() for key in keys
        )
        return np.frombuffer(b"".join(parts), "<u8")

    def _secret(self) -> bytes:
        """The digests' key: from the operating system once, then from the folder."""
        path = self._folder / "secret.key"
        with self._reported("used"):
            if not path.exists():
                self._write(path.name, os.urandom(KEY_BYTES))
            found = path.read_bytes()
        if len(found) != KEY_BYTES:
            raise RunError(f"{path} has {len(found)} bytes; it must have the {KEY_BYTES} written")
        return found

    def _write(self, name: str, content: bytes) -> None:
        """A file of this folder, whole or not at all, through to the disk."""
        temporary = self._folder / f".{name}.{secrets.token_hex(4)}"
        with self._reported("written"):
            try:
                handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, self._folder / name)
                sync_folder(self._folder)
            finally:
                temporary.unlink(missing_ok=True)

    @contextmanager
    def _reported(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"the register of ledgers {self._folder} cannot be {done}: {error.strerror}"
            ) from None


def create_registered(
    path: Path,
    budget: LedgerBudget,
    witness_folder: Path | None,
    keys: Sequence[str] | None,
    *,
    further: bool,
) -> None:
    """Make a ledger and register it; see `vertizo.privacy.durable_ledger.DurableLedger.create`."""
    if keys is None:
        ledger_file.create(path, budget, witness_folder)
        return
    register = Register(witness_folder)
    with register.locked():
        register.forget_unused()
        if not further:
            register.check_free(keys)
        identity = ledger_file.create(path, budget, witness_folder)
        register.add(identity, path, budget, keys)


def stated(budget: LedgerBudget, beside: Sequence[Registered]) -> str:
    """What a ledger comes to, in words; and with those beside it, if there are any."""
    alone = f"ε = {bound_text(budget.epsilon)} at δ = {budget.delta:g}"
    if not beside:
        return alone
    epsilon = budget.epsilon + sum(other.epsilon for other in beside)
    delta = budget.delta + sum(other.delta for other in beside)
    names = ", ".join(repr(Path(other.ledger).name) for other in beside)
    return (
        f"{alone}, and with those on the ledgers of some of the same records ({names}) "
        f"ε = {bound_text(epsilon)} at δ = {delta:g}"
    )


def _order(digests: Digests) -> str:
    return blake2b(digests.tobytes(), digest_size=32).hexdigest()
