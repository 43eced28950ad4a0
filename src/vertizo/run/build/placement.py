"""Where the parties of a run are: on the processor, or on a graphics card with their models."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vertizo.config.client import ClientConfig
from vertizo.config.schema import ExperimentConfig
from vertizo.config.server import ServerConfig
from vertizo.core.errors import ConfigError
from vertizo.methods.base import Method
from vertizo.models.base import Model, Where
from vertizo.models.torch import TorchModel
from vertizo.protocol.messages import Purpose


def placed(config: ExperimentConfig) -> ExperimentConfig:
    """With all parties where the simulation is to be; ConfigError where PyTorch finds no card."""
    if config.device == "cpu":
        return config
    check_device("device", config.device)
    there = {"device": config.device}
    client, server = config.client.model_copy(update=there), config.server.model_copy(update=there)
    return config.model_copy(update={"client": client, "server": server})


def where(options: ClientConfig | ServerConfig, method: Method) -> Where:
    """Where a party's model lives, and with it the party.

    Parties of methods that send tangents are on the processor, where they fit in float64 and look
    at what they find; their models alone are on a card.
    """
    return Where(options.device, options.precision, "cpu" if method.sends_tangents else None)


def party_device(where: Where) -> torch.device:
    """Where a party works that has such a model."""
    return torch.device(where.results or where.device)


def check_device(key: str, device: str) -> None:
    """Raise ConfigError where PyTorch finds none of that kind."""
    if device != "cpu" and not torch.cuda.is_available():
        raise ConfigError(
            f"{key} is {device!r}, but PyTorch finds no CUDA device; use 'cpu', or install "
            "a driver and a PyTorch that were built for CUDA"
        )


def features_beside(
    model: Model, features: Mapping[Purpose, Tensor], device: torch.device
) -> Mapping[Purpose, Tensor]:
    """Training features beside a model on a card, where they fit; else each batch goes there."""
    train = features["train"]
    if device.type != "cuda" or not isinstance(model, TorchModel):
        return features
    free, _ = torch.cuda.mem_get_info(device)
    return {**features, "train": train.to(device)} if 2 * train.nbytes < free else features
