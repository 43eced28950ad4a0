"""The products by PyTorch: they specify the compiled ones, and stand in for them.

Arrays are float32 and C-contiguous. A layer's weights [outputs, inputs], row by row, and its bias
behind them begin at ``first`` of a flat vector of parameters [d]; its numbers of inputs and outputs
are the last lengths of the arrays given. ``threads`` is how many may share a large product; it
shows in no digit. Shapes that do not fit each other are a ValueError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vertizo.core.plugins.lazy_import import torch

if TYPE_CHECKING:
    from torch import Tensor

Numbers = NDArray[np.float32]
LINE = 64
"""Bytes of a cache line."""
COPIED = 1 << 22
"""Bytes of the largest array that is copied to begin at a cache line."""


def affine(
    out: Numbers, x: Numbers, flat: Numbers, first: int, bias: int, relu: int, threads: int
) -> None:
    """``out = x Wᵀ + b``, then a ReLU if ``relu``; [..., rows, inputs] → [..., rows, outputs]."""
    weight, offset = _layer(flat, first, out, x, bias)
    for at in np.ndindex(out.shape[:-2]):
        _put(out[at], _product(x[at], weight, offset), relu)


def along(
    out: Numbers,
    x: Numbers,
    flat: Numbers,
    direction: Numbers,
    steps: Numbers,
    ids: NDArray[np.int64],
    first: int,
    bias: int,
    relu: int,
    threads: int,
) -> None:
    """`affine` at ``w + step · u`` for every step.

    Where all points have the same inputs, two products do: ``x (W + aU)ᵀ = x Wᵀ + a · x Uᵀ``, which
    is also more precise than shifting W would be.

    ``out`` is [points, rows, outputs], ``steps`` [points]; ``flat`` and ``direction`` are w and u,
    [d or more]. ``x`` is [rows, inputs]; or each point's own, [points, rows, inputs]; or, where
    ``ids`` [rows] are not empty, a table [records, inputs] of which they are rows.
    """
    if ids.size:
        if ids.min() < 0 or ids.max() >= len(x):
            raise ValueError("rows that there are not")
        x = x.take(ids, 0)
    weight, offset = _layer(flat, first, out, x, bias)
    along_weight, along_offset = _layer(direction, first, out, x, bias)
    if x.ndim == out.ndim:
        for point, inputs, step in zip(out, x, steps.tolist(), strict=True):
            moved_weight, moved_offset = torch.add(weight, along_weight, alpha=step), offset
            if offset is not None and along_offset is not None:
                moved_offset = torch.add(offset, along_offset, alpha=step)
            _put(point, _product(inputs, moved_weight, moved_offset), relu)
        return
    plain = _product(x, weight, offset)
    slope = _product(x, along_weight, along_offset)
    for point, step in zip(out, steps.tolist(), strict=True):
        _put(point, torch.add(plain, slope, alpha=step) if step else plain.clone(), relu)


def moved(
    out: Numbers,
    x: Numbers,
    shifts: Numbers,
    flat: Numbers,
    start: int,
    first: int,
    bias: int,
    relu: int,
    threads: int,
) -> None:
    """A layer at inputs [rows, inputs] whose columns from ``start`` on are moved by ``shifts``
    [points, rows, columns], and last at the inputs unmoved: [points + 1, rows, outputs]."""
    common = np.empty(out.shape[1:], np.float32)
    affine(common, x, flat, first, bias, 0, threads)
    raised(out[:-1], shifts, common, flat, first, start, x.shape[-1], relu, threads)
    np.maximum(common, np.float32(0), out=out[-1]) if relu else np.copyto(out[-1], common)


def raised(
    out: Numbers,
    shifts: Numbers,
    common: Numbers,
    flat: Numbers,
    first: int,
    start: int,
    inputs: int,
    relu: int,
    threads: int,
) -> None:
    """`moved` without the last point, from ``common``, the outputs of the unmoved inputs before a
    ReLU [rows, outputs]: ``common + shift W'ᵀ``; ``inputs`` is the layer's number of them."""
    outputs, columns = out.shape[-1], shifts.shape[-1]
    if start < 0 or start + columns > inputs:
        raise ValueError("arrays that do not fit each other")
    weight = _tensor(flat[first : first + inputs * outputs].reshape(outputs, inputs))
    part = weight[:, start : start + columns]
    for point, shift in zip(out, shifts, strict=True):
        _put(point, torch.addmm(_tensor(common), _tensor(shift), part.t()), relu)


def back(
    out: Numbers,
    gradient: Numbers,
    flat: Numbers,
    kept: Numbers,
    first: int,
    masked: int,
    threads: int,
) -> None:
    """The gradient of a layer's inputs [rows, inputs] from that of its outputs, ``g W``.

    Where the inputs come out of a ReLU (``masked``), its gradient is 0 where they, as ``kept``, are
    not positive; else ``kept`` may be any array.
    """
    weight, _ = _layer(flat, first, gradient, out, 0)
    result = torch.mm(_tensor(gradient), weight)
    if masked:
        result[~(_tensor(kept) > 0)] = 0
    _put(out, result, 0)


def outer(
    flat: Numbers, gradient: Numbers, x: Numbers, first: int, bias: int, threads: int
) -> None:
    """Write the gradient of a layer's weights, ``gᵀ x``, and of its bias into their places of
    ``flat``, a gradient of all parameters [d], whose other entries stay as they are."""
    _layer(flat, first, gradient, x, bias)  # it fits
    outputs, inputs = gradient.shape[-1], x.shape[-1]
    stop = first + outputs * inputs
    flat[first:stop] = torch.mm(_tensor(gradient).t(), _tensor(x)).flatten().numpy()
    if bias:
        flat[stop : stop + outputs] = np.add.reduce(gradient, 0)


def lanes(most: int = 16) -> int:
    """Limit the numbers that one instruction works on and return how many it does; here 0."""
    return 0


def _layer(
    flat: Numbers, first: int, out: Numbers, x: Numbers, bias: int
) -> tuple[Tensor, Tensor | None]:
    """W [outputs, inputs] and b [outputs] from a flat vector, as `_tensor` gives them."""
    outputs, inputs = out.shape[-1], x.shape[-1]
    stop = first + outputs * inputs
    if flat.ndim != 1 or first < 0 or stop + outputs * bool(bias) > flat.size:
        raise ValueError("arrays that do not fit each other")
    weight = _tensor(flat[first:stop].reshape(outputs, inputs))
    return weight, _tensor(flat[stop : stop + outputs]) if bias else None


def _product(x: Numbers, weight: Tensor, bias: Tensor | None) -> Tensor:
    inputs = _tensor(x)
    if bias is None:
        return torch.mm(inputs, weight.t())
    return torch.addmm(bias, inputs, weight.t())


def _put(out: Numbers, result: Tensor, relu: int) -> None:
    if result.shape != out.shape:
        raise ValueError("arrays that do not fit each other")
    out[...] = (result.relu_() if relu else result).numpy()


def _tensor(array: Numbers) -> Tensor:
    """The array as a tensor; a small one begins at a cache line, as last digits depend on that."""
    tensor = torch.from_numpy(array)
    if tensor.data_ptr() % LINE == 0 or array.nbytes > COPIED:
        return tensor
    return tensor.clone()
