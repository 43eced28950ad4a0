"""Lazy imports: a module is imported when something of it is first used.

The schema, its checks and ``--help`` need the classes of methods and codecs, but no arithmetic;
PyTorch alone takes a second to import. Polars is needed where there are tables.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any


class Deferred(ModuleType):
    """A stand-in for a module, which it imports and takes all names of at the first use."""

    def __getattr__(self, name: str) -> Any:
        module = import_module(self.__name__)
        self.__dict__.update(vars(module))
        self.__class__ = ModuleType  # type: ignore[assignment] # from here on a look-up costs what it costs of any module
        return getattr(module, name)


if TYPE_CHECKING:
    import polars as polars
    import torch as torch
else:
    polars, torch = Deferred("polars"), Deferred("torch")
