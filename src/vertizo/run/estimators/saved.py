"""``estimator.json``: what an estimator knows beside its run; JSON, so that nothing is executed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vertizo.core.errors import RunError, UserError
from vertizo.run import checkpoint
from vertizo.run.estimators.privacy import Privacy
from vertizo.run.estimators.settings import plain

NAME = "estimator.json"
VERSION = 1
PRIVACY = "$Privacy"
"""Key that marks an object of that class."""


@dataclass(frozen=True)
class Saved:
    """What `write` kept."""

    parameters: dict[str, Any]
    """Of the constructor."""
    columns: int
    """Of X."""
    names: list[str] | None
    """Theirs, where they had some."""
    classes: NDArray[Any] | None
    """Of a classifier, in the type they came in."""


def write(folder: Path, estimator: Any) -> None:
    """Write the file.

    Raises:
        RunError: it cannot be written, or a parameter is nothing that JSON has.
    """
    classes = getattr(estimator, "classes_", None)
    names = getattr(estimator, "feature_names_in_", None)
    content = {
        "version": VERSION,
        "class": type(estimator).__name__,
        "parameters": {
            name: _packed(name, value) for name, value in estimator.get_params(deep=False).items()
        },
        "columns": estimator.n_features_in_,
        "names": None if names is None else list(names),
        "classes": None
        if classes is None
        else {"type": classes.dtype.str, "values": classes.tolist()},
    }
    path = folder / NAME
    try:
        text = json.dumps(content, indent=1, ensure_ascii=False)
        checkpoint.write_atomically(path, text.encode())
    except TypeError as error:
        raise RunError(f"{path} cannot be written: {error}") from None


def _packed(name: str, value: Any) -> Any:
    if isinstance(value, Privacy):
        return {PRIVACY: asdict(value)}
    if isinstance(value, Path):
        return str(value)
    if name == "random_state" and isinstance(value, np.random.RandomState):
        return None  # the seed that was drawn from it is in config.yaml
    return plain(value)


def read(folder: Path, wanted: type[Any]) -> Saved:
    """Read the file.

    Args:
        folder: of the run.
        wanted: the estimator's class.

    Raises:
        RunError: there is none, or it is damaged or another estimator's.
    """
    path = folder / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version, name = content["version"], content["class"]
        if version == VERSION and name == wanted.__name__:
            return _unpacked(content, wanted._get_param_names())
    except FileNotFoundError:
        what = "; `vertizo predict` uses runs of `vertizo train`" if folder.is_dir() else ""
        raise RunError(f"{folder} holds no saved estimator: there is no {NAME}{what}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError) as error:
        raise RunError(f"{path} is not what an estimator wrote: {error!r}") from None
    if version != VERSION:
        raise RunError(f"{path} has version {version!r}; {VERSION} is the one that is known")
    raise RunError(f"{folder} holds a {name}; load it with {name}.load")


def _unpacked(content: Mapping[str, Any], known: Sequence[str]) -> Saved:
    parameters = dict(content["parameters"])
    unknown = sorted(set(parameters) ^ set(known))
    if unknown:
        raise ValueError(f"parameter {unknown[0]}")
    privacy = parameters.get("privacy")
    if isinstance(privacy, dict) and PRIVACY in privacy:
        parameters["privacy"] = Privacy(**privacy[PRIVACY])
    classes = content["classes"]
    if classes is not None:
        kind = np.dtype(classes["type"])
        if kind.kind not in "biufUO":
            raise ValueError(f"classes of type {kind}")
        classes = np.array(classes["values"], dtype=kind)
    return Saved(parameters, content["columns"], content["names"], classes)
