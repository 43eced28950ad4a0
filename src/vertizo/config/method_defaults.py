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
from vertizo.data.datasets.catalog import CATALOG
from vertizo.methods.base import Method
from vertizo.methods.choice import METHODS
from vertizo.privacy.options import ON_LABELS, mechanism_for

TABLES = (
    *("table", "frame", "breast-cancer", "diabetes", "adult", "bank-marketing"),
    "credit-default",
)
"""Data sets whose parties hold columns."""
TABLE: dict[str, Any] = {"outputs": 16}
"""A client's model for a table: linear."""
TABLE_UNDER_GUARANTEE: dict[str, Any] = {"outputs": 64, "final_relu": True}
"""The same where the server must be linear, as one that learns under noise is."""

NARROW = 2
"""Numbers of an embedding up to which a guarantee leaves the learning to the clients: the server
has next to nothing to learn from random ones."""
NARROW_TABLE: dict[str, Any] = {"final_relu": False}
"""A client's model for a table then: a ReLU would make half of its only number zero."""
PER_RECORD = 3.0
"""ε from which on they learn it from replies that hide each record's gradient by itself."""
NARROW_SHARE = 0.5
"""Of the budget, for the server."""

NEWTON: dict[str, Any] = {"learning_rate": 1.0, "momentum": 0.0, "decay": "none"}
"""A client's optimiser where replies are steps."""
BIAS_SHARE = 0.15
"""Of the budget, for the bias of a sum."""

Sections = dict[str, dict[str, Any]]

CLASSES = ("classification", None)
"""Of data whose labels may be made private: their task, and no range."""
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

    A section is a mapping, or options that are made already.
    """
    chosen = given.get("method", {})
    is_tree = isinstance(chosen, Mapping)
    name = chosen.get("name", "dpzv") if is_tree else getattr(chosen, "name", None)
    if not isinstance(name, str):
        return given
    try:
        method = METHODS.find(name, "method.name")
    except ConfigError:  # which the field's own check says
        return given
    if isinstance(chosen, Method):
        method = type(chosen)
    own: Sections = {
        "simulation": {"timing": method.timings[0]},
        "server": {"update": method.server_update},
        "codecs": {"up": method.up},
    }
    if method.additive:
        own["server"] |= {"model": {"name": "sum"}, "join": method.server_join}
        own["client"] = {"optimizer": NEWTON}
    privacy, update = given.get("privacy"), _key(given.get("server"), "update")
    if update is None and _pays_for_labels(method, given):
        known = CATALOG.get(_key(given.get("data"), "name", "mnist"))
        encoder = _key(given.get("data"), "encoder")
        teachable = known is None or not known.tokens or encoder is not None
        mechanism = mechanism_for(_key(privacy, "epsilon"), teachable=teachable)
        privacy = _with(privacy, {"mechanism": mechanism})
        given = {**given, "privacy": privacy}
    narrow = is_narrow(given.get("client"))
    if _wants_guarantee(privacy):
        if update is None:
            for section, values in _under_guarantee(method, narrow=narrow).items():
                own[section] = {**own.get(section, {}), **values}
            update = own["server"]["update"]
        if narrow and "reply" in method.model_fields:  # of two losses each has noise of its own
            own["method"] = {"reply": "difference"}
    if update == "poisson-dp-sgd":  # it trains on the table from the start
        own["simulation"]["table"] = "upload"
    if draws_noise(privacy):
        noise = "secure" if "seed" not in given else "seeded"
        own["privacy"] = {**own.get("privacy", {}), "noise": noise}
    result = dict(given)
    for section, values in own.items():
        result[section] = _with(given.get(section, {}), values)
    client = given.get("client", {})
    is_table = _key(given.get("data"), "name") in TABLES and not method.additive
    if is_table and isinstance(client, Mapping):
        preferred = TABLE_UNDER_GUARANTEE if update == "poisson-dp-sgd" else TABLE
        preferred = NARROW_TABLE if narrow else preferred
        result["client"] = client = {**client, "model": _linear(client.get("model", {}), preferred)}
        if isinstance(own_models := client.get("models"), Mapping):
            each = {party: _linear(model, preferred) for party, model in own_models.items()}
            client["models"] = each
    codecs = result["codecs"]
    up = codecs.get("up") if isinstance(codecs, Mapping) else None
    if isinstance(up, Mapping) and "name" not in up:  # other settings of the method's own codec
        assert isinstance(method.up, Options)
        result["codecs"] = {**codecs, "up": {**method.up.model_dump(), **up}}
    return result


def _linear(model: Any, preferred: Mapping[str, Any]) -> Any:
    """A client's model for a table, where it is none of another kind."""
    if isinstance(model, Mapping) and model.get("name", "mlp") == "mlp":
        return {"name": "mlp", **preferred, **model}
    return model


def _pays_for_labels(method: type[Method], given: Mapping[str, Any]) -> bool:
    """Whether nothing but an ε is given, and replies are gradients.

    Noise on so many numbers leaves little to learn from; private labels do not.
    """
    privacy, data = given.get("privacy"), given.get("data")
    epsilon, only = _key(privacy, "epsilon"), {"epsilon", "delta", "ledger", "noise", "teacher"}
    return (
        method.first_order_client
        and isinstance(epsilon, int | float)
        and set(_given(privacy)) <= only
        and _key(data, "label_holder") is None
        and (_key(data, "task"), _key(data, "label_range")) in ((None, None), CLASSES)
    )


def _wants_guarantee(privacy: Any) -> bool:
    """Whether noise on replies is to be calibrated to an ε that holds."""
    ways = _key(privacy, "mechanism", "gaussian"), _key(privacy, "accounting", "exact")
    return _key(privacy, "epsilon") is not None and ways == ("gaussian", "exact")


def draws_noise(privacy: Any) -> bool:
    """Whether the label holder draws noise: for its replies, or for labels."""
    wished = any(_key(privacy, key) is not None for key in ("epsilon", "noise_std"))
    mechanism = _key(privacy, "mechanism", "gaussian" if wished else "none")
    return mechanism in ("gaussian", *ON_LABELS)


def is_narrow(client: Any) -> bool:
    """Whether each client was told to make so few numbers that it must learn them."""
    own = _key(client, "models")
    models = (_key(client, "model"), *(own.values() if isinstance(own, Mapping) else ()))
    sizes = [_key(model, "outputs") for model in models]
    return all(isinstance(size, int) and 1 <= size <= NARROW for size in sizes)


def _under_guarantee(method: type[Method], *, narrow: bool) -> Sections:
    """How the server is trained where nothing is said of it: under noise, in secret if it can."""
    allowed: list[UpdateName] = [each for each in PRIVATE if each in method.server_updates]
    if not allowed:
        return {"server": {"update": "none"}}
    if method.additive:
        return {"server": {"update": "private-sgd"}, "privacy": {"server_share": BIAS_SHARE}}
    if "poisson-dp-sgd" not in allowed:
        return {"server": {"update": allowed[0]}, "privacy": {"server_share": 0.5}}
    share = NARROW_SHARE if narrow else SERVER_SHARE
    return {"server": SECRET, "privacy": {"server_share": share}}


def _given(section: Any) -> Any:
    """What was given of a section, as a mapping; what is no section stays as it is."""
    if isinstance(section, Options):
        return {key: getattr(section, key) for key in section.model_fields_set}
    return section


def _key(section: Any, key: str, otherwise: Any = None) -> Any:
    """What a section has for that key, if it was given."""
    there = _given(section)
    return there.get(key, otherwise) if isinstance(there, Mapping) else otherwise


def _with(section: Any, values: Mapping[str, Any]) -> Any:
    """A section with those values where it has none."""
    there = _given(section)
    if not isinstance(there, Mapping):
        return section
    whole = {**values, **there}
    return type(section).model_validate(whole) if isinstance(section, Options) else whole
