"""Packages that a test module names at its top, and that are imported when a test uses them."""

from __future__ import annotations

from typing import Any

from vertizo.core.deferred import Deferred


class Lazy(Deferred):
    """`Deferred` without private names, which pytest asks for of everything in a test module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return super().__getattr__(name)
