"""The commands that speak to a party's agent, in front of a folder that no agent is on, or one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.test_help import imported
from tests.command_line import Refuses, Vertizo
from tests.ops.agent.houses import offer

from vertizo.ops.agent.jobs.messages import Standing
from vertizo.ops.agent.jobs.store import Store

MEMBER = """\
agent: {name: test, server: "127.0.0.1:1", certificates: certs, folder: north}
tables: {people: {path: p.csv, id: id}}
"""
HOLDER = """\
agent: {name: test, certificates: certs, folder: bank}
tables: {people: {path: p.csv, id: id, label: y}}
policy: {peers: [north, east]}
"""


@pytest.fixture
def stores(here: Path) -> dict[str, Store]:
    """A label holder's and a member's, with the job `one` offered."""
    found = {}
    for name, text in {"bank": HOLDER, "north": MEMBER}.items():
        (here / f"{name}.yaml").write_text(text)
        found[name] = store = Store(here / name)
        store.create()
        store.add(offer(), "submitted")
        store.move("one", "offered")
        with store.alone():
            pass
    return found


def test_a_member_approves_and_refuses(vertizo: Vertizo, stores: dict[str, Store]) -> None:
    said = vertizo("approve", "one", "--agent", "north.yaml").well()
    assert said.startswith("one is approved; no agent runs")
    with stores["north"].alone():
        said = vertizo("refuse", "one", "--why", "not these people", "--agent", "north.yaml")
    assert said.out == "one is refused\n"
    job = stores["north"].job("one")
    assert (job.state, job.line) == ("refused", "not these people")


def test_a_label_holder_cancels_and_sees_all_members(
    vertizo: Vertizo, stores: dict[str, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = stores["bank"]
    monkeypatch.setenv("VERTIZO_AGENT", "bank.yaml")
    bank.hear("north")
    bank.stand("north", Standing("one", "refused", 1, "policy.epsilon allows 1 at most"))
    told = json.loads(vertizo("jobs", "--json").out)
    assert told[0]["state"] == "offered"
    assert told[0]["members"] == {
        "north": "refused: policy.epsilon allows 1 at most",
        "east": "is not connected",
    }
    listed = vertizo("jobs")
    assert "is not connected" in " ".join(listed.out.split())
    assert "no agent runs on" in listed.err
    assert vertizo("cancel", "one").code == 0
    whole = vertizo("jobs", "one").out
    assert "cancelled here" in whole
    assert "north: refused: policy.epsilon" in whole


def test_a_job_says_what_it_waits_for_as_long_as_it_does(
    vertizo: Vertizo, stores: dict[str, Store]
) -> None:
    bank = stores["bank"]
    bank.add(offer("two", alignment="one"), "submitted", after="zero")
    told = json.loads(vertizo("jobs", "two", "--agent", "bank.yaml", "--json").out)
    assert told[0]["after"] == ["one", "zero"]
    assert "after one, zero" in " ".join(vertizo("jobs", "--agent", "bank.yaml").out.split())
    for state in ("approved", "running", "finished"):
        assert bank.move("one", state)
    assert "after zero" in " ".join(vertizo("jobs", "--agent", "bank.yaml").out.split())
    assert bank.move("two", "cancelled")
    assert "after" not in vertizo("jobs", "--agent", "bank.yaml").out


def test_what_cannot_be_done_is_one_line(
    refuses: Refuses, stores: dict[str, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vertizo.ops.commands.jobs.AGENT_SECONDS", 0.0)  # to wait for an agent
    stores["bank"].add(offer("two"), "submitted")
    stores["bank"].move("two", "cancelled")
    (Path("job.yaml")).write_text("job: {kind: align, members: [north], table: people}")
    (Path("new.yaml")).write_text(MEMBER.replace("north", "nowhere"))
    refuses(
        """\
submit job.yaml --agent bank.yaml | no agent runs on | vertizo agent bank.yaml
submit job.yaml --agent north.yaml | is of a member | for a label holder
submit job.yaml | agent.yaml: No such file
approve one --agent bank.yaml | is of a label holder | for a member
cancel one --agent north.yaml | is of a member | for a label holder
cancel onne --agent bank.yaml | there is no job 'onne' here; did you mean 'one'?
cancel two --agent bank.yaml | two is cancelled, so that it cannot be cancelled
jobs two --agent north.yaml | there is no job 'two' here
jobs --agent new.yaml | holds no jobs; `vertizo agent` makes the folder
agent north.yaml | is no folder; name the one with certificate.pem"""
    )


@pytest.mark.full
def test_a_folder_has_one_agent(vertizo: Vertizo, stores: dict[str, Store], here: Path) -> None:
    vertizo("certs", "certs", "--member", "north")
    (here / "north.yaml").write_text(MEMBER.replace("certs,", "certs/north,"))
    with stores["north"].alone():
        vertizo("agent", "north.yaml").refused("is in use by another agent")


def test_a_submission_waits_for_an_agent_that_is_being_started(
    vertizo: Vertizo, stores: dict[str, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("ids.yaml").write_text("job: {kind: align, members: [north, east], table: people}")
    looks = iter([False, False, True])
    monkeypatch.setattr(Store, "is_in_use", property(lambda store: next(looks, True)))
    said = vertizo("submit", "ids.yaml", "--agent", "bank.yaml")
    assert said.well().startswith("align-1: align on people with north, east")
    assert said.err.count("no agent runs on") == 1
    assert stores["bank"].job("align-1") is not None


@pytest.mark.full
def test_commands_about_jobs_import_no_pytorch(stores: dict[str, Store], here: Path) -> None:
    (here / "ids.yaml").write_text("job: {kind: align, members: [north, east], table: people}")
    with stores["bank"].alone():
        for words in (
            "jobs --agent bank.yaml",
            "jobs one --agent north.yaml",
            "approve one --agent north.yaml",
            "refuse one --agent north.yaml",
            "submit ids.yaml --agent bank.yaml",
            "cancel align-1 --agent bank.yaml",
        ):
            found = imported(*words.split())
            assert not found & {"torch", "sklearn", "scipy", "polars"}, words
    job = stores["bank"].job("align-1")
    assert job.state == "cancelled"
