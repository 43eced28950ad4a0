"""Certificates that are replaced while their parties are connected, over loopback."""

from __future__ import annotations

import re
import shutil
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.network.test_grpc import Echo
from tests.processes import held_port
from tests.refusals import refused

from vertizo.core.errors import RunError
from vertizo.core.text.messages import Alarm
from vertizo.network.transport.authority import issue
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc import GrpcChannel, GrpcServer
from vertizo.network.transport.rotation import Rotation

SOON = 4.0
"""Seconds that the first certificate still holds."""


def give(folder: Path, name: str, *, serves: bool, ends: datetime | None = None) -> Path:
    """A certificate of the folder's authority, in place of the party's last one."""
    place = folder / name
    old = place.rename(folder / "old") if place.exists() else None
    begins = None if ends is None else ends - timedelta(days=1)
    server, members = (name, []) if serves else (None, [name])
    issue(folder, server, members, [], 1 if begins else 30, now=begins)
    if old is not None:  # as people do it: file by file, in a folder that stays
        for file in place.iterdir():
            file.replace(old / file.name)
        shutil.rmtree(place)
        old.rename(place)
    return place


def rotating(folder: Path, *, serving: bool, told: list[str]) -> tuple[Credentials, Rotation]:
    first = Credentials.load(folder)
    return first, Rotation(folder, first, serving=serving, tell=told.append)


@pytest.mark.full
def test_a_running_server_takes_up_a_new_certificate(tmp_path: Path) -> None:
    told: list[str] = []
    ends = datetime.now(UTC) + timedelta(seconds=SOON)
    folder = give(tmp_path, "holder", serves=True, ends=ends)
    issue(tmp_path, None, ["bank", "shop", "clinic"], [], 30)
    first, latest = rotating(folder, serving=True, told=told)
    mine = {name: Credentials.load(tmp_path / name) for name in ("bank", "shop", "clinic")}
    with GrpcServer(Echo(), listen="localhost:0", credentials=first, latest=latest) as server:
        place = f"localhost:{server.port}"
        with closing(GrpcChannel(place, mine["bank"], patience=5.0)) as before:
            assert before.ask(b"one") == b"one"
            time.sleep(max(0.0, (ends - datetime.now(UTC)).total_seconds()) + 1.5)
            assert before.ask(b"two") == b"two"  # a connection stays
            with closing(GrpcChannel(place, mine["shop"], patience=5.0)) as channel:
                refused("expired", RunError, channel.ask, b"x", match="has expired")
            give(tmp_path, "holder", serves=True)
            with closing(GrpcChannel(place, mine["clinic"], patience=5.0)) as channel:
                assert channel.ask(b"three") == b"three"
            assert before.ask(b"four") == b"four"
        assert server.credentials.expires - datetime.now(UTC) > timedelta(days=29)
    assert [line.split(",")[0] for line in told] == ["a new certificate is in use"]


@pytest.mark.full
def test_a_member_shows_its_new_certificate_when_it_connects_again(tmp_path: Path) -> None:
    told: list[str] = []
    ends = datetime.now(UTC) + timedelta(seconds=SOON)
    folder = give(tmp_path, "bank", serves=False, ends=ends)
    issue(tmp_path, "holder", [], [], 30)
    holder = Credentials.load(tmp_path / "holder")
    first, latest = rotating(folder, serving=False, told=told)
    with held_port() as held:
        place = f"localhost:{held.getsockname()[1]}"
        listen = f"127.0.0.1:{held.getsockname()[1]}"
        with closing(GrpcChannel(place, first, patience=20.0, latest=latest)) as channel:
            with GrpcServer(Echo(), listen=listen, credentials=holder) as server:
                assert channel.ask(b"one") == b"one"
                assert abs(server.seen["bank"] - ends) < timedelta(seconds=2)
            give(tmp_path, "bank", serves=False)
            time.sleep(max(0.0, (ends - datetime.now(UTC)).total_seconds()) + 1.5)
            with GrpcServer(Echo(), listen=listen, credentials=holder) as server:
                assert channel.ask(b"two") == b"two"
                assert server.seen["bank"] - datetime.now(UTC) > timedelta(days=29)
        with (  # the control
            GrpcServer(Echo(), listen=listen, credentials=holder),
            closing(GrpcChannel(place, first, patience=10.0)) as channel,
        ):
            refused("expired", RunError, channel.ask, b"x", match="expired by its clock")
    assert len(told) == 1


def put(source: Path, place: Path) -> None:
    """Another file in its place, however coarse the file system's times are."""
    shutil.copyfile(source, place.with_suffix(".new")).replace(place)


def test_what_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    issue(tmp_path / "one", "holder", ["bank", "shop"], [], 30)
    issue(tmp_path / "other", "holder", ["bank"], [], 30)
    ran_out = datetime.now(UTC) - timedelta(days=3)
    issue(tmp_path / "past", None, ["bank"], [], 1, now=ran_out)
    folder = tmp_path / "one" / "bank"
    kept = shutil.copytree(folder, tmp_path / "kept")
    for source, files, words in (
        ("other/bank", ["certificate.pem"], "was not signed by|not the key of"),
        ("other/bank", ["key.pem"], "not the key of"),
        ("past/bank", ["authority.pem", "certificate.pem", "key.pem"], "expired on"),
        ("one/shop", ["certificate.pem", "key.pem"], "is now of 'shop', not 'bank'"),
        ("one/holder", ["certificate.pem", "key.pem"], "is for a server only"),
    ):
        told: list[str] = []
        first, latest = rotating(folder, serving=False, told=told)
        for file in files:
            put(tmp_path / source / file, folder / file)
        assert latest() == first
        assert told == []  # somebody may be in the middle of it
        for _ in range(3):
            assert latest() == first
        assert len(told) == 1, source
        assert isinstance(told[0], Alarm)
        assert re.search(f"({words}).*stays in use", told[0]), told
        (folder / "key.pem").unlink()
        assert latest() == first
        for file in ("authority.pem", "certificate.pem", "key.pem"):
            put(kept / file, folder / file)
        assert latest() == first
