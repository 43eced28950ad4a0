"""Whatever bytes a file holds, it is read as Python would read it, or refused in one line."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.rows import examples

from vertizo.core.errors import UserError
from vertizo.core.randomness import Stream
from vertizo.data.options import DataConfig
from vertizo.data.prepare import prepare
from vertizo.data.tabular import frames
from vertizo.data.tabular.csv_lines import CsvFormat, records

PIECES = st.sampled_from(
    ["a", "1", "1,5", "nan", '"', '""', '"x"', '"x\ny"', '5" pipe', "\xff", "\0", "é", "\t", ";"]
    + 2 * [",", "\n", "\r\n", "\r", " "]
).map(lambda text: text.encode("latin-1" if text == "\xff" else "utf-8"))
CONTENTS = st.one_of(
    st.binary(max_size=60),
    st.lists(PIECES, max_size=30).map(lambda parts: b"a,y\n" + b"".join(parts)),
    st.lists(st.lists(PIECES, max_size=4).map(b",".join), max_size=9).map(b"\n".join),
)
FORMS = (CsvFormat(), CsvFormat(encoding="gb18030"), CsvFormat(encoding="cp1252"))
ONE_FOLDER = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@settings(parent=ONE_FOLDER, max_examples=examples(300))
@given(content=CONTENTS, packs=st.booleans(), form=st.sampled_from(FORMS))
def test_any_bytes_are_a_table_or_refused_in_a_line(
    content: bytes, packs: bool, form: CsvFormat, tmp_path: Path
) -> None:
    """What is read is what Python's own reader has."""
    path = tmp_path / "any.csv"
    path.write_bytes(gzip.compress(content) if packs else content)
    line = refusal_of(lambda: frames.read(path, form))
    if line is not None:
        assert str(path) in line
        return
    found = frames.read(path, form)
    expected = [[plain(value) for value in values] for _, values in list(records(path, form))[1:]]
    wanted = [row for row in expected if any(value is not None for value in row)]
    assert [[plain(value) for value in row] for row in found.rows()] == wanted


def refusal_of(call: Callable[[], object]) -> str | None:
    """The one line that something is refused in; None if it is not."""
    try:
        call()
    except UserError as error:
        line = str(error)
    else:
        return None
    assert "\n" not in line
    return line


def plain(value: str | None) -> str | None:
    text = (value or "").strip()
    return None if text in frames.MISSING else text


@settings(parent=ONE_FOLDER, max_examples=examples(150))
@given(content=CONTENTS)
def test_any_table_is_cut_or_refused_in_a_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "any.csv"
    path.write_bytes(content)
    options = DataConfig(name="table", path=path, label="y", parties=1)
    refusal_of(lambda: prepare(options, Stream.from_seed(0)))
