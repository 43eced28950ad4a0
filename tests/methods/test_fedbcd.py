"""FedBCD against loops written out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from tests.rows import each


@each("momentum", [0.0, 0.5])
@each("steps", [1, 2, 5])
def test_rounds_by_hand(federations: SimpleNamespace, steps: int, momentum: float) -> None:
    """Every party makes Q steps on one exchange: the others' part of it stays as it was."""
    changes = {
        "method.local_steps": steps,
        "client.optimizer.momentum": momentum,
        "server.optimizer.momentum": momentum,
    }
    federation = federations.build("fedbcd", changes=changes)
    copies = federations.twins(federation, momentum)
    for _ in range(6):
        ids = federations.query(federations.ask(federation, 0)).ids
        sent, _ = copies.round(ids, [steps] * 3, steps)
        federations.converse(federation, [0, 1, 2])
        held = federation.server.side.table.values[ids]
        assert torch.allclose(held.double(), torch.cat(sent, 1), atol=1e-5)
        assert federations.agree(federation, copies, atol=1e-5)


def test_local_steps_are_five_unless_said_otherwise(federations: SimpleNamespace) -> None:
    default, _ = federations.ran("fedbcd")
    said, _ = federations.ran("fedbcd", changes={"method.local_steps": 5})
    assert not federations.differences(default.parameters(), said.parameters())


def test_one_local_step_is_split_learning(federations: SimpleNamespace) -> None:
    """The same frames and the same weights, bit by bit."""
    split, tape = federations.ran("split")
    one, other = federations.ran("fedbcd", changes={"method.local_steps": 1})
    assert tape.seen == other.seen
    assert not federations.differences(split.parameters(), one.parameters())


def test_local_steps_cost_no_bytes(federations: SimpleNamespace) -> None:
    sizes = []
    for steps in (1, 7):
        _, tape = federations.ran("fedbcd", changes={"method.local_steps": steps})
        sizes.append([(way, client, len(frame)) for _, way, client, frame in tape.seen])
    assert sizes[0] == sizes[1]
