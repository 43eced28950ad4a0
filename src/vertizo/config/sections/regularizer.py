"""The regulariser of a party's own parameters: the ``regularizer`` of an optimiser."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Tag
from pydantic_core import PydanticCustomError

from vertizo.core.options import Options, chosen_by


def importable(given: Any) -> Any:
    """Replace a function by its import path; any other value is returned as it is.

    Raises:
        PydanticCustomError: another process could not import the function.
    """
    if not callable(given) or isinstance(given, type | Options):
        return given
    name = str(getattr(given, "__qualname__", ""))
    module = str(getattr(given, "__module__", ""))
    there = sys.modules.get(module)
    if there is None or module == "__main__" or getattr(there, name, None) is not given:
        raise PydanticCustomError(
            "not_importable",
            "a function at the top of an imported module, or file.py:function, which other "
            "processes find as well",
        )
    own = module.startswith("vertizo_user_")  # of a file that a configuration named
    return f"{there.__file__ if own else module}:{name}"


class L2Config(Options):
    """``½ ‖w‖²``."""

    name: Literal["l2"] = "l2"


class L1Config(Options):
    """``‖w‖₁``, by its subgradient sign(w)."""

    name: Literal["l1"] = "l1"


class NonConvexConfig(Options):
    """``½ Σ_j w_j²/(1 + w_j²)``, smooth and bounded."""

    name: Literal["non-convex"] = "non-convex"


class GivenConfig(Options):
    """A function of your own of the parameters, float64 [d], to one number."""

    name: Literal["function"] = "function"
    path: Annotated[str, BeforeValidator(importable)]
    """``package.module:function`` or ``file.py:function``; in Python, also a function at the top of
    a module. Where the loss is differentiated, PyTorch must be able to differentiate it."""


def _named(given: Any) -> Any:
    """Expand a name or a Python function to the section that it stands for."""
    if isinstance(given, str):
        return {"name": given}
    if callable(given) and not isinstance(given, type | Options):
        return {"name": "function", "path": given}
    return given


RegularizerConfig = Annotated[
    Annotated[L2Config, Tag("l2")]
    | Annotated[L1Config, Tag("l1")]
    | Annotated[NonConvexConfig, Tag("non-convex")]
    | Annotated[GivenConfig, Tag("function")],
    chosen_by("name", "l2"),
    BeforeValidator(_named),
]
REGULARIZERS = ("l2", "l1", "non-convex", "function")
"""Names of the regularisers."""
