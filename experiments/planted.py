"""Least squares in which every parameter counts alike: the case whose size a bound speaks of.

Columns are independent standard normal numbers, and labels are linear in them without noise. The
curvature is then 1 in every direction, and a zeroth-order client has to find all of them. On real
records few directions matter, however many parameters a model has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.models.losses import Regression, SquaredLosses

if TYPE_CHECKING:
    from torch import Tensor

    from vertizo.protocol.messages import Purpose


@dataclass(frozen=True)
class Planted:
    """Records that are drawn for the study; each seed has its own."""

    columns: int = 64
    """Of all parties together; each holds as many, one more at the first where that is uneven."""
    labels: int = 1
    """Numbers to be predicted of a record. The loss before training is 1/2 for any number."""
    parties: int = 2
    records: int = 2048
    """To train on."""
    validation: int = 512


class LeastSquares(Regression):
    """Half the squared error, the mean over ``outputs`` numbers of a record."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def losses(self, logits: Tensor, labels: Tensor) -> SquaredLosses:
        """``mean_l (output_l − label_l)² / 2`` of labels [records, outputs]."""
        return _Losses(logits, labels)

    def predict(self, logits: Tensor) -> Tensor:
        """The outputs, [rows, outputs]."""
        return logits


class _Losses(SquaredLosses):
    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        self._error = logits - labels.repeat(len(logits) // len(labels), 1)
        self._slope = self._error / logits.shape[1]
        self.values = self._error.square().mean(1).mul_(0.5)

    def slopes(self, rows: slice, weights: Tensor | float) -> Tensor:
        """``weights_i · ∂loss_i/∂output_i`` of the rows of one point, [records, outputs]."""
        scale = weights.unsqueeze(1) if isinstance(weights, torch.Tensor) else weights
        return self._slope[rows] * scale


def planted(options: Planted, seed: int) -> VerticalData:
    """Records, and labels ``x W`` with W of columns of length 1."""
    draw = Stream.from_seed(seed).child("planted").generator()
    weights = torch.from_numpy(draw.standard_normal((options.columns, options.labels)))
    weights /= torch.linalg.vector_norm(weights, dim=0)
    counts: dict[Purpose, int] = {
        "train": options.records,
        "validation": options.validation,
        "test": options.validation,
    }
    features: list[dict[Purpose, Tensor]] = [{} for _ in range(options.parties)]
    labels: dict[Purpose, Tensor] = {}
    for purpose, count in counts.items():
        values = torch.from_numpy(draw.standard_normal((count, options.columns)))
        labels[purpose] = (values @ weights).float()
        for own, part in zip(
            features, values.float().tensor_split(options.parties, 1), strict=True
        ):
            own[purpose] = part.contiguous()
    names = tuple(f"party{place}" for place in range(options.parties))
    return VerticalData(
        "planted", LeastSquares(options.labels), names, tuple(features), labels, False
    )
