"""The shipped settings that attacks are tried in, for every method, with and without noise.

===========  ====================================================================================
setting      what it is
===========  ====================================================================================
sum          the server adds up two clients' outputs (VFL-Cascaded's Table I), one epoch
sum-frozen   the same, and nothing but the clients is trained
binary       breast cancer, three groups of columns, five epochs
trained      digits, two halves of the pixels, trained until first-order clients have settled
overfitted   digits, 150 records, trained until first-order clients know them by heart
===========  ====================================================================================

Noise is on the replies: each record's values clipped to norm C, Gaussian noise with σ = 2C on the
sum, so that one reply is μ = 1 for each record whatever the method. In the first two settings the
server is not trained then, and the guarantee is exact; in the others the server trains on the raw
labels, as the papers' do, and none holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from vertizo.config import schema as configuration
from vertizo.config.error_lines import override
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.methods.choice import METHODS
from vertizo.methods.forward_difference import ForwardDifference

Tree = dict[str, Any]

NEVER = 10**9
"""Rounds between two evaluations of the run's own accuracy, which no attack looks at."""
_SUM: Tree = {
    "epochs": 1,
    "evaluate_every": NEVER,
    "data": {"name": "digits", "parties": 2, "validation": 0.0},
    "client": {
        "model": {"name": "mlp", "outputs": 10},
        "optimizer": {"learning_rate": 0.01, "momentum": 0.0},
    },
    "server": {
        "model": {"name": "sum"},
        "optimizer": {"learning_rate": 0.01, "momentum": 0.0},
    },
}
_TRAINED: Tree = {
    "epochs": 25,
    "evaluate_every": NEVER,
    "data": {"name": "digits", "parties": 2, "validation": 0.0},
    "client": {
        "model": {"name": "mlp", "hidden": [64], "outputs": 32},
        "optimizer": {"learning_rate": 0.003, "momentum": 0.9},
    },
    "server": {
        "model": {"name": "mlp", "hidden": [64]},
        "optimizer": {"learning_rate": 0.01, "momentum": 0.9},
    },
}
SETTINGS: Mapping[str, Tree] = {
    "sum": _SUM,
    "sum-frozen": {**_SUM, "server": {**_SUM["server"], "update": "none"}},
    "binary": {
        "epochs": 5,
        "evaluate_every": NEVER,
        "batch_size": 32,
        "data": {"name": "breast-cancer", "validation": 0.0},
        "client": {
            "model": {"name": "mlp", "outputs": 4},
            "optimizer": {"learning_rate": 0.003, "momentum": 0.9},
        },
        "server": {
            "model": {"name": "mlp", "hidden": [16]},
            "optimizer": {"learning_rate": 0.01, "momentum": 0.9},
        },
    },
    "trained": _TRAINED,
    "overfitted": {
        **_TRAINED,
        "epochs": 120,
        "batch_size": 32,
        "data": {"name": "digits", "parties": 2, "validation": 0.0, "limit": 150},
    },
}
FIRST_ORDER_RATE, NOISED_RATE = 0.05, 0.005
"""Clients' learning rate of first-order methods, and what noise on every gradient leaves of it."""
FIRST_ORDER_CLIP, SCALAR_CLIP = 1.0, 4.0
"""C for gradients of a record's loss, and for slopes along a direction."""


def setting(
    name: str, method: str, *, noise: bool = False, overrides: Sequence[str] = (), seed: int = 0
) -> ExperimentConfig:
    """A shipped setting for one method.

    Args:
        name: a key of `SETTINGS`.
        method: a key of `METHODS`.
        noise: Gaussian noise on the replies.
        overrides: ``key=value``, applied last.
        seed: of the run, unless overridden.

    Raises:
        ConfigError: an unknown method, or an override that does not fit.
    """
    if method not in METHODS:
        raise ConfigError(f"there is no method {method!r}; known are {', '.join(METHODS)}")
    tree = deepcopy(SETTINGS[name])
    tree["seed"] = seed
    tree["method"] = {"name": method}
    chosen = METHODS[method]
    if chosen.first_order_client and not name.startswith("sum"):
        rate = NOISED_RATE if noise else FIRST_ORDER_RATE
        tree["client"]["optimizer"]["learning_rate"] = rate
    if issubclass(chosen, ForwardDifference) and noise:
        tree["method"]["reply"] = "difference"
    if noise:
        tree = noised(tree, method, server_too=name.startswith("sum"))
    override(tree, overrides, ExperimentConfig())
    return configuration.parse(tree, "--set")


def noised(tree: Tree, method: str, *, server_too: bool) -> Tree:
    """A tree with noise of μ = 1 a reply; ``server_too`` leaves the server untrained."""
    gradient = METHODS[method].first_order_client and method != "czofo"
    clip = FIRST_ORDER_CLIP if gradient else SCALAR_CLIP
    changed = deepcopy(tree)
    changed["privacy"] = {"mechanism": "gaussian", "clip": clip, "noise_std": 2 * clip}
    if server_too:
        changed.setdefault("server", {})["update"] = "none"
    return changed


def with_noise(config: ExperimentConfig) -> ExperimentConfig:
    """A user's configuration with noise of μ = 1 a reply; the server is trained as it was.

    Raises:
        ConfigError: it has noise already, or noise does not fit.
    """
    if config.privacy.mechanism != "none":
        raise ConfigError(
            f"privacy.mechanism is {config.privacy.mechanism!r} already; use --no-noise"
        )
    tree = config.model_dump(mode="json")
    method = config.method
    if isinstance(method, ForwardDifference):
        tree["method"]["reply"] = "difference"
    return configuration.parse(noised(tree, method.name, server_too=False), "--noise")
