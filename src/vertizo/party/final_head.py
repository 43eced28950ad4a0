"""The model that the label holder fits after the last reply, on raw labels (docs/mathematics.md).

Nothing that it computes reaches a client any more, so that clients learn nothing by it, whatever it
learns from. It is not covered by a run's ε: neither it nor what it predicts may leave.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vertizo.core.names import HeadName
from vertizo.models.losses import Classification, Task

WORDS = (
    "The raw head was fitted on the raw labels after the last reply, so that no client learns "
    "anything by it. Nothing covers it or its predictions: both must stay with the label holder."
)
ROUNDS, RATE, LEAVES = 150, 0.08, 31
"""Of the gradient boosting."""


class FinalHead:
    """Predicts from joined embeddings and the label holder's own features.

    Args:
        kind: logistic (ridge, for a regression) on standardised inputs, or boosting.
        rows: of the training records, [records, width].
        labels: of theirs, raw.
        task: what they are.
    """

    def __init__(self, kind: HeadName, rows: Tensor, labels: Tensor, task: Task) -> None:
        self._task = task
        self._model = _learner(kind, task)
        self._present = np.unique(labels.numpy())
        if len(self._present) > 1:
            self._model.fit(rows.numpy(), labels.numpy())

    def logits(self, rows: Tensor) -> Tensor:
        """Logits of the task, [rows, outputs]."""
        inputs, task = rows.numpy(), self._task
        if not isinstance(task, Classification):
            if len(self._present) > 1:
                found = self._model.predict(inputs)
            else:
                found = np.full(len(inputs), self._present[0])
            units = (found - task.mean) / task.spread
            return torch.from_numpy(units.astype(np.float32)).unsqueeze(1)
        shares = np.full((len(inputs), task.outputs), 1e-12)
        if len(self._present) > 1:
            shares[:, self._present] += self._model.predict_proba(inputs)
        else:
            shares[:, self._present] = 1.0
        return torch.from_numpy(np.log(shares).astype(np.float32))


def _learner(kind: HeadName, task: Task) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classified = isinstance(task, Classification)
    if kind == "logistic":
        return make_pipeline(
            StandardScaler(), LogisticRegression(max_iter=1000) if classified else Ridge()
        )
    boosting = HistGradientBoostingClassifier if classified else HistGradientBoostingRegressor
    return boosting(
        max_iter=ROUNDS,
        learning_rate=RATE,
        max_leaf_nodes=LEAVES,
        early_stopping=False,
        random_state=0,
    )
