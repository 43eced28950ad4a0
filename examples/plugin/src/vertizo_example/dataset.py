"""Points on two rings, of which one party has the eastings, another the northings."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from vertizo.core.errors import ConfigError
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled
from vertizo.models.losses import Classification


def rings(root: Path | None, options: DataConfig) -> Pooled:
    """600 training and 200 test records; neither party alone can tell the rings apart."""
    if options.test is not None:
        raise ConfigError(
            f"data.test is {options.test} but rings has test records of its own; leave it out"
        )
    draw = torch.Generator().manual_seed(0)  # never the global one: others draw from it
    angles = 2 * math.pi * torch.rand(800, generator=draw)
    labels = torch.randint(2, (800,), generator=draw)
    radii = 1 + labels + 0.1 * torch.randn(800, generator=draw)
    east, north = radii * angles.cos(), radii * angles.sin()
    records = torch.stack([east, north], 1)
    return Pooled(
        name="rings",
        train=records[:600],
        train_labels=labels[:600],
        test=records[600:],
        test_labels=labels[600:],
        task=Classification(2),
        columns=("east", "north"),
        label="ring",
        groups={"eastern": ["east"], "northern": ["north"]},
        class_names=("inner", "outer"),
    )
