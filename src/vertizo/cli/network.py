"""The commands of real parties: certs, align, serve, join and predict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vertizo.core.errors import ConfigError, Interrupted

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML configuration of this party.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. federation.listen=…"),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the program's."""
    for command in (certs, align, serve, join, predict):
        app.command()(command)


def certs(
    folder: Annotated[Path, typer.Argument(help="Where each party's folder is made.")],
    server: Annotated[
        str | None, typer.Option(metavar="NAME", help="The label holder's name.")
    ] = None,
    member: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A feature holder's name; repeat.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Host name or address that the label holder is reached by; repeat."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How long they are valid.")] = 90,
) -> None:
    """Make a test authority and a certificate for each party, for trying out."""
    from vertizo.cli.certs import certs as run

    run(folder, server, member or [], host or [], days)


def align(
    config: Config,
    table: Annotated[
        Path, typer.Option(metavar="FILE", help="This party's whole table, CSV or Parquet.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The aligned table; without it, data.path of CONFIG."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(metavar="private|hashed", help="hashed needs no extra, and is not private."),
    ] = "private",
    overwrite: Annotated[bool, typer.Option(help="Replace a file that is there.")] = False,
    settings: Settings = None,
) -> None:
    """Find the records that all parties have, and write this party's rows of them."""
    from vertizo.cli.align import align as run

    try:
        run(config, settings or [], table, out, method=method, overwrite=overwrite)
    except KeyboardInterrupt:
        raise Interrupted("stopped; nothing was written") from None


def serve(
    config: Config,
    settings: Settings = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as the last line, for programs.")
    ] = False,
) -> None:
    """Serve a job as the label holder; started again, it goes on where it was."""
    from vertizo.cli.serve import serve as run

    try:
        run(config, settings or [], as_json=as_json)
    except KeyboardInterrupt:
        raise Interrupted("stopped; the same command goes on with the job") from None


def join(config: Config, settings: Settings = None) -> None:
    """Join a job as a feature holder; started again, it goes on where it was."""
    from vertizo.cli.join import join as run

    try:
        run(config, settings or [])
    except KeyboardInterrupt:
        raise Interrupted("stopped; the same command goes on with the job") from None


def predict(
    run: Annotated[
        Path,
        typer.Argument(help="Run folder of `vertizo train`, or a party's YAML configuration."),
    ],
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="New records, CSV or Parquet.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where predictions go, .csv or .parquet.")
    ] = None,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="Column to carry along.")
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(metavar="CHAR", help="Between the values of a CSV file.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Predict new records: from a run folder, or with all parties over the network."""
    if run.is_dir():
        from vertizo.cli.predict import predict_offline

        predict_offline(run, data, out, id_column=id_, delimiter=delimiter)
        return
    if not run.exists():
        raise ConfigError(
            f"{run} is not there; name a run folder of `vertizo train`, or this party's "
            "configuration"
        )
    for option, value, key in (("--id", id_, "id"), ("--delimiter", delimiter, "delimiter")):
        if value is not None:
            raise ConfigError(f"{option} is for a run folder; {run} has data.{key}")
    from vertizo.cli.predict_parties import predict as together

    try:
        together(run, settings or [], data, out)
    except KeyboardInterrupt:
        raise Interrupted("stopped; nothing was written") from None
