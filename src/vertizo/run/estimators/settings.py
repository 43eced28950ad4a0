"""Settings: a configuration made from an estimator's parameters."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vertizo.config.auto import AUTO
from vertizo.core.errors import ConfigError
from vertizo.core.options import Options
from vertizo.core.text.suggestions import nearest
from vertizo.methods.choice import METHODS
from vertizo.privacy.options import PrivacyConfig
from vertizo.run.estimators.privacy import Privacy
from vertizo.run.experiment import Experiment
from vertizo.run.loop.ledger_session import budget_for, create

Tree = dict[str, Any]
MOST_THREADS = 256
"""The largest value of a configuration's ``threads``."""

KEYS = {
    "epochs": "epochs",
    "batch_size": "batch_size",
    "embedding_dim": "client.model.outputs",
    "client_hidden": "client.model.hidden",
    "server_hidden": "server.model.hidden",
    "client_learning_rate": "client.optimizer.learning_rate",
    "server_learning_rate": "server.optimizer.learning_rate",
    "validation": "data.validation",
    "label_range": "data.label_range",
    "final_head": "server.final_head",
    "ledger": "privacy.ledger",
}
"""Parameter of an estimator → key of the configuration."""


def plain(value: Any) -> Any:
    """Turn NumPy's numbers and arrays, tuples and options into numbers, lists and dicts."""
    if isinstance(value, Options):
        return {
            "name": getattr(value, "name", ""),
            **value.model_dump(mode="json", exclude_unset=True),
        }
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) or (hasattr(value, "tolist") and np.ndim(value) == 1):
        return [plain(item) for item in value]
    return value


SECTIONS = ("method", "privacy")
"""Parameters with parameters of their own, as ``method__smoothing``; None takes a default."""


def options(section: str, value: Any) -> dict[str, Any]:
    """A section's options as given, and None for its other options, if they are known.

    >>> options("method", "split")
    {'name': 'split'}
    """
    given = _given(value)
    if section == "method":
        name = given.get("name", "dpzv")
        known = METHODS[name].model_fields if isinstance(name, str) and name in METHODS else {}
    else:
        known = given if isinstance(value, Privacy) else PrivacyConfig.model_fields
    return {**dict.fromkeys(known), **given}


def changed(section: str, value: Any, changes: Mapping[str, Any]) -> Any:
    """A section with changed options; None removes an option.

    Options for the method auto make it DPZV, as do options without a method's name in a file.

    Raises:
        ConfigError: the section has no such option, in scikit-learn's words.
    """
    given = _given(value)
    if section == "method" and given.get("name") == AUTO:
        asked = [name for name, each in changes.items() if each not in (None, AUTO)]
        if not asked:
            return value
        given = {}
        changes = {name: changes[name] for name in asked}
    wanted = {name: each for name, each in {**given, **changes}.items() if each is not None}
    known = options(section, value)
    if section == "method":
        known = METHODS.find(wanted.get("name", "dpzv"), "method.name").model_fields
    for name in (*wanted, *changes):
        if name not in known:
            raise ConfigError(
                f"Invalid parameter {f'{section}__{name}'!r}{nearest(name, [*known]) or '.'} Valid "
                f"parameters are: {[f'{section}__{each}' for each in known]!r}."
            )
    if isinstance(value, Privacy):
        return replace(value, **changes)
    return value if wanted == given else wanted


def _given(value: Any) -> dict[str, Any]:
    """A section, given as a name, a mapping or an object, as a dict of its options."""
    value = vars(value) if isinstance(value, Privacy) else plain(value)
    value = {"name": value} if isinstance(value, str) else value
    return dict(value) if isinstance(value, Mapping) else {}


def tree_of(parameters: Mapping[str, Any], config: Any, own: Mapping[str, Any]) -> Tree:
    """Nest all given settings as a configuration file does; the rest keeps its defaults.

    ``parameters`` are the estimator's by name, ``config`` has further keys, nested as in a file,
    and ``own`` the settings that the estimator itself decides, by dotted key.

    Raises:
        ConfigError: ``config`` is no mapping, or has what a parameter says as well.
    """
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"config is {config!r}; it must map keys of a configuration to values, such as "
            "{'server': {'optimizer': {'momentum': 0.5}}}"
        )
    tree: Tree = deepcopy(plain(config or {}))
    for name, key in KEYS.items():
        value = plain(parameters.get(name))
        value = str(value) if isinstance(value, Path) else value
        if value is not None:
            _put(tree, key, value, f"the parameter {name}")
    _choose_method(tree, plain(parameters["method"]))
    privacy = parameters["privacy"]
    if isinstance(privacy, Privacy):
        privacy = privacy.section()
    elif privacy is not None and not isinstance(privacy, Mapping):
        raise ConfigError(f"privacy is {privacy!r}; use vertizo.Privacy(epsilon=1.0)")
    for name, value in (privacy or {}).items():
        _put(tree, f"privacy.{name}", plain(value), f"the parameter privacy ({name})")
    for key, value in own.items():
        _put(tree, key, value, "the estimator itself")
    return tree


def _choose_method(tree: Tree, method: Any) -> None:
    """Put the parameter ``method``, a name or a mapping with options, into the tree."""
    if isinstance(method, str):
        method = {"name": method}
    if not isinstance(method, Mapping):
        raise ConfigError(f"method is {method!r}; use a name, such as 'dpzv'")
    for name, value in method.items():
        there = tree.get("method")
        if name == "name" and isinstance(there, dict) and there.get("name", value) == value:
            there["name"] = value
        else:
            _put(tree, f"method.{name}", value, "the parameter method")


def _put(tree: Tree, key: str, value: Any, whose: str) -> None:
    """Set a dotted key that is not there yet."""
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"config: {section} is {tree!r}; keys and values were expected there")
    if last in tree:
        raise ConfigError(f"config has {key}, which {whose} says as well; keep one of them")
    tree[last] = value


def threads(n_jobs: Any) -> Tree:
    """The key ``threads`` for scikit-learn's n_jobs: -1 is every core, None the default."""
    if n_jobs is None:
        return {}
    from joblib import effective_n_jobs

    if isinstance(n_jobs, bool) or not isinstance(n_jobs, (int, np.integer)) or n_jobs == 0:
        raise ConfigError(f"n_jobs is {n_jobs!r}; use a number of threads, or -1 for every core")
    return {"threads": min(effective_n_jobs(int(n_jobs)), MOST_THREADS)}


def open_ledger(experiment: Experiment, fits: Any) -> None:
    """Make the file that ``privacy.ledger`` names, with a budget for so many fits like this one.

    An existing file stays. Errors as of ``vertizo privacy ledger create``.
    """
    path = experiment.config.privacy.ledger
    if isinstance(fits, bool) or not isinstance(fits, (int, np.integer)) or fits < 1:
        raise ConfigError(f"ledger_fits is {fits!r}; it must be a whole number from 1")
    if path is not None and not path.exists():
        data, config = experiment.data(), experiment.config
        create(path, config, data, lambda: budget_for(config, data, int(fits)))


def columns_of(parties: Any, names: Sequence[str]) -> dict[str, list[str]]:
    """The columns that each party holds, by name; without parties, those of two halves.

    >>> columns_of(None, ["x0", "x1", "x2"])
    {'party0': ['x0', 'x1'], 'party1': ['x2']}
    >>> columns_of({"bank": [0, 2], "shop": ["x1"]}, ["x0", "x1", "x2"])
    {'bank': ['x0', 'x2'], 'shop': ['x1']}

    Raises:
        ConfigError: an unknown column, or one that two parties hold.
    """
    if parties is None:
        halves = np.array_split(np.arange(len(names)), min(2, len(names)))
        return {f"party{m}": [names[i] for i in half] for m, half in enumerate(halves)}
    if not isinstance(parties, Mapping) or not parties:
        raise ConfigError(
            f"parties is {reprlib.repr(parties)}; it must map each party to its columns, such as "
            "{'bank': ['age', 'income'], 'shop': ['visits']}"
        )
    held: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for party, wanted in parties.items():
        if not isinstance(party, str):
            raise ConfigError(f"parties names a party {party!r}; use text")
        held[party] = named(f"parties gives {party!r}", wanted, names)
        if not held[party]:
            raise ConfigError(f"parties gives {party!r} no columns")
        for column in held[party]:
            if column in owner:
                other = owner[column]
                whom = f"{party!r} twice" if other == party else f"both {other!r} and {party!r}"
                raise ConfigError(f"parties gives the column {column!r} to {whom}")
            owner[column] = party
    return held


def named(what: str, wanted: Any, names: Sequence[str]) -> list[str]:
    """The names of columns that were given by name or by position from 0.

    Raises:
        ConfigError: an unknown column; ``what`` begins the message.
    """
    if isinstance(wanted, (str, Mapping)) or not hasattr(wanted, "__iter__"):
        shown = reprlib.repr(wanted)
        raise ConfigError(f"{what} {shown}; use a list of columns, as ['age', 'income']")
    result = []
    for column in plain(list(wanted)):
        if isinstance(column, bool) or not isinstance(column, (str, int)):
            raise ConfigError(f"{what} the column {column!r}; use names, or positions from 0")
        if isinstance(column, str) and column not in names:
            hint = nearest(column, names) or f"; it has {', '.join(names[:20])}"
            raise ConfigError(f"{what} the column {column!r}, which X does not have{hint}")
        if isinstance(column, int) and not 0 <= column < len(names):
            raise ConfigError(
                f"{what} the column at position {column}; X has positions 0 to {len(names) - 1}"
            )
        result.append(column if isinstance(column, str) else names[column])
    return result


def check_holder(label_holder: Any, parties: Sequence[str]) -> None:
    """Raise ConfigError for a label holder that is not among the parties, or the only one."""
    if label_holder is None:
        return
    if label_holder not in parties:
        hint = nearest(str(label_holder), parties) or f"; they are {', '.join(map(repr, parties))}"
        raise ConfigError(f"label_holder is {label_holder!r}, which is none of the parties{hint}")
    if len(parties) == 1:
        raise ConfigError(
            f"label_holder is {label_holder!r}, the only party, which leaves no client; "
            "give the columns to more parties"
        )
