"""Modules of eight numbers that take records together, each in a way that some trial missed.

Loaded by path as a user's module is: ``server.model={name: module, path: 'tests/mixing.py:gate'}``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Plain(nn.Module):
    """A module that keeps records apart."""

    def __init__(self, inputs: int = 8, outputs: int = 3) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 6), nn.Linear(6, outputs)

    def hidden(self, rows: Tensor) -> Tensor:
        return torch.tanh(self.first(rows))

    def forward(self, rows: Tensor) -> Tensor:
        return self.last(self.hidden(rows))


def opened(model: Any) -> None:
    """Moves the parameters to where gates are open and layers are not zeros."""
    chance = torch.Generator().manual_seed(4)
    model.parameters.add_(torch.randn(model.parameters.shape, generator=chance), alpha=0.5)


class Centred(torch.autograd.Function):
    """Passes on, and back without the mean over the batch."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient - 3 * gradient.mean(0)


class Backward(Plain):
    """Mixes by a custom function's backward pass."""

    def hidden(self, rows: Tensor) -> Tensor:
        return Centred.apply(super().hidden(rows))


class ModuleHook(Plain):
    """Mixes by a hook of a layer."""

    def __init__(self, inputs: int = 8, outputs: int = 3) -> None:
        super().__init__(inputs, outputs)
        self.last.register_full_backward_hook(centred)


def centred(module: nn.Module, inwards: Any, outwards: Any) -> Any:
    return tuple(g - 3 * g.mean(0) if g is not None else None for g in inwards)


class TensorHook(Plain):
    """Mixes by a hook of a tensor."""

    def hidden(self, rows: Tensor) -> Tensor:
        found = super().hidden(rows)
        if found.requires_grad:
            found.register_hook(lambda g: g - 3 * g.mean(0))
        return found


class Gate(Plain):
    """Mixes once a gate opens, which is shut at first."""

    def __init__(self, inputs: int = 8, outputs: int = 3) -> None:
        super().__init__(inputs, outputs)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, rows: Tensor) -> Tensor:
        return self.last(self.hidden(rows) + self.gate * 9 * self.hidden(rows).mean(0))


class Shut(Plain):
    """Mixes behind a last layer of zeros."""

    def __init__(self, inputs: int = 8, outputs: int = 3) -> None:
        super().__init__(inputs, outputs)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def hidden(self, rows: Tensor) -> Tensor:
        return super().hidden(rows) * super().hidden(rows).sum(0).sign() * 3


class Softmax(Plain):
    """Shares of the batch."""

    def hidden(self, rows: Tensor) -> Tensor:
        return torch.softmax(self.first(rows), 0)


class MinMax(Plain):
    """Scaled by the batch's least and most."""

    def hidden(self, rows: Tensor) -> Tensor:
        found = super().hidden(rows)
        low, high = found.min(0).values, found.max(0).values
        return (found - low) / (high - low + 1e-3)


class Remembers(Plain):
    """Adds what it remembers of earlier records."""

    def __init__(self, inputs: int = 8, outputs: int = 3) -> None:
        super().__init__(inputs, outputs)
        self.seen: list[Tensor] = []

    def hidden(self, rows: Tensor) -> Tensor:
        self.seen += [row.detach() for row in rows]
        return super().hidden(rows + torch.stack(self.seen[-5:]).sum(0))


class Counts(Plain):
    """Moves a buffer by each record."""

    mean: Tensor

    def __init__(self, inputs: int = 8, outputs: int = 3) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("mean", torch.zeros(inputs))

    def hidden(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            for row in rows:
                self.mean.mul_(0.5).add_(row)
        return super().hidden(rows - self.mean)


class Normed(nn.Module):
    """Changes its parameters in its forward pass, by the records it sees."""

    def __init__(self, inputs: int = 8, outputs: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(16, 3, max_norm=1.0)
        nn.init.normal_(self.words.weight, std=5.0)
        self.last = nn.Linear(3 * inputs, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        places = (rows.abs() * 7).nan_to_num(0.0, 15.0, 0.0).clamp(0, 15).long()
        return self.last(self.words(places).flatten(1)) + 0 * rows.nan_to_num(0, 0, 0).sum(1, True)


class Draws(Plain):
    """Draws as many numbers as records before this one need."""

    def hidden(self, rows: Tensor) -> Tensor:
        torch.rand(int(rows.abs().sum().nan_to_num(0.0).clamp(max=1000)))
        return super().hidden(rows) * torch.rand(len(rows), 6)


class Branches(Plain):
    """Takes another way where some record of the batch says so."""

    def hidden(self, rows: Tensor) -> Tensor:
        return super().hidden(rows) if bool((rows[:, 0] < 1).all()) else self.first(rows).sin()


class Leaves(Plain):
    """Changes what it is given, all of it where one is large."""

    def hidden(self, rows: Tensor) -> Tensor:
        rows *= 1 / (1 + rows.detach().abs().max())
        return super().hidden(rows)


MODULES: dict[str, type[nn.Module]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Backward, ModuleHook, TensorHook, Gate, Shut, Softmax, MinMax, Remembers, Counts),
        *(Normed, Draws, Branches, Leaves),
    )
}
"""By the name of the function that makes it."""
globals().update(MODULES)
