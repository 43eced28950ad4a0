"""``vertizo align``: from a party's own table to its rows of the records that all parties have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
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
    from vertizo.data.alignment import TableToAlign
    from vertizo.data.options import DataConfig
    from vertizo.data.party_table import OwnTable as HeldTable
    from vertizo.network.alignment.member import Alignment, Method
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
) -> TableToAlign:
    from vertizo.data.alignment import TableToAlign

    output = out or data.path
    if data.id is None or output is None:
        raise ConfigError(
            "data.path and data.id are not set; they name the aligned table and its column of keys"
        )
    return TableToAlign(table, data.id, output, data.delimiter, overwrite)


def align_as_label_holder(
    table: TableToAlign,
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
    from vertizo.network.alignment.service import AligningService

    frame, keys = table.read()
    errors = console or Console(stderr=True)

    def waiting(missing: Mapping[str, str]) -> None:
        listed = "; ".join(f"{name} {state}" for name, state in missing.items())
        say(f"waiting for the others: {listed}", errors)

    aligning = AligningService(members, keys, chosen, federation=federation)
    with closing(aligning) as service, serve(service):
        found = service.wait(waiting, every=every, patience=patience)
    table.write(frame, found.keys)
    _show(table, found, console or Console())
    return found


def align_as_feature_holder(
    table: TableToAlign,
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
    from vertizo.network.alignment.member import align_with

    frame, keys = table.read()
    errors = console or Console(stderr=True)
    with closing(connect()) as channel, live_bar(errors, "aligning") as show:
        found = align_with(
            channel, keys, chosen, federation=federation, progress=show or (lambda _, __: None)
        )
    table.write(frame, found.keys)
    _show(table, found, console or Console())
    return found


def _checked(table: TableToAlign, method: str) -> Method:
    """Everything that can be wrong before anybody is asked."""
    from vertizo.network.alignment.blinding import require_psi
    from vertizo.network.alignment.member import check_method

    chosen = check_method(method)
    if chosen == "private":
        require_psi()
    table.check_output()
    return chosen


def _show(table: TableToAlign, found: Alignment, console: Console) -> None:
    """Print how many records there are and who learned what."""
    counts = Table(show_header=False)
    counts.add_column()
    counts.add_column(justify="right")
    common = len(found.keys)
    counts.add_row("own records", f"{found.own:,}")
    counts.add_row(f"in common to all {found.parties} parties", f"{common:,}")
    counts.add_row("left out", f"{found.own - common:,}")
    counts.add_row("fingerprint, the same at all parties", found.fingerprint[:12])
    console.print(counts)
    say([f"written to {table.output}", *found.revealed()], console)
