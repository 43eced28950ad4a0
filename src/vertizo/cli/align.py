"""``vertizo align``: from a party's own table to its rows of the records that all parties have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from vertizo.cli.console import live_bar, say
from vertizo.cli.options import PartyConfig, Settings
from vertizo.cli.parties import connect, listening
from vertizo.core.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    import polars as pl

    from vertizo.data.options import DataConfig
    from vertizo.data.party_table import OwnTable as HeldTable
    from vertizo.network.aligning import Alignment, Method
    from vertizo.network.transport import Channel, Service


def align(
    config: PartyConfig,
    table: Annotated[
        Path, typer.Option(metavar="FILE", help="This party's whole table, CSV or Parquet.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The aligned table. Default: data.path of CONFIG."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="private|hashed", help="private needs the extra psi; hashed is not private."
        ),
    ] = "private",
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file.")] = False,
    settings: Settings = None,
) -> None:
    """Find the records that all parties have and write this party's rows of them."""
    try:
        _align(config, settings or [], table, out, method, overwrite)
    except KeyboardInterrupt:
        raise Interrupted("stopped; nothing was written") from None


def _align(
    config: Path, settings: list[str], table: Path, out: Path | None, method: str, overwrite: bool
) -> None:
    """Align as the party that the configuration is of."""
    from vertizo.network.options import is_label_holder, load_join, load_serve

    errors = Console(stderr=True)
    if is_label_holder(config):
        holder = load_serve(config, settings)
        served = holder.federation
        own = _own_table(table, out, holder.data, overwrite)
        from vertizo.network.certificates import Credentials

        credentials = Credentials.load(served.certificates)
        align_as_label_holder(
            own,
            served.members,
            lambda service: listening(errors, f"aligns {table}", served, credentials, service),
            federation=served.name,
            method=method,
        )
        return
    member = load_join(config, settings)
    align_as_feature_holder(
        _own_table(table, out, member.data, overwrite),
        lambda: connect(member.federation, errors),
        federation=member.federation.name,
        method=method,
    )


def _own_table(
    table: Path, out: Path | None, data: DataConfig | HeldTable, overwrite: bool
) -> OwnTable:
    output = out or data.path
    if data.id is None or output is None:
        raise ConfigError(
            "data.path and data.id are not set; they name the aligned table and its column of keys"
        )
    return OwnTable(table, data.id, output, data.delimiter, overwrite)


@dataclass(frozen=True)
class OwnTable:
    """A party's table, and where its aligned rows go."""

    path: Path
    """CSV or Parquet."""
    column: str
    """Of identifiers."""
    output: Path
    """Ends in ``.csv`` or ``.parquet``."""
    delimiter: str = ","
    """Between the values of a CSV file, read or written."""
    overwrite: bool = False
    """Whether ``output`` may be replaced."""


def align_as_label_holder(
    table: OwnTable,
    members: Sequence[str],
    serve: Callable[[Service], AbstractContextManager[object]],
    *,
    federation: str,
    method: str = "private",
    patience: float | None = None,
    every: float = 10.0,
    console: Console | None = None,
) -> Alignment:
    """Align with all members, write the rows, and print what was done.

    Args:
        table: the label holder's.
        members: names of the feature holders.
        serve: makes a service reachable for the members while its context lasts.
        federation: its name.
        method: ``private`` or ``hashed``.
        patience: seconds until it gives up; None waits forever.
        every: seconds between lines on who is waited for.
        console: where to print; None for standard output, and standard error for progress.

    Raises:
        ConfigError, DataError, RunError: one line on what is wrong.
    """
    chosen = _checked(table, method)
    from vertizo.network.alignment_service import AligningService

    frame, keys = _read(table)
    errors = console or Console(stderr=True)

    def waiting(missing: Mapping[str, str]) -> None:
        listed = "; ".join(f"{name} {state}" for name, state in missing.items())
        say(f"waiting for the others: {listed}", errors)

    aligning = AligningService(members, keys, chosen, federation=federation)
    with closing(aligning) as service, serve(service):
        found = service.wait(waiting, every=every, patience=patience)
    _finish(table, frame, found, console or Console())
    return found


def align_as_feature_holder(
    table: OwnTable,
    connect: Callable[[], Channel],
    *,
    federation: str,
    method: str = "private",
    console: Console | None = None,
) -> Alignment:
    """Align with the label holder and all others, write the rows, and print what was done.

    Args:
        table: this party's.
        connect: its way to the label holder, which is closed at the end.
        federation: its name, as the label holder has it.
        method: as the label holder's.
        console: where to print; None for standard output, and standard error for progress.

    Raises:
        ConfigError, DataError, RunError: one line on what is wrong.
    """
    chosen = _checked(table, method)
    from vertizo.network.aligning import align_with

    frame, keys = _read(table)
    errors = console or Console(stderr=True)
    with closing(connect()) as channel, live_bar(errors, "aligning") as show:
        found = align_with(
            channel, keys, chosen, federation=federation, progress=show or (lambda _, __: None)
        )
    _finish(table, frame, found, console or Console())
    return found


def _checked(table: OwnTable, method: str) -> Method:
    """Everything that can be wrong before anybody is asked."""
    from vertizo.data.alignment import check_output
    from vertizo.network.aligning import check_method
    from vertizo.network.blinding import require_psi

    chosen = check_method(method)
    if chosen == "private":
        require_psi()
    check_output(table.output, table.path, table.overwrite)
    return chosen


def _read(table: OwnTable) -> tuple[pl.DataFrame, list[str]]:
    from vertizo.data.alignment import keys_of
    from vertizo.data.tabular import frames

    frame = frames.read(table.path, table.delimiter)
    place = frames.place_in(table.path, table.delimiter)
    return frame, keys_of(frame, table.column, str(table.path), place)


def _finish(table: OwnTable, frame: pl.DataFrame, found: Alignment, console: Console) -> None:
    """Write the rows, and print how many and who learned what."""
    from vertizo.data.alignment import align_table, write_table

    rows = align_table(frame, table.column, found.keys, str(table.path))
    write_table(rows, table.output, delimiter=table.delimiter, overwrite=table.overwrite)
    counts = Table(show_header=False)
    counts.add_column()
    counts.add_column(justify="right")
    common = len(found.keys)
    counts.add_row("own records", f"{found.own:,}")
    counts.add_row(f"in common to all {found.parties} parties", f"{common:,}")
    counts.add_row("left out", f"{found.own - common:,}")
    counts.add_row("fingerprint, the same at all parties", found.fingerprint[:12])
    console.print(counts)
    say([f"written to {table.output}", *_revealed(found)], console)


def _revealed(found: Alignment) -> Iterator[str]:
    """What was shown to whom, one line each."""
    if found.pairwise:
        listed = ", ".join(
            f"{name} has {found.others[name]:,} records, {shared:,} of them among yours"
            for name, shared in found.pairwise.items()
        )
        yield f"You, the label holder, learned which of your records each has: {listed}."
    else:
        lacking = "." if found.parties == 2 else ", also those that another party lacks."
        yield (
            "The label holder learned how many records you have, and which of its own you have"
            f"{lacking}"
        )
    all_parties = "both" if found.parties == 2 else f"all {found.parties}"
    total = found.own if found.pairwise else found.others.get("the label holder", 0)
    who = "Each feature holder" if found.pairwise else "You"
    yield (
        f"{who} learned how many records the label holder has ({total:,}), and which records "
        f"{all_parties} parties have."
    )
    if found.method == "hashed":
        yield (
            "NOT PRIVATE: the label holder got salted hashes of all keys. By trying out "
            "identifiers it can find out everything in a feature holder's column, not just what "
            "both have. The method private prevents that."
        )
