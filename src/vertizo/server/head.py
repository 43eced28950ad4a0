"""The joined model at the server: per-record losses at several points, and gradients at one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vertizo.errors import ConfigError
from vertizo.models.base import DifferentiableModel, Model, Pullback
from vertizo.server.losses import RecordLosses, Task


class Head:
    """Server model and task: ``f_i = L(w_0, h_{1,i}, …, h_{M,i}; y_i)`` (SPEC section 1).

    A *point* is one value of the joined embeddings of a batch, shape [batch, width]; a zeroth-order
    query asks for the losses at two or three of them. All are evaluated on the same weights.
    """

    def __init__(self, model: Model, task: Task) -> None:
        self.model = model
        self.task = task
        self._differentiable = model if isinstance(model, DifferentiableModel) else None

    @property
    def parameters(self) -> Tensor:
        """w_0, shape [d_0]."""
        return self.model.parameters

    def logits(self, joined: Tensor) -> Tensor:
        """Logits of joined embeddings, [batch, width] → [batch, outputs]."""
        return self.model(joined)

    def losses(self, points: Tensor, labels: Tensor) -> Tensor:
        """Per-record losses at every point, [points, batch, width] → [points, batch]."""
        count, batch = points.shape[:2]
        logits = self.model(points.reshape(count * batch, -1))
        return self.task.losses(logits, labels).values.view(count, batch)

    def evaluate(self, points: Tensor, labels: Tensor, differentiate: int) -> Evaluation:
        """Losses at every point, in one pass, and the means to differentiate at one of them."""
        if self._differentiable is None:
            raise ConfigError(
                f"the server model ({type(self.model).__name__}) is not differentiable; "
                "train it with server.update: zeroth-order"
            )
        count, batch = points.shape[:2]
        rows = slice(differentiate * batch, (differentiate + 1) * batch)
        logits, pullback = self._differentiable.forward(points.reshape(count * batch, -1), rows)
        losses = self.task.losses(logits, labels)
        return Evaluation(losses.values.view(count, batch), losses, pullback, rows)


@dataclass(frozen=True)
class Evaluation:
    """Losses at some points, and gradients of ``Σ_i weights_i · f_i`` at one of them."""

    losses: Tensor
    """Per-record losses, [points, batch]."""
    _records: RecordLosses
    _pullback: Pullback
    _rows: slice

    def correct(self) -> int:
        """How many records are predicted right at the differentiated point."""
        return self._records.correct(self._rows)

    def gradient(self, weights: Tensor | float) -> Tensor:
        """With respect to the server's parameters, [d_0]; the next call may overwrite it."""
        return self._pullback(self._records.slopes(self._rows, weights))

    def input_gradient(self, weights: Tensor | float) -> Tensor:
        """With respect to the joined embeddings, [batch, width]."""
        return self._pullback.inputs(self._records.slopes(self._rows, weights))
