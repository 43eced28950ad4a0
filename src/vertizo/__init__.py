"""Vertizo: vertical federated learning by zeroth-order messages, with privacy guarantees that hold.

The names below are imported when they are first used, so that ``import vertizo`` costs little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vertizo.core.plugins import former_imports
from vertizo.core.version import VERSION

_HOMES = {
    "Experiment": "vertizo.run.experiment",
    "ExperimentConfig": "vertizo.config.schema",
    "Findings": "vertizo.lab.findings",
    "Privacy": "vertizo.run.estimators.privacy",
    "Result": "vertizo.run.experiment",
    "VerticalClassifier": "vertizo.run.estimators.vertical",
    "VerticalRegressor": "vertizo.run.estimators.vertical",
    "VertizoError": "vertizo.core.errors",
    "compare": "vertizo.lab.notebook",
    "plan": "vertizo.lab.notebook",
    "worth": "vertizo.lab.notebook",
}

__version__ = VERSION
former_imports.install()
__all__ = [
    "Experiment",
    "ExperimentConfig",
    "Findings",
    "Privacy",
    "Result",
    "VerticalClassifier",
    "VerticalRegressor",
    "VertizoError",
    "__version__",
    "compare",
    "plan",
    "worth",
]

if TYPE_CHECKING:
    from vertizo.config.schema import ExperimentConfig
    from vertizo.core.errors import VertizoError
    from vertizo.lab.findings import Findings
    from vertizo.lab.notebook import compare, plan, worth
    from vertizo.run.estimators.privacy import Privacy
    from vertizo.run.estimators.vertical import VerticalClassifier, VerticalRegressor
    from vertizo.run.experiment import Experiment, Result


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'vertizo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
