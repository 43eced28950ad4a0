"""A shadow of a client's model, trained by the server under its own head without a single query.

He, Zhang and Lee (2019), section V. The server knows w_0, labels, and some records of the same kind
(here: test records, which took no part in training). It trains shadows of *all* clients, since a
head takes all embeddings, to predict those records' labels with w_0 fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vertizo.attacks.arena import Arena
from vertizo.config.schema import ExperimentConfig
from vertizo.core.randomness import Stream
from vertizo.models.base import DifferentiableModel, Points
from vertizo.run.build_models import client_model


@dataclass(frozen=True)
class Shadow:
    """What the server has after training: pairs of its own making."""

    embeddings: Tensor
    """The shadow's, [records, d_h]."""
    features: Tensor
    """[records, columns]."""
    labels: Tensor
    """[records]."""


def train_shadow(
    config: ExperimentConfig,
    ground: Arena,
    features: Sequence[Tensor],
    target: int,
    stream: Stream,
    steps: int,
) -> Shadow:
    """A shadow of client ``target``'s model.

    Args:
        config: which architecture the clients have; their parameters are not looked at.
        ground: for the server's head and the test labels, which the server holds.
        features: all parties' features of the test records.
        target: the client.
        stream: of the shadows' first parameters.
        steps: of Adam on all test records.
    """
    side, labels = ground.federation.server.side, ground.data.labels["test"]
    models = []
    for m, own in enumerate(features):
        fresh = client_model(
            config.client.model,
            tuple(own.shape[1:]),
            stream.child("shadow", m),
            ground.data.cardinalities[m] if ground.data.cardinalities else (),
        )
        models.append(fresh)
    if all(isinstance(model, DifferentiableModel) for model in models):
        optimizer = torch.optim.Adam([model.parameters for model in models], lr=0.01)
        for _ in range(steps):
            parts, pullbacks = [], []
            for model, own in zip(models, features, strict=True):
                assert isinstance(model, DifferentiableModel)
                outputs, pullback = model.forward(Points(own))
                parts.append(outputs)
                pullbacks.append(pullback)
            joined = side.table.combine(torch.cat(parts, 1))
            gradient = side.model.evaluate(Points(joined), labels).input_gradient(1 / len(labels))
            for m, (model, pullback) in enumerate(zip(models, pullbacks, strict=True)):
                model.parameters.grad = pullback(side.table.part(m, gradient)).clone()
            optimizer.step()
    return Shadow(models[target](features[target]), features[target].flatten(1).float(), labels)
