"""Loading of objects by import path, from installed packages or from a Python file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from vertizo.core.errors import ConfigError


def object_at(path: str) -> Any:
    """Import the object that this package, or a wing, names as ``module:name``."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def load_object(key: str, path: str) -> Any:
    """Import the object that ``package.module:name`` or ``file.py:name`` names.

    Raises:
        ConfigError: there is none, or its module fails; ``key`` is the configuration's key.
    """
    where, separator, name = path.rpartition(":")
    if not separator or not where or not name:
        raise ConfigError(f"{key} is {path!r}; write package.module:name or file.py:name")
    try:
        if where.endswith(".py"):
            file = Path(where)
            if not file.is_file():
                raise ConfigError(f"{key} is {path!r}: there is no file {file}")
            name_ = f"vertizo_user_{file.stem}"  # hides no installed module
            spec = importlib.util.spec_from_file_location(name_, file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module  # which dataclasses look themselves up in
            spec.loader.exec_module(module)
        else:
            if (here := str(Path.cwd())) not in sys.path:  # which an installed command lacks
                sys.path.insert(0, here)
            module = importlib.import_module(where)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"{key} is {path!r}: importing {where} failed: {type(error).__name__}: {reason}"
        ) from None
    if not hasattr(module, name):
        raise ConfigError(f"{key} is {path!r}: {where} has no {name!r}")
    return getattr(module, name)
