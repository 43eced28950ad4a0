"""Saving an estimator beside its run, as ``estimator.json``; reading JSON executes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vertizo.core import digests
from vertizo.core.errors import RunError, UserError
from vertizo.core.text import strict_json
from vertizo.run.estimators.privacy import Privacy
from vertizo.run.estimators.settings import plain
from vertizo.run.results import checkpoint

NAME = "estimator.json"
VERSION = 1
PRIVACY = "$Privacy"
"""Key that marks an object of the class `Privacy`."""
PAIRS = "$pairs"
"""Key that marks a mapping whose keys need not be texts."""


class Saved(NamedTuple):
    """A saved estimator: the constructor's parameters, and attributes that fit sets."""

    parameters: dict[str, Any]
    fitted: dict[str, Any]


def text_of(estimator: Any) -> str:
    """The content of ``estimator.json``; RunError if JSON cannot hold a parameter."""
    classes = getattr(estimator, "classes_", None)
    names = getattr(estimator, "feature_names_in_", None)
    given = estimator.get_params(deep=False)
    kinds = None if classes is None else {"type": classes.dtype.str, "values": classes.tolist()}
    content = {
        "version": VERSION,
        "class": type(estimator).__name__,
        "parameters": {name: _packed(name, value) for name, value in given.items()},
        "columns": estimator.n_features_in_,
        "names": None if names is None else list(names),
        "classes": kinds,
    }
    try:
        return strict_json.text(content, indent=1)
    except TypeError as error:
        raise RunError(f"the estimator cannot be saved: {error}") from None


def write(folder: Path, text: str) -> None:
    """Write ``estimator.json`` with that `text_of` an estimator, or raise RunError."""
    checkpoint.keep(folder / NAME, text.encode())


def _packed(name: str, value: Any) -> Any:
    if isinstance(value, Privacy):
        return {PRIVACY: asdict(value)}
    if isinstance(value, Path):
        return str(value)
    if name == "class_weight" and isinstance(value, Mapping):
        return {PAIRS: [[plain(key), plain(weight)] for key, weight in value.items()]}
    if name == "random_state" and isinstance(value, np.random.RandomState):
        return None  # the seed that was drawn from it is in config.yaml
    return plain(value)


def read(folder: Path, wanted: type[Any]) -> Saved:
    """Read the file; RunError if there is none, or it is damaged or another estimator's."""
    path = folder / NAME
    try:
        content = json.loads(digests.content(path))
        version, name = content["version"], content["class"]
        if version == VERSION and name == wanted.__name__:
            return _unpacked(content, set(wanted._get_param_names()))
    except FileNotFoundError:
        what = "; `vertizo predict` uses runs of `vertizo train`" if folder.is_dir() else ""
        raise RunError(f"{folder} holds no saved estimator: there is no {NAME}{what}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError) as error:
        raise RunError(f"{path} is not what an estimator wrote: {error!r}") from None
    if version != VERSION:
        raise RunError(f"{path} has version {version!r}; {VERSION} is the one that is known")
    raise RunError(f"{folder} holds a {name}; load it with {name}.load")


def _unpacked(content: Mapping[str, Any], known: set[str]) -> Saved:
    parameters = dict(content["parameters"])
    if unknown := sorted(set(parameters) - known):
        raise ValueError(f"parameter {unknown[0]}")
    privacy = parameters.get("privacy")
    if isinstance(privacy, dict) and PRIVACY in privacy:
        parameters["privacy"] = Privacy(**privacy[PRIVACY])
    weight = parameters.get("class_weight")
    if isinstance(weight, dict) and PAIRS in weight:
        parameters["class_weight"] = dict(weight[PAIRS])
    fitted = {"n_features_in_": content["columns"]}
    if (names := content["names"]) is not None:
        fitted["feature_names_in_"] = np.asarray(names, dtype=object)
    if (classes := content["classes"]) is not None:
        kind = np.dtype(classes["type"])
        if kind.kind not in "biufUO":
            raise ValueError(f"classes of type {kind}")
        fitted["classes_"] = np.array(classes["values"], dtype=kind)
    return Saved(parameters, fitted)
