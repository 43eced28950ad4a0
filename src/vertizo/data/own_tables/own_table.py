"""Options of a feature holder's table, the ``data`` section of its file; nothing here reads one."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from vertizo.core.names import Encoding
from vertizo.core.options import Options
from vertizo.data.options import Category, Delimiter
from vertizo.data.tabular.column_options import Bound, check_bounds, check_categories, check_uses


class OwnTable(Options):
    """A feature holder's table."""

    path: Path | None = None
    """A CSV, Excel (.xlsx) or Parquet file. Leave it out for a named data set, of which each party
    takes its part."""
    test_path: Path | None = None
    """A file of the test records. Default: a share of ``path``, as the label holder says."""
    id: str | None = None
    """The column of keys: the same people have the same keys at all parties."""
    delimiter: Delimiter = ","
    """The character between the values of a CSV file."""
    encoding: Encoding = "utf-8"
    """Of a CSV file; gb18030 reads GBK and GB2312 as well, cp1252 Latin-1."""
    columns: list[str] | None = None
    """The features. Default: all columns but ``id`` and ``drop``."""
    drop: list[str] = Field(default_factory=list)
    """Columns to leave out."""
    categorical: list[str] = Field(default_factory=list)
    """Numeric columns to treat as categories."""
    ranges: dict[str, list[Bound]] = Field(default_factory=dict)
    """Column → [low, high], public bounds to scale by instead of fitted statistics; dates for
    dates."""
    categories: dict[str, list[Category]] = Field(default_factory=dict)
    """Column → its categories, public, instead of those that occur in training."""
    root: Path | None = None
    """Folder of a named data set's files. Default: the environment variable VERTIZO_DATA."""

    @model_validator(mode="after")
    def _whole(self) -> OwnTable:
        if self.path is not None and self.id is None:
            raise ValueError("data.path is set, which needs data.id, the column of keys")
        for column, pair in self.ranges.items():
            check_bounds(f"data.ranges.{column}", pair)
        check_categories(self.categories)
        check_uses(
            {
                "id": [] if self.id is None else [self.id],
                "drop": self.drop,
                "columns": self.columns or [],
                "ranges": list(self.ranges),
                "categories": list(self.categories),
                "categorical": self.categorical,
            }
        )
        return self
