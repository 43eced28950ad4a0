"""The joined model at the server: per-record losses at several points, and gradients at one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.models.base import DifferentiableModel, Model, Points, Pullback, RecordGradients
from vertizo.models.losses import RecordLosses, Task


class ServerModel:
    """Server model and task: ``f_i = L(w_0, h_{1,i}, …, h_{M,i}; y_i)``.

    Defined in docs/mathematics.md, Notation and roles.

    A *point* is one value of the joined embeddings of a batch, shape [batch, width]; a zeroth-order
    query asks for the losses at two or three of them. All are evaluated on the same weights, and
    the last is where the server may differentiate.
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

    def evaluate(self, points: Points, labels: Tensor, number: int = 0) -> Evaluation:
        """Losses at every point, and the means to differentiate at the last.

        Args:
            points: inputs of the model.
            labels: [batch].
            number: of the training pass, for a model in training.

        Raises:
            ConfigError: the model is not differentiable.
        """
        if self._differentiable is None:
            raise ConfigError(
                f"the server model ({type(self.model).__name__}) is not differentiable; "
                "it must be a torch.nn.Module"
            )
        outputs, pullback = self._differentiable.forward(points, number)
        losses = self.task.losses(outputs, labels)
        count, batch = len(points), labels.shape[0]
        last = slice((count - 1) * batch, count * batch)
        return Evaluation(losses.values.view(count, batch), last, losses, pullback)

    def settle(self) -> None:
        """Keep what the last evaluation changed of the model beside its outputs."""
        if self._differentiable is not None:
            self._differentiable.settle()


@dataclass(frozen=True)
class Evaluation:
    """Losses at some points, and gradients of ``Σ_i weights_i · f_i`` at the last."""

    losses: Tensor
    """Per-record losses, [points, batch]."""
    _rows: slice
    """The rows of the last point among those of all."""
    _records: RecordLosses
    _pullback: Pullback

    def correct(self) -> int:
        """How many records are predicted right at the last point."""
        return self._records.correct(self._rows)

    def gradient(self, weights: Tensor | float) -> Tensor:
        """With respect to the server's parameters, [d_0]; the next call may overwrite it."""
        return self._pullback(self._records.slopes(self._rows, weights))

    def input_gradient(self, weights: Tensor | float) -> Tensor:
        """With respect to the joined embeddings, [batch, width]."""
        return self._pullback.inputs(self._records.slopes(self._rows, weights))

    def record_gradients(self) -> Iterator[tuple[slice, RecordGradients]]:
        """Each record's own gradient of the server's parameters: some records at a time."""
        slopes = self._records.slopes(self._rows, 1.0)
        step = self._pullback.at_once
        for first in range(0, len(slopes), step):
            records = slice(first, min(first + step, len(slopes)))
            yield records, self._pullback.record_gradients(slopes, records)
