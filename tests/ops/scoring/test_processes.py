"""`vertizo score` and `vertizo api-key` as commands: killed, started again, stopped, misused."""

from __future__ import annotations

import http.client
import json
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.network.by_hand import NAMES
from tests.ops.scoring.parties import predicted
from tests.processes import Party, held_port
from tests.waiting import until

from vertizo.network.transport.authority import issue

pytestmark = pytest.mark.full

ALL = ("bank", *NAMES)


class Commands:
    """The three parties' commands, their files in ``folder``."""

    def __init__(self, tables: Path, trained: Path, folder: Path) -> None:
        self.tables, self.folder = tables, folder
        self._held = [held_port(), held_port(), held_port()]
        parties, self.http, self.metrics = (one.getsockname()[1] for one in self._held)
        issue(folder / "certs", "bank", list(NAMES), ["127.0.0.1"], 1)
        data = {"id": "key"}
        served = {
            "members": list(NAMES),
            "listen": f"127.0.0.1:{parties}",
            "folder": str(trained / "run"),
            "metrics": f"127.0.0.1:{self.metrics}",
        }
        here = {"name": "table", "path": "unused", "label": "diagnosis"}
        section = {"callers": "callers.yaml", "log": "queries.jsonl", "cache": 0, "deadline": 1}
        section["http"] = f"127.0.0.1:{self.http}"
        self.write("bank", {"federation": served, "data": {**data, **here}, "scoring": section})
        for name in NAMES:
            joined = {"server": f"127.0.0.1:{parties}", "folder": str(trained / name)}
            self.write(name, {"federation": joined, "data": data})
        self.parties: dict[str, Party] = {}

    def write(self, name: str, tree: dict[str, Any]) -> None:
        tree["federation"] |= {"name": "t", "certificates": f"certs/{name}"}
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(tree))

    def start(self, name: str, *more: str) -> Party:
        words = ["score", str(self.folder / f"{name}.yaml")]
        words += ["--data", str(self.tables / f"{name}.new.csv"), *more]
        self.parties[name] = Party(words, self.folder / f"{name}.log", {})
        return self.parties[name]

    def close(self) -> None:
        for party in self.parties.values():
            with suppress(ProcessLookupError):
                party.kill()
        for one in self._held:
            one.close()

    def ask(self, key: str, ids: list[str]) -> dict[str, Any] | int:
        """The answer, or the status of a refusal, 0 where nobody answered."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http}/v1/score",
            json.dumps({"ids": ids}).encode(),
            {"Authorization": f"Bearer {key}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                found: dict[str, Any] = json.loads(answer.read())
                return found
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except (OSError, http.client.HTTPException):  # killed, before its answer or within it
            return 0


@pytest.fixture
def commands(tables: Path, trained: Path, tmp_path: Path) -> Iterator[Commands]:
    made = Commands(tables, trained, tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_whoever_is_killed_scores_are_right_or_refused_and_go_on(
    commands: Commands, tables: Path, trained: Path
) -> None:
    truth = predicted(tables, trained)
    keys = {key: logits.softmax(0)[1].item() for key, logits in truth.items()}
    maker = Party(
        ["api-key", "crm", str(commands.folder / "callers.yaml")], commands.folder / "k", {}
    )
    assert maker.end() == 0
    key = maker.words.splitlines()[-1]
    for name in ALL:
        commands.start(name)
    statuses: list[int] = []
    wrong: list[Any] = []
    over = threading.Event()

    def caller(seed: int) -> None:
        chance = random.Random(seed)
        while not over.wait(0.01):
            ids = chance.sample(sorted(keys), 5)
            found = commands.ask(key, ids)
            statuses.append(found if isinstance(found, int) else 200)
            if isinstance(found, dict):
                rows = {row["id"]: row["probability_malignant"] for row in found["scores"]}
                if found["missing"] or list(rows) != ids:
                    wrong.append(found)
                wrong.extend(row for row in rows.items() if abs(row[1] - keys[row[0]]) > 1e-5)

    def answered() -> bool:
        return isinstance(commands.ask(key, sorted(keys)[:3]), dict)

    assert until(answered, 120), {name: one.words for name, one in commands.parties.items()}
    threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        for name, away in (("lab", 503), ("bank", 0), ("clinic", 503)):
            commands.parties[name].kill()
            since, before = len(statuses), statuses.count(200)
            assert until(lambda a=away, n=since: a in statuses[n:], 120), statuses  # type: ignore[misc]
            commands.start(name)
            assert until(lambda before=before: statuses.count(200) > before + 5, 120), statuses
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert set(statuses) <= {0, 200, 503}
    with urllib.request.urlopen(f"http://127.0.0.1:{commands.metrics}/metrics") as found:
        figures = found.read().decode()
    assert 'vertizo_score_requests_total{caller="crm",outcome="scored"}' in figures
    assert 'vertizo_member_connected{member="lab"} 1.0' in figures
    lines = (commands.folder / "queries.jsonl").read_text().splitlines()
    scored = [line for line in map(json.loads, lines) if line["outcome"] == "scored"]
    assert len(scored) >= statuses.count(200)  # all that was answered is kept, over all its lives
    for name in ALL:
        commands.parties[name].ask_to_stop()
    for name in ALL:
        assert commands.parties[name].end() == 130
        said = commands.parties[name].words
        assert said.splitlines()[-1].endswith("stopped; the same command serves scores again")
        assert "Traceback" not in said


def test_commands_that_cannot_score_say_why_in_one_line(commands: Commands) -> None:
    rows = [
        ("bank", [], ["scoring.callers", "callers.yaml", "missing"]),
        ("bank", ["--set", "scoring.http=0.0.0.0:1"], ["would travel in clear"]),
        ("lab", ["--table", "t"], ["--table t is for a database"]),
        ("lab", ["--head", "raw"], ["--head is the label holder's"]),
        ("lab", ["--set", "federation.folder=nowhere"], ["holds no job"]),
    ]
    for name, more, words in rows:
        commands.start(name, *more).fails(*words)
    assert not (commands.folder / "queries.jsonl").exists()
