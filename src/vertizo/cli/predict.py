"""``vertizo predict`` and ``export``: predictions of new records, and trained models as files."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from vertizo.cli import log
from vertizo.cli.console import live_bar, say
from vertizo.cli.options import HEAD, Settings, argument, complete_runs, option
from vertizo.cli.parties import TICK, connect, identity, listening, stop_requests
from vertizo.core.errors import ConfigError, Interrupted
from vertizo.core.names import Encoding, Head
from vertizo.core.text.messages import counted

if TYPE_CHECKING:
    from vertizo.network.serving.options import JoinConfig, ServeConfig
    from vertizo.network.serving.predicting import NewRecords


def predict(
    run: Annotated[
        Path,
        argument(
            "Run folder of `vertizo train`, or a party's YAML configuration.",
            complete=complete_runs,
        ),
    ],
    data: Annotated[
        Path | None,
        option(
            "New records, CSV, Excel or Parquet. Default with a run folder: its test records.",
            "FILE",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "File of predictions, .csv or .parquet. Default with a run folder: standard output.",
            "FILE",
        ),
    ] = None,
    id_: Annotated[str | None, option("Column to add to predictions.", "COLUMN", "--id")] = None,
    delimiter: Annotated[
        str | None,
        option("Character between the values of a CSV file. Default: the run's.", "CHAR"),
    ] = None,
    encoding: Annotated[
        Encoding | None,
        option("Of a CSV file; gb18030 reads GBK as well, cp1252 Latin-1. Default: the run's."),
    ] = None,
    head: Annotated[Head | None, HEAD] = None,
    settings: Settings = None,
    log_format: log.LogFormat = "text",
) -> None:
    """Predict new records, from a run folder or together with all parties over the network."""
    from vertizo.config.environment import Variable, source_of

    if run.is_dir():
        for setting in settings or []:
            if not isinstance(setting, Variable):
                raise ConfigError(
                    f"{source_of(setting)} is for a party's configuration; {run} is a run, which "
                    "predicts as it was trained"
                )
        predict_offline(
            run, data, out, id_column=id_, delimiter=delimiter, encoding=encoding, head=head
        )
        return
    if not run.exists():
        raise ConfigError(
            f"{run} is not there; name a run folder of `vertizo train`, or this party's "
            "configuration"
        )
    for key, value in {"id": id_, "delimiter": delimiter, "encoding": encoding}.items():
        if value is not None:
            raise ConfigError(f"--{key} is for a run folder; {run} has data.{key}")
    if data is None:
        raise ConfigError("--data is missing; name the table of this party's new records")
    try:
        from vertizo.network.serving.options import is_label_holder

        if is_label_holder(run):
            if out is None:
                raise ConfigError("--out is missing; name the file that predictions go to")
            _as_label_holder(run, settings or [], data, out, head)
        else:
            for flag, given in (("--out", out), ("--head", head)):
                if given is not None:
                    raise ConfigError(
                        f"{flag} is the label holder's; a feature holder gets no predictions"
                    )
            _as_feature_holder(run, settings or [], data)
    except KeyboardInterrupt:
        raise Interrupted("stopped; nothing was written") from None


def predict_offline(
    run: Path,
    data: Path | None,
    out: Path | None,
    *,
    id_column: str | None = None,
    delimiter: str | None = None,
    encoding: Encoding | None = None,
    head: Head | None = None,
) -> None:
    """Predict the records of a file, or the run's own test records.

    Without ``out`` the predictions go to standard output as CSV, and lines about them (scores if
    labels are known, what the guarantee covers) to standard error.

    Raises:
        UserError: one line that says what is wrong; nothing is written.
    """
    from vertizo.data import options
    from vertizo.data.tabular import frames
    from vertizo.data.tabular.csv_lines import CsvFormat
    from vertizo.network.serving.client_folder import is_of_real_parties
    from vertizo.run.trained.prediction import Predictor, check_file, coverage_of, write_file

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
    predictor = Predictor.load(run, head)
    if data is None:
        found = predictor.test()
    else:
        own = predictor.config.data
        form = CsvFormat(separator or own.delimiter, encoding or own.encoding)
        frame, written = frames.read_as_written(data, form, may_be_empty=True)
        place = frames.place_in(data, form)
        found = predictor.predict(
            frame, id_column=id_column, name=str(data), place=place, written=written
        )
    count = found.frame.height
    lines = [f"predictions: {counted(count, 'record')}"]
    if out is None:
        sys.stdout.write(found.frame.write_csv())
    else:
        write_file(found.frame, out)
        lines[0] += f" in {out}"
    if found.scores is not None:
        figures = ", ".join(f"{name} {value:.4f}" for name, value in found.scores.items())
        some = "" if found.scored == count else f" ({found.scored:,} have a label)"
        lines.append(f"scores{some}: {figures}")
    say((f"note: {note}" for note in found.notes), log.errors())
    lines.append(f"privacy: {coverage_of(predictor.summary['privacy'], predictor.head)}")
    say(lines, log.errors() if out is None else log.results())


def _as_label_holder(
    path: Path, settings: list[str], data: Path, out: Path, head: Head | None
) -> None:
    """Predict with all parties; the label holder alone gets the predictions."""
    from vertizo.network.serving.options import load_serve
    from vertizo.network.serving.predicting import PredictingService
    from vertizo.run.trained.prediction import check_file, coverage_of, frame_of, write_file

    check_file(out)
    config = load_serve(path, settings)
    column, records = _new_records(config, data)
    credentials = identity(config.federation)
    errors = log.errors()
    service = PredictingService(config, records, lambda line: say(line, errors), head)

    def words() -> tuple[float, str]:
        return 0.0, f"waiting for {', '.join(service.missing())}"

    does = f"predicts {len(records.keys):,} records"
    with (
        stop_requests() as stopped,
        listening(errors, does, config.federation, credentials, service, service.run),
        live_bar(errors, "predicting", words) as show,
    ):
        while not service.finished.wait(TICK):
            service.tick()
            if stopped.is_set():
                raise Interrupted("stopped; nothing was written")
            if show is not None:
                show()
    keys = records.written[column]
    frame = frame_of(service.task, service.class_names, service.logits(), keys)
    write_file(frame, out)
    said = f"{frame.height:,} predictions written to {out}"
    say([said, f"privacy: {coverage_of(service.privacy, service.head)}"], log.results())


def _as_feature_holder(path: Path, settings: list[str], data: Path) -> None:
    from vertizo.network.serving.frames import understood
    from vertizo.network.serving.options import load_join
    from vertizo.network.serving.predicting import help_predict

    config = load_join(path, settings)
    _, records = _new_records(config, data)
    errors = log.errors()
    bar = live_bar(errors, "embedding", lambda share: (share, "sent"))
    with closing(connect(config.federation, errors)) as channel, bar as show, understood():
        told = show or (lambda share: None)
        count = help_predict(config, records, channel, lambda line: say(line, errors), told)
    said = f"{count:,} records embedded for the label holder; predictions are its own"
    say(said, log.results())


def _new_records(config: ServeConfig | JoinConfig, data: Path) -> tuple[str, NewRecords]:
    """The name of the column of keys, and a party's new records in their order."""
    from vertizo.data.tabular.csv_lines import CsvFormat
    from vertizo.network.serving.predicting import NewRecords

    column = config.data.id
    if column is None:
        raise ConfigError("data.id is not set; name the column of keys")
    return column, NewRecords(data, column, CsvFormat.of(config.data), config.federation.name)


def export(
    run: Annotated[Path, argument("Run folder of `vertizo train`.", complete=complete_runs)],
    format_: Annotated[
        Literal["torch", "onnx"],
        option("torch: each module's state_dict. onnx: a graph (extra onnx).", None, "--format"),
    ] = "torch",
    party: Annotated[
        list[str] | None,
        option("Of this party alone; server is the label holder's. Can be repeated.", "NAME"),
    ] = None,
    out: Annotated[
        Path | None, option("Folder of the files. Default: export in RUN.", "FOLDER")
    ] = None,
) -> None:
    """Write a run's trained models, a file for each party."""
    from vertizo.network.serving.client_folder import is_of_real_parties
    from vertizo.run.results import checkpoint
    from vertizo.run.trained.export import export as write
    from vertizo.run.trained.export import parts_of

    if is_of_real_parties(run):
        raise ConfigError(f"{run} is of real parties; export is for runs of `vertizo train`")
    folder = out or run / "export"
    try:
        parts = parts_of(run, party or ())
        with checkpoint.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for part in parts:
            path = write(part, folder, format_)
            say(f"{path}: takes records of shape {list(part.example.shape[1:])}")
    except KeyboardInterrupt:
        raise Interrupted("stopped; files may be incomplete") from None
