"""Compressed-VFL against loops written out by hand, quantiser included."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from tests.rows import each
from torch import Tensor

from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.uniform import Uniform
from vertizo.protocol.messages import Query


def quantised(bits: int) -> Callable[[Tensor], Tensor]:
    """2^bits levels from the lowest number of a batch to the highest."""

    def call(h: Tensor) -> Tensor:
        low, high = h.min(), h.max()
        step = (high - low) / (2**bits - 1)
        return low + ((h - low) / step).round() * step

    return call


@each("momentum", [0.0, 0.5])
@each("bits, steps", [(8, 1), (8, 3), (2, 1), (2, 4)])
def test_rounds_by_hand(
    federations: SimpleNamespace, bits: int, steps: int, momentum: float
) -> None:
    """The server sees quantised embeddings; each client back-propagates through its own."""
    changes = {
        "method.local_steps": steps,
        "codecs.up": {"name": "uniform", "bits": bits},
        "client.optimizer.momentum": momentum,
        "server.optimizer.momentum": momentum,
    }
    federation = federations.build("compressed-vfl", changes=changes)
    copies = federations.twins(federation, momentum)
    for _ in range(4):
        frames = [federations.ask(federation, client) for client in range(3)]
        queries = [federations.query(frame, Uniform(bits=bits)) for frame in frames]
        ids = queries[0].ids
        plain = [
            f(own["train"][ids].double()).detach()
            for f, own in zip(copies.clients, federation.data.features, strict=True)
        ]
        sent, gradients = copies.round(ids, [steps] * 3, steps, quantised(bits))
        answers = [a for frame in frames for a in federation.server.receive(frame)]
        for client, answer in answers:
            seen = queries[client].embeddings[0]
            assert torch.allclose(seen.double(), sent[client], atol=1e-5)
            assert not torch.allclose(seen.double(), plain[client], atol=1e-4)
            told = federations.reply(answer).values
            assert torch.allclose(told.double(), gradients[client], atol=1e-5)
            federation.clients[client].tell(answer)
        stored = federation.server.side.table.values[ids]
        assert torch.allclose(stored.double(), torch.cat(sent, 1), atol=1e-5)
        assert federations.agree(federation, copies, atol=2e-5)


def test_embeddings_take_a_byte_a_number_and_gradients_four(federations: SimpleNamespace) -> None:
    settings = federations.config("compressed-vfl")
    assert settings.codecs.up == Uniform(bits=8)
    assert settings.codecs.down == NoCompression()
    assert settings.method.local_steps == 1
    _, tape = federations.ran("compressed-vfl")
    _, plain = federations.ran("compressed-vfl", changes={"codecs.up": {"name": "none"}})
    pairs = zip(tape.messages(), tape.seen, plain.seen, strict=True)
    for (_, way, _, message), (*_, frame), (*_, other) in pairs:
        if way == "down":
            assert len(frame) == len(other)
        else:
            assert isinstance(message, Query)
            numbers = message.embeddings.numel()
            saved = 4 * numbers - (numbers + 8)  # lowest and highest beside the levels
            assert abs(len(other) - len(frame) - saved) <= 2  # MessagePack's own lengths


@each("steps", [1, 3])
def test_without_a_codec_it_is_fedbcd(federations: SimpleNamespace, steps: int) -> None:
    """The same frames and the same weights, bit by bit."""
    local = {"method.local_steps": steps}
    plain, tape = federations.ran("compressed-vfl", changes={**local, "codecs.up.name": "none"})
    fedbcd, other = federations.ran("fedbcd", changes=local)
    assert tape.seen == other.seen
    assert not federations.differences(plain.parameters(), fedbcd.parameters())
