"""Parties and files of other versions: one line that names both, and what to do."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests import deployments as dep
from tests.network.test_grpc import Echo
from tests.refusals import refused

from vertizo.core.errors import MalformedError, RunError
from vertizo.core.version import VERSION
from vertizo.network.serving import frames
from vertizo.network.serving.serving import FederationService
from vertizo.network.transport import versions
from vertizo.network.transport.authority import issue
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.grpc import GrpcChannel, GrpcServer
from vertizo.protocol import wire
from vertizo.protocol.codecs.none import NoCompression
from vertizo.run.results import checkpoint

OURS = f"this is vertizo {VERSION}, which speaks"


def hello(*fields: Any) -> bytes:
    """A frame of a `Hello` with whatever fields its version has."""
    body = msgspec.msgpack.encode([1, *fields])
    return wire.HEADER.pack(frames.MAGIC, wire.VERSION, 0, len(body)) + body


def test_a_member_of_another_protocol_is_told_which_is_spoken(tmp_path: Path) -> None:
    noticed: list[str] = []
    with FederationService(dep.serve_config(tmp_path), noticed.append) as service:
        channel = dep.DirectChannel(service, "north")
        for fields, words in (
            ((9, "test", "9.9.1", "a later field", 3), "north runs vertizo 9.9.1 and speaks pro"),
            ((2, "test"), "north runs another vertizo and speaks protocol 2"),
            ((9, "test", "\x1b[31m"), "north runs another vertizo and speaks protocol 9"),
        ):
            answer = frames.decode(channel.ask(hello(*fields)))
            assert isinstance(answer, frames.Refusal)
            assert words in answer.words
            assert f"{OURS} {versions.PROTOCOL}: {versions.ADVICE}" in answer.words
        del noticed[:]
        for _ in range(2):  # of this protocol, it takes part, and people know
            answer = frames.decode(channel.ask(hello(versions.PROTOCOL, "test", "0.0.7")))
            assert isinstance(answer, frames.Terms)
        assert noticed == [f"north runs vertizo 0.0.7, this is vertizo {VERSION}"]
        other = frames.decode(channel.ask(hello(versions.PROTOCOL, "elsewhere", VERSION)))
        assert "federation.name is 'elsewhere'" in getattr(other, "words", "")


def test_a_label_holder_says_what_it_speaks_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue(tmp_path, "holder", ["bank"], [], 1)
    holder, bank = (Credentials.load(tmp_path / name) for name in ("holder", "bank"))
    with GrpcServer(Echo(), listen="localhost:0", credentials=holder) as server:
        place = f"localhost:{server.port}"

        def ask() -> bytes:
            with closing(GrpcChannel(place, bank, patience=600.0)) as channel:
                return channel.ask(b"hello")

        assert ask() == b"hello"
        said = (("vertizo-protocol", "9"), ("vertizo-version", "9.9.1"))
        monkeypatch.setattr(versions, "METADATA", said)
        words = f"label holder at {place} runs vertizo 9.9.1 and speaks protocol 9; {OURS}"
        refused("later", RunError, ask, match=words)
        monkeypatch.setattr(versions, "METADATA", ())
        assert ask() == b"hello"  # older ones say nothing; their answers do


def test_frames_of_another_format_name_it() -> None:
    reply = wire.HEADER.pack(wire.MAGIC, 7, 0, 0)
    refused(
        "reply", MalformedError, wire.decode, reply, NoCompression(), match=f"version 7.*{OURS}"
    )
    frame = wire.HEADER.pack(frames.MAGIC, 7, 0, 0)
    refused("frame", MalformedError, frames.decode, frame, match=f"version 7.*{OURS}.*same version")


def test_a_checkpoint_of_another_version_names_it(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    checkpoint.save(path, {"a": torch.ones(3)})
    assert checkpoint.load(path)["a"].tolist() == [1, 1, 1]

    def doctored(change: dict[str, str]) -> None:
        """The file as another version would have written it."""
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        meta = header["__metadata__"]
        header["__metadata__"] = {change.get(k, k): change.get(v, v) for k, v in meta.items()}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        checkpoint.keep(path, len(text).to_bytes(8, "little") + text + content[8 + size :])

    def go_on() -> None:
        with checkpoint.going_on_from(path):
            checkpoint.load(path)["of another version"]

    refused("damaged", RunError, go_on, match="is damaged, or of another version: KeyError")
    doctored({VERSION: "9.9.1"})
    assert checkpoint.load(path)["a"].tolist() == [1, 1, 1]  # a version alone is no obstacle
    refused(
        "unfit", RunError, go_on, match=f"written by vertizo 9.9.1, and this is vertizo {VERSION}"
    )
    doctored({checkpoint.FORMAT: "vertizo-2"})
    words = f"format vertizo-2, written by vertizo 9.9.1; this is .*{VERSION}.*continue with the v"
    refused("format", RunError, checkpoint.load, path, match=words)
