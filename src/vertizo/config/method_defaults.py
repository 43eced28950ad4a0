"""What a configuration leaves out and another of its keys decides: the method's own ways, and what
a guarantee takes.

A tree in, a tree out, before anything is checked; what is given stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vertizo.core.errors import ConfigError
from vertizo.core.names import PRIVATE, UpdateName
from vertizo.core.options import Options
from vertizo.methods.base import Method
from vertizo.methods.choice import METHODS

TABLES = (
    "table",
    "frame",
    "breast-cancer",
    "diabetes",
    "adult",
    "bank-marketing",
    "credit-default",
)
"""Data sets whose parties hold columns."""
TABLE: dict[str, Any] = {"outputs": 16}
"""A client's model for a table: linear."""
TABLE_UNDER_GUARANTEE: dict[str, Any] = {"outputs": 64, "final_relu": True}
"""The same where the server must be linear, as one that learns under noise is."""

NEWTON: dict[str, Any] = {"learning_rate": 1.0, "momentum": 0.0, "decay": "none"}
"""A client's optimiser where replies are steps."""
BIAS_SHARE = 0.15
"""Of the budget, for the bias of a sum."""

Sections = dict[str, dict[str, Any]]

SECRET: dict[str, Any] = {
    "update": "poisson-dp-sgd",
    "clip": 2.0,
    "secret": {"every": 3, "warm_up": 120, "sampling": 0.05},
    "model": {"name": "mlp", "hidden": [], "last_layer": "zeros"},
}
"""A server that learns under noise: few parameters, a start without opinions, secret samples."""
SERVER_SHARE = 0.9
"""Of the budget, for the server: over few rounds it learns more than its clients."""


def filled(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tree with what its method and its guarantee want where it says nothing.

    Args:
        given: sections as mappings, or as options that are made already.
    """
    chosen = given.get("method", {})
    name = chosen.get("name", "dpzv") if isinstance(chosen, Mapping) else _name(chosen)
    try:
        method = METHODS.find(name, "method.name") if isinstance(name, str) else None
        method = type(chosen) if isinstance(chosen, Method) else method
    except ConfigError:  # which the field's own check says
        method = None
    if method is None:
        return given
    own: Sections = {
        "simulation": {"timing": method.timings[0]},
        "server": {"update": method.server_update},
        "codecs": {"up": method.up},
    }
    if method.additive:
        own["server"] |= {"model": {"name": "sum"}}
        own["client"] = {"optimizer": NEWTON}
    update = _key(given.get("server", {}), "update", None)
    if update is None and _wants_guarantee(given.get("privacy", {})):
        for section, values in _under_guarantee(method).items():
            own[section] = {**own.get(section, {}), **values}
        update = own["server"]["update"]
    if update == "poisson-dp-sgd":  # it trains on the table from the start
        own["simulation"] = {**own["simulation"], "table": "upload"}
    if has_noised_replies(given.get("privacy", {})):
        noise = {"noise": "secure" if "seed" not in given else "seeded"}
        own["privacy"] = {**own.get("privacy", {}), **noise}
    result = dict(given)
    for section, values in own.items():
        result[section] = _with(given.get(section, {}), values)
    if _key(given.get("data", {}), "name", None) in TABLES and not method.additive:
        private = update == "poisson-dp-sgd"
        model = TABLE_UNDER_GUARANTEE if private else TABLE
        result["client"] = _for_a_table(given.get("client", {}), model)
    codecs = result.get("codecs")
    up = codecs.get("up") if isinstance(codecs, Mapping) else None
    if isinstance(up, Mapping) and "name" not in up:  # other settings of the method's own codec
        assert isinstance(method.up, Options)
        result["codecs"] = {**result["codecs"], "up": {**method.up.model_dump(), **up}}
    return result


def _for_a_table(client: Any, preferred: Mapping[str, Any]) -> Any:
    """Clients with that model, as far as nothing is said of it."""
    model = client.get("model", {}) if isinstance(client, Mapping) else None
    if not isinstance(model, Mapping) or model.get("name", "mlp") != "mlp":
        return client
    return {**client, "model": {"name": "mlp", **preferred, **model}}


def _name(chosen: Any) -> Any:
    return getattr(chosen, "name", None)


def _wants_guarantee(privacy: Any) -> bool:
    """Whether noise on replies is to be calibrated to an ε that holds."""
    if _key(privacy, "epsilon", None) is None:
        return False
    mechanism = _key(privacy, "mechanism", "gaussian")
    accounting = _key(privacy, "accounting", "exact")
    return bool(mechanism == "gaussian" and accounting == "exact")


def has_noised_replies(privacy: Any) -> bool:
    """Whether the server's replies carry noise."""
    wished = any(_key(privacy, key, None) is not None for key in ("epsilon", "noise_std"))
    return bool(_key(privacy, "mechanism", "gaussian" if wished else "none") == "gaussian")


def _under_guarantee(method: type[Method]) -> Sections:
    """How the server is trained where nothing is said of it: under noise, in secret if it can."""
    if method.additive:
        return {"server": {"update": "private-sgd"}, "privacy": {"server_share": BIAS_SHARE}}
    allowed: list[UpdateName] = [each for each in PRIVATE if each in method.server_updates]
    if "poisson-dp-sgd" not in allowed:
        return {"server": {"update": allowed[0]}, "privacy": {"server_share": 0.5}}
    return {"server": SECRET, "privacy": {"server_share": SERVER_SHARE}}


def _key(section: Any, key: str, otherwise: Any) -> Any:
    """What a section has for that key, if it was given."""
    if isinstance(section, Mapping):
        return section.get(key, otherwise)
    if isinstance(section, Options):
        return getattr(section, key) if key in section.model_fields_set else otherwise
    return otherwise


def _with(section: Any, values: Mapping[str, Any]) -> Any:
    """A section with those values where it has none."""
    if isinstance(section, Mapping):
        return {**values, **section}
    if isinstance(section, Options):
        there = {key: getattr(section, key) for key in section.model_fields_set}
        return type(section).model_validate({**values, **there})
    return section
