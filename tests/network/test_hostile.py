"""Members, label holders and disks that want to do harm, and what comes of it: nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import deployments as dep
from tests.deployments import DirectChannel
from tests.network.test_faults import PRIVATE, leave

from vertizo.core.errors import RunError
from vertizo.network import frames
from vertizo.network.joining import Member
from vertizo.network.serving import FederationService
from vertizo.privacy.durable_ledger import DurableLedger
from vertizo.protocol import wire
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Batch, Query, Reply, Upload, WirePurpose

CODEC = NoCompression()
POINTS, DIM = 2, 4


@pytest.fixture(autouse=True)
def witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def begin(service: FederationService, dim: int = DIM) -> None:
    """All members say that they are ready."""
    counts = service._archive.records.counts
    for member in dep.MEMBERS:
        ready = frames.Ready(service._archive.run, dim, counts, b"", False, False)
        service.ask(member, frames.encode(ready), lambda answer: None)


def upload_all(service: FederationService) -> None:
    """And upload their tables."""
    rows = service._archive.records.counts[0]
    for client, member in enumerate(dep.MEMBERS):
        answer_to(service, member, table(client, rows))
        sent = frames.Sent(service._archive.run, WirePurpose.train, 0)
        service.ask(member, frames.encode(sent), lambda answer: None)


def table(client: int, rows: int) -> bytes:
    values = torch.ones(1, rows, DIM)
    return wire.encode(Upload(client, "train", torch.arange(rows), values), CODEC)


def query(client: int, number: int, first: int = 0, count: int = 32) -> bytes:
    ids = torch.arange(first, first + count)
    generator = torch.Generator().manual_seed(100 * client + number)
    values = torch.randn(POINTS, count, DIM, generator=generator)
    return wire.encode(Query(client, number, ids, values), CODEC)


def answer_to(service: FederationService, member: str, frame: bytes) -> bytes:
    answers: list[bytes] = []
    service.ask(member, frame, answers.append)
    return next(frames.split(answers[0])) if answers else b""


def refused(service: FederationService, member: str, frame: bytes) -> str:
    found = frames.decode(answer_to(service, member, frame))
    assert isinstance(found, frames.Refusal)
    return found.words


def replied(service: FederationService, member: str, frame: bytes) -> Reply:
    found = wire.decode(answer_to(service, member, frame), CODEC)
    assert isinstance(found, Reply)
    return found


def state_of(service: FederationService) -> tuple[Any, ...]:
    """Round, parameters, and the bytes that the journal has."""
    assert service.state is not None
    party, journal = service.state.job.party, service._archive._store._journal
    assert journal is not None
    return party.round, party.side.model.parameters.tolist(), journal.size


def private(folder: Path, update: str = "private-sgd", **federation: Any) -> Any:
    """A job with an exact guarantee."""
    privacy = {"mechanism": "gaussian", "clip": 1.0, "epsilon": 2.0, "delta": 1e-3}
    server = {"update": update, "model": {"hidden": []}}
    return dep.serve_config(
        folder, federation={"trial": False, **federation}, privacy=privacy, server=server
    )


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
    for bad in (b"VZ garbage", query(1, 0), query(0, 5), query(0, 0) + bytes(10**6)):
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


@pytest.mark.parametrize("dim", [0, 2**62, 2**40, 2**16 + 1, 2**16])
def test_sizes_that_cannot_be_meant_are_refused(dim: int, tmp_path: Path) -> None:
    config = dep.serve_config(tmp_path, data={"name": "digits"})
    with FederationService(config) as service:
        counts = service._archive.records.counts
        fits = dim == 2**16
        for member in dep.MEMBERS[:1]:
            ready = frames.Ready(service._archive.run, dim, counts, b"", False, False)
            if fits:
                service.ask(member, frames.encode(ready), lambda answer: None)
            else:
                assert "numbers; 1 to 65,536" in refused(service, member, frames.encode(ready))
        assert service.failure is None
        assert ("north" in service.missing()) is not fits


def test_embeddings_beyond_the_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    monkeypatch.setattr(os, "sysconf", lambda name: 1000)
    with FederationService(dep.serve_config(tmp_path)) as service:
        counts = service._archive.records.counts
        ready = frames.Ready(service._archive.run, 2**16, counts, b"", False, False)
        assert "more than half" in refused(service, "north", frames.encode(ready))


def test_a_member_cannot_use_up_the_rounds_of_the_others(tmp_path: Path) -> None:
    with FederationService(dep.serve_config(tmp_path)) as service:
        begin(service)
        for number in range(12):
            replied(service, "north", query(0, number, count=1))
        assert "which has 12" in refused(service, "north", query(0, 12, count=1))
        assert service.state is not None
        assert service.state.phase == "training"
        replied(service, "east", query(1, 0))


def test_a_table_is_taken_in_while_tables_are_wanted_and_not_later(tmp_path: Path) -> None:
    config = dep.serve_config(tmp_path, simulation={"table": "upload"})
    with FederationService(config) as service:
        begin(service)
        upload_all(service)
        assert service.state is not None
        assert service.state.phase == "training"
        before = service.state.job.party.side.table.values.clone()
        rows = service._archive.records.counts[0]
        other = wire.encode(
            Upload(0, "train", torch.arange(rows), torch.zeros(1, rows, DIM)), CODEC
        )
        found = frames.decode(answer_to(service, "north", other))
        assert isinstance(found, frames.Refusal | frames.Noted)
        assert torch.equal(service.state.job.party.side.table.values, before)


@pytest.mark.parametrize("lost", [1, 4, 5])
def test_an_older_journal_in_synchronous_rounds_is_one_line(lost: int, tmp_path: Path) -> None:
    """A journal that somebody put back; the ledger knows better, and nothing is charged twice."""
    config = private(tmp_path)
    config = config.model_copy(
        update={"simulation": config.simulation.model_copy(update={"timing": "synchronous"})}
    )
    service = FederationService(config)
    service.__enter__()
    begin(service)
    assert service._archive._store.sync  # so that a power cut does not lose them
    for round_ in range(3):
        for client, member in enumerate(dep.MEMBERS):
            assert service.state is not None
            batch = wire.decode(service.state.job.party.announce(client), CODEC)
            assert isinstance(batch, Batch)
            values = torch.randn(POINTS, len(batch.ids), DIM)
            service.ask(
                member,
                wire.encode(Query(client, round_, batch.ids, values), CODEC),
                lambda answer: None,
            )
    journal = service._archive._store._journal
    assert journal is not None
    path, size = journal.path, journal.size
    leave(service)
    content = path.read_bytes()[:size]
    kept = _without_last(content, lost)
    path.write_bytes(kept)
    with pytest.raises(RunError, match="older state"), FederationService(config):
        pass
    path.write_bytes(content)
    with FederationService(config) as service:
        assert service.state is not None
        assert service.state.job.party.round == 3


def _without_last(content: bytes, count: int) -> bytes:
    from vertizo.network.store import RECORD

    places, place = [], 0
    while place < len(content):
        places.append(place)
        length, _, _ = RECORD.unpack_from(content, place)
        place += RECORD.size + length
    return content[: places[-count]]


def test_a_ledger_that_was_removed_is_not_made_anew(tmp_path: Path) -> None:
    config = private(tmp_path)
    with FederationService(config) as service:
        begin(service)
        replied(service, "north", query(0, 0))
    (tmp_path / "server" / "ledger.sqlite").unlink()
    with pytest.raises(RunError, match="ledger"), FederationService(config):
        pass


@pytest.mark.parametrize(
    "changed",
    [
        {"members": ["east", "north", "south", "west"]},
        {"name": "another"},
        {"trial": False},
    ],
)
def test_who_takes_part_cannot_change(changed: dict[str, Any], tmp_path: Path) -> None:
    with FederationService(dep.serve_config(tmp_path)) as service:
        begin(service)
    other = dep.serve_config(tmp_path, federation=changed)
    with pytest.raises(RunError, match=r"federation\.json"), FederationService(other):
        pass


def test_what_goes_wrong_inside_stops_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No state in between is ever saved, answered from, or gone on from."""
    config = private(tmp_path)
    service = FederationService(config)
    with service:
        begin(service)
        replied(service, "north", query(0, 0))
        assert service.state is not None
        side = service.state.job.party.side
        answer = side.answer

        def broken(*args: Any) -> Any:
            answer(*args)
            raise ZeroDivisionError("a mistake of ours")

        monkeypatch.setattr(side, "answer", broken)
        assert answer_to(service, "east", query(1, 0)) == b""
        assert answer_to(service, "north", query(0, 1)) == b""
        with pytest.raises(ZeroDivisionError):
            service.tick()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with FederationService(config) as again:
        assert again.state is not None
        assert again.state.job.party.round == 2  # computed from the journal, and charged once
    run = (tmp_path / "server" / "run_name").read_text()
    with DurableLedger.open(tmp_path / "server" / "ledger.sqlite", run) as ledger:
        assert [ledger.answered(client) is not None for client in range(4)] == [
            True,
            True,
            False,
            False,
        ]


def test_a_trial_states_no_guarantee_whatever_it_is_made_of(tmp_path: Path) -> None:
    kinds: list[dict[str, Any]] = [
        PRIVATE,
        {"privacy": {"mechanism": "embedding-noise", "clip": 1.0, "noise_std": 0.5}},
    ]
    for number, keys in enumerate(kinds):
        folder = tmp_path / str(number)
        with FederationService(dep.serve_config(folder, **keys)) as service:
            begin(service)
            assert service.state is not None
            statement = service.state.job.statement
            assert statement.guarantee == "none"
            assert "trial" in statement.words
            assert statement.epsilon is None
            assert statement.epsilon_published is None


def test_private_updates_of_the_server_need_whole_rounds(tmp_path: Path) -> None:
    config = private(tmp_path).model_dump()
    config["simulation"]["timing"] = "synchronous"
    config["federation"]["absent"] = "go-on"
    with pytest.raises(ValueError, match="charged in part"):
        type(private(tmp_path)).model_validate(config)


class Lying(DirectChannel):
    """A label holder that changes what it says."""

    def __init__(
        self, service: FederationService, member: str, change: Callable[[bytes], bytes]
    ) -> None:
        super().__init__(service, member, patience=5.0)
        self._change = change

    def ask(self, frame: bytes) -> bytes:
        return self._change(super().ask(frame))


def terms_with(**changes: Any) -> Callable[[bytes], bytes]:
    def change(answer: bytes) -> bytes:
        first = next(frames.split(answer))
        if frames.is_party_frame(first):
            return answer
        found = frames.decode(first)
        if not isinstance(found, frames.Terms):
            return answer
        known = {name: getattr(found, name) for name in found.__struct_fields__}
        return frames.encode(frames.Terms(**{**known, **changes}))

    return change


@pytest.mark.parametrize(
    "changes",
    [{"choice": 5}, {"shared": b"x" * 32}, {"index": 1}, {"members": ("north", "x", "y", "z")}],
)
def test_terms_may_not_change_while_a_job_is_under_way(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    with FederationService(dep.serve_config(tmp_path)) as service:
        config = dep.join_config(tmp_path, "north")
        with Member(config, DirectChannel(service, "north")):
            pass
        lying = Lying(service, "north", terms_with(**changes))
        with pytest.raises(RunError, match=r"another member's|began with"), Member(config, lying):
            pass


def test_an_index_that_nobody_has_is_one_line(tmp_path: Path) -> None:
    with FederationService(dep.serve_config(tmp_path)) as service:
        lying = Lying(service, "north", terms_with(index=9))
        with (
            pytest.raises(RunError, match="client 9 of 4"),
            Member(dep.join_config(tmp_path, "north"), lying),
        ):
            pass


def test_a_label_holder_that_never_stops_asking_for_uploads_is_no_crash(tmp_path: Path) -> None:
    """A member answers as long as it is asked; it does not run out of stack."""
    asked = 0

    def change(answer: bytes) -> bytes:
        nonlocal asked
        first = next(frames.split(answer))
        if not frames.is_party_frame(first) and isinstance(frames.decode(first), frames.Send):
            asked += 1
            if asked > 300:
                return frames.encode(frames.Refusal("enough"))
        return answer

    class Endless(Lying):
        def ask(self, frame: bytes) -> bytes:
            if frame[:2] == b"VC" and isinstance(frames.decode(frame), frames.Sent | frames.Ready):
                return self._change(frames.encode(frames.Send(WirePurpose.test, 1, "now")))
            if frame[:2] == b"VZ":
                return frames.encode(frames.Noted())
            return super().ask(frame)

    with FederationService(dep.serve_config(tmp_path)) as service:
        lying = Endless(service, "north", change)
        with (
            Member(dep.join_config(tmp_path, "north"), lying) as member,
            pytest.raises(RunError, match="enough"),
        ):
            member.run()


@pytest.mark.parametrize("timing", ["asynchronous", "synchronous"])
def test_a_record_is_embedded_as_often_as_its_noise_is_for(timing: str, tmp_path: Path) -> None:
    """Announced batches are the label holder's choice; how often a record is in one is not."""
    noise = {"mechanism": "embedding-noise", "clip": 1.0, "noise_std": 50.0}
    config = dep.serve_config(tmp_path, privacy=noise, simulation={"timing": timing})
    asked: list[bytes] = []

    class Insisting(DirectChannel):
        def ask(self, frame: bytes) -> bytes:
            if frame[:2] == b"VZ":
                asked.append(frame)
                reply = Reply(0, len(asked) - 1, torch.zeros(1))
                batch = Batch(len(asked), torch.arange(4))
                return wire.encode(reply, CODEC) + wire.encode(batch, CODEC)
            found = frames.decode(frame)
            if isinstance(found, frames.Ready):
                return wire.encode(Batch(0, torch.arange(4)), CODEC)
            return super().ask(frame)

    with FederationService(config) as service:
        with (
            Member(dep.join_config(tmp_path, "north"), Insisting(service, "north")) as member,
            pytest.raises(RunError, match=r"announced round|more than the 2 batches"),
        ):
            member.run()
        assert len(asked) == (2 if timing == "synchronous" else 0)
        # and once more from the folder, which remembers
        with (
            Member(dep.join_config(tmp_path, "north"), Insisting(service, "north")) as member,
            pytest.raises(RunError),
        ):
            member.run()
        assert len(asked) <= (3 if timing == "synchronous" else 0)


def test_words_of_a_label_holder_are_told_as_its_words(tmp_path: Path) -> None:
    def change(answer: bytes) -> bytes:
        parts = []
        for part in frames.split(answer):
            done = None if frames.is_party_frame(part) else frames.decode(part)
            if isinstance(done, frames.Done):
                part = frames.encode(frames.Done("\x1b[31mall is well\n\r", done.best))
            parts.append(part)
        return b"".join(parts)

    with FederationService(dep.serve_config(tmp_path)) as service, dep.ticking(service):
        done = dep.joined(
            [dep.join_config(tmp_path, m) for m in dep.MEMBERS],
            lambda member: Lying(service, member, change),
        )
    assert all(one.words.isprintable() and "all is well" in one.words for one in done)
    assert all("trial" in one.own_words for one in done)
