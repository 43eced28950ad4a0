"""Placement: parties on the processor, or on a graphics card together with their models."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.config.sections.client import ClientConfig
from vertizo.config.sections.server import ServerConfig
from vertizo.core.arrays.levels import LevelTable, level_table
from vertizo.core.errors import ConfigError
from vertizo.models.base import Model, Where
from vertizo.models.torch import TorchModel
from vertizo.protocol.messages import Purpose


def placed(config: ExperimentConfig) -> ExperimentConfig:
    """Put all parties on the simulation's device; ConfigError if PyTorch finds no such card."""
    if config.device == "cpu":
        return config
    check_device("device", config.device)
    there = {"device": config.device}
    client, server = config.client.model_copy(update=there), config.server.model_copy(update=there)
    return config.model_copy(update={"client": client, "server": server})


def where(options: ClientConfig | ServerConfig) -> Where:
    """The placement of a party's model, beside which the party works."""
    return Where(options.device, options.precision)


def check_device(key: str, device: str) -> None:
    """Raise ConfigError, which names ``key``, if PyTorch finds no such device."""
    if device != "cpu" and not torch.cuda.is_available():
        raise ConfigError(
            f"{key} is {device!r}, but PyTorch finds no CUDA device; use 'cpu', or install "
            "a driver and a PyTorch that were built for CUDA"
        )


def features_beside(
    model: Model, features: Mapping[Purpose, Tensor], device: torch.device
) -> Mapping[Purpose, Tensor]:
    """Move training features to a model's card if they fit; else its batches are moved later."""
    train = features["train"]
    fits = _fits(model, train.nbytes, device)
    return {**features, "train": train.to(device)} if fits else features


def levels_beside(model: Model, train: Tensor, device: torch.device) -> LevelTable | None:
    """Copy 8-bit images to a model's card if they fit; None for other features."""
    return level_table(train, device) if _fits(model, train.nbytes // 4, device) else None


def _fits(model: Model, size: int, device: torch.device) -> bool:
    """Whether so many bytes take at most half of what is free where the model is, on a card."""
    if device.type != "cuda" or not isinstance(model, TorchModel):
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return 2 * size < free
