"""The durable ledger of a set of records: every run, seed and trial on them draws on it.

See docs/privacy.md, Ledger. `vertizo.privacy.ledger.base` says what charges may depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Self

import numpy as np
from torch import Tensor

from vertizo.core.errors import BudgetError, ConfigError, ConflictError, RunError, VertizoError
from vertizo.privacy.accounting import guarantee
from vertizo.privacy.accounting.events import Charges, LedgerBudget, SecretSteps
from vertizo.privacy.ledger.base import (
    REPLY,
    RUN,
    STEP,
    Answered,
    Answers,
    Entry,
    Ids,
    Ledger,
    Row,
    Tally,
    digest,
)
from vertizo.privacy.ledger.file import LedgerFile, create, opened
from vertizo.privacy.ledger.register import Names, Register, Registered, together
from vertizo.privacy.ledger.witness import Witness

SLACK = 1e-6
"""Share by which a run's noise on secret steps may exceed what its ledger counts: that is safe."""


class DurableLedger(Ledger):
    """The ledger of a set of records, in a file; every run and trial on them draws on it.

    Made by `create`, opened for one run by `open`. A reply is charged and kept, in one transaction
    that is on disk, before it leaves: a server that is killed and started again finds each reply
    that may have left, sends that very reply when the query comes again, and charges it once::

        state            admit                commit of a kept row  begin_step below `steps`
        replaying        at no cost           charges nothing       returns, charges nothing
        charging         BudgetError at need  charges nothing       ConflictError
        closed, failed   RunError             RunError              RunError

    `open` with ``replays`` begins in the first row for each client that was answered. The client's
    last kept query leads to the second, as `settle` does for all clients and for steps; `close` or
    an error of writing leads to the third. An older copy of the file does not start. Calls come one
    at a time. ``tally`` is what all runs have spent; ``print`` it.
    """

    def __init__(
        self,
        file: LedgerFile,
        witness: Witness,
        run: str,
        share: int | None,
        secret: SecretSteps | None,
        replays: bool,
        beside: tuple[Registered, ...],
    ) -> None:
        self._file, self._witness, self.tally = file, witness, file.tally
        self.budget = self.tally.budget
        self.charged = self.tally.charged
        self.share = self.budget.share if share is None else share
        self._name, self._secret, self._replays = run, secret, replays
        self._settled = True
        self._beside = beside
        if secret is not None:
            _check_constants(file.path, self.budget.secret, secret)
        # Of every run: a kept reply that is not the log's is damage.
        rows = {key: file.row(of.sequences[-1]) for key, of in self.tally.answers.items()}
        replies = {k: Answered(r.number, r.query, file.reply_of(r)) for k, r in rows.items()}
        if run not in self.tally.runs:
            sequence = file.head.sequence + 1
            self._append([Row(RUN, sequence, body=run.encode())], {})
        self._run = self.tally.runs[run]
        wanted = 0 if secret is None else secret.count - self.steps
        if wanted > self.tally.steps_left:
            raise RunError(
                f"{file.path}: this run needs {wanted} more secret steps, of which "
                f"{self.tally.steps_left} are left; it is not covered"
            )
        self._last = {client: one for (in_, client), one in replies.items() if in_ == self._run}
        self._charged_here = np.zeros_like(self.charged)
        for client in self._last:
            for sequence in self._answers(client).sequences[1:]:
                self._charge_here(file.row(sequence))
        self._replaying = set(self._last) if replays else set()

    @staticmethod
    def create(
        path: Path,
        budget: LedgerBudget,
        witness_folder: Path | None = None,
        *,
        names: Names | None = None,
        further: bool = False,
    ) -> None:
        """Make the ledger of a set of records, once, and its witness.

        ``names`` are of the records, None where nothing tells them apart. ``further`` lets it be
        for records of another ledger, whose ε then adds to its own.

        Raises:
            ConfigError: the stated ε is below what the budget comes to.
            RunError: it exists, cannot be made, or another ledger is for some of the records.
        """
        found = guarantee.joined_epsilon(budget.mu, budget.secret, budget.delta)
        if found > budget.epsilon * (1 + 1e-6):  # rounding: of units, and of a root searched for
            raise ConfigError(
                f"epsilon {budget.epsilon:g} is stated, but μ = {budget.mu:.6g} for replies and "
                f"{budget.steps} secret steps come to {found:.6g} at δ = {budget.delta:g}"
            )
        if names is None:
            create(path, budget, witness_folder)
            return
        with (register := Register(witness_folder)).locked():
            register.forget_unused()
            if not further:
                register.check_free(names)
            identity = create(path, budget, witness_folder)
            register.add(identity, path, budget, names)

    @classmethod
    def open(
        cls,
        path: Path,
        run: str,
        witness_folder: Path | None = None,
        *,
        share: int | None = None,
        secret: SecretSteps | None = None,
        replays: bool = False,
        check: Callable[[LedgerBudget], None] = lambda budget: None,
        names: Names | None = None,
    ) -> Self:
        """Open it for one run, which is resumed if the ledger knows its name.

        Args:
            path: of the file.
            run: the run's name.
            witness_folder: apart from the ledger; None for the user's state folder.
            share: units that one record may be charged in this run for one client, which the ε that
                the run states is for; None for all that the ledger has.
            secret: the secret steps that the run will make at most.
            replays: whether the noise is seeded, so that a resumed run repeats what it did since
                its checkpoint, byte for byte. Repeated queries then pass `admit` whatever is left,
                and repeated steps are free. With fresh noise a repeated step is another release.
            check: raises if the budget is not for this run; called before anything is written.
            names: of the run's records, to check that the ledger is for these, and to register it
                here if it was moved; None where nothing tells them apart.

        Raises:
            RunError: missing, in use, damaged, rolled back, without its witness, for other records
                or of other constants than the run's; or it is new here, and another ledger is for
                some of the records.
        """
        if not run.strip() or not run.isprintable():
            raise RunError(f"a run of a ledger is named {run!r}; name it in one line")
        with opened(path, witness_folder, accept=False) as (file, witness):
            check(file.tally.budget)
            beside: tuple[Registered, ...] = ()
            if names is not None:
                with (register := Register(witness.path.parent)).locked():
                    tally = file.tally
                    beside = register.claim(tally.identity, path, tally.budget, names)
            return cls(file, witness, run, share, secret, replays, beside)

    @staticmethod
    def accept(path: Path, witness_folder: Path | None = None) -> Tally:
        """Make a witness for a ledger that has none here, or a damaged one, as after a move.

        Whoever calls it vouches that this copy is the newest there is, and that no other is or will
        be in use. Nothing can check that here; if it is wrong, the stated ε is exceeded. A ledger
        that its witness contradicts is not accepted. RunError: as of `open`.
        """
        with opened(path, witness_folder, accept=True) as (file, _):
            return file.tally

    @staticmethod
    def stated(path: Path) -> str:
        """The ε of all runs on a ledger and on those beside it, in words; RunError as of `inspect`.

        Those beside it are for some of the same records, as far as the register here knows.
        """
        tally = DurableLedger.inspect(path)
        return together(tally.budget, Register().beside(tally.identity))

    @staticmethod
    def inspect(path: Path) -> Tally:
        """What a ledger has spent, without its witness; RunError: missing, in use, or damaged."""
        with closing(LedgerFile(path)) as file:
            return file.tally

    def admit(self, client: int, ids: Tensor, cost: int) -> None:
        """See `Ledger.admit`; RunError if writing failed before."""
        self._check_usable()
        super().admit(client, ids, 0 if client in self._replaying else cost)

    def commit(self, entries: Sequence[Entry]) -> None:
        """See `Ledger.commit`. An entry that repeats an earlier one in every byte is charged once.

        Raises:
            ConflictError: a query number was used for something else, or is below the last one.
            BudgetError, RepeatedRecordError, UnknownRecordError, UnknownPartyError: as `admit`.
            RunError: writing failed, now or before.
        """
        self._check_usable()
        new: dict[tuple[int, int], Row] = {}
        last: dict[int, Answered] = {}
        try:
            for entry in entries:
                query, reply = digest(bytes(entry.query)), digest(bytes(entry.reply))
                about = self._run, entry.client, entry.number, entry.cost, query, reply
                row = Row(REPLY, *about, self.tally.pack(entry.ids.numpy()))
                if self._repeats(row, new, last):
                    continue
                super().admit(row.client, entry.ids, row.cost)
                self._charge(row)
                new[row.client, row.number] = row
                last[row.client] = Answered(row.number, row.query, bytes(entry.reply))
            if new:
                frames = {(self._run, client): one.reply for client, one in last.items()}
                self._append(list(new.values()), frames)
            self._last |= last
            for entry in entries:
                if entry.number >= self._answers(entry.client).numbers[-1]:
                    self._replaying.discard(entry.client)
        except VertizoError:
            for row in new.values():
                self._charge(row, -1)
            raise
        except BaseException:
            self._settled = False  # stopped midway, as by Ctrl-C: memory may not match the disk
            raise

    def begin_step(self, number: int) -> None:
        """See `Ledger.begin_step`; on disk when it returns. Steps of all runs together are limited.

        Raises:
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
        if not self.tally.steps_left:
            raise BudgetError(f"all {self.budget.steps} steps on secret samples were made")
        self._append([Row(STEP, self._run, number=number)], {})

    def settle(self) -> None:
        """See `Ledger.settle`."""
        self._replaying.clear()
        self._replays = False

    def answered(self, client: int) -> Answered | None:
        """See `Ledger.answered`; the reply is as it left."""
        return self._last.get(client)

    @property
    def counted(self) -> str:
        """The runs that its budget is for, in words, with the ledgers beside it."""
        words = together(self.budget, self._beside)
        return f"this run; all runs on the ledger {self._file.path.name!r} together have {words}"

    def charges(self) -> Charges:
        """See `Ledger.charges`."""
        return Charges(
            self.tally.spent, self.tally.steps, len(self.tally.runs), self.budget.epsilon
        )

    @property
    def steps(self) -> int:
        """Secret steps charged in this run."""
        return self.tally.steps_of[self._run]

    def close(self) -> None:
        """Close the file and the witness."""
        self._settled = False
        self._file.close()
        self._witness.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _limits(self) -> Sequence[tuple[Ids, int]]:
        return ((self.charged, self.budget.share), (self._charged_here, self.share))

    def _charge(self, row: Row, times: int = 1) -> None:
        self.tally.charge(row, times)
        self._charge_here(row, times)

    def _charge_here(self, row: Row, times: int = 1) -> None:
        np.add.at(self._charged_here[row.client], self.tally.ids_of(row), times * row.cost)

    def _append(self, rows: list[Row], frames: dict[tuple[int, int], bytes]) -> None:
        self._settled = False
        self._file.append(rows, frames)
        self._witness.write(self._file.head)
        self._settled = True

    def _repeats(
        self, row: Row, new: dict[tuple[int, int], Row], last: dict[int, Answered]
    ) -> bool:
        """Whether a row was committed before, by an earlier call or earlier in this one."""
        answers, number = self._answers(row.client), row.number
        if number > (last[row.client].number if row.client in last else answers.numbers[-1]):
            return False
        before = new.get((row.client, number))
        if before is None and (sequence := answers.row_of(number)) is not None:
            before = self._file.row(sequence)
        query = f"query {number} of client {row.client}"
        if before is None:
            raise ConflictError(f"{query} comes after a later one")
        if not before.repeats(row):
            what = "query" if before.query != row.query else "reply"
            raise ConflictError(f"{query} was answered before, with another {what}")
        return True

    def _answers(self, client: int) -> Answers:
        return self.tally.answers.get((self._run, client)) or Answers()

    def _check_usable(self) -> None:
        if not self._settled:
            raise RunError(
                f"the ledger {self._file.path} was closed, or writing to it failed; open it again"
            )


def _check_constants(path: Path, agreed: SecretSteps | None, wanted: SecretSteps) -> None:
    """Raise RunError unless a run's secret steps are of the kind that the ledger is for."""
    if agreed is None:
        raise RunError(f"{path} has no secret steps; a run with them needs another ledger")
    if agreed.sampling != wanted.sampling:
        raise RunError(
            f"{path} was made for secret steps with q = {agreed.sampling:g}; the run has "
            f"{wanted.sampling:g}"
        )
    least, found = agreed.noise_multiplier, wanted.noise_multiplier
    if not least <= found <= least * (1 + SLACK):
        raise RunError(
            f"{path} was made for secret steps with z = {least:.9g}; the run has {found:.9g}; use "
            "the configuration that the ledger was made with, privacy.noise included: secure noise "
            "is a trace larger than seeded noise"
        )
