"""What real parties say over sockets with mutual TLS is what simulated ones say, byte for byte."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests import deployments as dep
from tests.network.by_hand import live, over_grpc
from tests.rows import each

from vertizo.network.serving import frames
from vertizo.network.serving.job import settings_of
from vertizo.network.serving.serving import FederationService
from vertizo.network.transport.base import Answer
from vertizo.protocol import wire


class Recorder:
    """A service that writes down what goes in and out, in the order in which it happens."""

    def __init__(self, service: FederationService) -> None:
        self._service = service
        self.members = service.members
        self.transcript: list[tuple[str, int, bytes]] = []

    @property
    def largest_ask(self) -> int:
        return self._service.largest_ask

    def ask(self, member: str, frame: bytes, answer: Answer) -> None:
        client = self.members.index(member)
        if frames.is_party_frame(frame) and not wire.is_upload(frame):
            self.transcript.append(("ask", client, frame))

        def noted(content: bytes) -> None:
            for part in frames.split(content):
                if frames.is_party_frame(part):
                    kind = "announcement" if wire.is_batch(part) else "reply"
                    self.transcript.append((kind, client, part))
            answer(content)

        self._service.ask(member, frame, noted)

    def gone(self, member: str) -> None:
        self._service.gone(member)


SETTINGS: dict[str, dict[str, Any]] = {
    "dpzv": {},
    "private": dep.PRIVATE,
    "synchronous": dep.IN_STEP,
    "czofo": {"method": {"name": "czofo"}},
    "vafl": {"method": {"name": "vafl"}, "codecs": {"feedback": "both"}},
    "embedding noise": {
        "method": {"name": "vafl"},
        "privacy": {"mechanism": "embedding-noise", "clip": 1.0, "noise_std": 0.5},
        "server": {"model": {"hidden": [5]}},
    },
    "randomised response": {"privacy": {"mechanism": "randomised-response", "epsilon": 1.0}},
    "teacher": {
        "privacy": {"mechanism": "teacher", "epsilon": 1.0, "teacher": {"components": 5}},
        "simulation": {"table": "upload"},
    },
    "held tangents": {
        "method": {"name": "tangent", "num_directions": 4},
        "client": {"model": {"outputs": 10}},
        "server": {"update": "none"},
        "batch_size": 180,
        "epochs": 3,
    },
    "known order": {"codecs": {"ids": "implicit"}},
    "known order, synchronous": {"codecs": {"ids": "implicit"}, **dep.IN_STEP},
}


@each("name", SETTINGS, gate=list(SETTINGS)[:2])
def test_the_same_order_of_messages_gives_the_same_transcript(name: str, tmp_path: Path) -> None:
    config = dep.serve_config(tmp_path, **SETTINGS[name])
    with FederationService(config) as service, dep.ticking(service):
        recorder = Recorder(service)
        with over_grpc(tmp_path, recorder) as channel:
            dep.joined([dep.join_config(tmp_path, m) for m in dep.MEMBERS], channel)
    asks = sum(kind == "ask" for kind, _, _ in recorder.transcript)
    assert asks == 4 * config.epochs * math.ceil(180 / config.batch_size)  # of four clients

    federation = dep.simulated(config)
    server, clients = federation.server, federation.clients
    server.train_between_queries()
    announced: dict[int, bytes] = {}
    waiting: dict[int, bytes] = {}
    for kind, client, frame in recorder.transcript:
        if kind == "announcement":
            assert server.announce(client) == frame
            announced[client] = frame
        elif kind == "ask":
            assert clients[client].ask(announced.pop(client, None)) == frame
            round_ = server.round
            waiting |= dict(server.receive(frame))
            if server.round > round_:
                server.train_between_queries()
        else:
            assert waiting.pop(client) == frame
            clients[client].tell(frame)
    assert not waiting
    dep.assert_ended_as(federation, tmp_path)


def test_what_noise_hangs_on_is_told_in_trials_alone(tmp_path: Path) -> None:
    config = dep.serve_config(tmp_path, **SETTINGS["embedding noise"]).experiment()
    assert json.loads(settings_of(config, trial=True))["digest"] == config.digest
    assert "digest" not in json.loads(settings_of(config, trial=False))


@pytest.mark.long
@pytest.mark.full
def test_a_first_table_of_256_megabytes_goes_through(tmp_path: Path) -> None:
    config = dep.serve_config(
        tmp_path,
        federation={"members": ["north"]},
        data={"name": "digits", "parties": 1, "test_limit": 2, "validation": 0.002},
        simulation={"table": "upload"},
        client={"model": {"hidden": [], "outputs": 46_900}},
        server={"model": {"hidden": [4]}},
        rounds=2,
        batch_size=8,
    )
    with FederationService(config) as service, dep.ticking(service):
        with over_grpc(tmp_path, service) as channel:
            (done,) = dep.joined([dep.join_config(tmp_path, "north")], channel)
        assert done.queries == 2
        assert service._archive.traffic.table > 256 * 2**20
        values = live(service).job.party.side.table.values
        assert values.numel() * 4 > 256 * 2**20
        assert bool((values.abs().sum(1) > 0).all())
