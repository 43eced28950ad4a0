"""Jobs between agents: approved, refused, queued, cancelled, silent, killed; nothing is left."""

from __future__ import annotations

import json
import random
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replaced
from tests.ops.agent.houses import (
    HOLDER,
    MEMBERS,
    PARTIES,
    Houses,
    Way,
    finished,
    offer,
)
from tests.rows import each
from tests.waiting import PATIENT

from vertizo.core.errors import ConfigError, RunError
from vertizo.network.serving import frames
from vertizo.network.serving.frames import Terms
from vertizo.network.serving.options import JoinConfig
from vertizo.network.serving.store import Store
from vertizo.network.serving.terms import accepted
from vertizo.ops.agent import agent as loop
from vertizo.ops.agent import label_holder, policy, processes
from vertizo.ops.agent.jobs import messages, store
from vertizo.ops.agent.jobs.states import AFTER, ENDS, State
from vertizo.ops.scoring import LOOKED_UP

BY_HAND = {"approve": "by-hand"}
ALL_KINDS = {name: {"kinds": ["align", "train", "predict", "score"]} for name in PARTIES}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What died is started again without a pause, no test waits for the disk, and no port of this
    machine is taken, whoever uses it."""
    monkeypatch.setattr(store, "SYNCHRONOUS", "OFF")
    monkeypatch.setattr(loop, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(label_holder, "_can_listen", lambda host, port: True)


def began(folder: Path, kind: str = "train", **policies: Any) -> Houses:
    houses = Houses(folder, policies)
    houses.submit(offer(kind=kind))
    houses.turn(5)
    assert houses.running() == [1, 1, 1], houses.said
    return houses


def test_a_job_is_offered_approved_run_and_finished(tmp_path: Path) -> None:
    houses = Houses(tmp_path)
    houses.submit(offer())
    seen = [houses.states()]
    for _ in range(5):
        houses.turn()
        if houses.states() != seen[-1]:
            seen.append(houses.states())
    assert seen[0] == ["submitted", "", ""]
    assert ["offered", "submitted", "submitted"] in seen
    assert seen[-1] == ["running"] * 3
    assert houses.running() == [1, 1, 1]
    port = houses.holder.store.open_jobs()[0].port
    words = [houses.processes(name).started[0][2] for name in PARTIES]
    assert words[1][0] == "join"
    for said, key in zip(words, ("listen", "server", "server"), strict=True):
        address = f"federation.{key}=127.0.0.1:{port}"
        named = ("--set", 'federation.job="one"', "--set", "federation.attempt=1")
        assert said[-6:] == ("--set", address, *named)
    houses.end()
    houses.turn(3)
    assert houses.states() == ["finished"] * 3
    assert [job.closed for m in MEMBERS for job in houses.agents[m].store.jobs()] == [True, True]


def test_the_process_that_joins_is_held_to_the_very_settings_of_the_offer(tmp_path: Path) -> None:
    from vertizo.config.error_lines import read_yaml
    from vertizo.ops.agent.policy import settings_of

    began(tmp_path)
    tree = read_yaml(tmp_path / "north" / "jobs" / "one" / "party.yaml")
    require, offered = tree["federation"]["require"], settings_of(offer())
    assert require == {**offered, "privacy": None}  # a section that was not offered is none
    own = JoinConfig.model_validate(
        {"federation": {**tree["federation"], "require": require}, "client": tree["client"]}
    )
    terms = Terms("one", 0, MEMBERS, "", True, 0, bytes(32), False)
    assert accepted(replaced(terms, settings=json.dumps(offered)), own).epochs == offered["epochs"]
    for changed in (
        {"privacy": {"mechanism": "gaussian", "clip": 1.0, "noise_std": 1.0}},
        {"epochs": 500},
        {"data": {**offered["data"], "validation": 0.9}},
        {"client": {**offered.get("client", {}), "components": 3}},
    ):
        asked = replaced(terms, settings=json.dumps({**offered, **changed}))
        with pytest.raises(
            ConfigError, match=rf"require\.{next(iter(changed))} is .* but the label"
        ):
            accepted(asked, own)


@pytest.mark.parametrize("alignment", ["", "ids"])
def test_only_before_an_alignment_may_an_offer_leave_epochs_open(
    alignment: str, tmp_path: Path
) -> None:
    """What it says nothing of there is not asked for: a label holder could name any number."""
    agent, given = Houses(tmp_path).agents["north"], offer()
    settings = {k: v for k, v in policy.settings_of(given).items() if k not in processes.FOLLOWING}
    asked = replaced(given, settings=json.dumps(settings), alignment=alignment)
    tree, _ = processes.as_member(agent.config, asked, agent.store)
    required = tree["federation"]["require"]
    left = processes.FOLLOWING & required.keys()
    assert left == (set() if alignment else processes.FOLLOWING)
    assert all(required[key] is None for key in left)


def test_a_person_approves_or_refuses(tmp_path: Path) -> None:
    houses = Houses(tmp_path, {"north": BY_HAND})
    for job in ("one", "two"):
        houses.submit(offer(job))
    houses.turn(4)
    assert houses.states() == ["offered", "offered", "approved"]
    there = houses.holder.store.whereabouts(houses.holder.store.open_jobs()[0])
    assert there == {"north": "waits for a person there", "east": "approved: by the policy"}
    own = houses.agents["north"].store
    assert own.move("one", "approved", "by a person")
    assert own.move("two", "refused", "not with these columns")
    houses.turn(3)
    assert houses.states() == ["running"] * 3
    assert houses.states("two") == ["refused"] * 3
    assert houses.line(job="two") == "north: not with these columns"
    assert houses.line("east", "two") == "another member refused"


def test_a_member_leaves_a_running_job(tmp_path: Path) -> None:
    houses = began(tmp_path)
    assert houses.agents["east"].store.move("one", "refused", "our data changed")
    houses.turn(3)
    assert houses.states() == ["refused"] * 3
    assert houses.line() == "east: our data changed"
    assert houses.running() == [None] * 3


@each("stage", ["offered", "approved", "running"])
def test_what_is_cancelled_ends_everywhere(stage: str, tmp_path: Path) -> None:
    policies = {"north": BY_HAND} if stage == "offered" else {}
    houses = Houses(tmp_path, policies, {"east": {"parallel": 1}})
    if stage == "approved":
        houses.submit(offer("zero"))
    houses.submit(offer())
    houses.turn(5)
    assert houses.states()[0] == stage
    assert houses.holder.store.move("one", "cancelled", "a secret reason")
    houses.turn(3)
    assert houses.states() == ["cancelled"] * 3
    assert houses.running() == [None] * 3
    assert houses.line("north") == "the label holder cancelled it"


@pytest.mark.full
def test_what_nobody_answers_expires_and_says_who(tmp_path: Path) -> None:
    houses = Houses(tmp_path, {"north": BY_HAND}, {HOLDER: {"deadline": 0.2}})
    houses.submit(offer())
    houses.holder.tick()
    houses.report("north")
    houses.agents["north"].tick()
    houses.report("north")
    time.sleep(0.3)
    houses.holder.tick()
    assert houses.states()[0] == "expired"
    line = "not approved in 0.2 s: north waits for a person there; east is not connected"
    assert houses.line() == line
    houses.turn()
    assert houses.states()[1] == "expired"


@pytest.mark.full
@each("stage", ["approved", "running"])
def test_an_agent_that_falls_silent_ends_the_job(stage: str, tmp_path: Path) -> None:
    houses = Houses(tmp_path, agents={HOLDER: {"silence": 0.3}, "east": {"parallel": 1}})
    if stage == "approved":
        houses.submit(offer("zero"))
    houses.submit(offer())
    houses.turn(5)
    assert houses.states()[0] == stage
    houses.cut["east"] = "ask"
    time.sleep(0.4)
    houses.report("north")
    houses.turn(2)
    assert houses.states()[:2] == ["expired", "expired"]
    assert houses.line().startswith("east: its agent is silent for ")
    assert houses.running()[:2] == [None, None]
    houses.cut.clear()
    houses.turn(2)
    assert houses.states()[2] == "expired"


@each("failing", PARTIES)
def test_a_failure_ends_the_job_and_its_line_is_where_it_may_be(
    failing: str, tmp_path: Path
) -> None:
    houses = began(tmp_path)
    houses.processes(failing).end("one", 2, "column 'age' holds 'Ada'")
    houses.turn(3)
    assert houses.states() == ["failed"] * 3
    assert houses.running() == [None] * 3
    here = "" if failing == HOLDER else f"{failing}: "
    assert houses.line() == f"{here}column 'age' holds 'Ada'"
    for member in MEMBERS:
        told = "column 'age' holds 'Ada'"
        assert houses.line(member) == (told if member == failing else label_holder.TOLD["failed"])


def test_a_member_may_keep_its_lines(tmp_path: Path) -> None:
    houses = began(tmp_path, east={"tell": False})
    houses.processes("east").end("one", 2, "column 'age' holds 'Ada'")
    houses.turn(3)
    assert houses.line() == "east: its own log says why"
    assert houses.line("east") == "column 'age' holds 'Ada'"


def test_jobs_wait_for_their_turn_at_every_party_and_never_for_each_other(tmp_path: Path) -> None:
    """With a place left at one member and none at the other, nothing begins."""
    houses = Houses(tmp_path, agents={"east": {"parallel": 1}})
    for job in ("one", "two"):
        houses.submit(offer(job))
    houses.turn(6)
    assert (houses.running("one"), houses.running("two")) == ([1, 1, 1], [None] * 3)
    assert houses.states("two") == ["approved"] * 3
    houses.end()
    houses.turn(4)
    assert houses.running("two") == [1, 1, 1]


def test_jobs_on_one_ledger_run_one_after_the_other(tmp_path: Path) -> None:
    houses = Houses(tmp_path)
    for job, ledger in {"one": "/l", "two": "/l", "three": "/m"}.items():
        houses.submit(offer(job), ledger)
    houses.turn(6)
    assert [houses.states(job)[0] for job in ("one", "two", "three")] == [
        *("running", "approved", "running")
    ]


def test_each_job_of_a_queue_begins_once_those_that_it_comes_after_have_finished(
    tmp_path: Path,
) -> None:
    """All are approved by a person before the first begins, and every agent is started again."""
    houses = Houses(tmp_path, {"north": BY_HAND})
    queue = {
        "ids": offer("ids", "align"),
        "model": offer("model", alignment="ids"),
        "scores": offer("scores", "predict", alignment="ids", model="model"),
        "again": offer("again"),
    }
    for job, offered in queue.items():
        houses.submit(offered, after="scores" if job == "again" else "")
    houses.turn(3)
    for job in queue:
        assert houses.agents["north"].store.move(job, "approved"), houses.said
    for job in queue:
        for name in PARTIES:
            houses.start(name)
        houses.turn(5)
        assert [[job, each] for each in PARTIES] == [
            [other, name] for name in PARTIES for other in houses.processes(name).running
        ]
        houses.end(job)
        houses.turn(3)
        assert houses.states(job) == ["finished"] * 3


@each("end", ["cancelled", "refused", "failed", "expired"])
def test_what_comes_after_a_job_ends_as_that_one_does(end: State, tmp_path: Path) -> None:
    houses = Houses(tmp_path, {"east": BY_HAND})
    houses.submit(offer("ids", "align"))
    houses.submit(offer("model", alignment="ids"))
    houses.submit(offer("later"), after="model")
    houses.turn(4)
    assert houses.states("later") == ["offered", "approved", "offered"]
    assert houses.holder.store.move("ids", end, "a secret reason")
    houses.turn(3)
    for job, earlier in {"model": "ids", "later": "model"}.items():
        assert houses.states(job) == [end] * 3
        assert houses.line(job=job) == f"{earlier}, which it comes after, is {end}"
        assert houses.line("north", job) == label_holder.EARLIER
    assert houses.line("north", "ids") == label_holder.TOLD[end]


def test_a_clock_that_is_set_ends_no_job_and_a_deadline_goes_on_with_the_next_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    houses = Houses(tmp_path, {"north": BY_HAND}, {HOLDER: {"deadline": 100.0}})
    houses.submit(offer())
    houses.turn(3)
    began, passed = time.monotonic(), 0.0
    monkeypatch.setattr(time, "time", lambda: 2e9)
    monkeypatch.setattr(time, "monotonic", lambda: began + passed)
    houses.turn(2)
    assert houses.states() == ["offered", "offered", "approved"]
    for passed in (60.0, 120.0):
        assert houses.states()[0] == "offered"
        houses.start(HOLDER)
        houses.holder.tick()  # the time between two agents does not count
        passed += 55.0
        houses.holder.tick()
    assert houses.states()[0] == "expired"


def test_a_process_that_dies_again_and_again_without_getting_on_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MOST_DEATHS", 5)
    houses = began(tmp_path)
    run = houses.agents["north"].store.folder_of("one") / "run"

    def die(times: int) -> None:
        for _ in range(times):
            houses.processes("north").end("one", -9)
            houses.turn(2)
            houses.start("north")  # which does not make it forget
            houses.turn(2)

    journal = Store(run)
    for number in range(3):
        die(4)
        assert houses.running() == [1, 1, 1]
        journal.save({"number": number})
        journal.append(0, b"a query")
    die(5)
    assert houses.states() == ["failed"] * 3
    last = "its process ended 5 times without getting on, at last by signal 9, as when memory runs"
    assert houses.line() == f"north: {last} out"
    assert houses.line("east") == label_holder.TOLD["failed"]


def test_scores_go_on_while_their_process_gets_on_and_end_where_it_never_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MOST_DEATHS", 3)
    houses = Houses(tmp_path, ALL_KINDS)
    for name in PARTIES:
        own = houses.agents[name].store
        processes.write(own.folder_of("model"), {"data": {}}, [])
        finished(own, offer("model"))
        own.close("model")
    houses.submit(offer("one", "score", model="model"))
    houses.turn(5)
    log = houses.holder.store.folder_of("one") / "queries.jsonl"
    north = houses.agents["north"].store.folder_of("one") / "log"
    for _ in range(6):
        with log.open("a") as file:
            file.write("somebody was answered\n")
        houses.processes(HOLDER).end("one", -9)
        houses.turn(2)
        north.write_text(f"{north.read_text() if north.exists() else ''}{LOOKED_UP}\n")
        houses.processes("north").end("one", -9)
        houses.turn(2)
        assert houses.running() == [1, 1, 1]
    for _ in range(2):
        assert houses.states() == ["running"] * 3
        houses.processes("north").end("one", -9)
        houses.turn(3)
    assert houses.states() == ["failed"] * 3


def test_a_member_that_is_killed_before_it_approves_does_so_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    houses = Houses(tmp_path)
    north, real = houses.agents["north"], store.Store.move

    def killed(own: store.Store, job: str, state: State, line: str = "") -> bool:
        if own is north.store and state == "approved":
            raise KeyboardInterrupt
        return real(own, job, state, line)

    monkeypatch.setattr(store.Store, "move", killed)
    houses.submit(offer())
    with pytest.raises(KeyboardInterrupt):
        houses.turn(5)
    assert houses.states()[1] == "offered"
    houses.start("north")
    houses.turn(4)
    assert houses.states() == ["running"] * 3


def test_a_process_that_dies_goes_on_and_aligning_begins_anew_at_all(tmp_path: Path) -> None:
    houses = began(tmp_path / "train")
    houses.processes("north").end("one", -9)
    houses.turn(2)
    assert houses.running() == [1, 1, 1]
    assert [len(houses.processes(name).started) for name in PARTIES] == [1, 2, 1]

    houses = began(tmp_path / "align", "align")
    houses.processes(HOLDER).end("one", 0)
    houses.processes("north").end("one", -9)
    houses.turn(5)
    assert houses.running() == [2, 2, 2]
    assert houses.states() == ["running"] * 3


def test_processes_of_two_attempts_do_not_meet(tmp_path: Path) -> None:
    """North's died after the outcome; what served it still has the port when all begin anew."""
    houses = began(tmp_path, "align")
    first = houses.holder.store.open_jobs()[0].port
    houses.processes(HOLDER).lingers = True
    houses.processes("north").end("one", -9)
    houses.turn(5)
    assert houses.running() == [1, None, 1]
    houses.processes(HOLDER).end("one", 130)
    houses.turn(5)
    assert houses.running() == [2, 2, 2]
    places = {houses.processes(name).started[-1][2][-1].rpartition(":")[2] for name in PARTIES}
    assert len(places) == 1
    assert places != {str(first)}


@pytest.mark.full
def test_a_job_that_scores_takes_no_place_and_lasts_until_it_is_cancelled(tmp_path: Path) -> None:
    agents = {HOLDER: {"silence": 0.3}, **{name: {"parallel": 1} for name in MEMBERS}}
    houses = Houses(tmp_path, ALL_KINDS, agents)
    trained = offer("model")
    houses.submit(trained)
    houses.turn(5)
    houses.end("model")
    houses.turn(4)
    assert houses.states("model") == ["finished"] * 3
    houses.submit(offer("one", "score", model="model"))
    houses.turn(5)
    houses.submit(offer("two"))
    houses.turn(5)
    assert (houses.running("one"), houses.running("two")) == ([1, 1, 1], [1, 1, 1])
    for name in PARTIES:  # each is started again by itself, and no other begins anew
        houses.processes(name).end("one", -9)
        houses.turn(3)
        assert houses.running("one") == [1, 1, 1]
    houses.cut["east"] = "ask"
    time.sleep(0.4)
    houses.report("north")
    houses.turn(2)
    assert houses.states("one")[:2] == ["running", "running"]
    assert houses.states("two")[:2] == ["expired", "expired"]
    houses.cut.clear()
    assert houses.holder.store.move("one", "cancelled")
    houses.turn(4)
    assert houses.states("one") == ["cancelled"] * 3
    assert houses.running("one") == [None] * 3


CAN_LISTEN = label_holder._can_listen


def test_a_port_is_used_again_as_late_as_can_be_by_whatever_agent(tmp_path: Path) -> None:
    """Members of a job that is over, or that began anew elsewhere, may still knock there."""
    houses = Houses(tmp_path, agents={HOLDER: {"ports": [21000, 21003]}})
    seen = []
    for number in range(6):
        houses.submit(offer(f"job-{number}", "align"))
        houses.turn(5)
        seen += [job.port for job in houses.holder.store.open_jobs()]
        houses.end(f"job-{number}")
        houses.turn(5)
        houses.start(HOLDER)
        houses.turn(2)
    assert seen == [21000, 21001, 21002, 21003, 21000, 21001]


def test_a_port_that_somebody_has_can_not_be_listened_on() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        assert not CAN_LISTEN("127.0.0.1", stranger.getsockname()[1])
    assert CAN_LISTEN("127.0.0.1", 0)


def test_a_job_whose_port_was_taken_goes_on_at_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    houses = began(tmp_path)
    first = houses.holder.store.open_jobs()[0].port
    houses.processes(HOLDER).end("one", -9)
    monkeypatch.setattr(label_holder, "_can_listen", lambda host, port: port != first)
    houses.turn(5)
    port = houses.holder.store.open_jobs()[0].port
    assert port != first
    assert houses.running() == [2, 2, 2]
    for name in PARTIES:
        assert any(word.endswith(f":{port}") for word in houses.processes(name).started[-1][2])
        houses.processes(name).end("one", 0)
    houses.turn(3)
    assert houses.states() == ["finished"] * 3


@pytest.mark.full
def test_a_disk_that_is_full_for_a_while_fails_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    houses, real = Houses(tmp_path), processes.write

    def full(*_: Any) -> None:
        raise RunError("No space left on device")

    houses.submit(offer())
    monkeypatch.setattr(processes, "write", full)
    monkeypatch.setattr(loop, "LONGEST_PAUSE", 0.2)
    houses.turn(6)
    assert houses.running() == [1, None, None]
    assert any("No space left" in line for line in houses.said)
    monkeypatch.setattr(processes, "write", real)
    time.sleep(0.3)
    houses.turn(2)
    assert houses.running() == [1, 1, 1]


def test_an_end_of_an_attempt_that_is_over_means_nothing(tmp_path: Path) -> None:
    """East's process fails because the label holder's died; that one had begun anew by then."""
    houses = began(tmp_path, "align")
    houses.processes(HOLDER).end("one", -9)
    houses.holder.tick()
    houses.processes("east").end("one", 2, "the label holder refused: begin again")
    houses.turn(4)
    assert houses.running() == [2, 2, 2]
    assert houses.states() == ["running"] * 3


@pytest.mark.full
def test_a_member_that_was_away_when_training_ended_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_holder, "GRACE_SECONDS", PATIENT)
    houses = began(tmp_path)
    houses.processes("north").end("one", -9)
    houses.processes(HOLDER).end("one", 0)
    houses.processes("east").end("one", 0)
    houses.turn(3)
    assert houses.running() == [None, 1, None]
    monkeypatch.setattr(label_holder, "GRACE_SECONDS", 0.0)
    houses.turn(2)
    assert houses.running() == [1, 1, None]
    houses.processes("north").end("one", 0)
    houses.turn(3)
    assert houses.states() == ["running"] * 3  # the label holder's was started again
    houses.processes(HOLDER).end("one", 0)
    houses.turn(3)
    assert houses.states() == ["finished"] * 3


def test_training_that_is_over_everywhere_waits_for_nobody(tmp_path: Path) -> None:
    """The label holder's process died after the last member had heard of the end."""
    houses = began(tmp_path)
    for name in MEMBERS:
        houses.processes(name).end("one", 0)
    houses.turn(3)
    assert houses.states() == ["running"] * 3
    (houses.holder.store.folder_of("one") / "run").mkdir()
    (houses.holder.store.folder_of("one") / "run" / "summary.json").write_text("{}")
    houses.start(HOLDER)
    houses.turn(3)
    assert houses.states() == ["finished"] * 3


@pytest.mark.full
@each("kind", ["train", "align"])
def test_whatever_dies_whenever_a_job_ends_well_everywhere(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents, processes and lines die at random, two hundred times.

    Processes end well once all have met in one attempt; in an alignment none of which had died.
    """
    monkeypatch.setattr(label_holder, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(loop, "MOST_DEATHS", 201)
    chance, deaths = random.Random(3), 0
    houses = Houses(tmp_path)
    houses.submit(offer(kind=kind))
    met: set[int] = set()
    spoiled: set[int] = set()
    for _ in range(3000):
        name = chance.choice(PARTIES)
        houses.cut = {m: chance.choice(["ask", "answer"]) for m in MEMBERS if chance.random() < 0.2}
        if chance.random() < 0.5:
            houses.agents[name].tick()
        elif name != HOLDER:
            houses.report(name)
        attempts = houses.running()
        if deaths >= 200 and None not in attempts and len(set(attempts)) == 1:
            met |= set(filter(None, attempts)) - spoiled
        here = houses.processes(name).running
        if "one" in here and here["one"] in met and chance.random() < 0.3:
            houses.processes(name).end("one", 0)
        elif deaths < 230 and chance.random() < 0.2:
            deaths += 1
            spoiled |= {here["one"]} - met if "one" in here and kind == "align" else set()
            if "one" in here and chance.random() < 0.5:
                houses.processes(name).end("one", -9)
            else:
                houses.start(name)
        if houses.states() == ["finished"] * 3:
            break
    assert deaths >= 200
    assert houses.states() == ["finished"] * 3, houses.said[-20:]
    assert houses.running() == [None] * 3


def test_no_state_follows_an_end_and_the_store_allows_what_the_table_does(tmp_path: Path) -> None:
    houses = Houses(tmp_path)
    own = houses.holder.store
    ways: dict[State, list[State]] = {"submitted": []}
    for state in ("offered", "approved", "running", *ENDS):
        earlier = next(s for s in AFTER if state in AFTER[s] and s in ways)
        ways[state] = [*ways[earlier], state]
    for number, (state, way) in enumerate(ways.items()):
        for other in AFTER:
            name = f"j{number}-{other}"
            own.add(offer(name), "submitted")
            assert all(own.move(name, each) for each in way)
            assert own.move(name, other) is (other in AFTER[state]), (state, other)


@each(
    "frame, words",
    [
        (b"", "0 bytes"),
        (b"\xff" * 40, "none of ours"),
        (messages.encode(messages.Report(9, "test", 1, ())), "protocol 9"),
        (
            messages.encode(messages.Report(messages.PROTOCOL, "other", 1, ())),
            "agent.name is 'other'",
        ),
        (messages.encode(messages.Orders(())), "no report"),
        (frames.framed(messages.MAGIC, b"\x94\x01\x01\xa4test\x01"), "not a frame of agents"),
    ],
)
def test_what_is_no_report_is_answered_in_a_line(frame: bytes, words: str, tmp_path: Path) -> None:
    houses = Houses(tmp_path)
    answer = messages.decode(Way(houses, "north").ask(frame))
    assert isinstance(answer, messages.Rejection)
    assert words in answer.words
    assert any("north was refused" in line for line in houses.said)


def test_join_at_an_agent_and_an_agent_at_serve_say_what_is_wrong(tmp_path: Path) -> None:
    houses = Houses(tmp_path)
    hello = frames.encode(frames.Hello(frames.PROTOCOL, "test"))
    with pytest.raises(RunError, match="an agent listens here"):
        frames.expect(Way(houses, "north").ask(hello), frames.Terms)

    class Served:
        def ask(self, frame: bytes) -> bytes:
            return frames.encode(frames.Refusal("a frame of none of ours"))

        def close(self) -> None:
            pass

    with pytest.raises(RunError, match="no agent's"):
        houses.agents["north"].report(Served())  # type: ignore[attr-defined]


def test_a_label_holder_cannot_name_a_path_or_take_another_job_s_place(tmp_path: Path) -> None:
    for name in ("../up", "a/b", ".hidden", "", "A", "x\n", "y" * 41):
        order = messages.Order(name, "offered", "", 0, 1, offer(name))
        with pytest.raises(messages.MalformedError):
            messages.decode(messages.encode(messages.Orders((order,))))
    houses = began(tmp_path)
    houses.end()
    houses.turn(3)
    own = houses.holder.store
    own.path.unlink()  # the label holder has lost its folder, and begins to count anew
    own.create()
    houses.submit(offer(kind="align"))
    houses.turn(4)
    assert houses.states() == ["refused", "finished", "finished"]
    assert "had a job of that name before" in houses.line()
