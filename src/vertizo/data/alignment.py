"""Record keys: identifiers as canonical text, rows in canonical order, aligned tables on disk.

A key is text in Unicode's form NFC, without spaces around it. A whole number is written in decimal
digits alone, so that 12, 12.0 and "12" are one key; "012" is another, because text may mean its
zeros. The canonical order is that of the keys' bytes in UTF-8.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from vertizo.core import digests
from vertizo.core.errors import ConfigError, DataError
from vertizo.core.plugins.lazy_import import polars as pl
from vertizo.data.tabular import frames
from vertizo.data.tabular.category_text import in_seconds, whole
from vertizo.data.tabular.columns import rows_in_words, unlike
from vertizo.data.tabular.csv_lines import CsvFormat
from vertizo.data.tabular.frames import Place, row

SUFFIXES = (".csv", ".parquet")
EXACT = {"Float64": 2**53, "Float32": 2**24, "Float16": 2**11}
"""Type → magnitude from which on its floats stand for more than one whole number."""
ALLOWED = "identifiers are whole numbers or text"


def keys_of(
    frame: pl.DataFrame, column: str, source: str = "the table", place: Place = row
) -> list[str]:
    """The key of each row, in the order of the rows.

    The column holds text, whole numbers, or floating-point numbers without a fraction. ``source``
    names the frame in error lines, ``place`` a row. DataError where the column or all rows are
    missing, or a key is missing, no identifier, or occurs twice.
    """
    if column not in frame.columns:
        raise DataError(
            f"{source} does not have the column {column!r} of identifiers"
            f"{unlike(column, frame.columns)}"
        )
    if not frame.height:
        raise DataError(f"{source} has no rows")
    where = f"{source}: column {column!r}"
    keys = known_keys(frame, column, source)
    missing = [index for index, key in enumerate(keys) if not key]
    if missing:
        raise DataError(
            f"{where} has no identifier in {len(missing)} of {len(keys)} "
            f"rows: {rows_in_words(missing, place)}; leave those rows out"
        )
    found = [key for key in keys if key is not None]
    if len(set(found)) < len(found):
        twice = [key for key, times in Counter(found).items() if times > 1]
        key, places = twice[0], [index for index, each in enumerate(found) if each == twice[0]]
        others = f", and {len(twice) - 1} more keys more than once" if len(twice) > 1 else ""
        raise DataError(
            f"{where} has the key {key!r} in {len(places)} rows: {rows_in_words(places, place)}"
            f"{others}; each record needs a key of its own"
        )
    return found


def known_keys(frame: pl.DataFrame, column: str, source: str) -> list[str | None]:
    """The key of each row, None where it is missing; keys may repeat.

    DataError for no identifier.
    """
    texts = _texts(frame[column], f"{source}: column {column!r}").to_list()
    return [None if key is None else unicodedata.normalize("NFC", key) for key in texts]


def remarks(frame: pl.DataFrame, column: str, source: str) -> list[str]:
    """Warnings about a column of identifiers that is valid but probably not meant, a line each.

    It warns of different keys that read alike (but for case, width, spaces or invisible
    characters), and of numbers that only count the rows, which name no record in another table.
    """
    keys = [key for key in known_keys(frame, column, source) if key is not None]
    where, alike = f"{source}: the identifiers {column!r}", dict[str, set[str]]()
    for key in keys:
        alike.setdefault(folded(key), set()).add(key)
    twins = [sorted(group) for group in alike.values() if len(group) > 1]
    found = []
    if twins:
        more = f" (and {len(twins) - 1} more)" if len(twins) > 1 else ""
        found.append(
            f"{where} {' and '.join(map(ascii, twins[0][:3]))} differ by case, width, spaces or "
            f"invisible characters alone{more}; where they are one's, write them alike"
        )
    rows = range(len(keys))
    if len(keys) > 1 and any(keys == [str(first + row) for row in rows] for first in (0, 1)):
        found.append(
            f"{where} count the rows from {keys[0]}: they name places in this file, not records "
            "or persons; name the column that does"
        )
    return found


def folded(key: str) -> str:
    """A key as people read it: without case, width, spaces and invisible characters."""
    seen = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", key).casefold())
    return "".join(sign for sign in seen if not _is_hidden(sign))


def _is_hidden(sign: str) -> bool:
    """Whether a character is a space, a control or format one, or a variation selector."""
    selects = "\ufe00" <= sign <= "\ufe0f" or "\U000e0100" <= sign <= "\U000e01ef"
    return selects or unicodedata.category(sign) in ("Zs", "Zl", "Zp", "Cc", "Cf")


def contents_of(frame: pl.DataFrame) -> list[str]:
    """The whole of each row as canonical text: columns sorted by name, numbers in one spelling."""
    columns = [_content(frame[column]) for column in sorted(frame.columns)]
    return ["\0".join(row) for row in zip(*columns, strict=True)]


def likeness_of(frame: pl.DataFrame, without: Iterable[str | None]) -> list[list[str]]:
    """Each column's values as coarse text, except the columns ``without``.

    Numbers have three digits, text has no case, so that records that were exported anew and
    rounded are still alike.
    """
    left = [column for column in frame.columns if column not in set(without)]
    return [_near(frame[column]) for column in left]


def _near(values: pl.Series) -> list[str]:
    texts = pl.Series(_content(values), dtype=pl.String)
    numbers = texts.cast(pl.Float64, strict=False)
    rounded = numbers.set(~numbers.is_finite(), None).round_sig_figs(3) + 0.0  # no −0
    return [
        folded(text) if number is None else repr(number)
        for text, number in zip(texts.to_list(), rounded.to_list(), strict=True)
    ]


def _content(values: pl.Series) -> list[str]:
    if values.dtype.is_nested() or values.dtype in (pl.Binary, pl.Object):
        return [repr(value) for value in values]
    texts = in_seconds(values).cast(pl.String).str.strip_chars()
    numbers = texts.cast(pl.Float64, strict=False).cast(pl.String)
    found = numbers.fill_null(texts).fill_null("").to_list()
    return [unicodedata.normalize("NFC", each) for each in found]


def _texts(values: pl.Series, where: str) -> pl.Series:
    """Identifiers as text without spaces around, null where missing; whole numbers as digits."""
    kind = values.dtype
    if kind == pl.Null or kind.is_integer():
        return values.cast(pl.String)
    if kind.is_float():
        return _whole(values, where).cast(pl.String)
    if kind.is_decimal() or kind in (pl.String, pl.Categorical, pl.Enum):
        # As a table of floating-point numbers is written to CSV.
        texts = values.cast(pl.String).str.strip_chars()
        texts = whole(texts)
        broken = texts.filter(texts.str.contains(".", literal=True))
        if kind.is_decimal() and len(broken):
            raise DataError(f"{where} holds {broken[0]}; {ALLOWED}")
        return texts
    raise DataError(f"{where} holds {kind}; {ALLOWED}")


def _whole(values: pl.Series, where: str) -> pl.Series:
    numbers = values.cast(pl.Float64).fill_nan(None)
    present = numbers.drop_nulls()
    broken = present.filter(~present.is_finite() | (present != present.floor()))
    if len(broken):
        raise DataError(f"{where} holds {broken[0]!r}; {ALLOWED}")
    large = present.filter(present.abs() >= EXACT[str(values.dtype)])
    if len(large):
        raise DataError(
            f"{where} holds {large[0]:.0f} as {values.dtype}, which may have been rounded; "
            "write such identifiers as whole numbers or as text"
        )
    return numbers.cast(pl.Int64)


def in_order(keys: Iterable[str]) -> tuple[str, ...]:
    """Keys in canonical order.

    >>> in_order(["b", "10", "9", "é"])
    ('10', '9', 'b', 'é')
    """
    return tuple(sorted(keys))  # UTF-8 orders its bytes as Python orders code points


def hashed(parts: Iterable[bytes]) -> bytes:
    """SHA-256 of parts, each behind its length, so that different lists hash different bytes."""
    made = hashlib.sha256()
    for part in parts:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.digest()


def fingerprint(federation: str, keys: Iterable[str]) -> bytes:
    """A hash, 32 bytes, of a federation's name and of keys in their order, to compare tables."""
    return hashed(part.encode() for part in ("vertizo alignment", federation, *keys))


def align_table(
    frame: pl.DataFrame, column: str, keys: Iterable[str], source: str = "the table"
) -> pl.DataFrame:
    """The rows with those keys, in canonical order; their values stay as they are.

    DataError for a missing key.
    """
    places = {key: row for row, key in enumerate(keys_of(frame, column, source))}
    wanted = in_order(set(keys))
    lost = next((key for key in wanted if key not in places), None)
    if lost is not None:
        raise DataError(f"{source} does not have the record {lost!r}")
    return frame[[places[key] for key in wanted]]


@dataclass(frozen=True)
class TableToAlign:
    """A party's table (CSV, Excel or Parquet) and the file that gets its aligned rows."""

    path: Path
    column: str
    """The column of identifiers."""
    output: Path
    """The file to write; it ends in ``.csv`` or ``.parquet``."""
    form: CsvFormat = frames.UTF8
    """Delimiter and encoding of a CSV file, read or written."""
    overwrite: bool = False
    """Whether ``output`` may be replaced."""

    def check_output(self) -> None:
        """Raise ConfigError for an output that `write` would refuse, before hours of work."""
        path = self.output
        if path.suffix not in SUFFIXES:
            raise ConfigError(f"{path} ends in {path.suffix!r}; end it in {' or '.join(SUFFIXES)}")
        if path.is_dir():
            raise ConfigError(f"{path} is a folder; name a file")
        if not path.parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}")
        if path.exists() and self.path.exists() and path.samefile(self.path):
            raise ConfigError(f"{path} is the table that is aligned; name another file")
        self._check_free()

    def _check_free(self) -> None:
        if self.output.exists() and not self.overwrite:
            raise ConfigError(
                f"{self.output} is there already; name another file, or --overwrite it"
            )

    def read(self) -> tuple[pl.DataFrame, list[str]]:
        """Read the table as it is written, and its keys in the order of its rows.

        DataError as of `keys_of`, or where ``output`` cannot hold a value.
        """
        frame, written = frames.read_as_written(self.path, self.form)
        place = frames.place_in(self.path, self.form)
        keys = keys_of(frame, self.column, str(self.path), place)
        self._put(written, place).unlink(missing_ok=True)
        return written, keys

    def write(self, frame: pl.DataFrame, keys: Iterable[str]) -> None:
        """Write the rows with those keys, in canonical order: the whole file, or none.

        Raises:
            ConfigError: the output has appeared in the meantime.
            DataError: the frame lacks a key, or the file cannot be written.
        """
        temporary = self._put(align_table(frame, self.column, keys, str(self.path)))
        try:
            self._check_free()
            is_kept = digests.has_list(self.output.parent)  # as an agent's folder of a job
            made = digests.sha256_of(temporary)
            with digests.replacing(self.output, made) if is_kept else nullcontext():
                os.replace(temporary, self.output)
        except OSError as error:
            raise DataError(f"{self.output} cannot be written: {error}") from None
        finally:
            temporary.unlink(missing_ok=True)

    def _put(self, rows: pl.DataFrame, place: Place = row) -> Path:
        """Write rows to a new file beside the output and return it; DataError where that fails."""
        path, form = self.output, self.form
        temporary = path.with_name(f".{path.name}.{uuid4().hex}.partial")
        try:
            with temporary.open("xb") as file:
                if path.suffix == ".parquet":
                    rows.write_parquet(file)
                else:
                    rows = rows.select(map(in_seconds, rows))
                    if form.encoding == "utf-8":
                        rows.write_csv(file, separator=form.delimiter)
                    else:
                        text = rows.write_csv(separator=form.delimiter)
                        file.write(text.encode(form.encoding))
                file.flush()
                os.fsync(file.fileno())
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            if isinstance(error, UnicodeEncodeError):
                raise DataError(self._not_encoded(rows, place)) from None
            if isinstance(error, (OSError, pl.exceptions.PolarsError)):
                raise DataError(f"{path} cannot be written: {frames.first_line(error)}") from None
            raise
        return temporary

    def _not_encoded(self, rows: pl.DataFrame, place: Place) -> str:
        """The error line for a value, or a column's name, that the encoding cannot write."""
        encoding = self.form.encoding
        wrong = next(
            (column, index, text)
            for column in rows.columns
            for index, text in enumerate([column, *rows[column].cast(pl.String)], -1)
            if text is not None and text.encode(encoding, "ignore").decode(encoding) != text
        )
        column, index, text = wrong
        where = "its name" if index < 0 else place(index)
        return (
            f"{self.path}: column {column!r} has {text!r} in {where}, which {encoding.upper()} "
            f"cannot write; end {self.output} in .parquet, or set data.encoding to utf-8"
        )
