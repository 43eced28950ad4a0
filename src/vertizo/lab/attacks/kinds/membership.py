"""Membership inference: tell from the released model whether a record was trained on.

* *loss* (Yeom et al. 2018): a model is surer of what it has seen; the score is minus the loss.
* *calibrated* (Watson et al. 2022; the idea of LiRA, Carlini et al. 2022, without its shadows):
  some records are hard for any model. The attacker fits a reference model on its own records of the
  same kind, and scores by how much surer the released model is than that one of the record's label,
  on LiRA's scale log p/(1 − p).

Members are training records; others are half of the test records. The attacker has the other half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.data.vertical import VerticalData
from vertizo.lab.attacks import arena
from vertizo.lab.attacks.adversaries import ReleasedModel
from vertizo.lab.attacks.base import Attack, why_no_classes
from vertizo.lab.attacks.scores import Measurement, auc, tpr_at

FPR = 0.01
"""False-positive rate at which the true-positive rate is reported."""


def confidence(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute log p/(1 − p) of each record's label, [rows]; a decreasing function of its loss."""
    logits = logits.double()
    at_label = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return at_label.squeeze(1) - others.logsumexp(1)


def loss_scores(model: ReleasedModel, features: Sequence[Tensor], labels: Tensor) -> Tensor:
    """Compute the released model's `confidence` in each record's label, [rows]."""
    return confidence(model.logits(features), labels)


def calibrated_scores(model: ReleasedModel, features: Sequence[Tensor], labels: Tensor) -> Tensor:
    """Subtract from `loss_scores` those of a reference model fitted on the attacker's records."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    own, asked = (
        torch.cat([part.flatten(1).float() for part in parts], 1).numpy()
        for parts in (model.population_features, features)
    )
    scaler = StandardScaler().fit(own)
    reference = LogisticRegression(max_iter=2000)
    reference.fit(scaler.transform(own), model.population_labels.numpy())
    logs = torch.from_numpy(np.asarray(reference.predict_log_proba(scaler.transform(asked))))
    classes = torch.from_numpy(np.asarray(reference.classes_))
    width = max(int(labels.max()), int(classes.max())) + 1
    found = torch.full((len(labels), width), -20.0, dtype=torch.float64)
    found[:, classes] = logs.double()
    return loss_scores(model, features, labels) - confidence(found, labels)


class MembershipInference(Attack):
    """Whoever holds the released model tells training records from others."""

    name: ClassVar[str] = "membership"
    paper: ClassVar[str] = "Yeom et al. 2018; calibrated after Watson et al. 2022"
    adversary: ClassVar[str] = "whoever is given the trained model"
    figures: ClassVar[Mapping[str, str]] = {
        "auc": "AUC of the loss",
        "tpr": "true-positive rate at a false-positive rate of 1 %",
        "calibrated": "AUC of the loss less a reference model's",
    }
    setting: ClassVar[str] = "overfitted"

    def unfit(self, config: ExperimentConfig, data: VerticalData) -> str | None:
        """Require classes, and test records that were not trained on."""
        if (reason := why_no_classes(data)) is not None:
            return reason
        if data.own is not None:
            return "data.label_holder is set; the attack asks the clients' joint model alone"
        if data.labels["test"].numel() < 4:
            return (
                f"{data.name} has {data.labels['test'].numel()} test records; it takes 4 at least"
            )
        if any(not own["train"].is_floating_point() for own in data.features):
            return "features are tokens, which the reference model does not read"
        return None

    def trial(self, config: ExperimentConfig, data: VerticalData) -> dict[str, Measurement]:
        """Train an honest run, and attack the model with its last parameters."""
        ground = arena.train(config, data, latest=1)
        rows = data.labels["test"].numel()
        order = torch.from_numpy(self.stream(config).generator().permutation(rows))
        own, outside = order[: rows // 2], order[rows // 2 :]
        model = ground.released(own)
        features = [torch.cat([party["train"], party["test"][outside]]) for party in data.features]
        labels = torch.cat([data.labels["train"], data.labels["test"][outside]])
        member = torch.arange(len(labels)) < data.records
        loss = loss_scores(model, features, labels)
        found = {
            "auc": Measurement(auc(loss, member), 0.5, len(member)),
            "tpr": Measurement(tpr_at(FPR, loss, member), FPR, len(member)),
        }
        if len(set(model.population_labels.tolist())) > 1:
            calibrated = calibrated_scores(model, features, labels)
            found["calibrated"] = Measurement(auc(calibrated, member), 0.5, len(member))
        return found
