"""``--log-format json``: an object a line, from a real job and from refusals."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.command_line import Vertizo
from tests.processes import MEMBERS, SERVER, Job

from vertizo.cli import log
from vertizo.cli.console import say
from vertizo.core.text.messages import Alarm

KEYS = ["time", "level", "job", "party", "message"]


def objects(text: str) -> list[dict[str, Any]]:
    """All lines, which must be objects with all the keys."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(list(line)[:5] == KEYS for line in found), found
    return found


@pytest.mark.full
def test_a_job_says_nothing_that_is_no_object(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    with Job(tmp_path, environment={"VERTIZO_LOG_FORMAT": "json"}) as job:
        job.start("north")  # nobody is there yet
        job.parties["north"].says("no connection")
        job.start(SERVER, "east")
        job.finish()
        said = {name: objects(party.words) for name, party in job.parties.items()}
    after = datetime.now(UTC)
    for name, lines in said.items():
        for line in lines:
            assert line["time"].endswith("Z")
            time = datetime.fromisoformat(line["time"])
            assert time.utcoffset().total_seconds() == 0
            assert before.timestamp() - 1 < time.timestamp() < after.timestamp() + 1
            assert (line["job"], line["party"]) == ("test", name)
    words = {name: [line["message"] for line in lines] for name, lines in said.items()}
    assert any(f"{SERVER} serves test at" in line for line in words[SERVER])
    assert any(line.startswith("members: north, east") for line in words[SERVER])
    for member in MEMBERS:
        assert any(line.startswith("done: ") for line in words[member])
    alarms = [line["message"] for line in said["north"] if line["level"] == "warning"]
    assert len(alarms) == 1
    assert "nobody listens there" in alarms[0]
    assert {line["level"] for line in said[SERVER]} == {"info"}


def test_a_refusal_is_an_object_too(vertizo: Vertizo, here: Path) -> None:
    (here / "lab.yaml").write_text("federation: {name: f}\n")
    for flags in (["--log-format", "json"], []):
        found = vertizo("join", "lab.yaml", *flags)
        assert found.code == 2
        if flags:
            [line] = objects(found.err)
            assert line["level"] == "error"
            assert "federation.server is missing" in line["message"]
        else:
            assert found.line.startswith("vertizo: ")
    assert vertizo("join", "lab.yaml", "--log-format", "xml").code == 2
    keys = ("name", "server", "certificates", "folder")
    federation = dict.fromkeys(keys, "nowhere") | {"server": "localhost:1"}
    (here / "lab.yaml").write_text(yaml.safe_dump({"federation": federation}))
    [line] = objects(vertizo("join", "lab.yaml", "--log-format", "json").err)
    assert (line["job"], line["party"]) == ("nowhere", None)  # no certificate says who


def test_levels_and_crashes(capsys: pytest.CaptureFixture[str]) -> None:
    log.reset()
    try:
        log._choose("json")
        console = log.errors()
        console.print("one line")
        console.print(Alarm("a member is silent"))
        logging.getLogger("vertizo.network").warning("refused %s", "x")
        try:
            raise KeyError("a\nb")
        except KeyError as error:
            sys.excepthook(KeyError, error, error.__traceback__)
        lines = objects(capsys.readouterr().err)
    finally:
        log.reset()
    assert [line["level"] for line in lines] == ["info", "warning", "warning", "error"]
    assert lines[2]["message"] == "refused x"
    assert "Traceback" in lines[3]["traceback"]
    assert sys.excepthook is sys.__excepthook__


def test_alarms_and_warnings_cannot_flood(capsys: pytest.CaptureFixture[str]) -> None:
    """A hostile member, or whoever reaches a port, may cause as many as it likes."""
    for number in range(1000):
        say(Alarm(f"a_flooding_member was refused: frame {number}"), log.errors())
        say(f"line {number}", log.errors())
    said = capsys.readouterr().err
    assert said.count("a_flooding_member was refused") == 10
    assert "frame 9 (more like it are left out for a minute)" in said
    assert said.count("line ") == 1000
    handler = logging.lastResort
    for number in range(1000):
        line = ("a.b", logging.WARNING, "", 0, "no request from %s", (number,), None)
        handler.handle(logging.LogRecord(*line))
    assert capsys.readouterr().err.count("no request from") == 10
