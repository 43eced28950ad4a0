"""``vertizo report`` from outside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.studies.report.pages import parsed

from vertizo.cli.main import main

Said = tuple[int, str, str]
Call = Callable[..., Said]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """``vertizo report`` with these arguments, in a folder of its own: code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> Said:
        monkeypatch.setattr("sys.argv", ["vertizo", "report", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        code = end.value.code
        return code if isinstance(code, int) else 0, said.out, said.err

    return run


def test_in_the_folder_of_one_run(call: Call, private: Path, tmp_path: Path) -> None:
    shutil.copytree(private, tmp_path / "run")
    code, out, err = call("run")
    assert (code, err) == (0, "")
    assert out.startswith("run/report.html (")
    parsed((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert call("run")[0] == 0, "again, in place of the first"


def test_here_for_several(call: Call, private: Path, comparison: Path, tmp_path: Path) -> None:
    assert call(private, comparison, "--title", "Both")[0] == 0
    page = parsed((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.one("h1").text == "Both"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_where_it_is_told_to(call: Call, private: Path, tmp_path: Path) -> None:
    assert call(private, "--out", "pages/one.html")[0] == 0
    assert (tmp_path / "pages" / "one.html").is_file()


def test_nothing_but_the_page_is_touched(call: Call, private: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in private.rglob("*") if path.is_file()}
    call(private, "--out", "page.html")
    assert {path: path.read_bytes() for path in private.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "nowhere is no folder; name one of `vertizo train`"),
        (["empty"], "empty holds nothing to report: no config.yaml of a run"),
        (["file.txt"], "file.txt is no folder"),
        (["run", "--out", "run/summary.json"], "--out run/summary.json is no page; name a file"),
        (["run", "--out", "file.txt/page.html"], "--out file.txt/page.html cannot be written"),
        (["damaged"], "damaged/summary.json: not a summary"),
        (["member"], "member/summary.json: these are no closing figures of a run"),
        (["attacked"], "attacked/attacks.json: there are no results of attacks in it"),
        (["broken"], "broken/attacks.json cannot be used"),
        (["binary"], "binary/metrics.jsonl cannot be used"),
    ],
)
def test_one_line_for_a_mistake(
    call: Call, private: Path, tmp_path: Path, arguments: list[str], line: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("")
    for name in ("run", "damaged", "member", "binary"):
        shutil.copytree(private, tmp_path / name)
    (tmp_path / "damaged" / "summary.json").write_text("{")
    (tmp_path / "member" / "summary.json").write_text(json.dumps({"rounds": 3}))
    (tmp_path / "binary" / "metrics.jsonl").write_bytes(b"\xff\xfe")
    for name, text in (("attacked", '{"results": [1]}'), ("broken", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "attacks.json").write_text(text)
    kept = (tmp_path / "run" / "summary.json").read_bytes()
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert line in err
    assert err.count("\n") == 1
    assert not list(tmp_path.rglob("*.html"))
    assert (tmp_path / "run" / "summary.json").read_bytes() == kept
