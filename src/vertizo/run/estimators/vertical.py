"""The two estimators: `VerticalClassifier` and `VerticalRegressor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from vertizo.core.errors import ConfigError, DataError
from vertizo.data.tabular.columns import Source, texts
from vertizo.models.losses import MultiLabel
from vertizo.run.estimators import inputs
from vertizo.run.estimators.base import VerticalEstimator


@dataclass(eq=False, repr=False, kw_only=True)
class VerticalClassifier(ClassifierMixin, VerticalEstimator):  # type: ignore[misc]
    """A classifier that several parties train together, each on columns of its own.

    All parties run in this process: a simulation of what `vertizo serve` and `vertizo join` do in
    several, message by message the same. Parameters that are None are chosen: by the method and
    from the number of records and columns, never from their values. Without ``privacy`` the method
    auto is not: it reads labels, and may choose one that sends clients gradients.

    Args:
        parties: party → its columns, by name or position; columns that nobody holds are not used.
            None cuts the columns into two halves.
        method: name of the method, as in `vertizo list methods`, a mapping with its options, or an
            object of its class. auto tries some on validation records, or on folds of few records,
            and takes the best; with ``privacy``, what `vertizo privacy plan` advises. Grids reach
            options as ``method__smoothing``, and those of privacy as ``privacy__epsilon``.
        privacy: what is to be guaranteed; None for no guarantee.
        label_holder: the party that holds the labels; its columns enter the server model. None:
            a label holder without columns of its own.
        epochs: passes of every client over its records.
        batch_size: records of one query.
        embedding_dim: numbers that a client sends of each record.
        client_hidden: widths of the clients' hidden layers.
        server_hidden: widths of the server's hidden layers.
        client_learning_rate: of every client.
        server_learning_rate: of the server.
        validation: share of the records that choose the best model and are not trained on.
            None: 0.1, or what the method auto takes.
        categorical: columns of numbers that are categories, by name or position; text is one
            anyway, and so are pandas' and Polars' categories.
        classes: all classes there are, from public knowledge; ``privacy`` needs them. None for
            those of y.
        class_weight: class → how much a record of it counts, 1 for those it leaves out, from public
            knowledge; or balanced, which with ``privacy`` takes the classes' public shares, in
            ``config`` as ``data.class_shares``. None counts all alike.
        final_head: a second model, fitted on the raw labels after the last reply: logistic,
            boosting, refit (the server's model once more) or auto, the best on validation records;
            None for none. It costs no privacy against the clients, and must stay with the label
            holder.
        head: which model predicts: private, the server's, or raw, that of ``final_head``; None for
            raw where it is auto, or the method one-shot, and else private. It may be set after fit
            as well; nothing covers what raw predicts.
        config: further keys of a configuration, nested as in its file.
        ledger: file that fits with ``privacy`` on the same records are charged to; the first makes
            it. None counts each fit by itself.
        ledger_fits: fits like the first that the file is then made for.
        n_jobs: threads of a computation; -1 for every core, None for one. Parties take turns, as
            their messages depend on each other: for small models one thread is fastest.
        random_state: seed of all that is random, the noise of ``privacy`` included.
        verbose: show progress on a terminal or in a notebook, and a line a minute in a log.
        out: folder for the run, which must be new; None keeps it in memory.

    Attributes:
        classes_: the classes, sorted; of several labels their places.
        result_: the run: ``summary`` and ``metrics``.
        privacy_: what is guaranteed, in words.
        n_features_in_, feature_names_in_: of X in fit.
    """

    task = "classification"
    classes_: NDArray[Any] = field(init=False)
    classes: Sequence[Any] | None = None
    class_weight: Mapping[Any, float] | str | None = None

    def predict_proba(self, X: Any) -> NDArray[np.float32]:  # noqa: N803 - scikit-learn's name
        """The probability of each class, [records, classes] in the order of ``classes_``.

        Of several labels the probability that each holds, [records, labels].

        Raises:
            ValueError: X has other columns than in fit, or text where there were numbers.
        """
        check_is_fitted(self, "result_")
        if isinstance(self._preparation.task, MultiLabel):
            return self._outputs(X)
        names = self._preparation.class_names
        assert names is not None, "of a classification"
        probabilities = self._outputs(X)
        return probabilities[:, [names.index(text) for text in _texts(self.classes_)]]

    def predict_log_proba(self, X: Any) -> NDArray[np.float32]:  # noqa: N803 - scikit-learn's name
        """Natural logarithms of `predict_proba`; −∞ where a probability is 0."""
        with np.errstate(divide="ignore"):
            logarithms: NDArray[np.float32] = np.log(self.predict_proba(X))
        return logarithms

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803 - scikit-learn's name
        """The likeliest class of each record; ValueError as of `predict_proba`.

        Of several labels 1 for those that are likelier than not, else 0, [records, labels].
        """
        likely = self.predict_proba(X)
        if isinstance(self._preparation.task, MultiLabel):
            return (likely > 0.5).astype(np.int64)
        places = likely.argmax(1)
        classes: NDArray[Any] = self.classes_[places]
        return classes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _label_options(self, y: NDArray[Any]) -> dict[str, Any]:
        present = np.unique(y)
        further = self.config.get("data") if isinstance(self.config, Mapping) else None
        if isinstance(further, Mapping) and "classes" in further:
            raise ConfigError("config has data.classes; give the parameter classes in its place")
        self._several = y.ndim == 2
        if self._several:
            self.classes_ = np.arange(y.shape[1])
            if self.classes is not None and list(self.classes) != [0, 1]:
                raise ConfigError(
                    f"classes is {list(self.classes)!r} but y has several labels; leave it out"
                )
            weighed = {} if self.class_weight is None else {"data.class_weights": "balanced"}
            return {"data.classes": ["0", "1"], **weighed}
        if self.classes is None:
            self.classes_ = present
        else:
            public = np.unique(np.asarray(self.classes))
            unknown = [value for value in present.tolist() if value not in public.tolist()]
            if unknown:
                raise ConfigError(
                    f"classes is {list(self.classes)!r} but y has {unknown[0]!r}; name every class"
                )
            self.classes_ = public
        texts = _texts(self.classes_)
        if len(texts) < 2:
            one = present.tolist()[0]
            raise DataError(f"y has one class only, {one!r}; there must be two at least")
        if len(set(texts)) < len(texts):
            raise DataError(f"y has classes that read the same as text: {', '.join(texts)}")
        found: dict[str, Any] = {"data.classes": texts} if self.classes is not None else {}
        if self.class_weight is not None:
            found["data.class_weights"] = self._class_weights()
        return found

    def _class_weights(self) -> dict[str, float] | str:
        """``class_weight`` by the classes' texts; ConfigError for a class that is unknown."""
        given = self.class_weight
        if isinstance(given, str):
            return given
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"class_weight is {given!r}; use 'balanced', or map classes to weights"
            )
        unknown = next((name for name in given if name not in self.classes_.tolist()), None)
        if unknown is not None:
            raise ConfigError(f"class_weight has {unknown!r}, which is no class of y or classes")
        names = _texts(np.asarray(list(given), dtype=self.classes_.dtype))
        return dict(zip(names, map(float, given.values()), strict=True))

    def _check_public(self) -> None:
        if self.classes is None and not self._several:
            raise ConfigError(
                "classes is None, but privacy needs classes=[...], every class there is, from "
                "public knowledge: read off y, no ε would hold"
            )


@dataclass(eq=False, repr=False, kw_only=True)
class VerticalRegressor(RegressorMixin, VerticalEstimator):  # type: ignore[misc]
    """A regressor that several parties train together, each on columns of its own.

    See `VerticalClassifier`, whose parameters it has, but for ``classes``.

    Args:
        label_range: lowest and highest label that there can be, from public knowledge; None to
            scale labels by their mean and standard deviation, with which there is no guarantee.
    """

    task = "regression"
    label_range: Sequence[float] | None = None

    def predict(self, X: Any) -> NDArray[np.float32]:  # noqa: N803 - scikit-learn's name
        """The value of each record, in the unit of y.

        Raises:
            ValueError: X has other columns than in fit, or text where there were numbers.
        """
        return self._outputs(X)

    def _check_public(self) -> None:
        if self.label_range is None:
            raise ConfigError(
                "label_range is None, but privacy needs label_range=[lowest, highest], from public "
                "knowledge: scaled by statistics of y, no ε would hold"
            )


def _texts(classes: NDArray[Any]) -> list[str]:
    """The classes' names in a configuration."""
    series = inputs.column(classes, "classes")
    return [str(text) for text in texts(Source("y", series.to_frame()), "classes")]
