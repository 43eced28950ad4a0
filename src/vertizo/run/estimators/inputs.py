"""Inputs of estimators: pandas and Polars frames, arrays and lists, made Polars frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vertizo.core.errors import DataError

if TYPE_CHECKING:
    import polars as pl


LABELS = (str, bool, int, float, np.integer, np.floating, np.bool_)
"""Types that a label may have."""


@dataclass(frozen=True)
class Features:
    """The features of some records, as they were given."""

    given: Any
    """A pandas or Polars frame, or float64 [records, columns]."""
    names: tuple[str, ...]
    """Names of all columns, in order; x0, x1, … if they have none."""

    def frame(self, columns: Sequence[str]) -> pl.DataFrame:
        """Some columns as a Polars frame; DataError for one of neither numbers nor text."""
        import polars as pl

        places = [self.names.index(column) for column in columns]
        if isinstance(self.given, np.ndarray):
            return pl.DataFrame(
                [pl.Series(self.names[i], np.ascontiguousarray(self.given[:, i])) for i in places]
            )
        if _library(self.given) == "polars":
            found: pl.DataFrame = self.given.select(columns)
            return found
        return pl.DataFrame([_series(self.given.iloc[:, i], self.names[i]) for i in places])

    def categories(self, columns: Sequence[str]) -> list[str]:
        """The columns whose type says that they are categories, even of numbers."""
        if isinstance(self.given, np.ndarray):
            return []
        types = dict(zip(self.names, map(str, self.given.dtypes), strict=True))
        return [c for c in columns if types[c].startswith(("Categorical", "Enum", "category"))]


def _library(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _is_frame(value: Any) -> bool:
    """Whether something is a pandas or Polars frame; DataError for a lazy one."""
    if _library(value) not in ("pandas", "polars"):
        return False
    if type(value).__name__ == "LazyFrame":
        raise DataError("X is a Polars LazyFrame; give X.collect()")
    return hasattr(value, "columns")


def features(estimator: Any, given: Any, *, reset: bool) -> Features:
    """Check features as scikit-learn does: two dimensions, columns and names as in fit.

    In fit (``reset``) the estimator gets ``n_features_in_`` and, of frames, ``feature_names_in_``.
    Raises scikit-learn's own ValueError and TypeError.
    """
    from sklearn.utils.validation import validate_data

    if _is_frame(given):
        names = [str(name) for name in given.columns]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(f"X has two columns named {twice!r}")
        validate_data(estimator, given, skip_check_array=True, reset=reset)
        if not given.shape[0]:
            raise DataError("X has no rows")
    else:
        given = validate_data(
            estimator,
            given,
            dtype=np.float64,
            ensure_all_finite="allow-nan",
            ensure_min_samples=2 if reset else 1,
            reset=reset,
        )
    known = getattr(estimator, "feature_names_in_", None)
    names = [f"x{i}" for i in range(estimator.n_features_in_)] if known is None else known
    return Features(given, tuple(names))


def _series(column: Any, name: str) -> pl.Series:
    """A column of a pandas frame as a Polars series, without the help of pyarrow."""
    import polars as pl

    if getattr(column.dtype, "kind", "") == "M":  # by the clock of its own zone
        moments = column.dt.tz_localize(None).to_numpy().astype("datetime64[us]")
        return pl.Series(name, moments)
    kind = column.dtype.kind if isinstance(column.dtype, np.dtype) else ""
    if kind in "biuf" and kind:
        return pl.Series(name, np.ascontiguousarray(column.to_numpy()))
    values = column.astype(object)
    cells = values.where(values.notna(), None).tolist()
    there = [cell for cell in cells if cell is not None]
    if there and all(isinstance(cell, (bool, np.bool_)) for cell in there):
        return pl.Series(name, cells, dtype=pl.Boolean)
    if there and all(isinstance(cell, date) for cell in there):
        return pl.Series(name, [None if cell is None else cell.isoformat() for cell in cells])
    if any(isinstance(cell, str) for cell in there):
        cells = [None if cell is None else _text(cell, name) for cell in cells]
        return pl.Series(name, cells, dtype=pl.String)
    try:
        numbers = [None if cell is None else float(cell) for cell in cells]
    except (TypeError, ValueError):
        odd = next(cell for cell in there if not isinstance(cell, (int, float)))
        raise DataError(
            f"X: column {name!r} holds {type(odd).__name__}, neither numbers nor text; "
            "give it to no party"
        ) from None
    return pl.Series(name, numbers, dtype=pl.Float64)


def _text(cell: Any, name: str) -> str:
    """Turn a cell of a column with some text into text; DataError if it cannot be."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, (bool, int, float, np.generic)):
        return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)
    raise DataError(
        f"X: column {name!r} holds {type(cell).__name__} beside text; give it to no party"
    )


def target(given: Any, *, numbers: bool) -> NDArray[Any]:
    """Check labels [records] as scikit-learn does; float64 if they must be ``numbers``.

    Several labels of a record, [records, labels], are 0 or 1 each.

    Raises:
        ValueError: scikit-learn's own.
        DataError: some are missing.
    """
    from sklearn.utils import assert_all_finite, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets

    if not numbers and (several := np.asarray(given)).ndim == 2 and several.shape[1] > 1:
        return _several(several)
    y: NDArray[Any] = column_or_1d(given, warn=True)
    _check_there(y)
    if y.dtype.kind == "O":
        native = np.asarray(y.tolist())
        y = native if native.dtype.kind in "biuf" else y  # of pandas' nullable types
        odd = next((value for value in y.tolist() if not isinstance(value, LABELS)), None)
        texts = [isinstance(value, str) for value in y.tolist()]
        if odd is None and any(texts) and not all(texts):
            raise DataError(
                f"y has {y[texts.index(True)]!r} and {y[texts.index(False)]!r}, text and numbers; "
                "use y.astype(str), or numbers alone"
            )
    else:
        odd = None if y.dtype.kind in "biufU" else y.tolist()[0]
    if odd is not None:
        raise DataError(
            f"y has {odd!r}, which is neither a number nor text; use y.astype(str), or numbers"
        )
    assert_all_finite(y, input_name="y")
    if numbers:
        return y.astype(np.float64)
    check_classification_targets(y)
    return y


def _check_there(y: NDArray[Any]) -> None:
    """Raise DataError if labels [records, …] are missing, whatever stands for a missing one.

    Missing numbers are left to scikit-learn, which raises an error of its own.
    """
    cells = y.reshape(len(y), -1)
    if y.dtype.kind == "O":
        absent = [any(map(_is_missing, record)) for record in cells.tolist()]
    elif y.dtype.kind in "mM":
        absent = np.isnan(cells).any(1).tolist()
    else:
        return
    if any(absent):
        raise DataError(f"y is missing in {sum(absent)} of {len(y)} records; leave them out")


def _is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or pandas' value for missing."""
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas' NA is neither equal to itself nor not
        return True
    except ValueError:  # an array
        return False


def _several(y: NDArray[Any]) -> NDArray[np.int64]:
    _check_there(y)
    if y.dtype.kind == "O":  # of pandas' nullable types
        y = np.asarray(y.tolist())
    wrong = y[~np.isin(y, (0, 1))] if y.dtype.kind in "biuf" else y.ravel()
    if len(wrong):
        raise DataError(
            f"y has {y.shape[1]} columns, which are several labels of a record and must be 0 or 1; "
            f"one is {wrong.tolist()[0]!r}"
        )
    return y.astype(np.int64)


def weights(given: Any, records: Any) -> NDArray[np.float64] | None:
    """Check weights [records] as scikit-learn does; None if none are given."""
    from sklearn.utils.validation import check_array, check_consistent_length

    if given is None:
        return None
    if isinstance(given, Real):
        given = np.full(len(records), float(given))
    found: NDArray[np.float64] = check_array(
        given, ensure_2d=False, dtype=np.float64, input_name="sample_weight"
    )
    if found.ndim != 1:
        raise DataError(f"Sample weights must be 1D array or scalar, got {found.ndim}D array.")
    check_consistent_length(found, records)
    below = np.flatnonzero(found < 0)
    if len(below):
        raise DataError(
            f"sample_weight is {found[below[0]]:g} for record {below[0]}; it must be 0 or above"
        )
    return found


def column(values: NDArray[Any], name: str) -> pl.Series:
    """One label of each record as a column of a frame."""
    import polars as pl

    return pl.Series(name, values.tolist())


def label_names(given: Any, y: NDArray[Any], name: str) -> str | list[str]:
    """The name of the column of labels ``y``, or of the columns if there are several."""
    if y.ndim == 1:
        return name
    if _is_frame(given):
        return [str(each) for each in given.columns]
    return [f"{name}_{place}" for place in range(y.shape[1])]


def columns(values: NDArray[Any], names: str | Sequence[str]) -> list[pl.Series]:
    """Labels as columns of a frame."""
    if isinstance(names, str):
        return [column(values, names)]
    return [column(each, name) for each, name in zip(values.T, names, strict=True)]
