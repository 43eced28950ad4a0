"""Reply scoring: rank records of two classes by the norm and the direction of their gradients.

Li et al. (2022). With two classes ``∂f_i/∂h_i = (p_i − y_i) · v``: a positive and a negative record
point opposite ways, and a confident model gives records of the rarer class longer gradients. The
attacker scores every record by the norm of its gradient, or by the cosine to that of one record
whose label it knows; the figure is the leak AUC. A record's scores are averaged over its exchanges.

Control: the same scores from replies that were shuffled between exchanges, and within them between
records. What they still tell came from the client's own embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.lab.attacks import arena
from vertizo.lab.attacks.adversaries import CuriousClient
from vertizo.lab.attacks.base import Attack
from vertizo.lab.attacks.estimates import kind, record_gradients
from vertizo.lab.attacks.scores import Measurement, auc
from vertizo.lab.attacks.transcript import Exchange
from vertizo.models.losses import Classification

Found = Sequence[tuple[Tensor, Tensor]]
"""IDs [batch] and estimated gradients [batch, d_h] of every exchange."""


def gradients(client: CuriousClient) -> Found:
    """Estimate the records' gradients from a client's exchanges."""
    return [(e.ids, record_gradients(e, client.public, client.shared)) for e in client.exchanges]


def norm_scores(found: Found, records: int) -> Tensor:
    """Compute the mean norm of each record's gradients, [D]; large ones suggest the rarer class."""
    return _mean([(ids, g.norm(dim=1)) for ids, g in found], records)


def direction_scores(found: Found, records: int, known: int) -> Tensor:
    """Compute the mean cosine of each record's gradient to that of record ``known``, [D].

    An exchange is compared with the known record's last gradient up to it, or else its first.
    """
    seen = [gradient[ids == known] for ids, gradient in found]
    reference = next((rows[0] for rows in seen if len(rows)), None)
    if reference is None:
        return torch.zeros(records)
    scores = []
    for (ids, gradient), rows in zip(found, seen, strict=True):
        reference = rows[0] if len(rows) else reference
        lengths = gradient.norm(dim=1) * reference.norm()
        scores.append((ids, gradient @ reference / lengths.clamp(min=1e-30)))
    return _mean(scores, records)


def _mean(scores: Found, records: int) -> Tensor:
    total, count = torch.zeros(records, dtype=torch.float64), torch.zeros(records)
    for ids, values in scores:
        total.index_add_(0, ids, values.double())
        count.index_add_(0, ids, torch.ones(ids.numel()))
    return total / count.clamp(min=1)


def dealt_anew(exchanges: Sequence[Exchange], stream: Stream) -> list[Exchange]:
    """Shuffle replies between queries of one batch size, and rows of a reply between records."""
    rng = stream.generator()
    changed = list(exchanges)
    for size in {each.ids.numel() for each in exchanges}:
        places = [i for i, each in enumerate(exchanges) if each.ids.numel() == size]
        for place, source in zip(places, rng.permutation(places), strict=True):
            values = exchanges[source].values
            if values.dim() == 2:
                values = values[torch.from_numpy(rng.permutation(size))]
            changed[place] = replace(exchanges[place], values=values)
    return changed


class ReplyScoring(Attack):
    """A client ranks records of two classes by the norm and the direction of their gradients."""

    name: ClassVar[str] = "reply-scoring"
    paper: ClassVar[str] = "Li et al. 2022"
    adversary: ClassVar[str] = "one client; for the direction it knows one label"
    figures: ClassVar[Mapping[str, str]] = {
        "norm": "leak AUC of the gradients' norms",
        "direction": "leak AUC of the gradients' directions",
    }
    setting: ClassVar[str] = "binary"

    def unfit(self, config: ExperimentConfig, data: VerticalData) -> str | None:
        """Require two classes, and replies that the attack can read."""
        if not isinstance(data.task, Classification) or data.task.outputs != 2:
            return f"{data.name} has not two classes; the attack is for two (data.name)"
        if kind(config.method) is None:
            return f"replies of method {config.method.name!r} are not known to the attack"
        return None

    def trial(self, config: ExperimentConfig, data: VerticalData) -> dict[str, Measurement]:
        """Train an honest run and attack it; the control reads shuffled replies."""
        truth, stream = data.labels["train"], self.stream(config)
        rare = int(torch.bincount(truth, minlength=2).argmin())
        positive = truth == rare
        known = int(positive.nonzero()[int(stream.generator().integers(int(positive.sum())))])
        others = torch.arange(data.records) != known
        client = arena.train(config, data).client()
        dealt = dealt_anew(client.exchanges, stream.child("control"))
        found = [gradients(each) for each in (client, replace(client, exchanges=dealt))]
        scores = {
            "norm": [norm_scores(each, data.records) for each in found],
            "direction": [direction_scores(each, data.records, known) for each in found],
        }
        figures = {}
        for key, each in scores.items():
            value, control = (auc(one[others], positive[others]) for one in each)
            figures[key] = Measurement(value, control, int(others.sum()))
        return figures
