"""Private labels on disk: made once for a set of records, used by every run, never made again.

A file is a line of JSON, the labels (int64, little-endian) and a checksum of both, for its owner's
eyes. Its records are registered as those of a ledger are (`ledger_witness`): where the file is lost
no other one is made for them in silence.
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
from vertizo.privacy import label_advantage
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.events import LedgerBudget
from vertizo.privacy.ledger_witness import Names, Register, reported, write_whole
from vertizo.privacy.private_labels import Paid

TITLE = "vertizo private labels 1"
CHECK_BYTES = 16
LEAST = 1e-300
"""δ of what has none, where one must be named."""


@dataclass(frozen=True)
class Header:
    """What a file says of its labels."""

    identity: str
    name: str
    """Of the records, as of a ledger's."""
    records: int
    clients: int
    paid: Paid

    @property
    def budget(self) -> LedgerBudget:
        """As it is registered."""
        epsilon, delta = self.paid.epsilon, self.paid.delta or LEAST
        return LedgerBudget(self.name, self.records, self.clients, 1, epsilon, delta)


class LabelFile:
    """The private labels of one set of records.

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
    def exists(self) -> bool:
        """Whether they were made."""
        return self.path.exists()

    def paid(self, wanted: Paid) -> Paid:
        """What the labels were paid for with; ``wanted`` where they are not made yet.

        Raises:
            RunError: the file is damaged, or is no such file.
            ConfigError: it is for other records, or was paid for with something else.
        """
        if not self.exists:
            return replace(wanted, counted=self._counted)
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
        if wanted.is_secret and not found.is_secret:
            raise ConfigError(
                f"privacy.noise is 'secure' but the labels in {self.path} were made from a seed; "
                "set privacy.noise to 'seeded', or name another file"
            )
        return replace(found, counted=self._counted)

    @property
    def _counted(self) -> str:
        return f"all runs on the private labels in {self.path.name!r} together"

    def labels(self, make: Callable[[], Tensor], paid: Paid) -> Tensor:
        """The labels: read, or made and written where there are none; errors as `paid`."""
        names = self._names()
        register = Register(self._witnesses)
        with nullcontext() if names is None else register.locked():
            if self.exists:
                self.paid(paid)
                header, labels = read(self.path)
                if names is not None:
                    register.claim(header.identity, self.path, header.budget, names)
                return labels
            name, records, clients = self._about
            if names is not None:
                register.check_free(names)
            header = Header(secrets.token_hex(16), name, records, clients, paid)
            labels = make()
            head = json.dumps({"title": TITLE, **asdict(header)}, ensure_ascii=False).encode()
            body = head + b"\n" + labels.numpy().astype("<i8").tobytes()
            with reported("the private labels", self.path, "written"):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self.path, body + _check(body))
            if names is not None:
                register.add(header.identity, self.path, header.budget, names)
            return labels


def read(path: Path) -> tuple[Header, Tensor]:
    """What a file says of its labels, and they themselves; RunError: it is none, or damaged."""
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
    """What a file of private labels is, in a line; RunError as of a `LabelFile`."""
    header = read(path)[0]
    paid = header.paid
    return (
        f"private labels of {header.records:,} records of {header.name}, by {paid.mechanism}: "
        f"ε = {bound_text(paid.epsilon)} at δ = {paid.delta:g}, once; all runs on them are free\n"
        f"label advantage: at most {label_advantage.text(paid.label_advantage)}\n"
        f"randomness: {paid.source}"
    )


def _check(body: bytes) -> bytes:
    return blake2b(body, digest_size=CHECK_BYTES).digest()
