"""``vertizo report`` from outside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.command_line import Refuses, Vertizo
from tests.lab.report.pages import parsed

from vertizo.run.results import checkpoint


@pytest.mark.full
def test_where_the_page_is(call: Vertizo, private: Path, comparison: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in private.rglob("*") if path.is_file()}
    assert call("report", private, comparison, "--title", "Both").code == 0
    page = parsed((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.one("h1").text == "Both"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"], "here for several"
    assert call("report", private, "--out", "pages/one.html").code == 0
    assert (tmp_path / "pages" / "one.html").is_file()
    assert {path: path.read_bytes() for path in private.rglob("*") if path.is_file()} == before
    shutil.copytree(private, tmp_path / "run")
    for _ in range(2):  # again, in place of the first
        assert call("report", "run").quietly().startswith("run/report.html (")
    parsed((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))


MISTAKES = """\
nowhere | nowhere is no folder; name one of `vertizo train`
empty | empty holds nothing to report: no config.yaml of a run
file.txt | file.txt is no folder
run --out run/summary.json | --out run/summary.json is no page; name a file
run --out file.txt/page.html | --out file.txt/page.html cannot be written
damaged | damaged/summary.json is damaged or was changed: its SHA-256
member | member/summary.json: these are no closing figures of a run
attacked | attacked/attacks.json: there are no results of attacks in it
broken | broken/attacks.json cannot be used
binary | binary/metrics.jsonl is damaged or was changed
"""


def test_one_line_for_a_mistake(refuses: Refuses, private: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("")
    for name in ("run", "damaged", "member", "binary"):
        shutil.copytree(private, tmp_path / name)
    (tmp_path / "damaged" / "summary.json").write_text("{")
    told = json.dumps({"queries": 3})
    checkpoint.keep(tmp_path / "member" / "summary.json", told.encode())
    (tmp_path / "binary" / "metrics.jsonl").write_bytes(b"\xff\xfe")
    for name, text in (("attacked", '{"results": [1]}'), ("broken", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "attacks.json").write_text(text)
    kept = (tmp_path / "run" / "summary.json").read_bytes()
    refuses(MISTAKES, "report")
    assert (tmp_path / "run" / "summary.json").read_bytes() == kept
