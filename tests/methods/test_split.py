"""Split learning against autograd and PyTorch's own optimiser on the joined model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests.rows import each

from vertizo.core.errors import ConfigError


@each("momentum", [0.0, 0.9])
def test_rounds_are_steps_of_the_joined_model(
    federations: SimpleNamespace, momentum: float
) -> None:
    """Gradient descent on all parameters together, over two epochs with short batches."""
    changes = {"client.optimizer.momentum": momentum, "server.optimizer.momentum": momentum}
    federation = federations.build("split", changes=changes)
    copies = federations.twins(federation, momentum)
    sizes = set()
    for _ in range(8):
        frames = [federations.ask(federation, client) for client in range(3)]
        queries = [federations.query(frame) for frame in frames]
        ids = queries[0].ids
        sizes.add(ids.numel())
        sent, gradients = copies.round(ids, [1, 1, 1], 1)
        answers = [a for frame in frames for a in federation.server.receive(frame)]
        for client, answer in answers:
            assert queries[client].embeddings.shape == (1, ids.numel(), federations.DIM)
            assert torch.allclose(queries[client].embeddings[0].double(), sent[client], atol=1e-5)
            told = federations.reply(answer).values
            assert torch.allclose(told.double(), gradients[client], atol=2e-6)
            federation.clients[client].tell(answer)
        assert federations.agree(federation, copies)
    assert sizes == {8, 29 % 8}


def test_it_is_the_synchronous_timing_of_vafl(federations: SimpleNamespace) -> None:
    """The same frames and the same weights, bit by bit."""
    split, tape = federations.ran("split")
    vafl, other = federations.ran("vafl", "synchronous")
    assert tape.seen == other.seen
    assert not federations.differences(split.parameters(), vafl.parameters())


def test_nobody_is_answered_before_all_have_asked(federations: SimpleNamespace) -> None:
    federation = federations.build("split")
    before = federation.server.side.model.parameters.clone()
    for client in (2, 0):
        assert federation.server.receive(federations.ask(federation, client)) == []
    assert torch.equal(federation.server.side.model.parameters, before)
    answers = federation.server.receive(federations.ask(federation, 1))
    assert [client for client, _ in answers] == [0, 1, 2]


def test_it_has_no_asynchronous_timing(federations: SimpleNamespace) -> None:
    with pytest.raises(ConfigError, match=r"'asynchronous' but method 'split' is synchronous"):
        federations.config("split", "asynchronous")
