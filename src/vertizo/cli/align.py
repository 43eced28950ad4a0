"""``vertizo align``: from a party's own table to its rows of the records that all parties have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vertizo.cli.bar import live_bar
from vertizo.cli.join import connect
from vertizo.cli.serve import listening, sayer
from vertizo.core.errors import ConfigError
from vertizo.data.alignment import TableToAlign
from vertizo.network.alignment.blinding import require_psi
from vertizo.network.alignment.member import Alignment, Method, align_with, check_method
from vertizo.network.alignment.service import AligningService
from vertizo.network.certificates import Credentials
from vertizo.network.grpc import GrpcServer, Limits
from vertizo.network.options import (
    JoinConfig,
    JoinOptions,
    ServeConfig,
    is_label_holder,
    load_join,
    load_serve,
)
from vertizo.network.transport import Channel, Service


def align(
    config: Path,
    settings: list[str],
    table: Path,
    out: Path | None,
    *,
    method: str,
    overwrite: bool,
) -> None:
    """Align this party's table with all others', and write its rows of the common records.

    Args:
        config: of this party, as for ``serve`` or ``join``.
        settings: overrides.
        table: this party's whole table.
        out: the aligned table; None for ``data.path`` of the configuration.
        method: ``private`` or ``hashed``.
        overwrite: whether the aligned table may be replaced.

    Raises:
        ConfigError, DataError, RunError: one line on what is wrong.
    """
    errors = Console(stderr=True)
    load = load_serve if is_label_holder(config) else load_join
    loaded: ServeConfig | JoinConfig = load(config, settings)
    data, options = loaded.data, loaded.federation
    path = out or data.path
    if data.id is None or path is None:
        raise ConfigError(
            "data.path and data.id are not set; they name the aligned table and its column of keys"
        )
    own = TableToAlign(table, data.id, path, data.delimiter, overwrite)
    if isinstance(options, JoinOptions):
        align_as_feature_holder(
            own, lambda: connect(options, errors), federation=options.name, method=method
        )
        return
    credentials = Credentials.load(options.certificates)

    @contextmanager
    def serve(service: Service) -> Iterator[None]:
        limits = Limits(rate=options.rate)
        with GrpcServer(
            service, listen=options.listen, credentials=credentials, limits=limits
        ) as net:
            listening(errors, f"aligns {table}", credentials, options, net)
            yield

    align_as_label_holder(own, options.members, serve, federation=options.name, method=method)


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
    """Align with all members, write the rows, and say what was done.

    Args:
        table: the label holder's.
        members: names of the feature holders.
        serve: makes a service reachable for them while its context lasts.
        federation: its name.
        method: ``private`` or ``hashed``.
        patience: seconds until it is given up; None waits forever.
        every: seconds between lines on who is waited for.
        console: where to write; standard output, and standard error for progress, without one.
    """
    chosen = _checked(table, method)
    frame, keys = table.read()
    say = sayer(console or Console(stderr=True))

    def waiting(missing: Mapping[str, str]) -> None:
        listed = "; ".join(f"{name} {state}" for name, state in missing.items())
        say(f"waiting for the others: {listed}")

    service = AligningService(members, keys, chosen, federation=federation)
    with closing(service), serve(service):
        found = service.wait(waiting, every=every, patience=patience)
    table.write(frame, found.keys)
    _show(console or Console(), table, found)
    return found


def align_as_feature_holder(
    table: TableToAlign,
    connect: Callable[[], Channel],
    *,
    federation: str,
    method: str = "private",
    console: Console | None = None,
) -> Alignment:
    """Align with the label holder and all others, write the rows, and say what was done.

    Args:
        table: this party's.
        connect: makes the way to the label holder; closed at the end.
        federation: its name, as the label holder has it.
        method: as the label holder's.
        console: where to write; standard output, and standard error for progress, without one.
    """
    chosen = _checked(table, method)
    frame, keys = table.read()
    errors = console or Console(stderr=True)
    with closing(connect()) as channel, live_bar(errors, "aligning") as show:
        progress = show or (lambda _, __: None)
        found = align_with(channel, keys, chosen, federation=federation, progress=progress)
    table.write(frame, found.keys)
    _show(console or Console(), table, found)
    return found


def _checked(table: TableToAlign, method: str) -> Method:
    """The method, once everything that can be wrong before anybody is asked was checked."""
    chosen = check_method(method)
    if chosen == "private":
        require_psi()
    table.check_output()
    return chosen


def _show(console: Console, table: TableToAlign, found: Alignment) -> None:
    counts = Table(show_header=False)
    counts.add_column()
    counts.add_column(justify="right")
    common = len(found.keys)
    counts.add_row("own records", f"{found.own:,}")
    counts.add_row(f"in common to all {found.parties} parties", f"{common:,}")
    counts.add_row("left out", f"{found.own - common:,}")
    counts.add_row("fingerprint, the same at all parties", found.fingerprint[:12])
    console.print(counts)
    say = sayer(console)
    for line in (f"written to {table.output}", *found.revealed()):
        say(line)
