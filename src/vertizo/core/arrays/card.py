"""Random numbers, losses and table updates on the device of the arrays; nothing is read back.

This is plain PyTorch, which runs on the processor's tensors as well; on a card Triton does it in
one pass where it is installed (`vertizo.core.arrays.fused`). Both draw what
`vertizo.core.arrays.philox` specifies, up to the last digits of a logarithm.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from vertizo.core.arrays import philox
from vertizo.core.arrays.philox import CHUNK, Kind
from vertizo.core.plugins.lazy_import import torch

if TYPE_CHECKING:
    from torch import Tensor

LOG = logging.getLogger("vertizo.arrays")


@cache
def _triton() -> ModuleType | None:
    """The module of fused passes; None where Triton is not installed, or cannot compile them."""
    try:
        fused = import_module("vertizo.core.arrays.fused")
    except ImportError:
        return None
    if torch.cuda.is_available():
        try:
            fused.squares("signs", torch.zeros((), dtype=torch.int64, device="cuda"), 1)
        except Exception as error:  # of whatever kind, as where no C compiler is installed
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            LOG.warning("note: directions are drawn by PyTorch, more slowly; Triton fails: %s", why)
            return None
    return fused


def _fused(tensor: Tensor) -> ModuleType | None:
    return _triton() if tensor.is_cuda else None


def put_rows(table: Tensor, ids: Tensor, rows: Tensor, start: int) -> None:
    """Overwrite rows ``ids`` [batch] from column ``start`` on by ``rows`` [batch, columns]."""
    table.narrow(1, start, rows.shape[1]).index_copy_(0, ids, rows.to(table.dtype))


def number(value: float | Tensor, device: torch.device) -> Tensor:
    """Make a float32 tensor of no dimension on that device, without waiting for it."""
    if isinstance(value, torch.Tensor):
        return value.to(device, torch.float32)
    return torch.full((), value, dtype=torch.float32, device=device)


def add_drawn(vector: Tensor, kind: Kind, seed: Tensor, factor: float | Tensor) -> None:
    """``vector += factor · u``, in place; u are the first numbers of the seed.

    Args:
        vector: [d], contiguous, of any floating-point type.
        kind: distribution of the numbers.
        seed: int64 of no dimension, on the same device.
        factor: a number, or a tensor of no dimension.
    """
    scale, size = number(factor, vector.device), vector.numel()
    if (fused := _fused(seed)) is not None:
        fused.add(vector, kind, seed, scale)
        return
    for start in range(0, size, philox.AT_ONCE):
        part = vector[start : start + philox.AT_ONCE]
        moved = drawn(kind, seed, part.numel(), start // CHUNK) * scale
        part.copy_(part + moved)  # added in the wider type of the two


def descend(
    vector: Tensor,
    velocity: Tensor,
    momentum: float,
    numbers: Tensor | tuple[Kind, Tensor],
    scale: float | Tensor | None,
    factor: float | Tensor,
) -> bool:
    """``velocity ← momentum · velocity + scale · g``, then ``vector += factor · velocity``.

    In one pass, where g is ``numbers`` or drawn from a kind and a seed; without a scale it is 1.
    False where Triton does not do that, and then nothing has changed.
    """
    vectors = [each for each in (vector, velocity, numbers) if isinstance(each, torch.Tensor)]
    fused = _fused(vector)
    if fused is None or any(e.dtype != torch.float32 or not e.is_contiguous() for e in vectors):
        return False
    scaled = None if scale is None else number(scale, vector.device)
    fused.descend(vector, velocity, momentum, numbers, scaled, factor)
    return True


def drawn(kind: Kind, seed: Tensor, size: int, chunk: int = 0) -> Tensor:
    """Draw numbers of the seed from number ``chunk · CHUNK`` on, float32 [size]."""
    if not chunk and (fused := _fused(seed)) is not None:
        out = torch.empty(size, dtype=torch.float32, device=seed.device)
        fused.add(out, kind, seed, None)
        return out
    return philox.chunks(kind, seed, chunk, -(-size // CHUNK))[:size]


def squares(kind: Kind, seed: Tensor, size: int) -> Tensor:
    """``‖u‖²`` of the first ``size`` numbers of the seed, float32 of no dimension."""
    if (fused := _fused(seed)) is not None:
        found: Tensor = fused.squares(kind, seed, size)
        return found
    total = torch.zeros((), device=seed.device)
    for start in range(0, size, philox.AT_ONCE):
        part = drawn(kind, seed, min(philox.AT_ONCE, size - start), start // CHUNK)
        total = total + part.square().sum()
    return total


FEW = 1024
"""Classes up to which Triton's softmax takes a row at once."""


def softmax(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropies, ``∂loss/∂logits`` of each row, and which rows are predicted right.

    Args:
        logits: float32 [points · batch, classes].
        labels: int64 [batch], in [0, classes), the same at all points.

    Returns:
        float32 [rows], float32 [rows, classes] and bool [rows].
    """
    if logits.shape[1] <= FEW and (fused := _fused(logits)) is not None:
        found: tuple[Tensor, Tensor, Tensor] = fused.softmax(logits, labels)
        return found
    every = labels.repeat(len(logits) // len(labels))
    logs = torch.log_softmax(logits, 1)
    slopes = logs.exp().scatter_(1, every.unsqueeze(1), -1.0, reduce="add")
    values = torch.nn.functional.nll_loss(logs, every, reduction="none")
    return values, slopes, logits.argmax(1) == every
