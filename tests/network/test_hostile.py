"""Members, label holders and disks that want to do harm, and what comes of it: nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests import deployments as dep
from tests.deployments import DirectChannel
from tests.network.by_hand import (
    CODEC,
    DIM,
    POINTS,
    answer_to,
    begin,
    leave,
    live,
    query,
    ready,
    refused,
    replied,
    state_of,
    upload_all,
)
from tests.rows import each

from vertizo.core.errors import RunError
from vertizo.network.serving import frames, store
from vertizo.network.serving.frames import Noted, Ready, Refusal, Send, Sent, Terms
from vertizo.network.serving.serving import FederationService
from vertizo.network.serving.store import RECORD
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.protocol import wire
from vertizo.protocol.messages import Batch, Query, Reply, Upload, WirePurpose


def private(folder: Path, **keys: Any) -> Any:
    """A job with an exact guarantee."""
    server = {"update": "private-sgd", "model": {"hidden": []}}
    tree = {"privacy": dep.PRIVATE["privacy"], "server": server, **keys}
    return dep.serve_config(folder, federation={"trial": False}, **tree)


def test_after_a_restart_nobody_gets_what_the_ledger_refuses(tmp_path: Path) -> None:
    """A budget that is spent stays spent: no step, no noise, no round is to be had for nothing."""
    config = private(tmp_path)
    with FederationService(config) as service:
        begin(service)
        for number in range(2):  # two epochs: a record may be asked about twice
            replied(service, "north", query(0, number))
        assert "no more left" in refused(service, "north", query(0, 2))
    with FederationService(config) as service:
        before = state_of(service)
        for _ in range(20):
            assert "no more left" in refused(service, "north", query(0, 2))
        assert state_of(service) == before
        replied(service, "north", query(0, 2, first=64))
        replied(service, "east", query(1, 0))


def test_refused_frames_leave_nothing_in_the_journal(tmp_path: Path) -> None:
    config = dep.serve_config(tmp_path)
    service = FederationService(config)
    service.__enter__()
    begin(service)
    before = state_of(service)
    deep = b"\x95" + b"".join(map(msgspec.msgpack.encode, (1, 3, "test", "v")))
    nested = frames.framed(frames.MAGIC, deep + b"\x91" * 5000 + b"\xc0")  # a Hello and more
    for bad in (b"VZ garbage", query(1, 0), query(0, 5), query(0, 0) + bytes(10**6), nested):
        refused(service, "north", bad)
        assert state_of(service) == before
    replied(service, "north", query(0, 0))
    expected = state_of(service)
    leave(service)
    with FederationService(config) as again:
        assert state_of(again)[:2] == expected[:2]
        assert refused(again, "north", query(0, 5)) == (
            "query 5 of client 0; 1 is the next one: the label holder goes on from an older state "
            "than the other has seen; put the newest copy of its folder back, or begin a new job "
            "in new folders"
        )


def test_sizes_that_cannot_be_meant_or_held_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FederationService(dep.serve_config(tmp_path, data={"name": "digits"})) as service:
        for dim in (0, 2**62, 2**40, 2**16 + 1):
            assert "numbers; 1 to 65,536" in refused(service, "north", ready(service, dim))
        with monkeypatch.context() as patch:
            patch.setattr(os, "sysconf", lambda name: 1000)
            assert "more than half" in refused(service, "north", ready(service, 2**16))
        assert "north" in service.missing()
        assert answer_to(service, "north", ready(service, 2**16)) == b""
        assert service.failure is None
        assert "north" not in service.missing()


def test_a_member_cannot_use_up_the_rounds_of_the_others(tmp_path: Path) -> None:
    with FederationService(dep.serve_config(tmp_path)) as service:
        begin(service)
        for number in range(12):
            replied(service, "north", query(0, number, count=1))
        assert "which has 12" in refused(service, "north", query(0, 12, count=1))
        assert live(service).phase == "training"
        replied(service, "east", query(1, 0))


def test_a_table_is_taken_in_while_tables_are_wanted_and_not_later(tmp_path: Path) -> None:
    config = dep.serve_config(tmp_path, simulation={"table": "upload"})
    with FederationService(config) as service:
        begin(service)
        upload_all(service)
        assert live(service).phase == "training"
        table = live(service).job.party.side.table
        before, rows = table.values.clone(), service._archive.records.counts[0]
        zeros = Upload(0, "train", torch.arange(rows), torch.zeros(1, rows, DIM))
        found = frames.decode(answer_to(service, "north", wire.encode(zeros, CODEC)))
        assert isinstance(found, Refusal | Noted)
        assert torch.equal(table.values, before)


def test_an_older_journal_in_synchronous_rounds_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that somebody put back; the ledger knows better, and nothing is charged twice."""
    monkeypatch.setattr(store, "SOONEST", math.inf)  # one journal for all of it
    config = private(tmp_path, **dep.IN_STEP)
    service = FederationService(config)
    service.__enter__()
    begin(service)
    assert service._archive._store.sync  # so that a power cut does not lose them
    for round_ in range(3):
        for client, member in enumerate(dep.MEMBERS):
            batch = wire.decode(live(service).job.party.announce(client), CODEC)
            assert isinstance(batch, Batch)
            values = torch.randn(POINTS, len(batch.ids), DIM)
            frame = wire.encode(Query(client, round_, batch.ids, values), CODEC)
            service.ask(member, frame, lambda answer: None)
    journal = service._archive._store._journal
    assert journal is not None
    path, size = journal.path, journal.size
    leave(service)
    content = path.read_bytes()[:size]
    places, place = [], 0
    while place < len(content):
        places.append(place)
        place += RECORD.size + RECORD.unpack_from(content, place)[0]
    for lost in (1, 4, 5):
        path.write_bytes(content[: places[-lost]])
        with pytest.raises(RunError, match="older state"), FederationService(config):
            pass
    path.write_bytes(content)
    with FederationService(config) as service:
        assert live(service).job.party.round == 3


def test_a_ledger_that_was_removed_is_not_made_anew(tmp_path: Path) -> None:
    config = private(tmp_path)
    with FederationService(config) as service:
        begin(service)
        replied(service, "north", query(0, 0))
    (tmp_path / "server" / "ledger.sqlite").unlink()
    with pytest.raises(RunError, match="ledger"), FederationService(config):
        pass


def test_who_takes_part_cannot_change(tmp_path: Path) -> None:
    with FederationService(dep.serve_config(tmp_path)) as service:
        begin(service)
    for changed in (
        {"members": ["east", "north", "south", "west"]},
        {"name": "another"},
        {"trial": False},
    ):
        other = dep.serve_config(tmp_path, federation=changed)
        with pytest.raises(RunError, match=r"federation\.json"), FederationService(other):
            pass


def test_what_goes_wrong_inside_stops_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No state in between is ever saved, answered from, or gone on from."""
    config = private(tmp_path)
    with FederationService(config) as service, monkeypatch.context() as patch:
        begin(service)
        replied(service, "north", query(0, 0))
        side = live(service).job.party.side
        answer = side.answer

        def broken(*args: Any) -> Any:
            answer(*args)
            raise ZeroDivisionError("a mistake of ours")

        patch.setattr(side, "answer", broken)
        assert answer_to(service, "east", query(1, 0)) == b""
        assert answer_to(service, "north", query(0, 1)) == b""
        with pytest.raises(ZeroDivisionError):
            service.tick()
    with FederationService(config) as again:
        assert live(again).job.party.round == 2  # computed from the journal, and charged once
    run = (tmp_path / "server" / "run_name").read_text()
    with DurableLedger.open(tmp_path / "server" / "ledger.sqlite", run) as ledger:
        answered = [ledger.answered(client) is not None for client in range(4)]
    assert answered == [True, True, False, False]


def test_a_trial_states_no_guarantee_whatever_it_is_made_of(tmp_path: Path) -> None:
    noise = {"mechanism": "embedding-noise", "clip": 1.0, "noise_std": 0.5}
    for number, keys in enumerate((dep.PRIVATE, {"privacy": noise})):
        with FederationService(dep.serve_config(tmp_path / str(number), **keys)) as service:
            begin(service)
            statement = live(service).job.statement
            assert statement.guarantee == "none"
            assert "trial" in statement.words
            assert statement.epsilon is statement.epsilon_published is None


# Label holders that say something else than they should.


class Lying(DirectChannel):
    """A label holder that changes each frame that it says."""

    def __init__(
        self, service: FederationService, member: str, change: Callable[[frames.Frame], Any]
    ) -> None:
        super().__init__(service, member)
        self._change = change

    def ask(self, frame: bytes) -> bytes:
        parts = frames.split(super().ask(frame))
        return b"".join(
            part if frames.is_party_frame(part) else self.changed(part) for part in parts
        )

    def changed(self, part: bytes) -> bytes:
        return frames.encode(self._change(frames.decode(part)))


@each(
    "changes, words",
    [
        ({"choice": 5}, "began with"),
        ({"shared": b"x" * 32}, "began with"),
        ({"index": 1}, "another member's"),
        ({"members": ("north", "x", "y", "z")}, "began with"),
        ({"index": 9}, "client 9 of 4"),
    ],
)
def test_terms_may_not_change_while_a_job_is_under_way(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    def change(said: frames.Frame) -> frames.Frame:
        return msgspec.structs.replace(said, **changes) if isinstance(said, Terms) else said

    with FederationService(dep.serve_config(tmp_path)) as service:
        config = dep.join_config(tmp_path, "north")
        dep.opened(config, DirectChannel(service, "north"))
        with pytest.raises(RunError, match=words):
            dep.opened(config, Lying(service, "north", change))


def test_a_label_holder_that_never_stops_asking_for_uploads_is_no_crash(tmp_path: Path) -> None:
    """A member answers as long as it is asked; it does not run out of stack."""

    class Endless(DirectChannel):
        asked = 0

        def ask(self, frame: bytes) -> bytes:
            if frames.is_party_frame(frame):
                return frames.encode(Noted())
            if not isinstance(frames.decode(frame), Sent | Ready):
                return super().ask(frame)
            self.asked += 1
            send = Send(WirePurpose.test, 1, "now")
            return frames.encode(Refusal("enough") if self.asked > 300 else send)

    with (
        FederationService(dep.serve_config(tmp_path)) as service,
        pytest.raises(RunError, match="enough"),
    ):
        dep.take_part(dep.join_config(tmp_path, "north"), Endless(service, "north"))


@each("timing, most", [("asynchronous", (0, 0)), ("synchronous", (2, 3))])
def test_a_record_is_embedded_as_often_as_its_noise_is_for(
    timing: str, most: tuple[int, int], tmp_path: Path
) -> None:
    """Announced batches are the label holder's choice; how often a record is in one is not."""
    noise = {"mechanism": "embedding-noise", "clip": 1.0, "noise_std": 50.0}
    config = dep.serve_config(tmp_path, privacy=noise, simulation={"timing": timing})
    asked: list[bytes] = []

    class Insisting(DirectChannel):
        def ask(self, frame: bytes) -> bytes:
            if frames.is_party_frame(frame):
                asked.append(frame)
                reply = Reply(0, len(asked) - 1, torch.zeros(1))
                batch = Batch(len(asked), torch.arange(4))
                return wire.encode(reply, CODEC) + wire.encode(batch, CODEC)
            if isinstance(frames.decode(frame), Ready):
                return wire.encode(Batch(0, torch.arange(4)), CODEC)
            return super().ask(frame)

    def insist(service: FederationService) -> None:
        dep.take_part(dep.join_config(tmp_path, "north"), Insisting(service, "north"))

    with FederationService(config) as service:
        with pytest.raises(RunError, match=r"announced round|more than the 2 batches"):
            insist(service)
        assert len(asked) == most[0]
        with pytest.raises(RunError):  # and once more from the folder, which remembers
            insist(service)
        assert len(asked) <= most[1]


def test_words_of_a_label_holder_are_told_as_its_words(tmp_path: Path) -> None:
    def change(said: frames.Frame) -> frames.Frame:
        words = "\x1b[31mall is well\n\r"
        return frames.Done(words, said.best) if isinstance(said, frames.Done) else said

    with FederationService(dep.serve_config(tmp_path)) as service, dep.ticking(service):
        configs = [dep.join_config(tmp_path, m) for m in dep.MEMBERS]
        done = dep.joined(configs, lambda member: Lying(service, member, change))
    assert all(one.words.isprintable() and "all is well" in one.words for one in done)
    assert all("trial" in one.own_words for one in done)
