"""Reading and checking of CSV files: faults are found with their line before a reader fails."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from vertizo.core.errors import DataError
from vertizo.core.names import Encoding

DELIMITERS = ";\t|,"
"""Possible delimiters, the likeliest first where it is not a comma."""
HEAD = 4096
"""Bytes at the beginning of a file that tell its format."""
OTHER_FORMATS = {
    b"PK\x03\x04": "a ZIP archive; unpack it",
    b"PAR1": "a Parquet file; let its name end in .parquet",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook, or has a password; save its sheet as CSV",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard; unpack it, or use gzip",
    b"BZh": "compressed by bzip2; unpack it, or use gzip",
    b"\xfd7zXZ": "compressed by xz; unpack it, or use gzip",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
    b"%PDF": "a PDF; save the table as CSV",
    b"<": "HTML or XML; save the table as CSV",
    b"{": "JSON; save the table as CSV",
    b"[{": "JSON; save the table as CSV",
}
"""First bytes of files that are often given for CSV → what they are, in words."""
LANGUAGES: dict[Encoding, str] = {
    "utf-8": "it is UTF-8",
    "gb18030": "it is Chinese",
    "cp1252": "it is of a Western language",
}
"""Encoding → the condition under which a file has it, in words."""
QUOTE = '"'
SHOWN = 60
"""Characters of a header that are shown."""


FAULTS = {
    "new-line character": "has a carriage return without a line feed; "
    "save the file with line feeds",
    "field limit": "opens a quote that is not closed",
    "unexpected end": "opens a quote that is not closed",
    "expected after": "has text behind a closing quote; a quote within quotes is written twice",
}
"""Part of an error of Python's reader → the fault in words."""


@dataclass(frozen=True)
class CsvFormat:
    """The delimiter and encoding of a party's CSV files."""

    delimiter: str = ","
    """The character between values."""
    encoding: Encoding = "utf-8"

    @classmethod
    def of(cls, options: Any) -> CsvFormat:
        """The format that a section ``data`` says."""
        return cls(options.delimiter, options.encoding)


class BrokenRecordError(ValueError):
    """A record with a broken quote that no reader can parse; ``line`` is its first line."""

    def __init__(self, line: int, error: csv.Error) -> None:
        words = str(error)
        known = next((said for part, said in FAULTS.items() if part in words), None)
        super().__init__(known or f"cannot be read: {words}")
        self.line = line


@contextmanager
def _one_line(path: Path, form: CsvFormat, where: str) -> Iterator[None]:
    """Turn faults of a file's text into a DataError; ``where`` words the place of a quote."""
    try:
        yield
    except UnicodeDecodeError:
        raise DataError(_not_text(path, form.encoding)) from None
    except BrokenRecordError as error:
        raise DataError(f"{path}: {where.format(error.line)} {error}") from None


@contextmanager
def text_of(path: Path, form: CsvFormat) -> Iterator[TextIO]:
    """Open a file as text, unpacked, without a byte order mark of UTF-8."""
    codec = "utf-8-sig" if form.encoding == "utf-8" else form.encoding
    with _opened(path) as raw, io.TextIOWrapper(raw, codec, newline="\n") as file:
        yield file


def records(path: Path, form: CsvFormat, skip: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Read records that are not blank, the header first, with the number of their first line.

    Lines count from 1; a record in quotes may span several. ``skip`` lines are left out at the
    start. OSError, EOFError or ValueError where it cannot be read; `BrokenRecordError` for a wrong
    quote.
    """
    with text_of(path, form) as file:
        for _ in range(skip):
            next(file, None)
        reader = csv.reader(file, delimiter=form.delimiter, strict=True)
        start = skip + 1
        try:
            for values in reader:
                if values:
                    yield start, values
                start = skip + reader.line_num + 1
        except csv.Error as error:
            raise BrokenRecordError(start, error) from None


def detected(path: Path, delimiter: str | None, encoding: Encoding | None) -> CsvFormat:
    """Detect a file's format where it is not given.

    The delimiter is the one that makes most columns of the header; the encoding is the only one
    that decodes the text, else UTF-8.
    """
    if encoding is None:
        fit = [each for each in LANGUAGES if _decodes(path, each)]
        encoding = fit[0] if len(fit) == 1 else "utf-8"
    if delimiter is None:
        width = {"": 0}
        for each in f",{DELIMITERS}":
            with suppress(OSError, EOFError, ValueError):
                width[each] = len(next(records(path, CsvFormat(each, encoding)), (0, []))[1])
        delimiter = max(width, key=width.__getitem__) or ","
    return CsvFormat(delimiter, encoding)


def _decodes(path: Path, encoding: Encoding) -> bool:
    try:
        with text_of(path, CsvFormat(encoding=encoding)) as file:
            return all(True for _ in file)
    except (OSError, EOFError, ValueError):
        return False


def header(path: Path, form: CsvFormat) -> list[str] | None:
    """Read the names of the columns, without spaces around them; None for an empty file.

    DataError for another format or delimiter, no header, or a name that is missing or there twice.
    """
    try:
        with _opened(path) as file:
            head = file.read(HEAD)
        _check_format(path, head, form)
        _check_quoted(path, head, form.delimiter)
        with _one_line(path, form, "the header, in line {},"):
            line, names = next(records(path, form), (0, []))
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not names:
        return None
    names = [name.strip() for name in names]
    _check_delimiter(path, line, names, form.delimiter)
    check_names(path, f"line {line}", names)
    return names


def _check_format(path: Path, head: bytes, form: CsvFormat) -> None:
    kind = next((kind for start, kind in OTHER_FORMATS.items() if head.startswith(start)), None)
    if head.startswith(b"PK") and (b"xl/" in head or path.suffix.lower().startswith(".xls")):
        kind = "an Excel workbook; let its name end in .xlsx, or save its sheet as CSV"
    if kind is None and b"\0" in head:
        kind = "not text; save it as CSV in UTF-8"
    if form.encoding != "utf-8" and _is_utf8(head, UNLIKELY[form.encoding]):
        kind = "UTF-8 text; set data.encoding to utf-8 (--encoding of `vertizo predict`)"
    if kind is not None:
        raise DataError(f"{path} is {kind}")


UNLIKELY = {"gb18030": "\u2e80", "cp1252": "\x80"}
"""Encoding → letter from which on UTF-8 text with such letters is hardly ever also in it."""


def _is_utf8(head: bytes, unlikely: str) -> bool:
    """Whether bytes are UTF-8 with a letter from ``unlikely`` on; its byte order mark counts."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return max(text, default="") >= unlikely


def _check_quoted(path: Path, head: bytes, delimiter: str) -> None:
    """Refuse a header of quoted names with another delimiter between them."""
    first = head.partition(b"\n")[0].decode(errors="replace")
    between = [each for each in DELIMITERS if f"{QUOTE}{each}{QUOTE}" in first]
    if between and delimiter not in between:
        raise DataError(_another_delimiter(path, first, between[0]))


def _another_delimiter(path: Path, header: str, other: str) -> str:
    return (
        f"{path} has one column only, {header.strip()[:SHOWN]!r}; is data.delimiter {other!r}? "
        "(--delimiter of `vertizo predict`)"
    )


def _check_delimiter(path: Path, line: int, names: Sequence[str], delimiter: str) -> None:
    if len(names) != 1 and not names[0].casefold().startswith("sep="):
        return
    if names[0].casefold().startswith("sep="):
        raise DataError(
            f"{path}: line {line} is Excel's {delimiter.join(names)!r}; delete it, and say what "
            "stands between values by data.delimiter (--delimiter of `vertizo predict`)"
        )
    other = next((each for each in DELIMITERS if each != delimiter and each in names[0]), None)
    if other is not None:
        raise DataError(_another_delimiter(path, names[0], other))


def check_names(path: Path, place: str, names: Sequence[str]) -> None:
    """Refuse a header that lacks a name, has one twice, or holds numbers only."""
    where = f"{path}: the header, in {place},"
    if "" in names:
        number = names.index("") + 1
        raise DataError(
            f"{where} has no name for column {number} of {len(names)}; name it or remove it"
            + (" (from pandas: index=False)" if number == 1 else "")
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        places = [str(place) for place, name in enumerate(names, 1) if name == twice]
        raise DataError(
            f"{path} has two columns named {twice!r}, numbers {places[0]} and {places[1]}; "
            "rename one"
        )
    counted = [str(number) for number in range(len(names) + 1)]
    if all(map(_is_number, names)) and list(names) not in (counted[1:], counted[:-1]):
        shown = ", ".join(names)[:SHOWN]
        raise DataError(
            f"{where} holds numbers only, {shown}; the first line must name the columns"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _not_text(path: Path, encoding: Encoding) -> str:
    """The error line for a file that is not text of that encoding, with the place."""
    with _opened(path) as file:
        offset = 0
        for number, line in enumerate(file, 1):
            wrong = _first_wrong(line, encoding)
            if wrong is not None:
                others = [each for each in LANGUAGES if _first_wrong(line, each) is None]
                may = "; ".join(f"if {LANGUAGES[o]}, set data.encoding to {o}" for o in others)
                hint = f"{may} (--encoding of `vertizo predict`); else " if others else ""
                return (
                    f"{path} is not {encoding.upper()} text: line {number} holds the byte "
                    f"0x{line[wrong]:02x}, number {offset + wrong + 1:,} of the file; "
                    f"{hint}save it as UTF-8"
                )
            offset += len(line)
    return f"{path} is not {encoding.upper()} text; save it as UTF-8"


def _first_wrong(line: bytes, encoding: str) -> int | None:
    try:
        line.decode(encoding)
    except UnicodeDecodeError as error:
        return error.start
    return None


def check_records(path: Path, form: CsvFormat, skip: int = 0, width: int | None = None) -> bool:
    """Refuse a broken quote, and a line of more or fewer values than ``width``, or the first.

    Returns:
        Whether some value has a quote in it, which readers treat differently.

    Raises:
        DataError: there is such a line; it names its number.
    """
    quoted = False
    with suppress(OSError, EOFError, ValueError), _one_line(path, form, "line {}"):
        # Whoever reads it says what else is wrong.
        for line, values in records(path, form, skip):
            quoted = quoted or QUOTE in form.delimiter.join(values)
            width = len(values) if width is None else width
            if len(values) != width:
                counted = "1 value" if len(values) == 1 else f"{len(values)} values"
                more = len(values) > width
                raise DataError(
                    f"{path}: line {line} has {counted} where {width} are expected"
                    + ("; is one with a delimiter in it not in quotes?" if more else "")
                )
    return quoted


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not packed:
            yield raw
            return
        with gzip.GzipFile(fileobj=raw) as file:
            yield io.BufferedReader(file)
