"""Feature inversion: the server reconstructs a client's features from its embeddings.

He, Zhang and Lee (2019), query-free: the server cannot ask the client's model anything, it only
sees the embeddings that training brings. Two attackers, and their coalitions:

* *decoder*: some records' features at the client are known to the server (published, or its own
  customers). Their embeddings arrive like all others; a ridge regression from embedding to features
  is fitted on these pairs and applied to everybody else.
* *shadow*: no pairs. The server only has records of the same kind with labels. It trains a shadow
  of the client's model under its own head, and a decoder for the shadow.
* *coalition* (Luo et al. 2021): other clients put in their own columns of the same records. The
  control is what these columns alone predict: features of one record are correlated.

The figure is the squared error relative to the mean predictor, so that 1 is no leak and 0 a perfect
reconstruction. The server has labels, and digits of one class look alike: the control is the mean
of each class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.lab.attacks import arena
from vertizo.lab.attacks.adversaries import Coalition, CuriousServer
from vertizo.lab.attacks.base import Attack
from vertizo.lab.attacks.scores import Measurement, relative_error
from vertizo.lab.attacks.transcript import Exchange
from vertizo.models.base import DifferentiableModel, Points
from vertizo.models.losses import Classification

RIDGES = tuple(10.0**power for power in range(-6, 4))
"""Weights of the ridge penalty that the regression chooses from, by cross-validation."""


def last_embeddings(exchanges: Sequence[Exchange], client: int, records: int) -> Tensor:
    """Average the last points that were sent for each record, [D, d_h]; NaN where none were."""
    own = [each for each in exchanges if each.client == client]
    found = torch.full((records, own[0].embeddings.shape[2]), torch.nan)
    for each in own:
        found[each.ids] = each.embeddings.mean(0)
    return found


def decode(inputs: Tensor, known: Tensor, features: Tensor) -> Tensor:
    """Reconstruct all records' features by a ridge regression on the known ones, [D, columns].

    ``inputs`` are numbers that the attacker has of every record, [D, numbers]; ``known`` the IDs of
    the records whose ``features`` it has, [known, columns].
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(inputs[known].numpy())
    model = RidgeCV(RIDGES).fit(scaler.transform(inputs[known].numpy()), features.numpy())
    guess = np.asarray(model.predict(scaler.transform(inputs.numpy())))
    return torch.from_numpy(guess.reshape(len(inputs), -1)).to(torch.float32)


def invert(together: Coalition, target: int, *, embeddings: bool = True) -> Tensor:
    """Reconstruct client ``target``'s features by known records, [D, columns].

    The regression takes its embeddings and the colluding clients' columns; without
    ``embeddings`` the columns alone, which is the coalition's control.
    """
    server, inputs = together.server, list(together.features.values())
    if embeddings:
        own = last_embeddings(server.exchanges, target, server.public.records).nan_to_num()
        inputs = [own, *inputs]
    return decode(torch.cat(inputs, 1), server.known[target], server.known_features[target])


class Shadow(NamedTuple):
    """A trained shadow's embeddings of the server's own records, with their features and labels."""

    embeddings: Tensor
    features: Tensor
    labels: Tensor


def train_shadow(ground: arena.Arena, target: int, stream: Stream, steps: int) -> Shadow:
    """Train a shadow of client ``target``'s model without a single query.

    He, Zhang and Lee (2019), section V. The server knows w_0, labels, and some records of the same
    kind (here: test records, which took no part in training). It trains shadows of *all* clients,
    since a head takes all embeddings, to predict those records' labels with w_0 fixed.

    Args:
        ground: the federation, for the server's head, the test records and the architecture of the
            clients; their parameters are not looked at.
        target: index of the client.
        stream: random stream of the shadows' initial parameters.
        steps: number of steps of Adam on all test records.
    """
    side, labels = ground.federation.server.side, ground.data.labels["test"]
    features = [own["test"] for own in ground.data.features]
    models = [ground.fresh(m, stream.child("shadow", m)) for m in range(len(features))]
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
            gradient = (
                side.model.evaluate(Points(joined), labels).input_gradient(1 / len(labels)).cpu()
            )
            for m, (model, pullback) in enumerate(zip(models, pullbacks, strict=True)):
                model.parameters.grad = pullback(side.table.part(m, gradient)).clone()
            optimizer.step()
    return Shadow(models[target](features[target]), features[target].flatten(1).float(), labels)


def invert_by_shadow(server: CuriousServer, target: int, shadow: Shadow) -> Tensor:
    """Reconstruct a client's features by a decoder that was fitted on the shadow's embeddings.

    The shadow is trained to be of use behind the same head; nothing makes its coordinates the
    client's. The server, which has both sides' labels, maps the client's class means onto the
    shadow's first.
    """
    embeddings = last_embeddings(server.exchanges, target, server.public.records).nan_to_num()
    ours = class_means(shadow.embeddings, shadow.labels, shadow.labels)
    theirs = class_means(embeddings, server.labels, shadow.labels)
    move = decode(torch.cat([theirs, embeddings]), torch.arange(len(theirs)), ours)[len(theirs) :]
    pooled = torch.cat([shadow.embeddings, move])
    return decode(pooled, torch.arange(len(ours)), shadow.features)[len(ours) :]


def class_means(rows: Tensor, labels: Tensor, wanted: Tensor) -> Tensor:
    """Return for every wanted label the mean of its rows, or of all rows: [wanted, columns].

    Of known features, this is the guess of a server that has labels and saw no embedding.
    """
    found = rows.mean(0).repeat(len(wanted), 1)
    for label in set(wanted.tolist()):
        if bool((labels == label).any()):
            found[wanted == label] = rows[labels == label].mean(0)
    return found


class FeatureInversion(Attack):
    """The server reconstructs a client's features, alone and with other clients."""

    name: ClassVar[str] = "feature-inversion"
    paper: ClassVar[str] = "He et al. 2019, query-free; Luo et al. 2021"
    adversary: ClassVar[str] = "the server, alone or with other clients"
    figures: ClassVar[Mapping[str, str]] = {
        "decoder": "relative squared error with some records known; control: class means",
        "shadow": "the same without any known record; control: class means",
        "coalition": "the same as decoder, with all other clients; control: without embeddings",
    }
    setting: ClassVar[str] = "trained"

    known: int = Field(default=100, gt=1)
    """Training records whose features at the client the server knows."""
    steps: int = Field(default=150, gt=0)
    """Of training the shadow."""

    def unfit(self, config: ExperimentConfig, data: VerticalData) -> str | None:
        """Require numeric features, and records beyond the known ones."""
        if not data.features[arena.CURIOUS]["train"].is_floating_point():
            return "the client's features are tokens, which the attack does not reconstruct"
        if self.known >= data.records:
            return f"attack.known is {self.known}; there are {data.records} training records"
        return None

    def trial(self, config: ExperimentConfig, data: VerticalData) -> dict[str, Measurement]:
        """Train an honest run and attack client `CURIOUS`, which is the victim here."""
        target, stream = arena.CURIOUS, self.stream(config)
        order = torch.from_numpy(stream.child("known").generator().permutation(data.records))
        known, rest = order[: self.known], order[self.known :]
        per_epoch = -(-data.records // config.batch_size)
        ground = arena.train(config, data, latest=2 * per_epoch)
        server = ground.server({target: known})
        truth = ground.columns(target)
        mean = server.known_features[target].mean(0)

        def found(guess: Tensor, control: Tensor, reference: Tensor = mean) -> Measurement:
            error, without = (
                relative_error(each[rest], truth[rest], reference) for each in (guess, control)
            )
            return Measurement(error, without, len(rest))

        by_class = isinstance(data.task, Classification)
        labels = server.labels if by_class else torch.zeros(data.records, dtype=torch.int64)
        means = class_means(server.known_features[target], labels[known], labels)
        figures = {"decoder": found(invert(Coalition(server, {}), target), means)}
        if by_class and data.own is None:
            shadow = train_shadow(ground, target, stream, self.steps)
            plain = class_means(shadow.features, shadow.labels, labels)
            guess = invert_by_shadow(server, target, shadow)
            figures["shadow"] = found(guess, plain, shadow.features.mean(0))
        others = {m: ground.columns(m) for m in range(len(data.parties)) if m != target}
        if others:
            together = Coalition(server, others)
            without = invert(together, target, embeddings=False)
            figures["coalition"] = found(invert(together, target), without)
        return figures
