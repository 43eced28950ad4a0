"""The shipped configurations that attacks are run on, for every method, with and without noise.

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
from vertizo.methods.base import Method
from vertizo.methods.choice import METHODS, asking
from vertizo.methods.czofo import Czofo
from vertizo.methods.forward_difference import ForwardDifference
from vertizo.run.build.data_defaults import TANGENT_CLIP

Tree = dict[str, Any]


def _tree(epochs: int, client: Tree, server: Tree, rates: tuple[float, float], **more: Any) -> Tree:
    """Build a setting: two clients with halves of the digits, unless ``more`` has other data.

    SGD has momentum if there are several epochs. ``rates`` are the learning rates of the clients
    and of the server.
    """
    momentum = 0.9 if epochs > 1 else 0.0
    sides = {"client": (client, rates[0]), "server": (server, rates[1])}
    tree: Tree = {
        side: {"model": model, "optimizer": {"learning_rate": rate, "momentum": momentum}}
        for side, (model, rate) in sides.items()
    }
    never = 10**9  # rounds between two evaluations of the run's own accuracy: no attack looks at it
    data = {"name": "digits", "parties": 2, "validation": 0.0}
    return {"epochs": epochs, "evaluate_every": never, "data": data, **tree, **more}


_SUM = _tree(1, {"name": "mlp", "outputs": 10}, {"name": "sum"}, (0.01, 0.01))
_MODELS: tuple[Tree, Tree] = (
    {"name": "mlp", "hidden": [64], "outputs": 32},
    {"name": "mlp", "hidden": [64]},
)
SETTINGS: Mapping[str, Tree] = {
    "sum": _SUM,
    "sum-frozen": {**_SUM, "server": {**_SUM["server"], "update": "none"}},
    "binary": _tree(
        5,
        {"name": "mlp", "outputs": 4},
        {"name": "mlp", "hidden": [16]},
        (0.003, 0.01),
        batch_size=32,
        data={"name": "breast-cancer", "validation": 0.0},
    ),
    "trained": _tree(25, *_MODELS, (0.003, 0.01)),
    "overfitted": _tree(
        120,
        *_MODELS,
        (0.003, 0.01),
        batch_size=32,
        data={"name": "digits", "parties": 2, "validation": 0.0, "limit": 150},
    ),
}
FIRST_ORDER_RATE, NOISED_RATE = 0.05, 0.005
"""Clients' learning rates of first-order methods, without noise on the gradients and with it."""
FIRST_ORDER_CLIP, SCALAR_CLIP = 1.0, 4.0
"""The clip C of gradients of a record's loss, and of slopes along a direction."""


def setting(
    name: str, method: str, *, noise: bool = False, overrides: Sequence[str] = (), seed: int = 0
) -> ExperimentConfig:
    """Build the shipped setting ``name`` (a key of `SETTINGS`) for one method.

    With ``noise``, replies carry Gaussian noise. The overrides, ``key=value``, are applied last.

    Raises:
        ConfigError: the method is unknown or sends no replies, or an override does not fit.
    """
    if method not in METHODS:
        raise ConfigError(f"there is no method {method!r}; known are {', '.join(METHODS)}")
    if not METHODS[method].asks:
        raise ConfigError(
            f"method {method!r} sends clients nothing, so that there is nothing to attack labels "
            f"by; use {', '.join(asking())}"
        )
    tree = deepcopy(SETTINGS[name]) | {"seed": seed, "method": {"name": method}}
    exact = name.startswith("sum")
    if METHODS[method].first_order_client and not exact:
        rate = NOISED_RATE if noise else FIRST_ORDER_RATE
        tree["client"]["optimizer"]["learning_rate"] = rate
    if noise:
        _add_noise(tree, METHODS[method])
        if exact:
            tree["server"]["update"] = "none"
    override(tree, overrides, ExperimentConfig())
    return configuration.parse(tree, "--set")


def _add_noise(tree: Tree, method: type[Method]) -> None:
    """Add Gaussian noise of μ = 1 a reply to a setting."""
    gradient = method.first_order_client and not issubclass(method, Czofo)
    clip = FIRST_ORDER_CLIP if gradient else SCALAR_CLIP
    clip = TANGENT_CLIP if method.sends_tangents else clip
    tree["privacy"] = {"mechanism": "gaussian", "clip": clip, "noise_std": 2 * clip}
    if issubclass(method, ForwardDifference):
        tree["method"]["reply"] = "difference"


def with_noise(config: ExperimentConfig) -> ExperimentConfig:
    """Add noise of μ = 1 a reply to a user's configuration; the server's update stays.

    ConfigError if the configuration has a mechanism already, or noise does not fit.
    """
    if config.privacy.mechanism != "none":
        raise ConfigError(
            f"privacy.mechanism is {config.privacy.mechanism!r} already; use --no-noise"
        )
    tree = config.model_dump(mode="json")
    _add_noise(tree, type(config.method))
    return configuration.parse(tree, "--noise")
