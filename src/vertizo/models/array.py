"""Any function of a parameter vector as a model: rules, thresholds, quantised or foreign code.

Zeroth-order training asks for outputs only, so that nothing needs to be differentiable, or even
be written in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.models.base import OfParameters
from vertizo.models.parts import failing, somebodys_code

ArrayFunction = Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float32]]


class ArrayModel(OfParameters):
    """``function(w, x)``: parameters [d] and features [batch, ...] to outputs [batch, outputs].

    Args:
        function: called with NumPy arrays that it must not change or keep.
        parameters: [d], float32: where training starts; kept, not copied.
    """

    def __init__(self, function: ArrayFunction, parameters: Tensor) -> None:
        self.function = function
        self.parameters = parameters

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs at the current parameters, [batch, outputs]."""
        return self._evaluate(self.parameters, inputs)

    def along(self, direction: Tensor, offsets: Sequence[float], inputs: Tensor) -> Tensor:
        """Outputs at ``w + offset · direction`` for each offset, [offsets, batch, outputs]."""
        w = self.parameters
        return torch.stack(
            [self._evaluate(w.add(direction, alpha=offset), inputs) for offset in offsets]
        )

    def _evaluate(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        with somebodys_code(failing(getattr(self.function, "__name__", "function"), inputs)):
            found = self.function(parameters.numpy(), inputs.numpy())
            outputs = np.asarray(found, dtype=np.float32)
        if outputs.ndim != 2 or outputs.shape[0] != inputs.shape[0]:
            raise ConfigError(
                f"the model function returned shape {outputs.shape} for a batch of "
                f"{inputs.shape[0]}; it must return [batch, outputs]"
            )
        return torch.from_numpy(np.ascontiguousarray(outputs))
