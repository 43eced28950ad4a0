"""The raw head: a model that the label holder fits on raw labels after the last reply.

Defined in docs/mathematics.md. Clients learn nothing by it, since nothing that it computes reaches
them. It is not covered by a run's ε: neither it nor what it predicts may leave.

Every head predicts from a few arrays by the lines below, whoever fitted it: what is kept in a
folder needs no pickle, and predicts the same under any version of scikit-learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.state import Stateful
from vertizo.models.base import Points, State
from vertizo.models.losses import Classification, Quantile, Regression
from vertizo.party.metrics import Scores, quality
from vertizo.party.server_model import ServerModel

WORDS = (
    "The raw head was fitted on the raw labels after the last reply, so that no message to a "
    "client depends on it. Nothing covers it or its predictions: both must stay with the label "
    "holder."
)
MISSING = (
    "There is no raw head: a member was silent when its embeddings were asked for once more, or "
    "those that were to be scored."
)
ROUNDS, RATE, LEAVES = 150, 0.08, 31
"""Rounds, learning rate and leaves of the gradient boosting. Trees of a few columns may have fewer
leaves: as many as one split by each makes."""
RIDGE = 1.0
"""Added to a leaf's hessians with several classes: without it leaves grew to 10⁵ on 15 classes of
flights, ten records of some, and 16 % of new records were right in place of 89 %."""
ENOUGH = 20
"""Records of each label from which a tenth of them is enough to compare settings on."""
WIDE, MANY = 50, 100
"""Columns from which a logistic head chooses its ridge; records a column where it need not."""
RIDGES = (1.0, 0.1, 0.01, 0.001)
"""The inverse strengths of the ridge that it chooses among."""
STEPS = 200
"""Most steps of a refit: each passes over all records a few times."""
AT_ONCE = 1024
"""Records that a refit evaluates at a time."""
HEAVIEST = 1e30
"""Largest weight of a record: float32, in which scikit-learn adds up, reaches 3e38."""
Array = NDArray[np.float64]


class FinalHead(Protocol):
    """A head that predicts in place of the server's model once it is fitted, or loaded."""

    @property
    def combines(self) -> bool:
        """Whether its rows are what the server's model reads (`server.join`).

        Or else the parties' own numbers side by side. The label holder's features are behind them
        in either case.
        """

    def fit(self, rows: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Learn from the training records' rows, [records, width], and raw labels [records].

        ``weights`` [records] say how much each counts; None where all count alike.
        """

    def logits(self, rows: Tensor) -> Tensor:
        """Logits of the task, [rows, outputs]; ValueError for rows of another width."""

    def state(self) -> State:
        """The head's state as a folder keeps it: tensors alone."""

    def load(self, state: State) -> None:
        """Restore a state; KeyError, TypeError or ValueError if it is another kind of head's."""


class Served(Stateful):
    """The server's model itself, as a head among others to choose from."""

    combines = True

    def __init__(self, model: ServerModel) -> None:
        self._model = model

    def fit(self, rows: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Do nothing: queries have trained the model."""

    def logits(self, rows: Tensor) -> Tensor:
        """See `FinalHead.logits`."""
        return self._model.logits(rows).cpu()


class Chosen(Stateful):
    """The one of several named heads that predicts validation records best; ties by order.

    It is the first one until `choose` was called.
    """

    STATE = ("kind", "head")

    def __init__(self, heads: Mapping[str, FinalHead]) -> None:
        self.heads = heads
        self.kind = next(iter(heads))
        self.tried: dict[str, Scores] = {}
        """Figures of validation records, by head."""

    @property
    def head(self) -> FinalHead:
        """The head that was chosen."""
        return self.heads[self.kind]

    @property
    def combines(self) -> bool:
        """See `FinalHead.combines`; of the head that was chosen."""
        return self.head.combines

    def fit(self, rows: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Fit the head that was chosen; to choose, `heads` are fitted one by one."""
        self.head.fit(rows, labels, weights)

    def choose(self, tried: Mapping[str, Scores]) -> None:
        """Choose the best by figures of validation records (`vertizo.party.metrics.quality`)."""
        self.tried = dict(tried)
        self.kind = max(tried, key=lambda name: quality(tried[name], of=""))

    def logits(self, rows: Tensor) -> Tensor:
        """See `FinalHead.logits`."""
        return self.head.logits(rows)


class Fitted:
    """A head that scikit-learn fits.

    Args:
        kind: logistic (ridge, for a regression) on standardised inputs, or boosting.
        task: the task, with one label for each record.
    """

    combines = False

    def __init__(
        self, kind: Literal["logistic", "boosting"], task: Classification | Regression
    ) -> None:
        self._kind, self._task = kind, task
        self._numbers: dict[str, Tensor] = {}

    def fit(self, rows: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """See `FinalHead.fit`; where all labels are the same, that one is always predicted.

        Records of weight 0 are left out. No labels and weights make it fail: members would see that
        a job's process failed.
        """
        task, classified = self._task, isinstance(self._task, Classification)
        labels = labels if classified else labels.double()  # large float32 ones add up to infinity
        counts = None if weights is None else weights.clamp(max=HEAVIEST).double().numpy()
        if counts is not None:
            there = counts > 0
            rows, labels, counts = rows[there], labels[there], counts[there]
        present = np.unique(labels.numpy())
        if len(present) <= 1:
            alone = 0.0 if isinstance(task, Classification) else task.mean
            value = alone if classified or not len(present) else float(present[0])
            numbers = _linear(np.zeros(rows.shape[1]), np.ones(rows.shape[1]), 0.0, value)
        else:
            numbers = _learnt(self._kind, task, rows.numpy(), labels.numpy(), counts)
        numbers["present"] = present if classified else present[:0]
        numbers["width"] = np.array(rows.shape[1])
        self._numbers = {name: torch.from_numpy(part) for name, part in numbers.items()}

    def logits(self, rows: Tensor) -> Tensor:
        """See `FinalHead.logits`."""
        numbers, task = {name: part.numpy() for name, part in self._numbers.items()}, self._task
        if rows.shape[1] != numbers["width"]:
            raise ValueError(f"rows of {rows.shape[1]} numbers; the head has {numbers['width']}")
        inputs = rows.numpy().astype(np.float64)
        if "roots" in numbers:
            found = _by_trees(numbers, inputs)
        else:
            scaled = (inputs - numbers["mean"]) / numbers["scale"]
            found = scaled @ numbers["weights"].T + numbers["bias"]
        if not isinstance(task, Classification):
            units = (found - task.mean) / task.spread
            return torch.from_numpy(units.astype(np.float32))
        present = numbers["present"]
        if found.shape[1] < len(present):  # of two classes, the second's against the first
            found = np.concatenate([np.zeros_like(found), found], 1)
        found = np.exp(found - found.max(1, keepdims=True))
        shares = np.full((len(inputs), task.outputs), 1e-12)
        shares[:, present] += found / found.sum(1, keepdims=True)
        return torch.from_numpy(np.log(shares).astype(np.float32))

    def state(self) -> State:
        """See `FinalHead.state`."""
        return dict(self._numbers)

    def load(self, state: State) -> None:
        """See `FinalHead.load`."""
        if not isinstance(state, dict):
            raise TypeError("the state of another kind of head")
        names = {"present", "width", *(_TREES if self._kind == "boosting" else _LINEAR)}
        if state.keys() != names and state.keys() != {"present", "width", *_LINEAR}:
            raise KeyError("the state of another kind of head")
        if "roots" in state:
            nodes = torch.arange(len(state["left"]))
            inner = state["left"] != nodes
            after = torch.minimum(state["left"], state["right"]) > nodes
            if not bool(after[inner].all()):
                raise ValueError("a tree that does not end")
        self._numbers = dict(state)


_LINEAR = ("mean", "scale", "weights", "bias")
_TREES = ("baseline", "roots", "feature", "threshold", "left", "right", "value")


def _learnt(
    kind: str,
    task: Classification | Regression,
    rows: NDArray[np.float32],
    labels: NDArray[Any],
    weights: Array | None,
) -> dict[str, NDArray[Any]]:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.preprocessing import StandardScaler

    classified = isinstance(task, Classification)
    if kind == "logistic":
        scaler = StandardScaler().fit(rows)
        inputs = scaler.transform(rows)
        if classified:
            model: Any = LogisticRegression(C=_ridge(inputs, labels, weights), max_iter=1000)
            model.fit(inputs, labels, weights)
        else:  # scikit-learn makes labels of the inputs' type
            model = Ridge().fit(inputs.astype(np.float64), labels, weights)
        return _linear(scaler.mean_, scaler.scale_, model.coef_, model.intercept_)
    boosting = HistGradientBoostingClassifier if classified else HistGradientBoostingRegressor
    options: dict[str, Any] = {"max_iter": ROUNDS, "learning_rate": RATE, "random_state": 0}
    if classified and task.outputs > 2:  # a rare class's hessians vanish where it is never likely
        options["l2_regularization"] = RIDGE
    if isinstance(task, Quantile):
        options |= {"loss": "quantile", "quantile": task.level}

    def loss(leaves: int) -> float:
        """On a tenth of the records, of trees that are fitted on the others."""
        apart = {"early_stopping": True, "validation_fraction": 0.1, "n_iter_no_change": ROUNDS}
        tried = boosting(max_leaf_nodes=leaves, **options, **apart).fit(rows, labels, weights)
        return -float(tried.validation_score_[-1])

    counts = np.unique(labels, return_counts=True)[1] if classified else len(labels)
    few = min(LEAVES, 2 ** min(rows.shape[1], 5))
    choice = (LEAVES, few) if few < LEAVES and np.min(counts) >= ENOUGH else (LEAVES,)
    leaves = min(choice, key=loss) if len(choice) > 1 else LEAVES
    model = boosting(max_leaf_nodes=leaves, early_stopping=False, **options)
    model.fit(rows, labels, weights)
    return _trees(model)


def _ridge(inputs: NDArray[np.float32], labels: NDArray[Any], weights: Array | None) -> float:
    """scikit-learn's C: with many columns, the one that predicts a tenth of the records best.

    With few columns, or where a label is too rare for a tenth to tell, it is the default.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.model_selection import train_test_split

    records, columns = inputs.shape
    is_rare = np.min(np.unique(labels, return_counts=True)[1]) < ENOUGH
    if is_rare or columns < WIDE or records >= MANY * columns:
        return RIDGES[0]
    counts = np.ones(records) if weights is None else weights
    kept, apart = train_test_split(
        np.arange(records), test_size=0.1, stratify=labels, random_state=0
    )

    def loss(strength: float) -> float:
        model = LogisticRegression(C=strength, max_iter=1000)
        model.fit(inputs[kept], labels[kept], counts[kept])
        likely = model.predict_proba(inputs[apart])
        return float(log_loss(labels[apart], likely, sample_weight=counts[apart]))

    return min(RIDGES, key=loss)


def _linear(mean: Any, scale: Any, weights: Any, bias: Any) -> dict[str, NDArray[Any]]:
    found = {"mean": mean, "scale": scale, "weights": np.zeros(len(mean)) + weights, "bias": bias}
    found = {name: np.asarray(part, np.float64) for name, part in found.items()}
    return found | {"weights": np.atleast_2d(found["weights"]), "bias": np.ravel(found["bias"])}


def _trees(model: Any) -> dict[str, NDArray[Any]]:
    """All nodes of all trees in one table; a leaf's children are itself."""
    trees = [tree.nodes for round_ in model._predictors for tree in round_]
    nodes = np.concatenate(trees)
    sizes = np.array([len(tree) for tree in trees])
    roots = np.cumsum(sizes) - sizes
    offsets, own = np.repeat(roots, sizes), np.arange(len(nodes))
    leaf = nodes["is_leaf"].astype(bool)
    return {
        "baseline": model._baseline_prediction.reshape(-1),
        "roots": roots.reshape(len(model._predictors), -1),
        "feature": nodes["feature_idx"].astype(np.int64),
        "threshold": nodes["num_threshold"].astype(np.float64),
        "left": np.where(leaf, own, nodes["left"] + offsets),
        "right": np.where(leaf, own, nodes["right"] + offsets),
        "value": nodes["value"].astype(np.float64),
    }


def _by_trees(numbers: dict[str, NDArray[Any]], inputs: Array) -> Array:
    """The sum over trees of the value of the leaf that each row falls into, [rows, outputs]."""
    feature, threshold, value = (numbers[name] for name in ("feature", "threshold", "value"))
    children = np.stack([numbers["left"], numbers["right"]], 1).ravel()
    leaf = numbers["left"] == np.arange(len(value))
    found = np.tile(numbers["baseline"], (len(inputs), 1))
    first = np.arange(len(inputs)) * inputs.shape[1]
    for round_ in numbers["roots"]:
        for output, root in enumerate(round_):
            rows, at = np.arange(len(inputs)), np.full(len(inputs), root)
            while len(rows):
                is_right = inputs.take(first.take(rows) + feature.take(at)) > threshold.take(at)
                at = children.take(2 * at + is_right)
                ends = leaf.take(at)
                found[rows[ends], output] += value.take(at[ends])
                rows, at = rows[~ends], at[~ends]
    return found


class Refitted:
    """The server's own architecture, trained once more from its first parameters.

    L-BFGS on the sum of the raw losses and half the squared distance from the first parameters, as
    strong a ridge as that of the logistic head; a pretrained model thus stays near what it knew.
    Nothing of the model is in training mode. ``model`` is at its first parameters, and this head's.
    """

    combines = True

    def __init__(self, model: ServerModel) -> None:
        self._model = model

    def fit(self, rows: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """See `FinalHead.fit`."""
        from scipy.optimize import minimize

        parameters = self._model.parameters
        first = parameters.double().numpy().copy()

        def objective(point: Array) -> tuple[float, Array]:
            parameters.copy_(torch.from_numpy(point))
            loss, slope = float(np.square(point - first).sum()) / 2, point - first
            for start in range(0, len(rows), AT_ONCE):
                some = slice(start, start + AT_ONCE)
                counted = None if weights is None else weights[some]
                about = Points(rows[some]), labels[some]
                evaluation = self._model.evaluate(*about, weights=counted)
                loss += float(evaluation.losses.double().sum())
                slope += evaluation.gradient(1.0).double().numpy()
            return loss, slope

        options = {"maxiter": STEPS, "maxfun": 2 * STEPS}
        best = minimize(objective, first, jac=True, method="L-BFGS-B", options=options)
        parameters.copy_(torch.from_numpy(best.x))

    def logits(self, rows: Tensor) -> Tensor:
        """See `FinalHead.logits`."""
        return self._model.logits(rows)

    def state(self) -> State:
        """See `FinalHead.state`."""
        return self._model.state()

    def load(self, state: State) -> None:
        """See `FinalHead.load`."""
        self._model.load(state)
