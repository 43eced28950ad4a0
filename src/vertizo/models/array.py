"""Models from any NumPy function of a parameter vector: rules, thresholds, quantised code.

Zeroth-order training asks for outputs only: the function need not be differentiable, nor written in
PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.models.base import Model
from vertizo.models.parts import failing, user_code_errors

ArrayFunction = Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float32]]


class ArrayModel(Model):
    """``function(w, x)``: parameters [d] and features [batch, ...] to outputs [batch, outputs].

    The function is called with NumPy arrays that it must not change or keep; ``parameters``,
    float32, are where training starts, and are kept, not copied. ``recordwise`` calls it for one
    record at a time (see `vertizo.models.recordwise`).
    """

    def __init__(
        self, function: ArrayFunction, parameters: Tensor, *, recordwise: bool = False
    ) -> None:
        self.function, self.parameters = function, parameters
        self._recordwise = recordwise

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs at the current parameters, [batch, outputs]."""
        with user_code_errors(failing(getattr(self.function, "__name__", "function"), inputs)):
            if self._recordwise:
                rows = [self._of(inputs[place : place + 1]) for place in range(len(inputs))]
                outputs = np.concatenate(rows) if rows else self._of(inputs)
            else:
                outputs = self._of(inputs)
        if outputs.ndim != 2 or outputs.shape[0] != inputs.shape[0]:
            raise ConfigError(
                f"the model function returned shape {outputs.shape} for a batch of "
                f"{inputs.shape[0]}; it must return [batch, outputs]"
            )
        return torch.from_numpy(np.ascontiguousarray(outputs))

    def together(self) -> ArrayModel:
        """A copy that calls the function with whole batches, to try whether it mixes records."""
        return ArrayModel(self.function, self.parameters.clone())

    def _of(self, inputs: Tensor) -> NDArray[np.float32]:
        """Outputs of the function for copies, which it may change and keep."""
        found = self.function(self.parameters.numpy().copy(), inputs.numpy().copy())
        return np.asarray(found, dtype=np.float32)
