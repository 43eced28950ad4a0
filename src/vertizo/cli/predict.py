"""``vertizo predict``: new records, from a run folder or with all parties over the network."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from vertizo.cli.console import live_bar, say
from vertizo.cli.options import Settings, complete_runs
from vertizo.cli.parties import TICK, connect, listening, stop_requests
from vertizo.core.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from vertizo.run.prediction import Predictions


def predict(
    run: Annotated[
        Path,
        typer.Argument(
            help="Run folder of `vertizo train`, or a party's YAML configuration.",
            autocompletion=complete_runs,
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="New records, CSV or Parquet. Default with a run folder: its test records.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of predictions, .csv or .parquet. Default with a run folder: standard "
            "output.",
        ),
    ] = None,
    id_: Annotated[
        str | None,
        typer.Option("--id", metavar="COLUMN", help="Column to copy beside predictions."),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(metavar="CHAR", help="Between the values of a CSV file. Default: the run's."),
    ] = None,
    settings: Settings = None,
) -> None:
    """Predict new records, from a run folder or together with all parties over the network."""
    if run.is_dir():
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
    try:
        _predict_together(run, settings or [], data, out)
    except KeyboardInterrupt:
        raise Interrupted("stopped; nothing was written") from None


def predict_offline(
    run: Path,
    data: Path | None,
    out: Path | None,
    *,
    id_column: str | None = None,
    delimiter: str | None = None,
) -> None:
    """Predict the records of a file, or the run's own test records.

    Without ``out`` the predictions go to standard output as CSV, and what is said about them
    (scores where labels are known, what the guarantee covers) to standard error.

    Raises:
        UserError: one line that says what is wrong; nothing is written.
    """
    from vertizo.data import options
    from vertizo.data.tabular import frames
    from vertizo.network.client_folder import is_of_real_parties
    from vertizo.run.prediction import Predictor, check_file, coverage_of, write_file

    if data is None and id_column is not None:
        raise ConfigError(f"--id {id_column} names a column of --data, which is missing")
    if out is not None:
        check_file(out)
        if data is not None and data.exists() and out.exists() and out.samefile(data):
            raise ConfigError(f"--out {out} is the file of --data; name another")
    try:
        separator = None if delimiter is None else options.delimiter(delimiter, "--delimiter")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if is_of_real_parties(run):
        raise ConfigError(
            f"{run} is of real parties, none of which can predict alone; all run "
            "`vertizo predict CONFIG --data FILE`, each with its own configuration"
        )
    predictor = Predictor.load(run)
    if data is None:
        predictions = predictor.test()
    else:
        separator = separator or predictor.config.data.delimiter
        predictions = predictor.predict(
            frames.read(data, separator),
            id_column=id_column,
            name=str(data),
            place=frames.place_in(data, separator),
        )
    if out is None:
        sys.stdout.write(predictions.frame.write_csv())
    else:
        write_file(predictions.frame, out)
    covered = coverage_of(predictor.summary["privacy"])
    lines = [*_words(predictions, out), f"privacy: {covered}"]
    print("\n".join(lines), file=sys.stderr if out is None else sys.stdout)


def _words(predictions: Predictions, out: Path | None) -> list[str]:
    """Where the predictions are, and how good."""
    count = predictions.frame.height
    records = "1 record" if count == 1 else f"{count:,} records"
    lines = [f"predictions: {records}" + ("" if out is None else f" in {out}")]
    if predictions.scores is not None:
        figures = ", ".join(f"{name} {value:.4f}" for name, value in predictions.scores.items())
        some = "" if predictions.scored == count else f" ({predictions.scored:,} have a label)"
        lines.append(f"scores{some}: {figures}")
    return lines


def _predict_together(
    config: Path, settings: list[str], data: Path | None, out: Path | None
) -> None:
    """Predict with all parties; the label holder alone gets the predictions."""
    if data is None:
        raise ConfigError("--data is missing; name the table of this party's new records")
    from vertizo.network.options import is_label_holder
    from vertizo.run.prediction import check_file

    if not is_label_holder(config):
        if out is not None:
            raise ConfigError("--out is the label holder's; a feature holder gets no predictions")
        _as_feature_holder(config, settings, data)
        return
    if out is None:
        raise ConfigError("--out is missing; name the file that predictions go to")
    check_file(out)
    _as_label_holder(config, settings, data, out)


def _column(column: str | None) -> str:
    if column is None:
        raise ConfigError("data.id is not set; name the column of keys")
    return column


def _as_label_holder(path: Path, settings: list[str], data: Path, out: Path) -> None:
    from vertizo.network.certificates import Credentials
    from vertizo.network.options import load_serve
    from vertizo.network.predicting import NewRecords, PredictingService
    from vertizo.run.prediction import coverage_of, frame_of, write_file

    config = load_serve(path, settings)
    served, column = config.federation, _column(config.data.id)
    records = NewRecords(data, column, config.data.delimiter, served.name)
    credentials = Credentials.load(served.certificates)
    errors = Console(stderr=True)
    service = PredictingService(config, records, lambda line: say(line, errors))
    does = f"predicts {len(records.keys):,} records"
    with (
        stop_requests() as stopped,
        listening(errors, does, served, credentials, service),
        live_bar(errors, "predicting") as show,
    ):
        while not service.finished.wait(TICK):
            service.tick()
            if stopped.is_set():
                raise Interrupted("stopped; nothing was written")
            if show is not None:
                show(0.0, f"waiting for {', '.join(service.missing())}")
    keys = records.frame[column]
    frame = frame_of(service.task, service.class_names, service.logits(), keys)
    write_file(frame, out)
    print(f"{frame.height:,} predictions written to {out}")
    print(f"privacy: {coverage_of(service.privacy)}")


def _as_feature_holder(path: Path, settings: list[str], data: Path) -> None:
    from vertizo.network.frames import understood
    from vertizo.network.options import load_join
    from vertizo.network.predicting import NewRecords, help_predict

    config = load_join(path, settings)
    column, options = _column(config.data.id), config.federation
    records = NewRecords(data, column, config.data.delimiter, options.name)
    errors = Console(stderr=True)
    with closing(connect(options, errors)) as channel, live_bar(errors, "embedding") as show:
        progress = (lambda share: None) if show is None else (lambda share: show(share, "sent"))
        with understood():
            count = help_predict(config, records, channel, progress)
    print(f"{count:,} records embedded for the label holder; predictions are its own")
