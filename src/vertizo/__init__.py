"""Vertizo: vertical federated learning that never sends a gradient.

The names below are imported when they are first used, so that ``import vertizo`` costs little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vertizo.version import VERSION

_HOMES = {
    "Experiment": "vertizo.experiment",
    "ExperimentConfig": "vertizo.config",
    "Privacy": "vertizo.estimator.privacy",
    "Result": "vertizo.experiment",
    "VerticalClassifier": "vertizo.estimator.classifier",
    "VerticalRegressor": "vertizo.estimator.regressor",
    "VertizoError": "vertizo.errors",
}

__version__ = VERSION
__all__ = [
    "Experiment",
    "ExperimentConfig",
    "Privacy",
    "Result",
    "VerticalClassifier",
    "VerticalRegressor",
    "VertizoError",
    "__version__",
]

if TYPE_CHECKING:
    from vertizo.config import ExperimentConfig
    from vertizo.errors import VertizoError
    from vertizo.estimator.classifier import VerticalClassifier
    from vertizo.estimator.privacy import Privacy
    from vertizo.estimator.regressor import VerticalRegressor
    from vertizo.experiment import Experiment, Result


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'vertizo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
