"""``vertizo align`` of real parties: the configuration says who this one is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from vertizo.cli.align import OwnTable, align_as_feature_holder, align_as_label_holder
from vertizo.cli.join import connect
from vertizo.cli.serve import listening
from vertizo.core.errors import ConfigError
from vertizo.network.certificates import Credentials
from vertizo.network.grpc import GrpcServer, Limits
from vertizo.network.options import is_label_holder, load_join, load_serve
from vertizo.network.transport import Service


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
    if is_label_holder(config):
        holder = load_serve(config, settings)
        served = holder.federation
        own = _table(
            table, holder.data.id, out or holder.data.path, holder.data.delimiter, overwrite
        )
        credentials = Credentials.load(served.certificates)

        @contextmanager
        def serve(service: Service) -> Iterator[None]:
            limits = Limits(rate=served.rate)
            with GrpcServer(
                service, listen=served.listen, credentials=credentials, limits=limits
            ) as net:
                listening(Console(stderr=True), f"aligns {table}", credentials, served, net)
                yield

        align_as_label_holder(own, served.members, serve, federation=served.name, method=method)
        return
    member = load_join(config, settings)
    data, options = member.data, member.federation
    own = _table(table, data.id, out or data.path, data.delimiter, overwrite)
    align_as_feature_holder(
        own,
        lambda: connect(options, Console(stderr=True)),
        federation=options.name,
        method=method,
    )


def _table(
    table: Path, column: str | None, output: Path | None, delimiter: str, overwrite: bool
) -> OwnTable:
    if column is None or output is None:
        raise ConfigError(
            "data.path and data.id are not set; they name the aligned table and its column of keys"
        )
    return OwnTable(table, column, output, delimiter, overwrite)
