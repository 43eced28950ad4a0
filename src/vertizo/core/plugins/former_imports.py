"""Import paths of the previous version: they still work, with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

FORMER = {
    "vertizo.studies": "vertizo.lab",
    "vertizo.attacks.audit": "vertizo.lab.audit",
    "vertizo.attacks": "vertizo.lab.attacks",
    "vertizo.network.agent": "vertizo.ops.agent",
    "vertizo.network.scoring": "vertizo.ops.scoring",
    "vertizo.network.flare": "vertizo.ops.flare",
    "vertizo.run.callbacks": "vertizo.run.loop.callbacks",
}


class _Alias:
    """A loader that gives the module of a new name when a former name is imported.

    It derives from no class of `importlib.abc`, whose import takes a hundredth of a second.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # which the import has replaced by that of the former name


class _Finder:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for former, new in FORMER.items() if fullname.startswith("vertizo.") else ():
            if fullname == former or fullname.startswith(f"{former}."):
                name = new + fullname.removeprefix(former)
                warnings.warn(f"{fullname} is {name} now", DeprecationWarning, stacklevel=2)
                loader: Any = _Alias(name)
                return spec_from_loader(fullname, loader)
        return None


def install() -> None:
    """Make former import paths work from now on."""
    sys.meta_path.insert(0, _Finder())  # or else what is below one is found there once more
