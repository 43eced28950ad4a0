"""What is checked before a durable ledger is used: its log, its last replies, and its witness."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vertizo.core.errors import RunError
from vertizo.privacy.events import SecretSteps
from vertizo.privacy.ledger import Answered
from vertizo.privacy.ledger_file import LedgerFile, Row, digest
from vertizo.privacy.ledger_tally import Tally
from vertizo.privacy.ledger_witness import DamagedWitness, Head, Witness

SLACK = 1e-6
"""By which a run's noise on secret steps may be more than its ledger counts, which is safe."""


def open_both(
    path: Path, witness_folder: Path | None, *, accept: bool
) -> tuple[LedgerFile, Tally, Witness]:
    """The file, what it adds up to, and the witness, which agrees with it; both are locked.

    Args:
        path: of the ledger.
        witness_folder: None for the user's state folder.
        accept: make a witness if there is none, or a damaged one.

    Raises:
        RunError: see `vertizo.privacy.durable_ledger.DurableLedger.open`.
    """
    file = LedgerFile(path)
    try:
        witness = Witness(file.identity, witness_folder)
        try:
            tally = _agreed(file, witness, accept)
        except BaseException:
            witness.close()
            raise
    except BaseException:
        file.close()
        raise
    return file, tally, witness


def _agreed(file: LedgerFile, witness: Witness, accept: bool) -> Tally:
    witness.check_apart(file.path)
    witnessed = _witnessed(file, witness, accept)
    tally, agrees = tallied(file, witnessed)
    if witnessed is None:
        witness.create(file.head)
        witness.open()
    elif file.head.sequence < witnessed.sequence:
        raise RunError(
            f"{file.path} is an older copy of a ledger: it ends with entry {file.head.sequence}, "
            f"and entry {witnessed.sequence} was written here; put the newest one back"
        )
    elif not agrees:
        raise RunError(
            f"{file.path} is another copy than the one that was used here last: its entry "
            f"{witnessed.sequence} is not the one that {witness.path} tells of"
        )
    elif file.head != witnessed:
        witness.write(file.head)
    return tally


def _witnessed(file: LedgerFile, witness: Witness, accept: bool) -> Head | None:
    """Where the ledger was last; None if that is to be written anew."""
    if witness.exists():
        try:
            return witness.open()
        except DamagedWitness:
            if not accept:
                raise
            witness.close()
            return None
    if accept:
        return None
    raise RunError(
        f"the ledger {file.path} has no witness {witness.path}; if it was moved here, is the "
        "newest copy and the only one in use, accept it: `vertizo privacy ledger accept "
        f"{file.path}`"
    )


def tallied(file: LedgerFile, witnessed: Head | None) -> tuple[Tally, bool]:
    """What the log adds up to, and whether it holds what was witnessed, if it reaches so far.

    Raises:
        RunError: the log is damaged.
    """
    tally = Tally(file.budget)
    agrees = witnessed is None or witnessed == file.head
    mark = -1 if witnessed is None else witnessed.sequence

    def rows() -> Iterator[tuple[int, Row]]:
        nonlocal agrees
        for sequence, chain, row in file.rows():
            if sequence == mark:
                agrees = witnessed == Head(sequence, chain)
            yield sequence, row

    try:
        tally.load(rows())
    except (ValueError, TypeError) as error:
        file.damaged(str(error))
    return tally, agrees


def last_replies(file: LedgerFile, tally: Tally) -> dict[tuple[int, int], Answered]:
    """The last reply to each client of each run, as it left.

    Raises:
        RunError: one is not the one that the log tells of.
    """
    frames = file.frames()
    replies = {}
    for (run, client), answers in tally.answers.items():
        row = file.row(answers.last_row)
        frame = frames.get((run, client))
        if not isinstance(frame, bytes) or digest(frame) != row.reply:
            file.damaged(f"the reply to query {row.number} of client {client} is not the one kept")
        replies[run, client] = Answered(row.number, row.query, frame)
    return replies


def check_constants(path: Path, agreed: SecretSteps | None, wanted: SecretSteps) -> None:
    """Raise RunError unless a run's secret steps are of the kind that the ledger is for."""
    if agreed is None:
        raise RunError(f"{path} has no secret steps; a run with them needs another ledger")
    least, found = agreed.noise_multiplier, wanted.noise_multiplier
    for what, ours, theirs, fits in (
        ("q", agreed.sampling, wanted.sampling, agreed.sampling == wanted.sampling),
        ("z", least, found, least <= found <= least * (1 + SLACK)),
    ):
        if not fits:
            raise RunError(
                f"{path} was made for secret steps with {what} = {ours:g}; the run has {theirs:g}"
            )
