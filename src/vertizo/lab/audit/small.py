"""A federation small enough for thousands of trials, in several configurations of noise.

D = 100 records in batches of B = 4, two clients, two epochs: a record is in four replies, and the
published formula is off by √(D/B) = 5 in μ.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from vertizo.config import schema as configuration
from vertizo.config.schema import ExperimentConfig
from vertizo.core.names import PRIVATE, UpdateName
from vertizo.data.vertical import VerticalData
from vertizo.models.losses import Classification
from vertizo.privacy.accounting.gaussian import noise_std_for
from vertizo.privacy.clipping import moved

RECORDS, BATCH, CLIENTS, EPOCHS = 100, 4, 2, 2
CLIP, DELTA, EPSILON = 0.5, 1e-3, 1.0
SHARE = 0.9
"""Share of the budget that goes to a server that is trained under noise."""
SECRET = {"every": 1000, "warm_up": 20, "sampling": 0.2}
"""Secret steps that all happen on the uploaded table, before the first query."""


def data() -> VerticalData:
    """Make the data: Gaussian features, and two classes on either side of a plane through 0."""
    generator = torch.Generator().manual_seed(0)
    features: tuple[dict[Any, torch.Tensor], ...] = tuple({} for _ in range(CLIENTS))
    labels: dict[Any, torch.Tensor] = {}
    for purpose, rows in (("train", RECORDS), ("validation", 0), ("test", BATCH)):
        values = torch.randn(CLIENTS, rows, 4, generator=generator)
        for own, held in zip(values, features, strict=True):
            held[purpose] = own.contiguous()
        labels[purpose] = (values.sum((0, 2)) > 0).long()
    return VerticalData(
        name="made up",
        task=Classification(2),
        parties=tuple(f"client {m}" for m in range(CLIENTS)),
        features=features,
        labels=labels,
        fitted_scaling=False,
    )


def config(
    noise: Literal["published", "exact"] = "exact", *, update: UpdateName = "none"
) -> ExperimentConfig:
    """Make the federation's configuration.

    Noise is calibrated to `EPSILON`, exactly or by the published formula ``2C√T·B / (Dμ)`` with
    T = M·E·D/B. A server that trains on raw labels has no guarantee, whatever the noise: then the
    replies alone have this ε.
    """
    privacy: dict[str, Any] = {"mechanism": "gaussian", "clip": CLIP, "delta": DELTA}
    if update in PRIVATE:
        privacy["server_share"] = SHARE
    if update == "none" or update in PRIVATE:
        privacy |= {"epsilon": EPSILON, "accounting": noise}
    else:
        privacy["noise_std"] = noise_std_for(moved(CLIP), EPSILON, DELTA, CLIENTS * EPOCHS)
    return _with(privacy, update)


def on_labels(mechanism: str) -> ExperimentConfig:
    """Make the configuration of a federation that trains on private labels."""
    privacy: dict[str, Any] = {"mechanism": mechanism, "epsilon": EPSILON}
    if mechanism == "teacher":
        privacy |= {"delta": DELTA, "teacher": {"components": 3}}
    return _with(privacy, "none")


def along(method: str, *, update: UpdateName = "none", delta: float = DELTA) -> ExperimentConfig:
    """Make a configuration in which each client asks once about all records, on four directions."""
    return configuration.parse(
        {
            "seed": 0,
            "epochs": 1,
            "method": {"name": method, "num_directions": 4},
            "server": {"update": update},
            "privacy": {"epsilon": EPSILON, "delta": delta, "clip": CLIP},
        }
    )


def _with(privacy: dict[str, Any], update: UpdateName) -> ExperimentConfig:
    return configuration.parse(
        {
            "seed": 0,
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "method": {"name": "dpzv"},
            "client": {"model": {"name": "mlp", "outputs": 3}},
            "server": {
                "model": {"name": "mlp", "hidden": [8]},
                "update": update,
                **({"secret": SECRET} if update == "poisson-dp-sgd" else {}),
            },
            "simulation": {"table": "upload" if update == "poisson-dp-sgd" else "zeros"},
            "privacy": privacy,
        }
    )
