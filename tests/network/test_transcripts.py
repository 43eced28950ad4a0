"""What real parties say over sockets with mutual TLS is what simulated ones say, byte for byte."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import deployments as dep

from vertizo.data.prepare import prepare
from vertizo.network import frames
from vertizo.network.authority import issue
from vertizo.network.certificates import Credentials
from vertizo.network.grpc import GrpcServer
from vertizo.network.grpc_channel import GrpcChannel
from vertizo.network.job import settings_of
from vertizo.network.serving import FederationService
from vertizo.network.transport import Answer
from vertizo.protocol import wire
from vertizo.run import checkpoint
from vertizo.run.build_privacy import record_choice
from vertizo.run.federation import Federation, build


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


def served(folder: Path, **keys: Any) -> list[tuple[str, int, bytes]]:
    """The transcript of a job over loopback with mutual TLS."""
    issue(folder / "certs", "bank", list(dep.MEMBERS), ["localhost"], 1)
    config = dep.serve_config(folder, **keys)

    def channel(port: int, member: str) -> GrpcChannel:
        mine = Credentials.load(folder / "certs" / member)
        return GrpcChannel(f"localhost:{port}", mine, patience=30.0)

    with FederationService(config) as service, dep.ticking(service):
        recorder = Recorder(service)
        credentials = Credentials.load(folder / "certs" / "bank")
        with GrpcServer(recorder, listen="localhost:0", credentials=credentials) as net:
            channels = {member: channel(net.port, member) for member in dep.MEMBERS}
            try:
                dep.joined([dep.join_config(folder, m) for m in dep.MEMBERS], channels.__getitem__)
            finally:
                for one in channels.values():
                    with closing(one):
                        pass
    return recorder.transcript


def simulated(folder: Path, keys: dict[str, Any]) -> Federation:
    """The same parties in one process, before their first message."""
    config = dep.serve_config(folder, **keys).experiment()
    return build(config, prepare(config.data, record_choice(config)))


SETTINGS: dict[str, dict[str, Any]] = {
    "dpzv": {},
    "private": {
        "privacy": {"mechanism": "gaussian", "clip": 1.0, "epsilon": 2.0, "delta": 1e-3},
        "server": {
            "update": "poisson-dp-sgd",
            "secret": {"every": 3, "warm_up": 4, "sampling": 0.1},
            "model": {"hidden": []},
        },
    },
    "synchronous": {"simulation": {"timing": "synchronous"}},
    "czofo": {"method": {"name": "czofo"}},
    "vafl": {"method": {"name": "vafl"}, "codecs": {"feedback": "both"}},
    "embedding noise": {
        "method": {"name": "vafl"},
        "privacy": {"mechanism": "embedding-noise", "clip": 1.0, "noise_std": 0.5},
        "server": {"model": {"hidden": [5]}},
    },
    "known order": {"codecs": {"ids": "known"}},
    "known order, synchronous": {
        "codecs": {"ids": "known"},
        "simulation": {"timing": "synchronous"},
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_order_of_messages_gives_the_same_transcript(name: str, tmp_path: Path) -> None:
    keys = SETTINGS[name]
    transcript = served(tmp_path, **keys)
    asks = sum(kind == "ask" for kind, _, _ in transcript)
    assert asks == 4 * 2 * 6  # four clients, two epochs of ⌈180/32⌉ batches

    federation = simulated(tmp_path, keys)
    server, clients = federation.server, federation.clients
    if federation.server.side.update.__class__.__name__ == "SecretSgd":
        federation.simulator.upload("train", federation.data.records)
    server.train_between_queries()
    announced: dict[int, bytes] = {}
    waiting: dict[int, bytes] = {}
    for kind, client, frame in transcript:
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
    ended = checkpoint.load(tmp_path / "server" / "checkpoints" / "last.safetensors")["state"]
    torch.testing.assert_close(
        server.side.model.parameters, ended["course"]["parameters"], rtol=0, atol=0
    )
    for client, member in enumerate(dep.MEMBERS):
        path = tmp_path / member / "checkpoints" / "last.safetensors"
        parameters = checkpoint.load(path)["state"]["parameters"]
        expected = federation.models[client].parameters
        torch.testing.assert_close(parameters, expected, rtol=0, atol=0)


def test_what_noise_hangs_on_is_told_in_trials_alone(tmp_path: Path) -> None:
    config = dep.serve_config(tmp_path, **SETTINGS["embedding noise"]).experiment()
    assert json.loads(settings_of(config, trial=True))["digest"] == config.digest
    assert "digest" not in json.loads(settings_of(config, trial=False))


@pytest.mark.slow
def test_a_first_table_of_256_megabytes_goes_through(tmp_path: Path) -> None:
    issue(tmp_path / "certs", "bank", ["north"], ["localhost"], 1)
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
    mine = Credentials.load(tmp_path / "certs" / "north")
    with FederationService(config) as service, dep.ticking(service):
        holder = Credentials.load(tmp_path / "certs" / "bank")
        with (
            GrpcServer(service, listen="localhost:0", credentials=holder) as net,
            closing(GrpcChannel(f"localhost:{net.port}", mine, patience=30.0)) as channel,
        ):
            (done,) = dep.joined([dep.join_config(tmp_path, "north")], lambda _: channel)
        assert done.queries == 2
        assert service._archive.traffic.table > 256 * 2**20
        assert service.state is not None
        values = service.state.job.party.side.table.values
        assert values.numel() * 4 > 256 * 2**20
        assert bool((values.abs().sum(1) > 0).all())
