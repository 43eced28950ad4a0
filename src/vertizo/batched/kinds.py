"""Which runs can be made together: by their configurations, and then by what was made of them."""

from __future__ import annotations

from typing import Any

from vertizo.config import ExperimentConfig
from vertizo.federation import Federation
from vertizo.methods.cascaded import Cascaded
from vertizo.methods.dpzv import Dpzv
from vertizo.methods.split import Split
from vertizo.methods.vafl import Vafl
from vertizo.methods.zoo_vfl import SynZooVfl, ZooVfl
from vertizo.models.linear_stack import LinearStack
from vertizo.server.losses import Classification, Regression
from vertizo.server.updates import ZerothOrder

METHODS = (Dpzv, Cascaded, ZooVfl, SynZooVfl, Vafl, Split)
FREE: tuple[tuple[str, ...], ...] = (
    ("seed",),
    ("control",),
    ("epochs",),
    ("rounds",),
    ("evaluate_every",),
    ("checkpoint_seconds",),
    ("client", "optimizer"),
    ("server", "optimizer"),
    ("server", "clip"),
    ("server", "secret"),
    ("server", "smoothing"),
    ("method", "smoothing"),
    ("privacy", "epsilon"),
    ("privacy", "delta"),
    ("privacy", "clip"),
    ("privacy", "noise_std"),
    ("privacy", "server_noise_std"),
    ("privacy", "server_share"),
    ("simulation", "delay"),
    ("simulation", "stragglers"),
    ("simulation", "table"),
    ("simulation", "timeout"),
)
"""What may differ between runs that are made together: each has its own of these."""


def why_alone(config: ExperimentConfig) -> str | None:
    """What keeps a run from being made together with others, in words; None if nothing does."""
    codecs, privacy, links = config.codecs, config.privacy, config.simulation
    plain = all(
        codec.name == "none" and getattr(codec, "dtype", "float32") == "float32"
        for codec in (codecs.up, codecs.down)
    )
    reasons = {
        f"method {config.method.name}": not isinstance(config.method, METHODS),
        "codecs": not plain,
        "IDs that are known": codecs.ids == "known",
        "error feedback": codecs.feedback != "none",
        "embedding noise": privacy.mechanism == "embedding-noise",
        "noise that cannot be repeated": privacy.noise == "secure",
        "a ledger": privacy.ledger is not None,
        "lost messages": links.drop > 0,
        "limited bandwidth": links.bandwidth is not None,
        f"embeddings joined by {config.server.join}": config.server.join != "concat",
        "a label holder with features": config.data.label_holder is not None,
        f"client device {config.client.device}": config.client.device != "cpu",
        f"client model {config.client.model.name}": config.client.model.name != "mlp",
        f"server model {config.server.model.name}": config.server.model.name != "mlp",
    }
    return next((reason for reason, is_so in reasons.items() if is_so), None)


def kind(config: ExperimentConfig) -> str:
    """Runs of the same kind may be made together, if nothing keeps them from it."""
    left: dict[str, Any] = config.model_dump(mode="json")
    for *sections, key in FREE:
        place = left
        for section in sections:
            place = place[section]
        place.pop(key, None)
    left["batch_size"] = [left["batch_size"], "batch_size" in config.model_fields_set]
    return repr(left)


def shape_of(federation: Federation, config: ExperimentConfig) -> tuple[object, ...] | None:
    """What runs that are made together have in common; None if a run has to be made alone."""
    side, models = federation.server.side, federation.models
    stacks = [model for model in (*models, side.head.model) if isinstance(model, LinearStack)]
    if len(stacks) <= len(models) or not all(stack.flattens for stack in stacks):
        return None
    if not isinstance(side.head.task, (Classification, Regression)):
        return None
    updates = [side.update.directions] if isinstance(side.update, ZerothOrder) else []
    asking = [getattr(client.half, "directions", None) for client in federation.clients]
    if not all(drawn.are_kept for drawn in (*updates, *asking) if drawn is not None):
        return None
    return (
        config.batch_size,
        federation.data.records,
        side.table.dims,
        side.labels.dtype,
        *(stack.layers for stack in stacks),
    )
