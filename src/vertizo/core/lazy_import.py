"""Modules that are imported when something of them is first used.

The schema, its checks and ``--help`` need the classes of methods and codecs, but no arithmetic;
PyTorch alone takes a second to import.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any


class Deferred(ModuleType):
    """Stands for the module of that name until its first use, and holds all that it holds then."""

    def __getattr__(self, name: str) -> Any:
        module = import_module(self.__name__)
        self.__dict__.update(vars(module))
        self.__class__ = ModuleType  # type: ignore[assignment] # from here on a look-up costs what it costs of any module
        return getattr(module, name)


if TYPE_CHECKING:
    import torch as torch
else:
    torch = Deferred("torch")
