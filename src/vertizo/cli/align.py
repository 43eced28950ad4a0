"""``vertizo align``: from a party's own table to its rows of the records that all parties have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vertizo.data.alignment import align_table, check_output, keys_of, write_table
from vertizo.data.tabular import frames
from vertizo.network.aligning import Alignment, Method, align_with, check_method
from vertizo.network.alignment_service import AligningService
from vertizo.network.blinding import require_psi
from vertizo.network.transport import Channel, Service

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

Serve = Callable[[Service], AbstractContextManager[object]]
"""Makes a service reachable for the members while its context lasts."""
Connect = Callable[[], Channel]
"""Makes a member's way to the label holder."""


@dataclass(frozen=True)
class OwnTable:
    """A party's table, and where its aligned rows go.

    Attributes:
        path: CSV or Parquet.
        column: of identifiers.
        output: ends in ``.csv`` or ``.parquet``.
        delimiter: between the values of a CSV file, read or written.
        overwrite: whether ``output`` may be replaced.
    """

    path: Path
    column: str
    output: Path
    delimiter: str = ","
    overwrite: bool = False


def align_as_label_holder(
    table: OwnTable,
    members: Sequence[str],
    serve: Serve,
    *,
    federation: str,
    method: str = "private",
    patience: float | None = None,
    every: float = 10.0,
    console: Console | None = None,
) -> Alignment:
    """Align with all members, write the rows, and say what was done.

    Args:
        table: the label holder's.
        members: names of the feature holders.
        serve: how they reach this party.
        federation: its name.
        method: ``private`` or ``hashed``.
        patience: seconds until it is given up; None waits forever.
        every: seconds between lines on who is waited for.
        console: where to write; standard output, and standard error for progress, without one.

    Raises:
        ConfigError, DataError, RunError: one line on what is wrong.
    """
    chosen = _checked(table, method)
    frame, keys = _read(table)
    shown, errors = _consoles(console)
    with closing(AligningService(members, keys, chosen, federation=federation)) as service:

        def waiting(missing: Mapping[str, str]) -> None:
            listed = "; ".join(f"{name} {state}" for name, state in missing.items())
            errors.print(
                f"waiting for the others: {listed}", soft_wrap=True, highlight=False, markup=False
            )

        with serve(service):
            found = service.wait(waiting, every=every, patience=patience)
    _write(table, frame, found)
    _show(shown, table, found)
    return found


def align_as_feature_holder(
    table: OwnTable,
    connect: Connect,
    *,
    federation: str,
    method: str = "private",
    console: Console | None = None,
) -> Alignment:
    """Align with the label holder and all others, write the rows, and say what was done.

    Args:
        table: this party's.
        connect: how it reaches the label holder; closed at the end.
        federation: its name, as the label holder has it.
        method: as the label holder's.
        console: where to write; standard output, and standard error for progress, without one.

    Raises:
        ConfigError, DataError, RunError: one line on what is wrong.
    """
    from vertizo.cli.bar import live_bar

    chosen = _checked(table, method)
    frame, keys = _read(table)
    shown, errors = _consoles(console)
    with closing(connect()) as channel, live_bar(errors, "aligning") as show:
        found = align_with(
            channel, keys, chosen, federation=federation, progress=show or (lambda _, __: None)
        )
    _write(table, frame, found)
    _show(shown, table, found)
    return found


def _checked(table: OwnTable, method: str) -> Method:
    """Everything that can be wrong before anybody is asked."""
    chosen = check_method(method)
    if chosen == "private":
        require_psi()
    check_output(table.output, table.path, table.overwrite)
    return chosen


def _read(table: OwnTable) -> tuple[pl.DataFrame, list[str]]:
    frame = frames.read(table.path, table.delimiter)
    place = frames.place_in(table.path, table.delimiter)
    return frame, keys_of(frame, table.column, str(table.path), place)


def _write(table: OwnTable, frame: pl.DataFrame, found: Alignment) -> None:
    rows = align_table(frame, table.column, found.keys, str(table.path))
    write_table(rows, table.output, delimiter=table.delimiter, overwrite=table.overwrite)


def _consoles(console: Console | None) -> tuple[Console, Console]:
    from rich.console import Console

    return (console, console) if console is not None else (Console(), Console(stderr=True))


def _show(console: Console, table: OwnTable, found: Alignment) -> None:
    from rich.table import Table

    counts = Table(show_header=False)
    counts.add_column()
    counts.add_column(justify="right")
    common = len(found.keys)
    counts.add_row("own records", f"{found.own:,}")
    counts.add_row(f"in common to all {found.parties} parties", f"{common:,}")
    counts.add_row("left out", f"{found.own - common:,}")
    counts.add_row("fingerprint, the same at all parties", found.fingerprint[:12])
    console.print(counts)
    for line in (f"written to {table.output}", *revealed(found)):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def revealed(found: Alignment) -> list[str]:
    """What was shown to whom, in plain words: one line each."""
    lines = []
    holders = found.parties - 1
    if found.pairwise:
        listed = ", ".join(
            f"{name} has {found.others[name]:,} records, {shared:,} of them among yours"
            for name, shared in found.pairwise.items()
        )
        lines.append(f"You, the label holder, learned which of your records each has: {listed}.")
    elif holders == 1:
        lines.append(
            "The label holder learned how many records you have, and which of its own you have."
        )
    else:
        lines.append(
            "The label holder learned how many records you have, and which of its own you have, "
            "also those that another party lacks."
        )
    all_parties = "both" if found.parties == 2 else f"all {found.parties}"
    total = found.own if found.pairwise else found.others.get("the label holder", 0)
    who = "Each feature holder" if found.pairwise else "You"
    lines.append(
        f"{who} learned how many records the label holder has ({total:,}), and which records "
        f"{all_parties} parties have."
    )
    if found.method == "hashed":
        lines.append(
            "NOT PRIVATE: the label holder got salted hashes of all keys. By trying out "
            "identifiers it can find out everything in a feature holder's column, not just what "
            "both have. The method private prevents that."
        )
    return lines
