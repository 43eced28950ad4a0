"""Predictions of uploaded records by either of the label holder's heads, and their scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vertizo.core.names import Head
from vertizo.models.losses import Classification
from vertizo.party.checks import Partition
from vertizo.party.closing_scores import closing_scores
from vertizo.party.final_head import Chosen, FinalHead
from vertizo.party.metrics import Scores, scores
from vertizo.party.server_model import ServerSide
from vertizo.protocol.messages import Purpose


@dataclass(eq=False)
class Scoring:
    """Predictions from the clients' embeddings of a partition, side by side, [rows, Σ d_h]."""

    side: ServerSide
    labels: Partition
    """Raw labels, by purpose."""
    own: Partition | None
    """The label holder's own features by purpose, [records, columns]."""
    head: FinalHead | None
    """The raw head; None for none."""

    def __post_init__(self) -> None:
        task = self.side.model.task  # labels that score are neither private nor weighted
        self._task = task
        if isinstance(task, Classification):
            self._task = Classification(task.outputs, task.positive)
        self.tested: dict[Head, Tensor] = {}
        """Logits of the test records, [rows, outputs], by head, from the last closing figures."""
        self.is_finite = True
        """Whether all logits of the last score were finite."""

    def logits(self, purpose: Purpose, rows: Tensor, by: Head = "private") -> Tensor:
        """Logits by one of the heads, [rows, outputs]."""
        if by == "private":
            return self.side.model.logits(self._joined(purpose, rows)).cpu()
        assert self.head is not None, "the configuration names one"
        return self.head.logits(self._of_head(self.head, purpose, rows))

    def score(
        self, purpose: Purpose, rows: Tensor, by: Head = "private", *, whole: bool = False
    ) -> Scores:
        """Quality of predictions, with the closing figures if ``whole``; stays with the server.

        A raw head's are always whole: it is scored once, at the end.
        """
        logits = self.logits(purpose, rows, by)
        self.is_finite = bool(logits.isfinite().all())
        if not whole and by == "private":
            return scores(self._task, logits, self.labels[purpose])
        self.tested[by] = logits
        return closing_scores(self._task, logits, self.labels[purpose])

    def fit_head(self, rows: Tensor, held: Tensor | None) -> None:
        """Fit the raw head on the training records' raw labels; only this weighs records.

        ``held`` are validation records, [rows, Σ d_h], which choose among several; None for none.
        """
        assert self.head is not None, "the configuration names one"
        labels, weights = self.labels["train"], self.side.head_weights
        if not isinstance(self.head, Chosen) or held is None:
            self.head.fit(self._of_head(self.head, "train", rows), labels, weights)
            return
        tried = {}
        for name, head in self.head.heads.items():
            head.fit(self._of_head(head, "train", rows), labels, weights)
            logits = head.logits(self._of_head(head, "validation", held))
            tried[name] = scores(self._task, logits, self.labels["validation"])
        self.head.choose(tried)

    def _joined(self, purpose: Purpose, rows: Tensor) -> Tensor:
        """The rows that the server's model reads."""
        joined = self.side.table.combine(rows)
        return self._with_own(purpose, joined) if self.side.table.has_own else joined

    def _of_head(self, head: FinalHead, purpose: Purpose, rows: Tensor) -> Tensor:
        """The rows that a raw head reads."""
        return self._joined(purpose, rows) if head.combines else self._with_own(purpose, rows)

    def _with_own(self, purpose: Purpose, rows: Tensor) -> Tensor:
        """Rows with the label holder's own features behind them."""
        return rows if self.own is None else torch.cat([rows, self.own[purpose]], 1)
