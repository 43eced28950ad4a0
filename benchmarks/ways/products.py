"""The matrix products of a round alone, on tensors that are already there; nothing else.

Forward passes of a layer are one product; backward passes are one for its weights, and one for its
inputs where something behind them is trained. A shift of one client's embedding is a whole forward
pass here, though only that client's columns differ, so that Vertizo may need less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from report import Rounds

from ways.setting import Setting


@dataclass(frozen=True)
class Passes:
    """How often what is multiplied in a round."""

    client: int
    """Forward passes of a client."""
    server: int
    """Forward passes of the server."""
    client_backward: bool = False
    server_backward: bool = True
    """To its weights."""
    to_embeddings: bool = False
    """And to its inputs."""


def passes(setting: Setting) -> Passes:
    """What a round of each method takes."""
    return {
        "cascaded": Passes(client=2, server=2),
        "dpzv": Passes(client=2, server=3),
        "zoo-vfl": Passes(client=2, server=3, server_backward=False),
        "czofo": Passes(client=1, server=1 + setting.directions, client_backward=True),
        "vafl": Passes(client=1, server=1, client_backward=True, to_embeddings=True),
    }[setting.variant.method]


def rounds(setting: Setting) -> Rounds:
    """The products of one round after another."""
    todo = passes(setting)
    client = _layers(setting.shape.client_layers, setting.batch)
    server = _layers(setting.shape.server_layers, setting.batch)

    def one() -> int:
        with torch.inference_mode():
            for _ in range(todo.client):
                for x, w, _ in client:
                    torch.mm(x, w)
            for _ in range(todo.server):
                for x, w, _ in server:
                    torch.mm(x, w)
            if todo.server_backward:
                _backward(server, to_inputs=todo.to_embeddings)
            if todo.client_backward:
                _backward(client, to_inputs=False)
        return 1

    return one


Layers = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def _layers(sizes: Sequence[tuple[int, int]], batch: int) -> Layers:
    """Inputs, weights and slopes of every layer."""
    return [
        (torch.randn(batch, before), torch.randn(before, after), torch.randn(batch, after))
        for before, after in sizes
    ]


def _backward(layers: Layers, *, to_inputs: bool) -> None:
    for place, (x, w, slopes) in reversed(list(enumerate(layers))):
        torch.mm(slopes.t(), x)
        if place or to_inputs:
            torch.mm(slopes, w.t())
