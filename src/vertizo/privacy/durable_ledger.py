"""The ledger that belongs to the records: every run, seed and trial on them draws on it.

See docs/privacy.md, Ledger. What it charges depends on record IDs and public constants, never on a
value that is computed from labels: what it refuses, and what its file and its tally hold, tells
nothing about them beyond the replies themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from torch import Tensor

from vertizo.core.errors import BudgetError, ConfigError, ConflictError, RunError, VertizoError
from vertizo.privacy import guarantee, ledger_file
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.events import LedgerBudget, SecretSteps
from vertizo.privacy.ledger import (
    REPLY,
    RUN,
    STEP,
    Answered,
    Answers,
    Entry,
    Ledger,
    Row,
    Tally,
    check_admissible,
    digest,
)
from vertizo.privacy.ledger_file import LedgerFile, opened, tallied
from vertizo.privacy.ledger_witness import Names, Register, Registered, Witness

SLACK = 1e-6
"""By which a run's noise on secret steps may be more than its ledger counts, which is safe."""


class DurableLedger(Ledger):
    """A ledger in a file, open for one run; made by `create`, used through `open`.

    A reply is charged and kept, in one
    transaction that is on disk, before it leaves. So a server that is killed at any moment, and
    started again, finds each reply that may have left, sends that very reply when the query comes
    again, and charges it once. An older copy of the file does not start.

    Calls come one at a time. After an error while writing it refuses everything: what is on disk
    then counts, and `open` reads it.
    """

    def __init__(
        self, file: LedgerFile, tally: Tally, witness: Witness, run: str, replays: bool
    ) -> None:
        self._file = file
        self.tally = tally
        """What all runs have spent; ``print`` it."""
        self._witness = witness
        self._name = run
        self._replays = replays
        self._settled = True
        self._secret: SecretSteps | None = None
        self._last: dict[int, Answered] = {}
        self._replaying: set[int] = set()
        self._beside: tuple[Registered, ...] = ()

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

        Args:
            path: of the file.
            budget: what all its runs together may spend.
            witness_folder: as of `open`.
            names: of the records; None where nothing tells them apart.
            further: whether it may be for records of another ledger, whose ε then adds to its own.

        Raises:
            ConfigError: the stated ε is below what the budget comes to.
            RunError: there is a file of that name, it cannot be made, or another ledger is for
                some of the records.
        """
        found = guarantee.joined_epsilon(budget.mu, budget.secret, budget.delta)
        if found > budget.epsilon * (1 + 1e-6):  # rounding: of units, and of a root searched for
            raise ConfigError(
                f"epsilon {budget.epsilon:g} is stated, but μ = {budget.mu:.6g} for replies and "
                f"{budget.steps} secret steps come to {found:.6g} at δ = {budget.delta:g}"
            )
        if names is None:
            ledger_file.create(path, budget, witness_folder)
            return
        register = Register(witness_folder)
        with register.locked():
            register.forget_unused()
            if not further:
                register.check_free(names)
            identity = ledger_file.create(path, budget, witness_folder)
            register.add(identity, path, budget, names)

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
            replays: whether the noise is seeded, so that a resumed run repeats what it did since
                its checkpoint, byte for byte. Repeated queries then pass `admit` whatever is left,
                and repeated steps are free. With fresh noise a repeated step is another release.

        Raises:
            RunError: missing, in use, damaged, rolled back, without its witness, or of other
                constants than the run's.
        """
        if not run.strip() or not run.isprintable():
            raise RunError(f"a run of a ledger is named {run!r}; name it in one line")
        ledger = cls(*opened(path, witness_folder, accept=False), run, replays)
        try:
            ledger._begin(secret)
        except BaseException:
            ledger.close()
            raise
        return ledger

    @staticmethod
    def accept(path: Path, witness_folder: Path | None = None) -> Tally:
        """Make a witness for a ledger that has none here, as one that was moved from elsewhere.

        Whoever calls it vouches that this copy is the newest there is, and that no other is or will
        be in use. Nothing can check that here; if it is wrong, the stated ε is exceeded. A ledger
        that its witness contradicts is not accepted.

        Raises:
            RunError: as `open`, but for a missing or damaged witness.
        """
        file, tally, witness = opened(path, witness_folder, accept=True)
        file.close()
        witness.close()
        return tally

    @staticmethod
    def inspect(path: Path) -> Tally:
        """What a ledger has spent, without opening it for a run and without its witness.

        Raises:
            RunError: missing, in use, or damaged.
        """
        file = LedgerFile(path)
        try:
            return tallied(file, None)[0]
        finally:
            file.close()

    def claim(self, names: Names) -> None:
        """Find that it is for these records; called before anything is charged.

        A ledger that was moved here is registered for them.

        Raises:
            RunError: it is for other records, or it is new here and another ledger is for some.
        """
        register = Register(self._witness.path.parent)
        with register.locked():
            file = self._file
            self._beside = register.claim(file.identity, file.path, self.budget, names)

    def admit(self, client: int, ids: Tensor, cost: int) -> None:
        """As of a `Ledger`; RunError if writing failed before."""
        self._check_usable()
        cost = 0 if client in self._replaying else cost
        check_admissible(self.tally.charged, client, ids, cost, self.budget.share)

    def commit(self, entries: Sequence[Entry]) -> None:
        """As of a `Ledger`. An entry that repeats an earlier one in every byte is charged once.

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
                row = self._row(entry)
                if self._repeats(row, new, last):
                    continue
                share = self.budget.share
                check_admissible(self.tally.charged, row.client, entry.ids, row.cost, share)
                self.tally.charge(row)
                new[row.client, row.number] = row
                last[row.client] = Answered(row.number, row.query, bytes(entry.reply))
            if new:
                frames = {(self._run, client): one.reply for client, one in last.items()}
                self._append(list(new.values()), frames)
            self._last |= last
            for entry in entries:
                if entry.number >= self._answers(entry.client).last:
                    self._replaying.discard(entry.client)
        except VertizoError:
            for row in new.values():
                self.tally.charge(row, -1)
            raise
        except BaseException:
            self._settled = False  # stopped midway, as by Ctrl-C: memory may not match the disk
            raise

    def begin_step(self, number: int) -> None:
        """As of a `Ledger`; on disk when it returns. Steps of all runs together are limited.

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
        if not self.tally.steps_left:
            raise BudgetError(f"all {self.budget.steps} steps on secret samples were made")
        self._append([Row(STEP, self._run, number=number)], {})

    def settle(self) -> None:
        """As of a `Ledger`."""
        self._replaying.clear()
        self._replays = False

    def answered(self, client: int) -> Answered | None:
        """As of a `Ledger`, with the reply as it left."""
        return self._last.get(client)

    @property
    def budget(self) -> LedgerBudget:
        """The public constants."""
        return self._file.budget

    @property
    def counted(self) -> str:
        """What its budget is for, in words; with the ledgers beside it, if there are any."""
        budget, beside = self.budget, self._beside
        words = f"ε = {bound_text(budget.epsilon)} at δ = {budget.delta:g}"
        if beside:
            epsilon = budget.epsilon + sum(other.epsilon for other in beside)
            delta = budget.delta + sum(other.delta for other in beside)
            names = ", ".join(repr(Path(other.ledger).name) for other in beside)
            words += (
                f", and with those on the ledgers of some of the same records ({names}) "
                f"ε = {bound_text(epsilon)} at δ = {delta:g}"
            )
        return f"this run; all runs on the ledger {self._file.path.name!r} together have {words}"

    @property
    def steps(self) -> int:
        """Secret steps charged in this run."""
        return self.tally.steps_of[self._run]

    @property
    def spent(self) -> int:
        """Units charged to the record that was charged most, over all clients and runs."""
        return self.tally.spent

    def close(self) -> None:
        """Let go of the file and the witness."""
        self._settled = False
        self._file.close()
        self._witness.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, secret: SecretSteps | None) -> None:
        """Find or note the run, and what was last answered in it."""
        tally, self._secret = self.tally, secret
        if secret is not None:
            check_constants(self._file.path, self.budget.secret, secret)
        # Of every run: a kept reply that is not the log's is damage.
        replies = {key: self._kept(answers) for key, answers in tally.answers.items()}
        if self._name not in tally.runs:
            run = self._file.head.sequence + 1
            self._append([Row(RUN, run, body=self._name.encode())], {})
        self._run = tally.runs[self._name]
        wanted = 0 if secret is None else secret.count - self.steps
        if wanted > tally.steps_left:
            raise RunError(
                f"{self._file.path}: this run needs {wanted} more secret steps, of which "
                f"{tally.steps_left} are left; it is not covered"
            )
        self._last = {client: one for (run, client), one in replies.items() if run == self._run}
        self._replaying = set(self._last) if self._replays else set()

    def _kept(self, answers: Answers) -> Answered:
        row = self._file.row(answers.sequences[-1])
        return Answered(row.number, row.query, self._file.reply_of(row))

    def _append(self, rows: list[Row], frames: dict[tuple[int, int], bytes]) -> None:
        self._settled = False
        first = self._file.head.sequence + 1
        self._file.append(rows, frames)
        for sequence, row in enumerate(rows, first):
            self.tally.note(sequence, row)
        self._witness.write(self._file.head)
        self._settled = True

    def _row(self, entry: Entry) -> Row:
        query, reply = digest(bytes(entry.query)), digest(bytes(entry.reply))
        ids = self.tally.pack(entry.ids.numpy())
        return Row(REPLY, self._run, entry.client, entry.number, entry.cost, query, reply, ids)

    def _repeats(
        self, row: Row, new: dict[tuple[int, int], Row], last: dict[int, Answered]
    ) -> bool:
        """Whether it was committed before, by an earlier call or earlier in this one."""
        answers, number = self._answers(row.client), row.number
        if number > (last[row.client].number if row.client in last else answers.last):
            return False
        before, sequence = new.get((row.client, number)), answers.row_of(number)
        if before is None and sequence is not None:
            before = self._file.row(sequence)
        query = f"query {number} of client {row.client}"
        if before is None:
            raise ConflictError(f"{query} comes after a later one")
        if before != row:
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


def check_constants(path: Path, agreed: SecretSteps | None, wanted: SecretSteps) -> None:
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
