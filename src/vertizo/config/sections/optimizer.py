"""The ``optimizer`` section of a client and of the server, with the regulariser of parameters."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag, field_validator
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

Share = Annotated[float, Field(gt=0, lt=1)]


class OptimizerConfig(Options):
    """Descent of a client, or of the server."""

    algorithm: Literal["sgd", "adam"] = "sgd"
    """sgd: stochastic gradient descent. adam: Adam with decoupled weight decay (AdamW). Under noise
    both move by released numbers alone, so that neither costs any privacy."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Step size. Default: by the method and the number of parameters (docs/defaults.md); 0.001 for
    adam."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the last step that is added to the next; 0 is plain gradient descent. Adam's β₁."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Adam's β₂: share of the mean square so far in the next one."""
    weight_decay: float = Field(default=0.0, ge=0)
    """λ of the regulariser λ g(w), by default λ/2 ‖w‖²: its gradient λ w is added to the loss's; of
    adam, each step takes η times it off w instead. It reads no data and costs no privacy."""
    regularizer: RegularizerConfig = L2Config()
    """g, of which weight_decay is λ: of this party's own parameters. In a zeroth-order party a
    function of your own is estimated along the loss's directions."""
    decay: Literal["none", "linear", "cosine", "step"] | None = None
    """How the rate falls over the party's own steps of the run. linear: to 0 in a straight line.
    cosine: to 0 along half a cosine. step: by `factor` at each of the `milestones`. Default: linear
    for a default learning rate, none for one that you set. If `rounds` ends asynchronous rounds, a
    client's number of steps is estimated from its pace."""
    milestones: tuple[Share, ...] = (0.5, 0.75)
    """Where decay step lowers the rate, as shares of the run, ascending."""
    factor: Share = 0.1
    """What decay step multiplies the rate by."""

    @property
    def schedule(self) -> Literal["none", "linear", "cosine", "step"]:
        """How the learning rate falls: ``decay``, or its default."""
        return self.decay or ("linear" if self.learning_rate is None else "none")

    @field_validator("milestones")
    @classmethod
    def _ascending(cls, given: tuple[float, ...]) -> tuple[float, ...]:
        if not given or list(given) != sorted(set(given)):
            raise ValueError(
                f"optimizer.milestones is {list(given)}; give ascending shares of the run, such as "
                "[0.5, 0.75]"
            )
        return given
