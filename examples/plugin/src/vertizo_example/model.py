"""A client or server model with a gate."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from vertizo.config.architectures import OwnModel


class Gated(OwnModel):
    """``W(Ux · σ(Vx))`` with ``hidden`` numbers between; its fields are keys of ``model``."""

    hidden: int = Field(default=16, gt=0)
    width: int = Field(default=2, gt=0)
    """Numbers of an embedding; a server's model has as many outputs as its task needs."""

    def module(self, shape: tuple[int, ...], outputs: int | None) -> nn.Module:
        inputs = torch.Size(shape).numel()
        return nn.Sequential(nn.Flatten(), Gate(inputs, self.hidden, outputs or self.width))


class Gate(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(inputs, hidden), nn.Linear(inputs, hidden)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        gated: Tensor = self.last(self.value(rows) * torch.sigmoid(self.gate(rows)))
        return gated
