"""``vertizo predict``: a file of predictions from a run folder."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vertizo.core.errors import ConfigError
from vertizo.data import options
from vertizo.data.tabular import frames
from vertizo.run import checkpoint
from vertizo.run.folder import RunFolder
from vertizo.run.prediction import Predictions, Predictor

if TYPE_CHECKING:
    import polars as pl

FORMATS = (".csv", ".parquet")


def predict_offline(
    run: Path,
    data: Path | None,
    out: Path | None,
    *,
    id_column: str | None = None,
    delimiter: str | None = None,
) -> None:
    """Predict the records of a file, or the run's own test records.

    Predictions go to ``out``, or to standard output as CSV. What is said about them (scores where
    labels are known, and that the run's guarantee covers predictions only in so far as it covers
    the server model) goes to standard output, or else to standard error.

    Args:
        run: folder of a finished run.
        data: CSV or Parquet file with every party's columns; None for the run's test records.
        out: CSV or Parquet file; replaced in one step if it is there.
        id_column: a column of ``data`` to carry along.
        delimiter: of ``data``; None for that of the run's own file.

    Raises:
        UserError: one line that says what is wrong.
    """
    _check(data, out, id_column)
    delimiter = checked_delimiter(delimiter)
    if _is_of_real_parties(run):
        raise ConfigError(
            f"{run} is of real parties, none of which can predict alone; all run "
            "`vertizo predict CONFIG --data FILE`, each with its own configuration"
        )
    predictor = Predictor(run)
    if data is None:
        predictions = predictor.test()
    else:
        separator = predictor.delimiter if delimiter is None else delimiter
        predictions = predictor.predict(
            frames.read(data, separator),
            id_column=id_column,
            name=str(data),
            place=frames.place_in(data, separator),
        )
    if out is None:
        sys.stdout.write(predictions.frame.write_csv())
    else:
        write(predictions.frame, out)
    lines = [*_words(predictions, out), f"privacy: {predictor.coverage()}"]
    print("\n".join(lines), file=sys.stderr if out is None else sys.stdout)


def _is_of_real_parties(run: Path) -> bool:
    """Whether a folder is one party's part of a job over a network."""
    if any((run / name).is_file() for name in ("job", "secret.key")):
        return True
    return "queries" in (RunFolder(run).summary() or {})  # of a trial, which has no secret


def checked_delimiter(delimiter: str | None) -> str | None:
    """What ``--delimiter`` names; None where it is left out.

    Raises:
        ConfigError: it is not one character.
    """
    try:
        return None if delimiter is None else options.delimiter(delimiter, "--delimiter")
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _check(data: Path | None, out: Path | None, id_column: str | None) -> None:
    """Refuse what cannot work before anything is computed."""
    if data is None and id_column is not None:
        raise ConfigError(f"--id {id_column} names a column of --data, which is missing")
    if out is None:
        return
    check_output(out)
    if data is not None and data.exists() and out.exists() and out.samefile(data):
        raise ConfigError(f"--out {out} is the file of --data; name another")


def check_output(out: Path) -> None:
    """Refuse a place that predictions cannot be written to.

    Raises:
        ConfigError: names it, and what would be right.
    """
    if out.suffix not in FORMATS:
        raise ConfigError(f"--out {out} must end in {' or '.join(FORMATS)}")
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name a file")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")


def write(frame: pl.DataFrame, out: Path) -> None:
    """Write predictions, whole or not at all, in the format of the file's name.

    Raises:
        RunError: it cannot be written.
    """
    content = io.BytesIO()
    if out.suffix == ".parquet":
        frame.write_parquet(content)
    else:
        frame.write_csv(content)
    checkpoint.write_atomically(out, content.getvalue())


def _words(predictions: Predictions, out: Path | None) -> list[str]:
    """What came of it: where it is, and how good."""
    count = predictions.frame.height
    records = "1 record" if count == 1 else f"{count:,} records"
    lines = [f"predictions: {records}" + ("" if out is None else f" in {out}")]
    if predictions.scores is not None:
        figures = ", ".join(f"{name} {value:.4f}" for name, value in predictions.scores.items())
        some = "" if predictions.scored == count else f" ({predictions.scored:,} have a label)"
        lines.append(f"scores{some}: {figures}")
    return lines
