"""A server model with an encoder in front of the label holder's own features.

``w_0`` is both: the parameters of the model that predicts, then those of the encoder. The features
reach it as the last columns of each joined row. A zeroth-order query moves one client's embedding
and leaves them alone, so that they are encoded once for all points of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from vertizo.models.base import DifferentiableModel, Points, Pullback
from vertizo.models.torch import flatten, in_turn, over


class EncodedModel:
    """``top([joined embeddings, encoder(own features)])``.

    Args:
        make_top: takes the width of the encoder's outputs, makes the predicting module.
        encoder: module for the own features.
        width: of the joined embeddings, which come first in a row.
        shape: of one record's own features; they come flattened.
        dtype: what the encoder takes; tokens are integers.
    """

    def __init__(
        self,
        make_top: Callable[[int], nn.Module],
        encoder: nn.Module,
        width: int,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._width = width
        self._dtype = dtype
        self._shape = tuple(shape)
        with torch.no_grad():
            encoded = (
                encoder.eval()(torch.zeros(2, *self._shape, dtype=dtype)).reshape(2, -1).shape[1]
            )
        top = make_top(encoded)
        self.parameters = flatten([*top.parameters(), *encoder.parameters()])
        split = sum(part.numel() for part in top.parameters())
        self._top: DifferentiableModel = over(top, self.parameters[:split])
        self._encoder: DifferentiableModel = over(encoder, self.parameters[split:])

    def _own(self, rows: Tensor) -> Tensor:
        return rows[:, self._width :].reshape(len(rows), *self._shape).to(self._dtype)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs for rows of joined embeddings and own features, [batch, outputs]."""
        encoded = self._encoder(self._own(inputs))
        return self._top(torch.cat([inputs[:, : self._width], encoded], 1))

    def along(self, direction: Tensor, offsets: Sequence[float], inputs: Tensor) -> Tensor:
        """Outputs at ``w + offset · direction``, [offsets, batch, outputs]."""
        return in_turn(self, direction, offsets, inputs)

    def forward(self, points: Points) -> tuple[Tensor, Pullback]:
        """Outputs at every point, and the pullback at the last."""
        encoded, to_encoder = self._encoder.forward(Points(self._own(points.rows)))
        rows = torch.cat([points.rows[:, : self._width], encoded], 1)
        outputs, to_top = self._top.forward(Points(rows, points.shifts))
        return outputs, _EncodedPullback(to_top, to_encoder, self._width)


class _EncodedPullback:
    def __init__(self, to_top: Pullback, to_encoder: Pullback, width: int) -> None:
        self._to_top = to_top
        self._to_encoder = to_encoder
        self._width = width

    def __call__(self, gradient: Tensor) -> Tensor:
        """Gradient with respect to the parameters, [d]: the predicting model's, the encoder's."""
        at_rows = self._to_top.inputs(gradient)
        own = self._to_encoder(at_rows[:, self._width :].contiguous())
        return torch.cat([self._to_top(gradient), own])

    def inputs(self, gradient: Tensor) -> Tensor:
        """Gradient with respect to the joined embeddings, [batch, width]: features have none."""
        return self._to_top.inputs(gradient)[:, : self._width]

    def record_norms(self, gradient: Tensor) -> Tensor:
        """Norm of what each record alone gives the gradient of all parameters, [batch]."""
        at_rows = self._to_top.inputs(gradient)
        own = self._to_encoder.record_norms(at_rows[:, self._width :].contiguous())
        return torch.hypot(self._to_top.record_norms(gradient), own)
