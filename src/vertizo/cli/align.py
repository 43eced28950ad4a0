"""``vertizo align``: writes a party's rows of the records that all parties have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table

from vertizo.cli import log
from vertizo.cli.console import live_bar, say
from vertizo.cli.options import PartyConfig, Settings, option
from vertizo.cli.parties import connect, identity, listening
from vertizo.core.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from vertizo.data.alignment import TableToAlign
    from vertizo.data.options import DataConfig, OwnTable
    from vertizo.network.alignment.member import Alignment, Method
    from vertizo.network.transport.base import Channel, Service

    Find = Callable[[Any, Method], Alignment]


def align(
    config: PartyConfig,
    table: Annotated[Path, option("This party's whole table, CSV, Excel or Parquet.", "FILE")],
    out: Annotated[Path | None, option("The aligned table. Default: data.path.", "FILE")] = None,
    method: Annotated[
        str, option("private needs the extra psi; hashed is not private.", "private|hashed")
    ] = "private",
    overwrite: Annotated[bool, option("Replace an existing file.")] = False,
    settings: Settings = None,
    log_format: log.LogFormat = "text",
) -> None:
    """Find the records that all parties have and write this party's rows of them."""

    def own_table(data: DataConfig | OwnTable) -> TableToAlign:
        from vertizo.data.alignment import TableToAlign
        from vertizo.data.tabular.csv_lines import CsvFormat

        output = out or data.path
        if data.id is None or output is None:
            raise ConfigError(
                "data.path and data.id are not set; they name the aligned table and its column of "
                "keys"
            )
        return TableToAlign(table, data.id, output, CsvFormat.of(data), overwrite)

    errors = log.errors()
    try:
        from vertizo.network.serving.options import is_label_holder, load_join, load_serve

        if is_label_holder(config):
            holder = load_serve(config, settings or [])
            served, own = holder.federation, own_table(holder.data)
            credentials = identity(served)

            def serve(service: Service) -> AbstractContextManager[object]:
                return listening(errors, f"aligns {table}", served, credentials, service)

            find = as_label_holder(served.name, served.members, serve, errors)
        else:
            member = load_join(config, settings or [])
            options, own = member.federation, own_table(member.data)
            find = as_feature_holder(options.name, lambda: connect(options, errors), errors)
        align_table(own, method, find, log.results())
    except KeyboardInterrupt:
        raise Interrupted("stopped; nothing was written") from None


def align_table(table: TableToAlign, method: str, find: Find, console: Console) -> Alignment:
    """Find the records that all parties have, write this party's rows, and print what was done.

    Everything that can be wrong at this party is found before others are asked.

    Raises:
        ConfigError, DataError, RunError: one line on what is wrong.
    """
    from vertizo.network.alignment.blinding import require_psi
    from vertizo.network.alignment.member import check_method

    chosen = check_method(method)
    if chosen == "private":
        require_psi()
    table.check_output()
    frame, keys = table.read()
    found = find(keys, chosen)
    table.write(frame, found.keys)
    counts = Table(show_header=False)
    counts.add_column()
    counts.add_column(justify="right")
    counts.add_row("own records", f"{found.own:,}")
    counts.add_row(f"in common to all {found.parties} parties", f"{len(found.keys):,}")
    counts.add_row("left out", f"{found.own - len(found.keys):,}")
    counts.add_row("fingerprint, the same at all parties", found.fingerprint[:12])
    console.print(counts)
    say([f"written to {table.output}", *found.revealed()], console)
    return found


def as_label_holder(
    federation: str,
    members: Sequence[str],
    serve: Callable[[Service], AbstractContextManager[object]],
    errors: Console,
    patience: float | None = None,
    every: float = 10.0,
) -> Find:
    """Make the function that finds common records as the label holder.

    ``serve`` lets members reach a service while its context lasts. Who is waited for is said each
    ``every`` seconds; after ``patience`` seconds, unless None, the alignment is given up.
    """

    def find(keys: Any, method: Method) -> Alignment:
        from vertizo.network.alignment.service import AligningService

        def waiting(missing: Mapping[str, str]) -> None:
            listed = "; ".join(f"{name} {state}" for name, state in missing.items())
            say(f"waiting for the others: {listed}", errors)

        aligning = AligningService(members, keys, method, federation=federation)
        with closing(aligning) as service, serve(service):
            return service.wait(waiting, every=every, patience=patience)

    return find


def as_feature_holder(federation: str, connect: Callable[[], Channel], errors: Console) -> Find:
    """Make the function that finds common records as a feature holder."""

    def find(keys: Any, method: Method) -> Alignment:
        from vertizo.network.alignment.member import align_with

        bar = live_bar(errors, "aligning", lambda *state: state)
        with closing(connect()) as channel, bar as show:
            progress = show or (lambda _, __: None)
            return align_with(channel, keys, method, federation=federation, progress=progress)

    return find
