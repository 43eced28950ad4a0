"""Packages that a test module names at its top, and that are imported when a test uses them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


class Lazy(ModuleType):
    """Stands for the module of that name.

    Unlike `vertizo.core.plugins.lazy_import` it has no private names, which pytest asks for of
    everything in a test module, and it asks the module anew each time: some make their names as
    they are asked.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)
