"""Defaults that depend on other keys: the method supplies some for unset keys, a guarantee others.

`filled` makes a tree of a tree, before anything is validated; given keys are kept.
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
"""A client's model for a table where the server is linear, since it learns under noise."""

NARROW = 2
"""Embedding size up to which the clients learn under a guarantee: of so few random numbers the
server alone would learn next to nothing."""
NARROW_TABLE: dict[str, Any] = {"final_relu": False}
"""A client's model for a table with narrow embeddings: a ReLU would zero half of their numbers."""
PER_RECORD = 3.0
"""Least ε at which narrow clients learn from replies that noise each record's gradient alone."""
NARROW_SHARE = 0.5
"""The server's share of the budget where embeddings are narrow."""

NEWTON: dict[str, Any] = {"learning_rate": 1.0, "momentum": 0.0, "decay": "none"}
"""A client's optimiser where replies are steps."""
BIAS_SHARE = 0.15
"""The server's share of the budget where it is a sum and learns only a bias."""

Sections = dict[str, dict[str, Any]]

CLASSES = ("classification", None)
"""Task and label range of data whose labels may be made private."""
SECRET: dict[str, Any] = {
    "update": "poisson-dp-sgd",
    "clip": 2.0,
    "secret": {"every": 3, "warm_up": 120, "sampling": 0.05},
    "model": {"name": "mlp", "hidden": [], "last_layer": "zeros"},
}
"""A server that learns under noise: few parameters, the last layer from 0, secret samples."""
SERVER_SHARE = 0.9
"""The server's share of the budget: over few rounds it learns more than its clients."""


def filled(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fill unset keys of a tree by the defaults of its method and of its guarantee.

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
    """Fill unset keys of an ``mlp`` by those preferred for a table; other models stay."""
    if isinstance(model, Mapping) and model.get("name", "mlp") == "mlp":
        return {"name": "mlp", **preferred, **model}
    return model


def _pays_for_labels(method: type[Method], given: Mapping[str, Any]) -> bool:
    """Whether to spend an ε on private labels: only an ε is given, and replies are gradients.

    Noise on so many numbers would leave little to learn from; private labels leave more.
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
    """Whether noise on replies is calibrated to an ε by exact accounting."""
    ways = _key(privacy, "mechanism", "gaussian"), _key(privacy, "accounting", "exact")
    return _key(privacy, "epsilon") is not None and ways == ("gaussian", "exact")


def draws_noise(privacy: Any) -> bool:
    """Whether the label holder draws noise: for its replies, or for labels."""
    wished = any(_key(privacy, key) is not None for key in ("epsilon", "noise_std"))
    mechanism = _key(privacy, "mechanism", "gaussian" if wished else "none")
    return mechanism in ("gaussian", *ON_LABELS)


def is_narrow(client: Any) -> bool:
    """Whether every client's configured embedding has at most `NARROW` numbers."""
    own = _key(client, "models")
    models = (_key(client, "model"), *(own.values() if isinstance(own, Mapping) else ()))
    sizes = [_key(model, "outputs") for model in models]
    return all(isinstance(size, int) and 1 <= size <= NARROW for size in sizes)


def _under_guarantee(method: type[Method], *, narrow: bool) -> Sections:
    """Default training of the server under a guarantee: noised, on secret samples if possible."""
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
    """The given keys of a section as a mapping; a value that is no section as it is."""
    if isinstance(section, Options):
        return {key: getattr(section, key) for key in section.model_fields_set}
    return section


def _key(section: Any, key: str, otherwise: Any = None) -> Any:
    """The value given for a section's key; ``otherwise`` where it is unset."""
    there = _given(section)
    return there.get(key, otherwise) if isinstance(there, Mapping) else otherwise


def _with(section: Any, values: Mapping[str, Any]) -> Any:
    """A section whose unset keys are filled by ``values``."""
    there = _given(section)
    if not isinstance(there, Mapping):
        return section
    whole = {**values, **there}
    return type(section).model_validate(whole) if isinstance(section, Options) else whole
