"""The ledger that belongs to the records: every run, seed and trial on them draws on it.

See docs/privacy.md, Ledger, and docs/mathematics.md, Composition and budgets.

A reply is charged and kept, in one transaction that is on disk, before it leaves. So a server that
is killed at any moment, and started again, finds each reply that may have left, sends that very
reply when the query comes again, and charges it once. Spending is made from the log when the ledger
is opened. It is never part of a checkpoint, and an older copy of the file does not start
(`vertizo.privacy.ledger_witness`).

What it charges depends on record IDs and public constants, never on a value that is computed from
labels: what it refuses, and what its file and its summary hold, tells nothing about them beyond the
replies themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from vertizo.core.errors import (
    BudgetError,
    ConfigError,
    ConflictError,
    RunError,
    UnknownPartyError,
    VertizoError,
)
from vertizo.privacy.events import SecretSteps
from vertizo.privacy.ledger import Answered, Entry, check_admissible
from vertizo.privacy.ledger_budget import LedgerBudget, LedgerSummary
from vertizo.privacy.ledger_file import REPLY, RUN, STEP, LedgerFile, Row, digest
from vertizo.privacy.ledger_opening import check_constants, last_replies, open_both, tallied
from vertizo.privacy.ledger_register import Register, Registered, create_registered, stated
from vertizo.privacy.ledger_tally import Answers, Tally
from vertizo.privacy.ledger_witness import Witness


class DurableLedger:
    """A ledger in a file, open for one run; a `vertizo.privacy.ledger.Ledger`.

    Made by `create`, used through `open`. Calls come one at a time. After an error while writing it
    refuses everything: what is on disk then counts, and `open` reads it.
    """

    def __init__(
        self, file: LedgerFile, tally: Tally, witness: Witness, run: str, replays: bool
    ) -> None:
        self._file = file
        self._tally = tally
        self._witness = witness
        self._name = run
        self._replays = replays
        self._settled = True
        self._run = 0
        self._last: dict[int, Answered] = {}
        self._replaying: set[int] = set()
        self._beside: tuple[Registered, ...] = ()

    @staticmethod
    def create(
        path: Path,
        budget: LedgerBudget,
        witness_folder: Path | None = None,
        *,
        keys: Sequence[str] | None = None,
        further: bool = False,
    ) -> None:
        """Make the ledger of a set of records, once, and its witness.

        Args:
            path: of the file.
            budget: what all its runs together may spend.
            witness_folder: as of `open`.
            keys: of the records, in the order of their numbers; None where they have none.
            further: whether it may be for records that another ledger is for: its ε adds to that
                one's, and all runs say so.

        Raises:
            ConfigError: the stated ε is below what the budget comes to.
            RunError: there is a file of that name, it cannot be made, or another ledger is for
                some of the records.
        """
        budget.check_epsilon()
        create_registered(path, budget, witness_folder, keys, further=further)

    @classmethod
    def open(
        cls,
        path: Path,
        run: str,
        witness_folder: Path | None = None,
        *,
        secret: SecretSteps | None = None,
        replays: bool = False,
    ) -> Self:
        """Open it for one run, which goes on if the ledger knows its name.

        Args:
            path: of the file.
            run: the run's name.
            witness_folder: where the witness is kept, apart from the ledger; None for the user's
                state folder.
            secret: the secret steps that the run will make at most; None for none.
            replays: the run is a simulation with seeded noise, which after a resumption repeats
                what it did since its checkpoint, byte for byte. Repeated queries pass `admit`
                whatever is left, as `commit` finds that they were charged; repeated steps are not
                charged again. With fresh noise a repeated step is another release: leave it off.

        Raises:
            RunError: missing, in use, damaged, rolled back, without its witness, or of other
                constants than the run's.
        """
        if not run.strip() or not run.isprintable():
            raise RunError(f"a run of a ledger is named {run!r}; name it in one line")
        file, tally, witness = open_both(path, witness_folder, accept=False)
        try:
            ledger = cls(file, tally, witness, run, replays)
            ledger._begin(secret)
        except BaseException:
            file.close()
            witness.close()
            raise
        return ledger

    @staticmethod
    def accept(path: Path, witness_folder: Path | None = None) -> LedgerSummary:
        """Make a witness for a ledger that has none here, as one that was moved from elsewhere.

        Whoever calls it vouches that this copy holds every reply that ever left: that it is the
        newest there is, and that no other copy is, or will be, in use. Nothing can check that here,
        and if it is wrong, records are charged less than was spent on them and the stated ε is
        exceeded. A ledger that its witness contradicts is not accepted.

        Raises:
            RunError: as `open`, but for a missing or damaged witness.
        """
        file, tally, witness = open_both(path, witness_folder, accept=True)
        file.close()
        witness.close()
        return tally.summary(file.identity)

    @staticmethod
    def inspect(path: Path) -> LedgerSummary:
        """What a ledger has spent, without opening it for a run and without its witness.

        Raises:
            RunError: missing, in use, or damaged.
        """
        file = LedgerFile(path)
        try:
            tally, _ = tallied(file, None)
            return tally.summary(file.identity)
        finally:
            file.close()

    def claim(self, keys: Sequence[str]) -> None:
        """Find that it is for the records with these keys, in the order of their numbers.

        For the driver to call before anything is charged. A ledger that was moved here is
        registered for them.

        Raises:
            RunError: it is for other records, or it is new here and another ledger is for some.
        """
        register = Register(self._witness.path.parent)
        with register.locked():
            file = self._file
            self._beside = register.claim(file.identity, file.path, self.budget, keys)

    def admit(self, client: int, ids: Tensor, cost: int) -> None:
        """As of a `vertizo.privacy.ledger.Ledger`.

        Raises:
            BudgetError, RepeatedRecordError, UnknownRecordError, UnknownPartyError: refused.
            RunError: writing failed before.
        """
        self._check_usable()
        if client in self._replaying:
            check_admissible(self._spent(client), client, ids, 0, self.budget.share)
        else:
            self._check_charge(client, ids, cost)

    def commit(self, entries: Sequence[Entry]) -> None:
        """As of a `vertizo.privacy.ledger.Ledger`; all of ``entries`` or none.

        An entry that repeats an earlier one in every byte is charged once.

        Raises:
            ConflictError: a query number was used for something else, or is below the last one.
            BudgetError, RepeatedRecordError, UnknownRecordError, UnknownPartyError: as `admit`.
            RunError: writing failed, now or before.
        """
        self._check_usable()
        new: dict[tuple[int, int], Row] = {}
        last: dict[int, int] = {}
        charged: list[Entry] = []
        frames: dict[tuple[int, int], bytes] = {}
        try:
            for entry in entries:
                row = self._row(entry)
                if self._repeats(entry, row, new, last):
                    continue
                self._check_charge(entry.client, entry.ids, entry.cost)
                self._tally.charge(entry.client, entry.ids.numpy(), entry.cost)
                charged.append(entry)
                new[entry.client, entry.number] = row
                last[entry.client] = entry.number
                frames[self._run, entry.client] = bytes(entry.reply)
            if new:
                self._append(list(new.values()), frames)
            for entry in charged:
                row = new[entry.client, entry.number]
                self._last[entry.client] = Answered(entry.number, row.query, bytes(entry.reply))
            for entry in entries:
                if entry.number >= self._answers(entry.client).last:
                    self._replaying.discard(entry.client)
        except VertizoError:
            for entry in charged:
                self._tally.charge(entry.client, entry.ids.numpy(), -entry.cost)
            raise
        except BaseException:
            self._settled = False  # stopped midway, as by Ctrl-C: memory may not match the disk
            raise

    def begin_step(self, number: int) -> None:
        """Charge every record for secret step ``number`` of this run; on disk when it returns.

        Numbers are counted from 0. Steps of all runs together are limited.

        Raises:
            BudgetError: all steps of the ledger were made.
            ConflictError: ``number`` is not the next one.
            RunError: the run was opened without secret steps, or writing failed.
        """
        self._check_usable()
        if self._secret is None:
            raise RunError(f"run {self._name} was opened without secret steps, and begins one")
        if self._replays and 0 <= number < self.steps:
            return
        if number != self.steps:
            raise ConflictError(f"secret step {number}; {self.steps} is the next one")
        if self._tally.all_steps >= self.budget.steps:
            raise BudgetError(f"all {self.budget.steps} steps on secret samples were made")
        self._append([Row(STEP, self._run, number=number)], {})

    def settle(self) -> None:
        """The run has repeated what it will repeat: whatever comes now is charged as new."""
        self._replaying.clear()
        self._replays = False

    def answered(self, client: int) -> Answered | None:
        """The last answered query of a client in this run, with the reply as it left."""
        return self._last.get(client)

    @property
    def budget(self) -> LedgerBudget:
        """The public constants."""
        return self._file.budget

    @property
    def counted(self) -> str:
        """What its budget is for, in words."""
        whole = stated(self.budget, self._beside)
        return f"this run; all runs on the ledger {self._file.path.name!r} together have {whole}"

    @property
    def steps(self) -> int:
        """Secret steps charged in this run."""
        return self._tally.steps[self._run]

    @property
    def steps_left(self) -> int:
        """Secret steps that any run may still make."""
        return self.budget.steps - self._tally.all_steps

    @property
    def spent(self) -> int:
        """Units charged to the record that was charged most, over all clients and runs."""
        return self._tally.most

    def summary(self) -> LedgerSummary:
        """For people."""
        return self._tally.summary(self._file.identity)

    def state(self) -> dict[str, Tensor]:
        """Nothing: what was spent is never part of a checkpoint."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing: what was spent stays spent."""

    def close(self) -> None:
        """Let go of the file and the witness."""
        self._settled = False
        self._file.close()
        self._witness.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _begin(self, secret: SecretSteps | None) -> None:
        """Find or note the run, and what was last answered in it."""
        self._secret = secret
        if secret is not None:
            check_constants(self._file.path, self.budget.secret, secret)
        replies = last_replies(self._file, self._tally)
        if self._name not in self._tally.runs:
            run = self._file.head.sequence + 1
            self._append([Row(RUN, run, body=self._name.encode())], {})
        self._run = self._tally.runs[self._name]
        wanted = 0 if secret is None else secret.count - self.steps
        if wanted > self.steps_left:
            raise RunError(
                f"{self._file.path}: this run needs {wanted} more secret steps, of which "
                f"{self.steps_left} are left; it is not covered"
            )
        for (run, client), reply in replies.items():
            if run == self._run:
                self._last[client] = reply
        self._replaying = set(self._last) if self._replays else set()

    def _append(self, rows: list[Row], frames: dict[tuple[int, int], bytes]) -> None:
        self._settled = False
        first = self._file.head.sequence + 1
        self._file.append(rows, frames)
        for sequence, row in enumerate(rows, first):
            self._tally.note(sequence, row)
        self._witness.write(self._file.head)
        self._settled = True

    def _row(self, entry: Entry) -> Row:
        return Row(
            REPLY,
            self._run,
            entry.client,
            entry.number,
            entry.cost,
            digest(bytes(entry.query)),
            digest(bytes(entry.reply)),
            self._tally.pack(entry.ids.numpy()),
        )

    def _repeats(
        self, entry: Entry, row: Row, new: dict[tuple[int, int], Row], last: dict[int, int]
    ) -> bool:
        """Whether it was committed before, by an earlier call or earlier in this one."""
        answers = self._answers(entry.client)
        if entry.number > last.get(entry.client, answers.last):
            return False
        before = new.get((entry.client, entry.number))
        sequence = answers.row_of(entry.number)
        if before is None and sequence is not None:
            before = self._file.row(sequence)
        if before is None:
            raise ConflictError(
                f"query {entry.number} of client {entry.client} comes after a later one"
            )
        if before != row:
            what = "query" if before.query != row.query else "reply"
            raise ConflictError(
                f"query {entry.number} of client {entry.client} was answered before, with another "
                f"{what}"
            )
        return True

    def _answers(self, client: int) -> Answers:
        return self._tally.answers.get((self._run, client)) or Answers()

    def _check_charge(self, client: int, ids: Tensor, cost: int) -> None:
        share = self.budget.share
        if cost < 0:
            raise ConfigError(f"a reply costs {cost} units; it must be 0 or above")
        check_admissible(self._spent(client), client, ids, min(cost, share + 1), share)

    def _spent(self, client: int) -> Any:
        if not 0 <= client < self.budget.clients:
            raise UnknownPartyError(
                f"client {client} of a ledger with {self.budget.clients} clients"
            )
        return self._tally.spent[client]

    def _check_usable(self) -> None:
        if not self._settled:
            raise RunError(
                f"the ledger {self._file.path} was closed, or writing to it failed; open it again"
            )
