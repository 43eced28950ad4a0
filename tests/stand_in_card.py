"""A stand-in for a graphics card: a device of PyTorch's, ``card``, made of the processor's memory.

Its tensors have numbers, and are kept apart as a card's are: an operation on them and on the
processor's is an error, NumPy cannot see them, and whatever would wait for a card is counted.
Whoever imports this registers the device, for as long as the process lives.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from tests.cards import on_host_numbers
from torch import Tensor, nn
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from vertizo.config.schema import ExperimentConfig
from vertizo.models.base import Model
from vertizo.models.torch import TorchModel
from vertizo.run.build import placement


class Unseen:
    """What PyTorch asks of the device: that there is none, so that others in the process go on."""

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0

    def current_device(self) -> int:
        return 0

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass


_setup_privateuseone_for_python_backend("card", backend_module=Unseen())
CARD = torch.device("card", 0)
aten = torch.ops.aten
INDEXED = (aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default)
"""Operations that take the processor's indices as well."""
WAITS = (aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default)
"""Operations with a result, or a size of it, that the processor needs."""


class Looks:
    """Counts what would wait for the card."""

    def __init__(self) -> None:
        self.count = 0


LOOKS = Looks()


class OnCard(Tensor):
    """A tensor of the card; its numbers are in ``raw``."""

    raw: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, raw: Tensor) -> OnCard:
        like = raw.shape, raw.stride(), raw.storage_offset()
        made: OnCard = Tensor._make_wrapper_subclass(cls, *like, dtype=raw.dtype, device=CARD)
        made.raw = raw
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return called(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            made = OnCard(copy.deepcopy(self.raw, memo)).requires_grad_(self.requires_grad)
            memo[id(self)] = nn.Parameter(made) if isinstance(self, nn.Parameter) else made
        return memo[id(self)]

    def tolist(self) -> Any:
        LOOKS.count += 1
        return self.raw.tolist()

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, value: OnCard) -> None:
        self.raw = value.raw
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]


def called(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Do on the processor what the card was asked to do."""
    of_call = tree_leaves((args, kwargs))
    mine = {id(leaf.raw): leaf for leaf in of_call if isinstance(leaf, OnCard)}
    wanted = kwargs.get("device")
    to_card = bool(mine) if wanted is None else wanted.type == CARD.type
    if func is aten.copy_.default:
        to_card = isinstance(args[0], OnCard)
    if func in (aten._to_copy.default, aten.copy_.default):
        LOOKS.count += not to_card
    else:
        _check(func, args, kwargs, bool(mine))
    if func is aten._efficientzerotensor.default:
        func = aten.zeros.default  # which has memory
    given = {**kwargs, "pin_memory": False} if "pin_memory" in kwargs else kwargs
    found = func(*tree_map(_inner, args), **tree_map(_inner, dict(given)))
    if torch.Tag.inplace_view in func.tags:
        with no_dispatch():
            func(*args, **kwargs)  # of the tensor without numbers
    assert all(each.raw.shape == each.shape for each in mine.values()), f"{func} resizes a tensor"

    def outer(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return mine[id(leaf)] if id(leaf) in mine else OnCard(leaf)

    return tree_map(outer, found) if to_card else found


def _check(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_mine: bool) -> None:
    """Refuse what a card refuses, and count what it is waited for."""
    indices = tree_leaves(args[1]) if func in INDEXED else []
    others = tree_leaves(([args[0], *args[2:]] if func in INDEXED else args, kwargs))
    for leaf in others:
        if is_mine and isinstance(leaf, Tensor) and not isinstance(leaf, OnCard) and leaf.dim():
            raise RuntimeError(f"{func}: tensors on the card and on the processor")
        if isinstance(leaf, torch.Generator):
            raise RuntimeError(f"{func}: a generator of the processor's for the card")
    masks = any(isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in indices)
    LOOKS.count += masks or func in WAITS


def _inner(leaf: Any) -> Any:
    if isinstance(leaf, torch.device) and leaf.type == CARD.type:
        return torch.device("cpu")
    return leaf.raw if isinstance(leaf, OnCard) else leaf


def _factory(func: Any, *args: Any, **kwargs: Any) -> Any:
    return called(func, args, kwargs)


_ALL = torch.library.Library("_", "IMPL")
_ALL.fallback(_factory, "PrivateUse1")
_SOME = torch.library.Library("aten", "IMPL")
for _kind in (aten.eye, aten.arange, aten.linspace):  # PyTorch's make an empty tensor and resize it
    for _name in _kind.overloads():
        if "out" not in _name:
            _one = getattr(_kind, _name)
            _SOME.impl(_one, partial(_factory, _one), "PrivateUse1")


def _fits(model: Model, size: int, device: torch.device) -> bool:
    return device.type == CARD.type and isinstance(model, TorchModel)


@contextmanager
def with_a_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Looks]:
    """Configurations may name the card, whose seeds have the numbers of the processor."""

    LOOKS.count = 0
    # PyTorch would go back through a graph in a thread of the device's, where Python may not be.
    with monkeypatch.context() as patched, torch.autograd.set_multithreading_enabled(False):
        patched.setattr(placement, "check_device", lambda key, device: None)
        patched.setattr(placement, "_fits", _fits)
        patched.setattr(ExperimentConfig, "digest", "the same noise on every device")
        on_host_numbers(patched)
        yield LOOKS


def placed(config: ExperimentConfig) -> ExperimentConfig:
    """Put a simulation on the card."""
    return config.model_copy(update={"device": CARD.type})
