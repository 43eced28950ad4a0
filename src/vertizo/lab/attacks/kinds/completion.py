"""Model completion: the attacker fits a head to a trained client model by a few known labels.

Fu et al. (2022), the passive attack. Training teaches a client's model what separates the classes;
whoever holds it puts a linear layer behind it and trains both on a few labelled records. The
control does the same from fresh parameters: only what is better than that came from the training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from vertizo.config.schema import ExperimentConfig
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.lab.attacks import arena
from vertizo.lab.attacks.adversaries import CuriousClient
from vertizo.lab.attacks.base import Attack, why_no_classes
from vertizo.lab.attacks.scores import Guesses, Measurement
from vertizo.models.base import DifferentiableModel, Points


def complete(
    client: CuriousClient, ids: Tensor, labels: Tensor, stream: Stream, steps: int
) -> Guesses:
    """Guess the labels of all other records by a head and the client's model, trained on a few.

    The head takes embeddings scaled to unit spread, so that it trains alike whatever their scale.

    Args:
        client: the attacker; its model's parameters are restored afterwards.
        ids, labels: the few records whose labels the attacker knows, int64 [few].
        stream: random stream of the head's initial parameters.
        steps: number of training steps, each on all labelled records.
    """
    model, rows = client.model, client.features[ids]
    assert isinstance(model, DifferentiableModel)
    weights, saved = model.parameters, model.parameters.clone()
    embeddings, labels = model(rows), labels.to(weights.device)
    centre, scale = embeddings.mean(0), embeddings.std(0).clamp(min=1e-6)
    with stream.torch_default():
        head = nn.Linear(embeddings.shape[1], client.public.outputs).to(weights.device)
    of_head: dict[str, Any] = {"params": list(head.parameters()), "lr": 0.03}
    optimizer = torch.optim.Adam([of_head, {"params": [weights]}])
    try:
        for _ in range(steps):
            outputs, pullback = model.forward(Points(rows))
            leaf = outputs.detach().clone().requires_grad_(True)
            loss = F.cross_entropy(head((leaf - centre) / scale), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            assert leaf.grad is not None
            weights.grad = pullback(leaf.grad).clone()
            optimizer.step()
        weights.grad = None
        rest = torch.ones(len(client.features), dtype=torch.bool)
        rest[ids] = False
        others = rest.nonzero().flatten()
        with torch.no_grad():
            predicted = head((model(client.features[others]) - centre) / scale).argmax(1).cpu()
    finally:
        weights.copy_(saved)
    return Guesses(others, predicted)


def few_of_each(labels: Tensor, per_class: int, stream: Stream) -> Tensor:
    """Draw the IDs of ``per_class`` records of each class; fewer where a class has fewer."""
    order = torch.from_numpy(stream.generator().permutation(labels.numel()))
    chosen = [order[labels[order] == c][:per_class] for c in sorted(set(labels.tolist()))]
    return torch.cat(chosen)


class ModelCompletion(Attack):
    """A client's trained model and a few labels, against the same few labels from scratch."""

    name: ClassVar[str] = "model-completion"
    paper: ClassVar[str] = "Fu et al. 2022, passive"
    adversary: ClassVar[str] = "one client, with a few labelled records"
    figures: ClassVar[Mapping[str, str]] = {
        "accuracy": "share of the other training records it labels right; control: from scratch"
    }
    setting: ClassVar[str] = "trained"

    per_class: int = Field(default=2, gt=0)
    """Labelled records of each class."""
    steps: int = Field(default=200, gt=0)
    """Of training the head and the model."""

    def unfit(self, config: ExperimentConfig, data: VerticalData) -> str | None:
        """Require classes, and a client model that can be trained further."""
        if (reason := why_no_classes(data)) is not None:
            return reason
        if any(model.name == "function" for model in config.client.every_model):
            return "client.model is a plain function, which the attack cannot train further"
        if not data.features[arena.CURIOUS]["train"].is_floating_point():
            return "the client's features are tokens, which the attack does not train on"
        if self.per_class * data.task.outputs >= data.records:
            return (
                f"attack.per_class is {self.per_class}, which with {data.task.outputs} classes "
                f"leaves none of {data.records} records to label"
            )
        return None

    def trial(self, config: ExperimentConfig, data: VerticalData) -> dict[str, Measurement]:
        """Train an honest run and attack it; the attacker and its control see the same labels."""
        truth, stream = data.labels["train"], self.stream(config)
        ids = few_of_each(truth, self.per_class, stream.child("few"))
        ground = arena.train(config, data, latest=1)
        client = ground.client()

        def score() -> Measurement:
            head = stream.child("head")
            return complete(client, ids, truth[ids], head, self.steps).score(truth)

        found = score()
        fresh = ground.fresh(arena.CURIOUS, stream.child("scratch"))
        client.model.parameters.copy_(fresh.parameters)
        return {"accuracy": Measurement(found.value, score().value, found.count)}
