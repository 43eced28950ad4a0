"""A server model with an encoder in front of the label holder's own features.

``w_0`` has the parameters of the model that predicts, then those of the encoder. The features are
the last columns of each joined row. A zeroth-order query moves one client's embedding and leaves
them alone, so that they are encoded once for all points of a query.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vertizo.core.randomness import Stream
from vertizo.models.base import (
    PROCESSOR,
    DifferentiableModel,
    Points,
    Pullback,
    RecordGradients,
    State,
    Where,
    put,
)
from vertizo.models.parts import check, failing, flatten, trained, user_code_errors
from vertizo.models.torch import TorchModel, over


class EncodedModel(DifferentiableModel):
    """``top([joined embeddings, encoder(own features)])``.

    ``make_top`` takes the width of the encoder's outputs and makes the predicting module. Rows are
    joined embeddings of ``width`` numbers, then own features, flattened from ``shape``; the encoder
    takes them as ``dtype``, tokens as integers. ``training`` is the randomness of modules in
    training mode, None for evaluation mode, in which a wholly frozen encoder always is. ``where``
    is as in `vertizo.models.torch.wrap`, and so are both ``kinds``: of the module that predicts,
    and of the encoder.
    """

    def __init__(
        self,
        make_top: Callable[[int], nn.Module],
        encoder: nn.Module,
        width: int,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        training: Stream | None = None,
        where: Where = PROCESSOR,
        kinds: tuple[type[TorchModel] | None, type[TorchModel] | None] = (None, None),
    ) -> None:
        self._width, self._shape, self._dtype = width, tuple(shape), dtype
        check(encoder, batch_norm=training is not None)
        example = torch.zeros(2, *self._shape, dtype=dtype)
        with torch.no_grad(), user_code_errors(failing(type(encoder).__name__, example)):
            encoded = encoder.eval()(example).reshape(2, -1).shape[1]
        top = make_top(encoded)
        check(top, batch_norm=training is not None)
        top, encoder = top.to(where.device), encoder.to(where.device)
        own, theirs = trained(top), trained(encoder)
        self.parameters = flatten([*own.values(), *theirs.values()])
        split = sum(part.numel() for part in own.values())
        of_top = None if training is None else training.child("top")
        of_encoder = training.child("encoder") if training is not None and theirs else None
        self._top = over(top, self.parameters[:split], own, of_top, where=where, kind=kinds[0])
        rest = self.parameters[split:]
        self._encoder = over(encoder, rest, theirs, of_encoder, where=where, kind=kinds[1])
        self._trains_encoder = bool(theirs)

    @property
    def parts(self) -> tuple[DifferentiableModel, DifferentiableModel]:
        """The model that predicts, and the encoder."""
        return self._top, self._encoder

    def with_parts(self, top: DifferentiableModel, encoder: DifferentiableModel) -> EncodedModel:
        """A copy of this model that is evaluated by other models of the same parameters."""
        made = copy.copy(self)
        made._top, made._encoder = top, encoder
        return made

    @property
    def layout(self) -> tuple[int, tuple[int, ...], torch.dtype]:
        """Width of the joined embeddings in a row, and shape and type of own features."""
        return self._width, self._shape, self._dtype

    def state(self) -> State:
        """w, live; the states of both parts where one of them has more than w."""
        top, encoder = self._top.state(), self._encoder.state()
        if isinstance(top, Tensor) and isinstance(encoder, Tensor):
            return self.parameters
        return {"top": top, "encoder": encoder}

    def load(self, state: State) -> None:
        """Go on from ``state``."""
        if isinstance(state, Tensor):
            put(self.parameters, state)
        else:
            self._top.load(state["top"])
            self._encoder.load(state["encoder"])

    def _own(self, rows: Tensor) -> Tensor:
        return rows[:, self._width :].reshape(len(rows), *self._shape).to(self._dtype)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs for rows of joined embeddings and own features, [batch, outputs]."""
        rows = inputs.to(self.parameters.device)
        encoded = self._encoder(self._own(rows))
        return self._top(torch.cat([rows[:, : self._width], encoded], 1))

    def forward(self, points: Points, number: int = 0) -> tuple[Tensor, Pullback]:
        """Outputs at every point, and the pullback at the last."""
        joined = points.rows.to(self.parameters.device)
        own, to_encoder = self._own(joined), None
        if self._trains_encoder:
            encoded, to_encoder = self._encoder.forward(Points(own), number)
        else:
            encoded = self._encoder(own)
        rows = torch.cat([joined[:, : self._width], encoded], 1)
        outputs, to_top = self._top.forward(Points(rows, points.shifts), number)
        return outputs, _EncodedPullback(to_top, to_encoder, self._width)

    def settle(self) -> None:
        """Settle both parts; see `DifferentiableModel.settle`."""
        self._top.settle()
        self._encoder.settle()


@dataclass(eq=False)
class _EncodedPullback:
    """Gradients of the parameters: the predicting model's, then the encoder's, if that trains."""

    _top: Pullback
    _encoder: Pullback | None
    _width: int

    def __call__(self, gradient: Tensor) -> Tensor:
        if self._encoder is None:
            return self._top(gradient)
        own = self._encoder(self._at_encoded(gradient))
        return torch.cat([self._top(gradient), own])

    def inputs(self, gradient: Tensor) -> Tensor:
        """Gradient with respect to the joined embeddings, [batch, width]: features have none."""
        return self._top.inputs(gradient)[:, : self._width]

    def _at_encoded(self, gradient: Tensor) -> Tensor:
        return self._top.inputs(gradient)[:, self._width :].contiguous()

    @property
    def at_once(self) -> int:
        return min(part.at_once for part in (self._top, self._encoder) if part is not None)

    def record_gradients(self, gradient: Tensor, records: slice) -> RecordGradients:
        top = self._top.record_gradients(gradient, records)
        if self._encoder is None:
            return top
        at_encoded = self._at_encoded(gradient)
        return _EncodedGradients(top, self._encoder.record_gradients(at_encoded, records))


@dataclass(frozen=True)
class _EncodedGradients:
    top: RecordGradients
    encoder: RecordGradients

    def squares(self) -> Tensor:
        return self.top.squares() + self.encoder.squares()

    def total(self, weights: Tensor) -> Tensor:
        return torch.cat([self.top.total(weights), self.encoder.total(weights)])
