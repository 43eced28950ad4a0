"""Room in memory for a model's parameters, asked for before they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import index
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from vertizo.core.memory import available

SHARE = 0.5
"""Of the free memory, what a model's parameters may take; training makes a second copy of them."""
BESIDE = 2**12
"""Bytes for a layer's tensor beside its numbers: its Python objects take some 2,000."""


@contextmanager
def room_for_parameters() -> Iterator[None]:
    """MemoryError for a module made inside that finds no room, before the system ends the process.

    What layers make by `torch.empty`, as all of PyTorch's do, is counted before it is made.
    """
    free = available()
    if free is None:
        yield
        return
    with _Counted(SHARE * free):
        yield


class _Counted(TorchFunctionMode):
    def __init__(self, most: float) -> None:
        super().__init__()
        self.most, self.taken = most, 0.0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty:
            self._count(kwargs.get("size", args), kwargs.get("dtype"), kwargs.get("device"))
        return func(*args, **kwargs)

    def _count(self, size: Any, dtype: torch.dtype | None, device: Any) -> None:
        if device is not None and torch.device(device).type != "cpu":
            return
        sides = size[0] if size and isinstance(size[0], tuple | list) else size
        try:
            numbers = math.prod(map(index, sides))
        except TypeError:  # no size, as PyTorch is about to say
            return
        self.taken += numbers * (dtype or torch.get_default_dtype()).itemsize + BESIDE
        if self.taken > self.most:
            raise MemoryError(
                f"its parameters take {self.taken / 1e9:,.1f} GB or more, and there is room for "
                f"{self.most / 1e9:,.1f} GB of them here; make its layers smaller"
            )
