"""What a ledger's log adds up to: spending of each record, answered queries and steps of each run.

It is made from the log alone, when the ledger is opened, and then kept in step with it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

import numpy as np

from vertizo.privacy.ledger_budget import ClientSpending, LedgerBudget, LedgerSummary
from vertizo.privacy.ledger_file import REPLY, RUN, STEP, Row

Ids = np.ndarray[Any, np.dtype[np.int64]]

_BATCH = 4096
"""Replies whose record IDs are added up at once."""


class Answers:
    """Which queries of one client in one run were answered, and by which rows."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._sequences = array("q")

    @property
    def last(self) -> int:
        """The last query's number, −1 if there is none."""
        return self._numbers[-1] if self._numbers else -1

    @property
    def last_row(self) -> int:
        """The sequence of the row that answers it."""
        return self._sequences[-1]

    def row_of(self, number: int) -> int | None:
        """The sequence of the row that answers query ``number``."""
        place = bisect_left(self._numbers, number)
        found = place < len(self._numbers) and self._numbers[place] == number
        return self._sequences[place] if found else None

    def add(self, number: int, sequence: int) -> None:
        """Query ``number``, higher than any before, is answered by that row."""
        self._numbers.append(number)
        self._sequences.append(sequence)


class Tally:
    """The sums of one log.

    Args:
        budget: of the ledger.
    """

    def __init__(self, budget: LedgerBudget) -> None:
        self._budget = budget
        self._packed = np.dtype("<u4" if budget.records <= 2**32 else "<u8")
        self.spent = np.zeros((budget.clients, budget.records), np.int64)
        """Units charged, [clients, records]."""
        self.runs: dict[str, int] = {}
        """Sequence of each run's first row, by name."""
        self.answers: dict[tuple[int, int], Answers] = {}
        """By run and client."""
        self.steps: dict[int, int] = {}
        """Secret steps, by run."""
        self.replies = 0
        self._together = np.zeros(budget.records, np.int64)
        self._most = 0

    @property
    def all_steps(self) -> int:
        """Secret steps of all runs."""
        return sum(self.steps.values())

    @property
    def most(self) -> int:
        """Units charged to the record that was charged most, over all clients."""
        return self._most

    def pack(self, ids: Ids) -> bytes:
        """Record IDs as they are kept: unsigned, little endian, 4 bytes each (8 past 2³²)."""
        return ids.astype(self._packed).tobytes()

    def load(self, rows: Iterable[tuple[int, Row]]) -> None:
        """Add up a whole log.

        Raises:
            ValueError: it holds what no ledger of this budget would have written.
        """
        waiting: list[Row] = []
        for sequence, row in rows:
            self.note(sequence, row)
            if row.kind == REPLY:
                waiting.append(row)
                if len(waiting) == _BATCH:
                    self._add(waiting)
                    waiting = []
        self._add(waiting)
        self._together = self.spent.sum(0)
        self._most = int(self._together.max())
        if self.spent.min() < 0 or self.spent.max() > self._budget.share:
            raise ValueError("a record is charged more than a client's share")

    def _add(self, rows: list[Row]) -> None:
        if not rows:
            return
        ids = np.frombuffer(b"".join([row.body for row in rows]), self._packed).astype(np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self._budget.records:
            raise ValueError("a record is charged that the ledger does not have")
        sizes = [len(row.body) // self._packed.itemsize for row in rows]
        clients = np.repeat([row.client for row in rows], sizes)
        costs = np.repeat(np.array([row.cost for row in rows], np.int64), sizes)
        np.add.at(self.spent.reshape(-1), clients * self._budget.records + ids, costs)

    def note(self, sequence: int, row: Row) -> None:
        """Remember a row, but for what it charges.

        Raises:
            ValueError: it does not fit the rows before it.
        """
        kind, run, client, number, cost, _, _, body = row
        if kind == REPLY:
            answers = self.answers.get((run, client))
            if answers is None:
                answers = self.answers[run, client] = Answers()
            good = (
                run in self.steps
                and 0 <= client < self._budget.clients
                and 0 <= cost <= self._budget.share
                and number > answers.last
            )
            answers.add(number, sequence)
            self.replies += 1
        elif kind == STEP:
            good = number == self.steps.get(run) and self.all_steps < self._budget.steps
            self.steps[run] = number + 1
        else:
            good = kind == RUN and run == sequence and body.decode() not in self.runs
            self.runs[body.decode()] = sequence
            self.steps[sequence] = 0
        if not good:
            raise ValueError(f"entry {sequence} cannot be one of this ledger")

    def charge(self, client: int, ids: Ids, cost: int) -> None:
        """Add ``cost`` units to each of these records, which occur once; less than 0 undoes it."""
        self.spent[client, ids] += cost
        self._together[ids] += cost
        if cost < 0:
            self._most = int(self._together.max())
        elif ids.size:
            self._most = max(self._most, int(self._together.take(ids).max()))

    def summary(self, identity: str) -> LedgerSummary:
        """For people."""
        share = self._budget.share
        return LedgerSummary(
            identity=identity,
            budget=self._budget,
            runs=tuple(self.runs),
            replies=self.replies,
            clients=tuple(
                ClientSpending(int(spent.max()), float(spent.mean()), share) for spent in self.spent
            ),
            spent=self._most,
            steps=self.all_steps,
        )
