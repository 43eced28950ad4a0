"""A client or server model with a gate."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from vertizo.config.architectures import OwnModel


class Gated(OwnModel):
    """``W(x · σ(Vx))`` of ``width`` numbers; its fields are keys of the section ``model``."""

    width: int = 8

    def module(self, shape: tuple[int, ...], outputs: int | None) -> nn.Module:
        inputs = torch.Size(shape).numel()
        return nn.Sequential(nn.Flatten(), Gate(inputs, self.width, outputs or self.width))


class Gate(nn.Module):
    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(inputs, width), nn.Linear(inputs, width)
        self.last = nn.Linear(width, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        gated: Tensor = self.last(self.value(rows) * torch.sigmoid(self.gate(rows)))
        return gated
