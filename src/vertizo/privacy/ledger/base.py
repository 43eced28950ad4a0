"""Ledgers: what each record was charged, and the refusal of what would overspend.

See docs/privacy.md, Ledger, and docs/mathematics.md, Composition and budgets.

The charge depends on record IDs and public constants only, never on a value that is computed from
labels: a refusal, a ledger's file and what it prints say nothing about the data beyond the replies
themselves. Each client has a share of its own of every record: none can exhaust a record for the
others. A query is admitted before anything is computed, and charged, together with its reply,
before the reply leaves.

Spending is counted in whole units of μ², the squared parameter of Gaussian differential privacy, in
which Gaussian releases compose by addition: sums of any length are exact.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, NamedTuple, SupportsBytes

import numpy as np
from torch import Tensor

from vertizo.core.errors import (
    BudgetError,
    ConfigError,
    ConflictError,
    RepeatedRecordError,
    UnknownPartyError,
    UnknownRecordError,
)
from vertizo.core.state import Stateful
from vertizo.core.validate import non_negative
from vertizo.privacy.accounting.events import Charges, LedgerBudget
from vertizo.privacy.accounting.gaussian import mu_of_units
from vertizo.privacy.epsilon_text import bound_text

Ids = np.ndarray[Any, np.dtype[np.int64]]

RUN, REPLY, STEP = 1, 2, 3
"""Kinds of rows of a log: a run begins, a reply, a secret step."""


@dataclass(frozen=True)
class Entry:
    """Query ``number`` of ``client`` in this run, answered and to be charged.

    Each record of ``ids``, int64 [batch], is charged ``cost``; frames are as they came and leave.
    """

    client: int
    number: int
    query: SupportsBytes
    ids: Tensor
    cost: int
    reply: SupportsBytes


@dataclass(frozen=True)
class Answered:
    """The last answered query of a client, by its frame's digest, as a durable ledger keeps it."""

    number: int
    digest: bytes
    reply: bytes


class Ledger(Stateful, ABC):
    """An account of what every record was charged; it refuses what would overspend.

    ``charged`` holds units, [clients, records]; ``share`` is how many one record may be charged for
    replies to one client.
    """

    charged: Ids
    share: int

    @property
    @abstractmethod
    def counted(self) -> str:
        """The runs that its budget is for, in words."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Secret steps charged in this run."""

    @property
    def spent(self) -> int:
        """Units charged to the record that was charged most, over all clients."""
        return int(self.charged.sum(0).max(initial=0))

    def charges(self) -> Charges | None:
        """What all runs on the ledger's file were charged; None for a ledger without a file."""
        return None

    def admit(self, client: int, ids: Tensor, cost: int) -> None:
        """Check that these records may each be charged ``cost`` units for a reply to ``client``.

        Changes nothing.

        Raises:
            BudgetError: some record would be taken past the client's share of it.
            RepeatedRecordError, UnknownRecordError: the IDs are no set of known records.
            UnknownPartyError: there is no such client.
        """
        clients, records = self.charged.shape
        if not 0 <= client < clients:
            raise UnknownPartyError(f"client {client} of a ledger with {clients} clients")
        if cost < 0:
            raise ConfigError(f"a reply costs {cost} units; it must be 0 or above")
        rows = ids.numpy()
        if rows.size and not 0 <= rows.min() <= rows.max() < records:
            raise UnknownRecordError(f"a record ID outside 0 to {records - 1}")
        if np.unique(rows).size != rows.size:
            raise RepeatedRecordError("a record occurs twice in one batch")
        for charged, share in self._limits():
            price = min(cost, share + 1)  # no sum passes 64 bits
            over = int(np.count_nonzero(charged[client].take(rows) + price > share))
            if over:
                times = f"{share // price} such replies" if price else "nothing"
                raise BudgetError(
                    f"{over} of {rows.size} records of this batch have no more left for client "
                    f"{client}, whose share of a record is {times}"
                )

    def _limits(self) -> Sequence[tuple[Ids, int]]:
        """Units that records were charged, [clients, records], and the most that each may be."""
        return ((self.charged, self.share),)

    @abstractmethod
    def commit(self, entries: Sequence[Entry]) -> None:
        """Charge all these entries and keep their replies, or none; then the replies may leave."""

    @abstractmethod
    def begin_step(self, number: int) -> None:
        """Charge every record for secret step ``number``, from 0.

        BudgetError if all were made, ConflictError if ``number`` is not the next one.
        """

    def settle(self) -> None:
        """End the replay of a resumed run: what comes now is charged as new."""

    def answered(self, client: int) -> Answered | None:
        """The last answered query of a client in this run, if the ledger outlives its process."""
        return None


class MemoryLedger(Ledger):
    """A ledger of one simulated run, in memory; it allows ``steps`` secret steps."""

    STATE = ("charged", "steps")
    counted = "this run alone; tuning is not counted"
    steps = 0

    def __init__(self, records: int, clients: int, share: int, steps: int = 0) -> None:
        non_negative("a client's share of a record", share)
        self.share, self._most_steps = share, steps
        self.charged = np.zeros((clients, records), np.int64)

    def commit(self, entries: Sequence[Entry]) -> None:
        """See `Ledger.commit`."""
        for entry in entries:
            self.charged[entry.client, entry.ids.numpy()] += entry.cost

    def begin_step(self, number: int) -> None:
        """See `Ledger.begin_step`."""
        if number != self.steps:
            raise ConflictError(f"secret step {number}; {self.steps} is the next one")
        if self.steps >= self._most_steps:
            raise BudgetError(f"all {self._most_steps} steps on secret samples were made")
        self.steps += 1


class LedgerView(Ledger):
    """The ledger of all clients, for a run of some of them.

    Args:
        whole: the open ledger of all clients; whoever opened it closes it.
        seats: each client's number in that ledger, in the order of the run's own.
    """

    def __init__(self, whole: Ledger, seats: Sequence[int]) -> None:
        self._whole, self._seats = whole, tuple(seats)
        self.share = whole.share

    @property
    def charged(self) -> Ids:  # type: ignore[override]
        """Units charged, [clients, records], of the run's own clients."""
        return self._whole.charged[list(self._seats)]

    @property
    def counted(self) -> str:
        """See `Ledger.counted`."""
        return self._whole.counted

    def charges(self) -> Charges | None:
        """See `Ledger.charges`."""
        return self._whole.charges()

    @property
    def steps(self) -> int:
        """See `Ledger.steps`."""
        return self._whole.steps

    def admit(self, client: int, ids: Tensor, cost: int) -> None:
        """See `Ledger.admit`."""
        self._whole.admit(self._seats[client], ids, cost)

    def commit(self, entries: Sequence[Entry]) -> None:
        """See `Ledger.commit`."""
        self._whole.commit([replace(one, client=self._seats[one.client]) for one in entries])

    def begin_step(self, number: int) -> None:
        """See `Ledger.begin_step`."""
        self._whole.begin_step(number)

    def settle(self) -> None:
        """See `Ledger.settle`."""
        self._whole.settle()

    def answered(self, client: int) -> Answered | None:
        """See `Ledger.answered`."""
        return self._whole.answered(self._seats[client])


def digest(frame: bytes) -> bytes:
    """The BLAKE2b digest that a ledger keeps of a frame, 32 bytes."""
    return blake2b(frame, digest_size=32).digest()


class Row(NamedTuple):
    """One row of the log, without its place in it."""

    kind: int
    run: int
    client: int = 0
    number: int = 0
    cost: int = 0
    query: bytes = b""
    reply: bytes = b""
    body: bytes = b""
    time: int = 0
    """Seconds since 1970, UTC, by the label holder's clock; 0 where nobody noted it."""

    def link(self, previous: bytes) -> bytes:
        """The chain's value after this row, 32 bytes."""
        parts = self[5:8]
        text = struct.pack("<8q", *self[:5], *map(len, parts)) + b"".join(parts)
        return digest(previous + text + (struct.pack("<q", self.time) if self.time else b""))

    def repeats(self, other: Row) -> bool:
        """Whether both rows are equal but for their times."""
        return self._replace(time=other.time) == other


class Answers:
    """Which queries of one client in one run were answered, and by which rows, both ascending."""

    def __init__(self) -> None:
        self.numbers, self.sequences = array("q", [-1]), array("q", [0])

    def row_of(self, number: int) -> int | None:
        """The sequence of the row that answers query ``number`` (from 0); None if none does."""
        place = bisect_left(self.numbers, number)
        found = 0 < place < len(self.numbers) and self.numbers[place] == number
        return self.sequences[place] if found else None


class Tally:
    """The sums of a log; ``print`` shows them. They follow from record IDs and public constants.

    ``charged`` holds units, [clients, records]; ``runs`` the sequence of each run's first row, by
    name; ``answers`` is by run and client, ``steps_of`` counts secret steps by run; ``times`` are
    those of each run's first and last row, in seconds since 1970.
    """

    def __init__(self, identity: str, budget: LedgerBudget) -> None:
        self.identity, self.budget = identity, budget
        self.charged = np.zeros((budget.clients, budget.records), np.int64)
        self.runs: dict[str, int] = {}
        self.times: dict[int, tuple[int, int]] = {}
        self.answers: dict[tuple[int, int], Answers] = {}
        self.steps_of: dict[int, int] = {}
        self.replies = 0
        self._packed = np.dtype("<u4" if budget.records <= 2**32 else "<u8")

    @property
    def spent(self) -> int:
        """Units charged to the record that was charged most, over all clients."""
        return int(self.charged.sum(0).max())

    @property
    def left(self) -> int:
        """Units that every record still has left, at least, for every client."""
        return self.left_of(range(self.budget.clients))

    def left_of(self, clients: Sequence[int]) -> int:
        """Units that every record still has left, at least, for each of those clients."""
        return self.budget.share - int(self.charged[list(clients)].max())

    @property
    def steps(self) -> int:
        """Secret steps of all runs."""
        return sum(self.steps_of.values())

    @property
    def steps_left(self) -> int:
        """Secret steps that any run may still make."""
        return self.budget.steps - self.steps

    def pack(self, ids: Ids) -> bytes:
        """Record IDs as they are kept: unsigned, little endian, 4 bytes each (8 past 2³²)."""
        return ids.astype(self._packed).tobytes()

    def charge(self, row: Row, times: int = 1) -> None:
        """Add what a reply's row costs to each of its records; −1 times undoes it."""
        np.add.at(self.charged[row.client], self.ids_of(row), times * row.cost)

    def ids_of(self, row: Row) -> Ids:
        """The records that a reply's row charges; ValueError for one that is unknown."""
        ids = np.frombuffer(row.body, self._packed).astype(np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.budget.records:
            raise ValueError("a record is charged that the ledger does not have")
        return ids

    def note(self, sequence: int, row: Row) -> None:
        """Count a row, except what it charges; ValueError if it cannot follow the earlier ones."""
        if row.kind == REPLY:
            answers = self.answers.setdefault((row.run, row.client), Answers())
            good = (
                row.run in self.steps_of
                and 0 <= row.client < self.budget.clients
                and 0 <= row.cost <= self.budget.share
                and row.number > answers.numbers[-1]
            )
            answers.numbers.append(row.number)
            answers.sequences.append(sequence)
            self.replies += 1
        elif row.kind == STEP:
            good = row.number == self.steps_of.get(row.run) and self.steps_left > 0
            self.steps_of[row.run] = row.number + 1
        else:
            name = row.body.decode()
            good = row.kind == RUN and row.run == sequence and name not in self.runs
            self.runs[name], self.steps_of[sequence] = sequence, 0
        if not good:
            raise ValueError(f"entry {sequence} cannot be one of this ledger")
        self.times[row.run] = self.times.get(row.run, (row.time,))[0], row.time

    def __str__(self) -> str:
        budget, share, secret = self.budget, self.budget.share, self.budget.secret
        lines = [
            f"{budget.name}: {budget.records} records, {budget.clients} clients, "
            f"ε = {bound_text(budget.epsilon, 6)} at δ = {budget.delta:g} for all runs on it",
            f"runs: {len(self.runs)} ({', '.join(map(self._dated, self.runs)) or 'none yet'})",
            f"replies: {self.replies}; most spent on one record: μ = {mu_of_units(self.spent):.4g} "
            f"of {budget.mu:.4g} ({_percent(self.spent / (budget.clients * share))} of μ²)",
        ]
        lines += [
            f"client {number}: {_percent(spent.max() / share)} of its share of the record "
            f"charged most, {_percent(spent.mean() / share)} on average"
            for number, spent in enumerate(self.charged)
        ]
        if secret is not None:
            lines.append(
                f"secret steps: {self.steps} of {secret.count}, {self.steps_left} left "
                f"(q = {secret.sampling:g}, z = {secret.noise_multiplier:g})"
            )
        return "\n".join(lines)

    def _dated(self, name: str) -> str:
        """A run's name, and when it began."""
        return " ".join((name, date_text(self.times[self.runs[name]][0]))).rstrip()


def date_text(time: int) -> str:
    """A time as people read it, in UTC; empty where nobody noted it.

    >>> date_text(1764000000), date_text(0)
    ('2025-11-24 16:00 UTC', '')
    """
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC" if time else ""


def _percent(part: float) -> str:
    """A share in per cent, rounded up, so that a little is not shown as nothing."""
    return f"{math.ceil(part * 1000) / 10:.1f} %"
