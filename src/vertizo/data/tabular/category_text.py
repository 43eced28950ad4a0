"""One spelling of categories and numbers, whatever kind of file they come from.

CSV files, workbooks, Parquet files and databases write the same value differently: 10 and 10.0,
TRUE and true. A model that learnt one spelling must know the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from vertizo.core.errors import ConfigError
from vertizo.core.plugins.lazy_import import polars as pl


def whole(texts: pl.Series) -> pl.Series:
    """Drop a fraction of zeros: 10 for 10.0; other texts, such as 007 and 1.50, stay."""
    numbers = texts.str.replace(r"^(0|-?[1-9][0-9]*)\.0+$", "${1}")
    return numbers.str.replace(r"^-0(?:\.0+)?$", "0")


MINUS = "^[-\u2010-\u2015\u2212] ?"
"""Pattern of a minus as people and programs write it: hyphens, dashes, the minus itself."""
GROUPED = r"^[+-]?[1-9]\d{0,2}(?:[ '\u2019]\d{3})+(?:\.\d+)?$"
"""Pattern of thousands separated by a space of any kind or an apostrophe, never a decimal mark."""


def decimal(texts: pl.Series) -> pl.Series:
    """Parse texts as floats, null where they are no numbers; any width and any minus will do.

    Thousands may have a space or an apostrophe between: ``1 234.5``, ``1'234.5``.
    """
    plain = texts.str.normalize("NFKC").str.strip_chars().str.replace(MINUS, "-")
    grouped = plain.str.contains(GROUPED).fill_null(False)
    joined = plain.str.replace_all("[ '\u2019]", "")
    return joined.zip_with(grouped, plain).cast(pl.Float64, strict=False)


def in_seconds(values: pl.Series) -> pl.Series:
    """Convert durations, and times of day since midnight, to seconds; other values stay."""
    if values.dtype not in (pl.Time, pl.Duration):
        return values
    took = values.dt.total_nanoseconds() if values.dtype == pl.Duration else values.cast(pl.Int64)
    return took // 10**9 + (took % 10**9) / 1e9  # whole seconds exactly


def spelt(texts: pl.Series) -> pl.Series:
    """Spell categories in one way: 10 for 10.0, true for TRUE, form NFC, no spaces around.

    Empty texts become null.
    """
    found = whole(texts.str.normalize("NFC").str.strip_chars()).alias("text").to_frame()
    text, lower = pl.col("text"), pl.col("text").str.to_lowercase()
    kept = pl.when(text != "").then(
        pl.when(lower.is_in(["true", "false"])).then(lower).otherwise(text)
    )
    return found.select(kept).to_series().alias(texts.name)


def names(given: Iterable[str], key: str, known: Collection[str] = ()) -> tuple[str, ...]:
    """Names in a configuration as `spelt`; a ``known`` name, a data set's own, stays as it is.

    ConfigError where one below ``key`` is empty, or two are the same.

    >>> names(["no", " 1.0"], "data.classes")
    ('no', '1')
    """
    written = list(given)
    respelt = spelt(pl.Series(written, dtype=pl.String)).to_list()
    found = [w if w in known else own for w, own in zip(written, respelt, strict=True)]
    for place, name in enumerate(found):
        if name is None:
            raise ConfigError(f"{key} has the name {written[place]!r}, which is empty")
        if (first := found.index(name)) < place:
            raise ConfigError(f"{key} has {written[first]!r} and {written[place]!r}, which are one")
    return tuple(found)
