"""Private labels on disk: made once for a set of records, used by every run, never made again.

A file is a line of JSON, the labels (int64, little-endian) and a checksum of both, for its owner's
eyes. Its records are registered as a ledger's are (`vertizo.privacy.ledger.register`), so that a
lost file is not replaced in silence. For people who have a ledger or labels already, a file without
labels is made first (`LabelFile.set_apart`); the first run puts them in. What people are charged in
all then adds up.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vertizo.core.errors import ConfigError, RunError
from vertizo.privacy.accounting import label_advantage
from vertizo.privacy.accounting.events import LedgerBudget
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.labels.private_labels import Paid
from vertizo.privacy.ledger.register import Names, Register, together
from vertizo.privacy.ledger.witness import reported, write_whole

TITLE = "vertizo private labels 1"
CHECK_BYTES = 16


@dataclass(frozen=True)
class Header:
    """The first line of a label file: whose labels these are, and what they cost."""

    identity: str
    name: str
    """The records' name, as in a `LedgerBudget`."""
    records: int
    clients: int
    paid: Paid
    made: bool = True
    """Whether the file has its labels; until then it is set apart for them."""

    @property
    def budget(self) -> LedgerBudget:
        """The budget that the file is registered with."""
        about = self.name, self.records, self.clients
        return LedgerBudget(*about, 1, self.paid.epsilon, self.paid.delta)


class LabelFile:
    """The file of private labels of one set of records.

    Args:
        path: of the file, which may not be there yet.
        name: of the records.
        records: how many there are.
        clients: how many clients there are.
        names: what tells the records apart; None where nothing does.
        witness_folder: where records are registered; None for the user's state folder.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        records: int,
        clients: int,
        names: Callable[[], Names | None] = lambda: None,
        witness_folder: Path | None = None,
    ) -> None:
        self.path, self._names, self._witnesses = path, names, witness_folder
        self._about = name, records, clients

    @property
    def is_made(self) -> bool:
        """Whether the file is there and has its labels."""
        return self.path.exists() and read(self.path)[0].made

    def set_apart(self, paid: Paid, *, further: bool) -> None:
        """Make the file without labels, for the first run to put them in.

        ``further`` lets it be for records of another file, whose ε then adds to its own. RunError:
        there is something of that name, it cannot be made, or another file is for the records.
        """
        names, register = self._names(), Register(self._witnesses)
        with nullcontext() if names is None else register.locked():
            if self.path.exists():
                raise RunError(f"{self.path} exists already; name a file that is not there yet")
            if names is not None:
                register.forget_unused()
                if not further:
                    register.check_free(names, "labels")
            self._write(Header(secrets.token_hex(16), *self._about, paid, made=False), names)

    def paid(self, wanted: Paid) -> Paid:
        """What the labels cost; ``wanted`` where they are not made yet.

        Raises:
            RunError: the file is damaged, or is no such file.
            ConfigError: it is for other records, or was paid for with something else.
        """
        if not self.path.exists():
            return replace(wanted, counted=self._counted())
        header, _ = read(self.path)
        if (header.name, header.records) != self._about[:2]:
            raise ConfigError(
                f"privacy.ledger {self.path} has the labels of {header.records} records of "
                f"{header.name}; this run has {self._about[1]} of {self._about[0]}"
            )
        found = header.paid
        for key in ("mechanism", "epsilon", "delta"):
            theirs, ours = getattr(found, key), getattr(wanted, key)
            if theirs != ours:
                raise ConfigError(
                    f"privacy.{key} is {ours!r} but the labels in {self.path} were made with "
                    f"{theirs!r}, and are not made again; set privacy.{key} to {theirs!r}"
                )
        if not header.made:
            found = wanted
        if wanted.is_secret and not found.is_secret:
            raise ConfigError(
                f"privacy.noise is 'secure' but the labels in {self.path} were made from a seed; "
                "set privacy.noise to 'seeded', or name another file"
            )
        return replace(found, counted=self._counted(header))

    def labels(self, make: Callable[[], Tensor], paid: Paid) -> Tensor:
        """Read the labels, or make and write them where there are none; raises as `paid`."""
        names = self._names()
        register = Register(self._witnesses)
        with nullcontext() if names is None else register.locked():
            header = Header(secrets.token_hex(16), *self._about, paid)
            if self.path.exists():
                self.paid(paid)
                kept, labels = read(self.path)
                if names is not None:
                    register.claim(kept.identity, self.path, kept.budget, names, "labels")
                if kept.made:
                    return labels
                known = register.known(kept.identity)
                if known is not None and not known.is_empty:
                    raise RunError(
                        f"{self.path} is an older copy, from before its labels were made; put the "
                        "newest one back"
                    )
                header = replace(header, identity=kept.identity)
            elif names is not None:
                register.forget_unused()
                register.check_free(names, "labels")
            labels = make()
            self._write(header, names, labels)
            return labels

    def _write(self, header: Header, names: Names | None, labels: Tensor | None = None) -> None:
        """Register the file, and then write it.

        A process that ends in between leaves records that count as charged, for labels that nobody
        read. The other way round it would leave labels that nothing counts.
        """
        register = Register(self._witnesses)
        about = header.identity, self.path, header.budget
        if names is not None:
            register.add(*about, names, "labels", is_empty=not header.made)
        head = json.dumps({"title": TITLE, **asdict(header)}, ensure_ascii=False).encode()
        numbers = b"" if labels is None else labels.numpy().astype("<i8").tobytes()
        body = head + b"\n" + numbers
        try:
            with reported("the private labels", self.path, "written"):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self.path, body + _check(body))
        except RunError:  # such as of a full disk: what was not written was not read
            if names is not None and not self.path.exists():
                register.forget(header.identity)
            elif names is not None and not self.is_made:
                register.add(*about, names, "labels", is_empty=True)
            raise

    def _counted(self, header: Header | None = None) -> str:
        words = f"all runs on the private labels in {self.path.name!r} together"
        beside = () if header is None else Register(self._witnesses).beside(header.identity)
        if header is None or not beside:
            return words
        return f"{words} have {together(header.budget, beside)}"


def read(path: Path) -> tuple[Header, Tensor]:
    """Read a label file's header and its labels; RunError if it is none, or damaged."""
    with reported("the private labels", path, "read"):
        content = path.read_bytes()
    body, check = content[:-CHECK_BYTES], content[-CHECK_BYTES:]
    head, _, rest = body.partition(b"\n")
    if not head.startswith(f'{{"title": "{TITLE}"'.encode()):
        raise RunError(
            f"{path} has no private labels; name a file that is not there yet, and the labels are "
            "made and kept in it"
        )
    if check != _check(body):
        raise RunError(
            f"{path} is damaged; put its copy back: labels that are made anew cost ε again"
        )
    about = json.loads(head)
    del about["title"]
    header = Header(**{**about, "paid": Paid(**about["paid"])})
    return header, torch.from_numpy(np.frombuffer(rest, "<i8").astype(np.int64))


def has_labels(path: Path) -> bool:
    """Whether a file says that it holds private labels; nothing of it is checked."""
    with reported("the private labels", path, "read"), path.open("rb") as file:
        return file.read(64).startswith(f'{{"title": "{TITLE}"'.encode())


def told(path: Path) -> str:
    """A description of a label file, in lines; RunError as of `read`."""
    header = read(path)[0]
    paid, what = header.paid, "private labels" if header.made else "set apart for private labels"
    return (
        f"{what} of {header.records:,} records of {header.name}, by {paid.mechanism}: "
        f"ε = {bound_text(paid.epsilon)} at δ = {paid.delta:g}, once; all runs on them are free\n"
        f"label advantage: at most {label_advantage.text(paid.label_advantage)}\n"
        f"randomness: {paid.source}"
    )


def _check(body: bytes) -> bytes:
    return blake2b(body, digest_size=CHECK_BYTES).digest()
