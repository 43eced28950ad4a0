"""``vertizo predict`` of real parties: all of them run it, each with its own new records."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from vertizo.cli.bar import live_bar
from vertizo.cli.join import connect
from vertizo.cli.predict import check_output, write
from vertizo.cli.serve import STOP, TICK, listening, sayer
from vertizo.core.errors import ConfigError, Interrupted
from vertizo.network.asking import understood
from vertizo.network.certificates import Credentials
from vertizo.network.grpc import GrpcServer, Limits
from vertizo.network.options import is_label_holder, load_join, load_serve
from vertizo.network.predicting import NewRecords, PredictingService, help_predict
from vertizo.run.loop import stop_requests
from vertizo.run.prediction import coverage_of, frame_of

if TYPE_CHECKING:
    import polars as pl


def predict(config: Path, settings: list[str], data: Path | None, out: Path | None) -> None:
    """Predict new records together; the label holder gets the predictions, and nobody else.

    Args:
        config: of this party, as for ``serve`` or ``join``.
        settings: overrides.
        data: this party's new records, with the same keys as everybody's.
        out: the label holder's predictions.

    Raises:
        UserError: one line that says what is wrong.
    """
    if data is None:
        raise ConfigError("--data is missing; name the table of this party's new records")
    if is_label_holder(config):
        if out is None:
            raise ConfigError("--out is missing; name the file that predictions go to")
        check_output(out)
        _as_label_holder(config, settings, data, out)
        return
    if out is not None:
        raise ConfigError("--out is the label holder's; a feature holder gets no predictions")
    _as_feature_holder(config, settings, data)


def _as_label_holder(path: Path, settings: list[str], data: Path, out: Path) -> None:
    config = load_serve(path, settings)
    served, column = config.federation, config.data.id
    if column is None:
        raise ConfigError("data.id is not set; name the column of keys")
    records = NewRecords(data, column, config.data.delimiter, served.name)
    credentials = Credentials.load(served.certificates)
    errors = Console(stderr=True)
    service = PredictingService(config, records, sayer(errors))
    with (
        stop_requests(*STOP) as stopped,
        GrpcServer(
            service,
            listen=served.listen,
            credentials=credentials,
            limits=Limits(rate=served.rate),
        ) as net,
        live_bar(errors, "predicting") as show,
    ):
        listening(errors, f"predicts {len(records.keys):,} records", credentials, served, net)
        while not service.finished.wait(TICK):
            service.tick()
            if stopped.is_set():
                raise Interrupted("stopped; nothing was written")
            if show is not None:
                show(0.0, f"waiting for {', '.join(service.missing())}")
    frame = frame_of(service.task, service.class_names, service.logits(), _carried(records, column))
    write(frame, out)
    print(f"{frame.height:,} predictions written to {out}")
    print(f"privacy: {coverage_of(service.privacy)}")


def _carried(records: NewRecords, column: str) -> pl.Series:
    return records.frame[column]


def _as_feature_holder(path: Path, settings: list[str], data: Path) -> None:
    config = load_join(path, settings)
    column, options = config.data.id, config.federation
    if column is None:
        raise ConfigError("data.id is not set; name the column of keys")
    records = NewRecords(data, column, config.data.delimiter, options.name)
    errors = Console(stderr=True)
    with closing(connect(options, errors)) as channel, live_bar(errors, "embedding") as show:
        progress = (lambda share: None) if show is None else (lambda share: show(share, "sent"))
        with understood():
            count = help_predict(config, records, channel, progress)
    print(f"{count:,} records embedded for the label holder; predictions are its own")
