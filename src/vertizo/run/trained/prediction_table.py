"""Tables of predictions: finite numbers in a Polars frame, and a file of it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from vertizo.core.errors import ConfigError, DataError, RunError
from vertizo.data.tabular.category_text import in_seconds
from vertizo.data.tabular.columns import unlike
from vertizo.models.losses import MultiLabel, Regression, Task
from vertizo.run.results import checkpoint

if TYPE_CHECKING:
    import polars as pl

FORMATS = (".csv", ".parquet")
"""Endings of files of predictions."""
PREDICTION = "prediction"
ROW = "row"
"""Columns of the result; probabilities are in ``probability_CLASS``."""


def names_of(records: pl.DataFrame, column: str, name: str) -> pl.Series:
    """The column of the table ``name`` that identifies its records, or DataError."""
    if column not in records.columns:
        raise DataError(
            f"--id names the column {column!r}, which {name} does not have"
            f"{unlike(column, records.columns)}"
        )
    carried = in_seconds(records[column])
    if carried.dtype.is_nested() or str(carried.dtype) in ("Binary", "Object"):
        raise DataError(f"--id names the column {column!r} of {name}, which holds {carried.dtype}")
    return carried


def predicted(task: Task, logits: Tensor) -> Tensor:
    """`Task.predict`, [records, outputs]; RunError if a number is not finite."""
    outputs = task.predict(logits)
    for numbers in (logits, outputs):
        wrong = ~numbers.isfinite()
        if bool(wrong.any()):
            at = int(wrong.reshape(len(numbers), -1).any(1).nonzero()[0, 0])
            raise RunError(
                f"the score of record {at + 1} of {len(numbers)} is {numbers[wrong][0]:g}, which "
                "is no finite number; the record or the model's parameters are beyond what can be "
                "computed with"
            )
    return outputs


def frame_of(
    task: Task, class_names: Sequence[str] | None, logits: Tensor, carried: pl.Series | None
) -> pl.DataFrame:
    """Make `Predictions.frame` from logits [records, outputs].

    DataError if a column would be there twice, RunError if a number is not finite.
    """
    import polars as pl

    first = (
        pl.Series(ROW, range(1, len(logits) + 1), dtype=pl.Int64) if carried is None else carried
    )
    outputs = predicted(task, logits)
    if isinstance(task, Regression):
        columns = [pl.Series(PREDICTION, outputs.numpy())]
    elif isinstance(task, MultiLabel):
        no_and_yes = class_names or ("0", "1")
        columns = []
        for name, likely in zip(task.names, outputs.numpy().T, strict=True):
            holds = [no_and_yes[int(each > 0.5)] for each in likely]
            columns.append(pl.Series(f"{PREDICTION}_{name}", holds, dtype=pl.String))
            columns.append(pl.Series(f"probability_{name}", likely))
    else:
        names = class_names or [str(number) for number in range(task.outputs)]
        likeliest = outputs.numpy().argmax(1)  # among equals the first, as in the accuracy
        columns = [pl.Series(PREDICTION, [names[place] for place in likeliest], dtype=pl.String)]
        columns += [
            pl.Series(f"probability_{name}", outputs[:, place].numpy())
            for place, name in enumerate(names)
        ]
    if first.name in (column.name for column in columns):
        raise DataError(f"--id names the column {first.name!r}, which predictions have themselves")
    return pl.DataFrame([first, *columns])


def check_file(out: Path) -> None:
    """Raise ConfigError for a path that predictions cannot be written to."""
    if out.suffix not in FORMATS:
        raise ConfigError(f"--out {out} must end in {' or '.join(FORMATS)}")
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name a file")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")


def write_file(frame: pl.DataFrame, out: Path) -> None:
    """Write predictions, whole or not at all, in the format of the file's ending; or RunError."""
    content = io.BytesIO()
    (frame.write_parquet if out.suffix == ".parquet" else frame.write_csv)(content)
    checkpoint.write_atomically(out, content.getvalue())
