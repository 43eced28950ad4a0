"""The interfaces of models, on either side of the federation.

A client model turns features into embeddings, a server model turns joined embeddings into
predictions; both are a function of one flat parameter vector and nothing else, and both are
trained in one of two ways:

* zeroth order needs a `Model`: outputs at given parameters;
* first order needs a `DifferentiableModel`: outputs together with a `Pullback`.

No method ever sees a layer or an autograd graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from vertizo.core import arrays
from vertizo.core.names import Precision
from vertizo.core.plugins.lazy_import import torch

if TYPE_CHECKING:
    from torch import Tensor

State: TypeAlias = "Tensor | dict[str, Any]"
"""A model's state in checkpoints: w, with buffers or frozen parameters where there are some."""
AT_ONCE = 2**24
"""Numbers that may be held at a time when gradients are formed record by record."""


@dataclass(frozen=True)
class Where:
    """A model's device, and its precision there."""

    device: str = "cpu"
    """Device of its parameters and of all that it computes."""
    precision: Precision = "float32"
    """Precision of products on a card."""


PROCESSOR = Where()
"""Everything in the processor's memory."""


def copied(state: State) -> State:
    """A copy of a state, which does not change with the model."""
    if isinstance(state, torch.Tensor):
        return state.clone()
    return {name: copied(part) for name, part in state.items()}


DIFFERENCE = 1e-2
"""Length of the steps of central differences, which approximate derivatives."""


def put(vector: Tensor, values: Tensor) -> None:
    """``vector ← values``, in place; ValueError if they are of another shape."""
    if values.shape != vector.shape:
        raise ValueError(f"{list(values.shape)} in place of {list(vector.shape)}")
    vector.copy_(values)


class Model(Protocol):
    """A function ``h(w; x)`` of a flat vector ``w``.

    By default a state is w alone, and `along` evaluates one offset after the other; derived
    classes may override both.
    """

    parameters: Tensor
    """w, shape [d], the live storage: shifting it shifts the model. It has no frozen parameters."""

    @property
    def is_affine(self) -> bool:
        """Whether outputs are affine in w, so that their derivatives never change."""
        return False

    def state(self) -> State:
        """The state that checkpoints hold, live: w, with buffers and frozen parameters if any."""
        return self.parameters

    def load(self, state: State) -> None:
        """Go on from ``state``; KeyError, TypeError or ValueError if it is another model's."""
        if not isinstance(state, torch.Tensor):
            raise TypeError("the state of another kind of model")
        put(self.parameters, state)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs at the current parameters, shape [batch, outputs]; no graph is made."""

    def along(
        self, direction: Tensor, offsets: Sequence[float], inputs: Tensor | Selected
    ) -> Tensor:
        """Outputs at ``w + offset · direction`` for each offset: [offsets, batch, outputs].

        ``direction`` is [d]. The parameters are afterwards what they were: put back from a copy.
        """
        if isinstance(inputs, Selected):
            inputs = inputs.gathered()
        saved = self.parameters.clone()
        direction = direction.to(saved.device)
        results = []
        try:
            for offset in offsets:
                torch.add(saved, direction, alpha=offset, out=self.parameters)
                results.append(self(inputs))
        finally:
            self.parameters.copy_(saved)
        return torch.stack(results)

    def table_of(self, features: Tensor) -> Tensor | None:
        """Records as a table of which `along` takes `Selected` rows; None if it needs batches."""
        return None

    def tangents(self, directions: Tensor, inputs: Tensor) -> Tensor:
        """``J_i v`` of every record i and row v of ``directions`` [K, d]: [K, batch, outputs].

        J_i is the Jacobian of its outputs. Here by central differences, without derivatives.
        """
        found = []
        for direction in directions:
            step = DIFFERENCE / (float(direction.norm()) or 1.0)
            plus, minus = self.along(direction, (step, -step), inputs)
            found.append((plus - minus) / (2 * step))
        return torch.stack(found)


class Pullback(Protocol):
    """Carries gradients backwards through one evaluation of a model.

    ``gradient`` is with respect to the outputs, [batch, outputs], throughout.
    """

    def __call__(self, gradient: Tensor) -> Tensor:
        """Gradient with respect to the parameters, [d]; the next call may overwrite it."""

    def inputs(self, gradient: Tensor) -> Tensor:
        """Gradient with respect to the inputs, of their shape."""

    @property
    def at_once(self) -> int:
        """Most records whose own gradients should be asked for at a time."""

    def record_gradients(self, gradient: Tensor, records: slice) -> RecordGradients:
        """Gradients of the parameters for each of some records of the batch."""


class RecordGradients(Protocol):
    """Gradients of the parameters, one for each of some records.

    `squares` measures the very numbers that `total` adds up, so that a clip by the one bounds the
    other whatever the inputs are. Two ways to the same gradient would not do: behind a
    normalisation, rounding makes them differ by many times the clip.
    """

    def squares(self) -> Tensor:
        """Squared norm of each gradient, float64 [records]; not finite where it overflows."""

    def total(self, weights: Tensor) -> Tensor:
        """``Σ_i weights_i g_i``, float64 [d]; weight 0 leaves a record out, finite or not.

        ``weights`` are float64 [records].
        """


@dataclass(frozen=True)
class HeldGradients:
    """Gradients that are held in memory, in parts that follow each other in the parameters."""

    parts: tuple[Tensor, ...]
    """Parts [records, ...], in the order of the parameters."""

    def squares(self) -> Tensor:
        """Squared norms, summed in float64, where no square of a float32 overflows or vanishes."""
        return torch.stack([squared(part) for part in self._rows()]).sum(0)

    def total(self, weights: Tensor) -> Tensor:
        """The weighted sum, float64 [d]."""
        return torch.cat([weights @ counted(part, weights) for part in self._rows()])

    def _rows(self) -> list[Tensor]:
        return [part.reshape(len(part), -1) for part in self.parts]  # of a scalar parameter, too


def squared(rows: Tensor) -> Tensor:
    """Squared norm of each row, float64."""
    return rows.to(torch.float64).square().sum(1)


def counted(rows: Tensor, weights: Tensor) -> Tensor:
    """Rows in float64, set to zeros where the weight is 0, since 0 · NaN is NaN."""
    return rows.to(torch.float64, copy=True).masked_fill_((weights == 0).unsqueeze(1), 0.0)


@dataclass(frozen=True)
class Selected:
    """Some rows of a table, for a model that can read them in place."""

    table: Tensor
    """[records, ...]"""
    ids: Tensor
    """int64 [batch]"""

    def gathered(self) -> Tensor:
        """Copy the rows, [batch, ...]."""
        return arrays.rows(self.table, self.ids)


def gathered(features: Tensor | Selected) -> Tensor:
    """Features of a batch, [batch, ...]; selected rows are copied from their table."""
    return features.gathered() if isinstance(features, Selected) else features


@dataclass(frozen=True)
class Points:
    """Several inputs for the same records that differ in some columns only.

    A zeroth-order query changes one client's embedding and leaves the others' alone; a model can
    share the work on the unchanged columns.
    """

    rows: Tensor
    """The unchanged input, [batch, ...]; the last of the points."""
    shifts: tuple[tuple[int, Tensor], ...] = ()
    """(first column, [points, batch, columns]): what each point adds to those columns of rows."""

    def __len__(self) -> int:
        """Number of points."""
        return 1 + sum([shift.shape[0] for _, shift in self.shifts])

    def changed(self) -> Tensor:
        """All points but the last, written out: [(points − 1) · batch, width]."""
        parts = []
        for start, shift in self.shifts:
            rows = self.rows.expand(shift.shape[0], -1, -1).clone()
            rows.narrow(2, start, shift.shape[2]).add_(shift)
            parts.append(rows.flatten(0, 1))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def every(self) -> Tensor:
        """All points written out, the rows last: [points · batch, width]."""
        found, first = self.rows.expand(len(self), -1, -1).clone(), 0
        for start, shift in self.shifts:
            last = first + shift.shape[0]
            found[first:last].narrow(2, start, shift.shape[2]).add_(shift)
            first = last
        return found.flatten(0, 1)

    def together(self) -> Tensor:
        """The rows with the first point of every shift at once, [batch, ...]."""
        rows = self.rows.clone()
        for start, shift in self.shifts:
            rows.narrow(1, start, shift.shape[2]).add_(shift[0])
        return rows


@runtime_checkable
class DifferentiableModel(Model, Protocol):
    """A `Model` that first-order training can use as well."""

    def forward(self, points: Points, number: int = 0) -> tuple[Tensor, Pullback]:
        """Outputs at every point, [points · batch, outputs], and the pullback at the last.

        A model in training (dropout) draws by pass ``number``: the same number draws the same.
        """

    def settle(self) -> None:
        """Keep what the last `forward` made of buffers, such as running statistics.

        Call it once a step was made by that pass; without the call no buffer changes.
        """
        return
