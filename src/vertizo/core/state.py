"""State of objects for checkpoints: a class declares its fields; writing and reading follow.

A class names its fields once::

    class Sgd(Stateful):
        STATE = ("_velocity", "_steps")

    sgd.state()          # {"velocity": …, "steps": 3}
    other.load(state)    # KeyError if a field is missing, ValueError if one is unknown
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, SupportsBytes, runtime_checkable

import numpy as np

from vertizo.core.plugins.lazy_import import torch

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class HasState(Protocol):
    """An object that gives its state and takes it back, by `Stateful` or by methods of its own."""

    def state(self) -> Any:
        """The state that a checkpoint must hold; tensors are live, not copies."""

    def load(self, state: Any, /) -> None:
        """Go on from a state."""


class Stateful:
    """Base of objects whose state is declared in ``STATE``.

    A field is an attribute, or a property with a setter, or a dotted path to one. Its key in the
    state is the last name of the path, without leading underscores. Its value may be:

    * an object with `state` and `load`, or a list of them: loaded in place;
    * a dataclass, or a list of them: written as its fields, and made anew;
    * a tensor or array: not copied when written, and filled in place if its shape is the same;
    * a frame of bytes, a set, a list, a dictionary, a plain value, None.
    """

    STATE: ClassVar[tuple[str, ...]] = ()
    """Fields that this class adds to those of its base classes, in the order of loading."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        keys = [key for key, _ in _fields(cls)]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise TypeError(f"STATE of {cls.__name__} has {', '.join(sorted(twice))} twice")

    def state(self) -> dict[str, Any]:
        """The state that a checkpoint must hold; tensors are live, not copies."""
        return {key: _written(_at(self, path)) for key, path in _fields(type(self))}

    def load(self, state: Any) -> None:
        """Go on from a state; KeyError, TypeError or ValueError if it is that of something else."""
        declared = dict(_fields(type(self)))
        if not isinstance(state, Mapping):
            raise TypeError(f"no state of a {type(self).__name__}")
        if unknown := state.keys() - declared.keys():
            raise ValueError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        for key, path in declared.items():
            owner, _, name = path.rpartition(".")
            whose = _at(self, owner) if owner else self
            now = getattr(whose, name)
            if (value := _read(now, state[key])) is not now:
                setattr(whose, name, value)
        self.restored()

    def restored(self) -> None:
        """Recompute what depends on the fields, once all are read; does nothing by default."""


def _fields(kind: type) -> Iterator[tuple[str, str]]:
    """Key and path of each declared field, base classes' first."""
    for base in reversed(kind.__mro__):
        for path in vars(base).get("STATE", ()):
            yield path.rpartition(".")[2].lstrip("_"), path


def _at(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = getattr(owner, name)
    return owner


def _written(value: Any) -> Any:
    """A field's value as tensors, bytes and plain values."""
    if isinstance(value, HasState):
        return value.state()
    if is_dataclass(value):
        return {field.name: _written(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, SupportsBytes | memoryview):
        return bytes(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_written(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _read(now: Any, value: Any) -> Any:
    """The new value of a field whose value is ``now``; ``now`` itself where loaded in place."""
    if isinstance(now, HasState):
        now.load(value)
        return now
    if value is None:
        return None
    if is_dataclass(now):
        return type(now)(**value)  # type: ignore[misc]  # which is no class
    if isinstance(now, np.ndarray):
        _fill(torch.from_numpy(now), value)
        return now
    if isinstance(now, torch.Tensor):
        return _fill(now, value)
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(now, list | tuple) and any(map(_has_fields, now)):
        return type(now)(_read(*pair) for pair in zip(now, value, strict=True))
    return type(now)(value) if isinstance(now, set | list | tuple | dict) else value


def _fill(numbers: Tensor, value: Any) -> Tensor:
    """Copy numbers of the same shape in place: none are repeated to fit."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"a {type(value).__name__} in place of numbers")
    if value.shape != numbers.shape:
        raise ValueError(f"numbers of shape {[*value.shape]}, not {[*numbers.shape]}")
    return numbers.copy_(value)


def _has_fields(value: Any) -> bool:
    return isinstance(value, HasState) or is_dataclass(value)
