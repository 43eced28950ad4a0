"""Which modules train as PyTorch's do, with dropout and batch normalisation, and what is said.

First-order methods without any privacy train that way: a module that users bring for a baseline
learns as it would anywhere else. Everything else is in evaluation mode: zeroth-order methods
compare losses, which must not differ by their masks, and guarantees are for models that treat each
record by itself.
"""

from __future__ import annotations

from vertizo.config.schema import ExperimentConfig
from vertizo.models.base import Model
from vertizo.models.encoded import EncodedModel
from vertizo.models.parts import other_in_training
from vertizo.models.torch import TorchModel


def why_client_evaluates(config: ExperimentConfig, *, noised: bool = False) -> str | None:
    """What keeps a client's module from training mode, in words; None if nothing does.

    Args:
        config: of the run, as the client knows it.
        noised: whether replies carry noise, where the client was told so and no more.
    """
    if noised or config.privacy.mechanism == "gaussian":
        return "replies carry noise"
    if config.privacy.mechanism != "none":
        return f"privacy.mechanism is {config.privacy.mechanism!r}"
    if not config.method.as_pytorch:
        return f"method {config.method.name!r} compares losses, which must be of one mask"
    return None


def why_server_evaluates(config: ExperimentConfig) -> str | None:
    """What keeps the server's module from training mode, in words; None if nothing does."""
    update = config.server.update
    if update == "sgd":
        return why_client_evaluates(config)
    return why_client_evaluates(config) or f"server.update is {update!r}, not 'sgd'"


def notes(key: str, model: Model, why: str | None) -> tuple[str, ...]:
    """What people should know of a model's mode: nothing, where training mode changes nothing.

    Args:
        key: of the model.
        model: as it was made.
        why: what keeps it from training mode; None for nothing.
    """
    parts = model.parts if isinstance(model, EncodedModel) else (model,)
    layers = {
        kind
        for part in parts
        if isinstance(part, TorchModel)
        for kind in other_in_training(part.module)
    }
    if not layers:
        return ()
    kinds = ", ".join(sorted(layers))
    if why is None:
        return (f"{key}: {kinds} as PyTorch has it: in training, and not where it predicts",)
    return (f"{key}: {kinds} does nothing, in evaluation mode throughout: {why}",)
