"""CUDA graphs without a card: operations on the processor's tensors, recorded and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import torch
from tests.cards import as_on_a_card
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from vertizo.core.arrays import graphs

Result = TypeVar("Result")


def tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor's storage, as bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def alias(leaf: Any) -> Any:
    """The same memory in the same shape, of which autograd knows nothing."""
    if not isinstance(leaf, Tensor):
        return leaf
    place = leaf.untyped_storage(), leaf.storage_offset(), leaf.size(), leaf.stride()
    return torch.empty(0, dtype=leaf.dtype).set_(*place)


class Recorder(TorchDispatchMode):
    """Records operations; what they changed is put back at the end, as if none had been made.

    As on a card, a replay reads what is in memory then; and where graphs share their memory, it
    overwrites what all of them computed before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self.made: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        assert "lift_fresh" not in func.__name__, "torch.tensor copies to a card, and waits"
        given = {storage(tensor): tensor for tensor in tensors_of((args, kwargs))}
        if func._schema.is_mutable:
            for key, tensor in given.items():
                if key not in self.made and key not in self._before:
                    self._before[key] = whole(tensor), whole(tensor).clone()
        found = func(*args, **kwargs)
        for tensor in tensors_of(found):
            if storage(tensor) not in given:
                self.made[storage(tensor)] = tensor
        takes_memory = "empty" in func.__name__
        if not takes_memory and torch.Tag.inplace_view not in func.tags:  # these two happen once
            self._calls.append((func, *tree_map(alias, (args, kwargs, found))))
        return found

    def undo(self) -> None:
        for place, before in self._before.values():
            place.copy_(before)
        self._before.clear()

    def replay(self) -> None:
        for func, args, kwargs, found in self._calls:
            again = func(*args, **kwargs)
            for place, new in zip(tensors_of(found), tensors_of(again), strict=True):
                if storage(place) != storage(new):
                    place.copy_(new)


class Graphs:
    """What stands in for CUDA graphs, and counts them."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0
        self._shared: list[Recorder] = []

    def capture(
        self, work: Callable[[], Result], *, apart: bool
    ) -> tuple[Result, Callable[[], None]]:
        recorder = Recorder()
        try:
            with recorder:
                result = work()
        finally:
            recorder.undo()
        self.captured += 1
        if not apart:
            self._shared.append(recorder)

        def replay() -> None:
            self.replayed += 1
            for other in self._shared:
                for tensor in other.made.values():
                    spoil(tensor)
            recorder.replay()

        return result, replay


def spoil(tensor: Tensor) -> None:
    alias(tensor).fill_(float("nan") if tensor.is_floating_point() else 1)


@contextmanager
def as_with_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Graphs]:
    """The processor's tensors are taken for a card's that makes graphs."""
    stand_in = Graphs()
    with as_on_a_card(monkeypatch), monkeypatch.context() as patched:
        patched.setattr(graphs, "are_available", lambda device: True)
        patched.setattr(graphs, "capture", stand_in.capture)
        yield stand_in
