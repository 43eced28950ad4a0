"""``method: auto``: the candidate configurations that are tried, and the one used under an ε.

Everything here follows from public facts: the kind of data and the number of records. Which of the
`candidates` predicts best is found by trials (`vertizo.run.auto`).

=============  =====================================================================================
network        split learning; each party of a table has a `TabularNet`, stopped on validation
linear         split learning of linear parts, which are better for few records
vafl, split    both first-order methods with their defaults, for data other than tables
dpzv           the zeroth-order default, for all kinds of data
=============  =====================================================================================

A key that was given stays in every candidate; a candidate that it does not fit is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vertizo.config.method_defaults import TABLES
from vertizo.config.tree import Tree, merge
from vertizo.core.errors import ConfigError
from vertizo.core.names import AUTO as AUTO

FEW = 1000
"""Records for training and validation below which both are too few: folds choose a candidate, and
it trains on all of them for a number of epochs that is known beforehand."""
ADAM: Tree = {"algorithm": "adam", "learning_rate": 2e-3, "weight_decay": 1e-2}
ROUNDS = 600
"""Batches of 32 after which linear parts have converged."""
LARGE = 5000
"""Records from which on a batch has 256."""


def is_open(tree: Mapping[str, Any]) -> bool:
    """Whether a configuration leaves the method to be chosen.

    ConfigError where it has options of a method that is not known yet, or noise without an ε.
    """
    method = tree.get("method")
    if method != AUTO and not (isinstance(method, Mapping) and method.get("name") == AUTO):
        return False
    keys = [key for key in method if key != "name"] if isinstance(method, Mapping) else []
    if keys:
        raise ConfigError(
            f"method.{keys[0]} is set but method.name is 'auto', which chooses the method; name "
            "the method that it is for"
        )
    privacy = tree.get("privacy")
    if privacy and (not isinstance(privacy, Mapping) or privacy.get("epsilon") is None):
        raise ConfigError(
            "privacy is set without privacy.epsilon but method.name is 'auto', which chooses by "
            "ε or by validation records; give privacy.epsilon, or name a method"
        )
    return True


def is_table(tree: Mapping[str, Any]) -> bool:
    """Whether the configured data set is a table, whose parties hold columns."""
    data = tree.get("data")
    return isinstance(data, Mapping) and data.get("name") in TABLES


def candidates(tree: Tree, records: int | None = None) -> dict[str, Tree]:
    """Configurations to try, by name.

    ``tree`` is what was given; ``records`` counts those of training and validation, None standing
    for many. With an ε there is one candidate, until the plan's advice is known (`advised`).
    """
    plain = {"dpzv": {"method": {"name": "dpzv"}}}
    if tree.get("privacy"):
        return {"dpzv": _with(plain["dpzv"], tree)}
    if not is_table(tree):
        plain |= {name: {"method": {"name": name}} for name in ("vafl", "split")}
        return {name: _with(own, tree) for name, own in plain.items()}
    few = tree["data"].get("validation") == 0 or (records is not None and records < FEW)
    network = _of_table({"name": "table"}, {"name": "table"}, [128])
    linear = _of_table({"outputs": 16}, {"final_relu": False}, [])
    passes = min(120, ROUNDS * 32 // (records or FEW))
    for own, epochs in ((network, 20), (linear, passes)):
        if few:
            for section in ("client", "server"):
                own[section]["optimizer"] = ADAM | {"decay": "linear"}
            batch = min(32, max(1, (records or FEW) // 2))  # there are as many in a fold's rest
            own |= {"epochs": epochs, "batch_size": batch, "data": {"validation": 0.0}}
        else:
            batch = 64 if records is None or records < LARGE else 256
            own |= {"epochs": 80, "batch_size": batch, "data": {"validation": 0.15}}
            own["early_stopping"] = {"patience": 10}
            own["server"]["final_head"] = "auto"
        if "label_holder" not in tree["data"]:
            del own["server"]["encoder"]
    zeroth = {**plain["dpzv"], "data": {"validation": 0.0 if few else 0.15}}
    zeroth |= {"epochs": 40} if few else {"server": {"final_head": "auto"}}
    found = {"network": network, "linear": linear, "dpzv": zeroth}
    return {name: _with(own, tree) for name, own in found.items()}


def advised(tree: Tree, way: str) -> Tree:
    """The configuration for an advised ``way`` to spend ε (`vertizo.privacy.mechanism_advice`)."""
    holds = bool(tree.get("data", {}).get("label_holder"))
    mechanism = {"teacher": "teacher", "response": "randomised-response"}.get(way)
    if mechanism is not None:
        own = {"method": {"name": "vafl"}, "privacy": {"mechanism": mechanism}}
    else:
        name = {"tangent": "tangent", "statistic": "label-statistic"}.get(way, "dpzv")
        own = {"method": {"name": name}}
        if name != "dpzv" and holds:  # a sum of the clients' numbers has no place for its columns
            own["server"] = {"final_head": "boosting"}
    return _with(own, tree)


def _of_table(model: Tree, encoder: Tree, hidden: list[int]) -> Tree:
    return {
        "method": {"name": "split"},
        "client": {"model": model, "optimizer": ADAM},
        "server": {"model": {"hidden": hidden}, "encoder": encoder, "optimizer": ADAM},
    }


def _with(own: Tree, given: Tree) -> Tree:
    """A candidate's tree, whose keys give way to all that were given except the method."""
    rest = {key: value for key, value in given.items() if key not in ("method", "data")}
    return {**merge(own, rest), "data": {**own.get("data", {}), **given.get("data", {})}}
