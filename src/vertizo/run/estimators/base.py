"""The base of both estimators: `fit` runs an experiment, `predict` uses its trained parties."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted

from vertizo.config import choosing, method_defaults
from vertizo.config.choosing import Open
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, DataError, Interrupted, RunError
from vertizo.core.names import Head
from vertizo.data.prepare import prepare_frame
from vertizo.data.prepared import Preparation
from vertizo.methods.base import Method
from vertizo.run import live
from vertizo.run.build.label_free import controlled
from vertizo.run.build.privacy import record_choice
from vertizo.run.estimators import inputs, saved, settings
from vertizo.run.estimators.inputs import Features
from vertizo.run.estimators.privacy import Privacy
from vertizo.run.experiment import Experiment, Result
from vertizo.run.loop.evaluation import HEAD
from vertizo.run.results import html_form, summary_figures
from vertizo.run.results.folder import RunFolder
from vertizo.run.trained.prediction import Predictor, raw_head_of

LABEL, WEIGHT = "label", "weight"
"""Columns of y and its weights; underscores go in front if X has a column of that name."""

SHARED_NOISE = (
    "Fits under this random_state that differ in nothing but their records, as folds of a "
    "cross-validation of one size, have the same noise: a difference of two may be free of it."
)


class WrongSetting(ConfigError, ValueError):  # noqa: N818 - scikit-learn asks for a ValueError
    """A parameter that does not fit, and what would."""


class WrongInput(DataError, ValueError):  # noqa: N818 - scikit-learn asks for a ValueError
    """Records that do not fit, and what would."""


@contextmanager
def value_errors() -> Iterator[None]:
    """Make errors of parameters and data ValueErrors too, as scikit-learn expects."""
    try:
        yield
    except ConfigError as error:
        raise WrongSetting(str(error)) from None
    except DataError as error:
        raise WrongInput(str(error)) from None
    except Interrupted as error:  # or a search over parameters would go on with the next
        raise KeyboardInterrupt(str(error)) from None


@dataclass(eq=False, repr=False)
class VerticalEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """One run of an experiment in ``fit``; the parameters of both estimators."""

    task: ClassVar[Literal["classification", "regression"]]
    result_: Result = field(init=False)
    privacy_: str = field(init=False)
    n_features_in_: int = field(init=False)
    _config: ExperimentConfig = field(init=False)
    _preparation: Preparation = field(init=False)

    parties: Mapping[str, Sequence[str | int]] | None = None
    _: KW_ONLY
    method: str | Mapping[str, Any] | Method = "auto"
    privacy: Privacy | Mapping[str, Any] | None = None
    label_holder: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    embedding_dim: int | None = None
    client_hidden: Sequence[int] | None = None
    server_hidden: Sequence[int] | None = None
    client_learning_rate: float | None = None
    server_learning_rate: float | None = None
    validation: float | None = None
    categorical: Sequence[str | int] | None = None
    final_head: str | None = None
    head: str | None = None
    config: Mapping[str, Any] | None = None
    ledger: str | Path | None = None
    ledger_fits: int = 1
    n_jobs: int | None = None
    random_state: Any = None
    verbose: bool = False
    out: str | Path | None = None

    def _label_options(self, y: NDArray[Any]) -> dict[str, Any]:
        """Keys of the configuration that describe y; sets attributes that depend on y alone."""
        return {}

    @abstractmethod
    def _check_public(self) -> None:
        """Raise ConfigError if something is read off y that a guarantee needs to be public."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters; ``deep`` ones are also those of sections, as ``method__smoothing``."""
        found: dict[str, Any] = super().get_params(deep)
        for section in settings.SECTIONS if deep else ():
            given = settings.options(section, getattr(self, section))
            found |= {f"{section}__{name}": value for name, value in given.items()}
        return found

    @value_errors()
    def set_params(self, **params: Any) -> Self:
        """Set parameters, and those of sections: ``method__smoothing=0.01``, as grids do.

        Raises:
            ValueError: there is no such parameter; names those that there are.
        """
        nested: dict[str, dict[str, Any]] = {section: {} for section in settings.SECTIONS}
        own = {}
        for key, value in params.items():
            section, _, name = key.partition("__")
            if name and section in nested:
                nested[section][name] = value
            else:
                own[key] = value
        super().set_params(**own)
        for section, changes in nested.items():
            if changes:
                now = settings.changed(section, getattr(self, section), changes)
                setattr(self, section, now)
        return self

    @value_errors()
    def fit(
        self,
        X: Any,  # noqa: N803 - scikit-learn's name
        y: Any,
        sample_weight: Any = None,
    ) -> Self:
        """Train the federation on records of all parties.

        X is a pandas or Polars frame, or an array [records, columns], in which NaN and None are
        missing; y [records] are the labels, or of a classifier [records, labels], several that are
        0 or 1 each. ``sample_weight`` [records], from 0, says how much each record's loss counts,
        before the clip of ``privacy``; None counts all alike. It is a part of the record at the
        label holder, and validation counts all records alike.

        Raises:
            ValueError: parameters or records that do not fit; one line says what would.
            RunError: ``out`` cannot be used, or training diverged.
        """
        if y is None:
            raise DataError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None."
            )
        features = inputs.features(self, X, reset=True)
        check_consistent_length(X, y)
        given, y = y, inputs.target(y, numbers=self.task == "regression")
        names = inputs.label_names(given, y, LABEL)
        out = None if self.out is None else Path(self.out)
        if out is not None and (out / "config.yaml").exists():
            raise RunError(f"out is {out}, which holds a run already; name a new folder")
        columns = settings.columns_of(self.parties, features.names)
        weights = inputs.weights(sample_weight, X)
        found = self._configuration(features, columns, y, names, weighs=weights is not None)
        config = found.first(len(y)) if isinstance(found, Open) else found
        self._check_head(config)
        data, label = config.data, config.data.label
        assert label is not None, "set just now"
        needed = {data.person, data.time, *(c for own in columns.values() for c in own)}
        used = [column for column in features.names if column in needed]
        frame = features.frame(used).with_columns(inputs.columns(y, label))
        if data.weight is not None:
            assert weights is not None, "it is named for them"
            frame = frame.with_columns(inputs.column(weights, data.weight))
        everything = partial(features.frame, features.names)
        cut = prepare_frame(frame, data, record_choice(config), everything)
        experiment = Experiment(found, cut)
        text = "" if out is None else saved.text_of(self)  # before anything is trained or charged
        for note in experiment.data().notes:  # before anything is charged: it may be made an error
            warnings.warn(note, UserWarning, stacklevel=3)  # where somebody fits
        settings.open_ledger(experiment, self.ledger_fits)
        shown = live.bar(config.method.name, Console(stderr=True))
        with shown if self.verbose else nullcontext() as show:
            result = experiment.run(out, progress=show)
        preparation = experiment.data().preparation
        assert preparation is not None, "of a table"
        self._config, self._preparation = experiment.config, preparation
        # Without the parties: they hold the training records.
        self._finish(replace(result, federation=None))
        if out is not None:
            saved.write(out, text)
        return self

    def _configuration(
        self,
        features: Features,
        columns: Mapping[str, Sequence[str]],
        y: NDArray[Any],
        label: str | Sequence[str],
        *,
        weighs: bool,
    ) -> ExperimentConfig | Open:
        """Make the configuration of the run from parameters and records."""
        parameters = self.get_params(deep=False)
        settings.check_holder(self.label_holder, tuple(columns))
        held = [column for own in columns.values() for column in own]
        forced = features.categories(held)
        if self.categorical is not None:
            forced += settings.named("categorical names", self.categorical, features.names)
        unlike = partial(_unlike, names=features.names)
        own = {
            "seed": _seed(self.random_state),
            "data.name": "frame",
            "data.label": unlike(label) if isinstance(label, str) else [*map(unlike, label)],
            "data.task": self.task,
            "data.columns": {party: list(own) for party, own in columns.items()},
            "data.label_holder": self.label_holder,
            "data.categorical": [column for column in held if column in forced],
            **self._label_options(y),
            **({"data.weight": unlike(WEIGHT)} if weighs else {}),
            **settings.threads(self.n_jobs),
        }
        tree = settings.tree_of(parameters, self.config, own)
        privacy = tree.get("privacy", {})
        if method_defaults.draws_noise(privacy):
            if privacy.get("epsilon") is not None:
                self._check_public()
            if self.random_state is None:  # the seed was drawn, and nobody asked for it
                privacy.setdefault("noise", "secure")
        return choosing.parse(tree, type(self).__name__)

    def _check_head(self, config: ExperimentConfig) -> None:
        """Raise ConfigError for an unknown head, or one that is not fitted."""
        if self.head not in (None, *get_args(Head)):
            raise ConfigError(f"head is {self.head!r}; use 'private' or 'raw'")
        if self.head == "raw" and controlled(config).server.final_head == "private":
            raise ConfigError(
                "head is 'raw' but no such head is fitted; give final_head, as 'boosting', to fit"
            )

    def _finish(self, result: Result) -> None:
        self.result_ = result
        sections = ("privacy", HEAD) if HEAD in result.summary else ("privacy",)
        words = [result.summary[name]["words"] for name in sections]
        if result.summary["privacy"]["guarantee"] == "simulated":
            words.insert(1, SHARED_NOISE)
        self.privacy_ = " ".join(words)

    @value_errors()
    def _outputs(self, given: Any) -> NDArray[np.float32]:
        """Probabilities [records, classes] in the order of the preparation, or values [records]."""
        check_is_fitted(self, "result_")
        features = inputs.features(self, given, reset=False)
        held = [c for own in self._preparation.parties.values() for c in own.columns]
        result, config = self.result_, self._config
        self._check_head(config)
        predictor = Predictor(
            *(config, result.summary, self._preparation, result.parameters),
            raw_head=result.raw_head if (self.head or config.predicts_by) == "raw" else None,
        )
        frame = features.frame(held)
        outputs: NDArray[np.float32] = predictor.outputs(frame, name="X").numpy()
        for line in self._preparation.unknown(frame, name="X"):
            warnings.warn(line, UserWarning, stacklevel=4)  # where somebody predicts
        return outputs

    def _repr_mimebundle_(self, **given: Any) -> dict[str, Any]:
        """HTML for notebooks: once fitted its figures, with scikit-learn's diagram folded below."""
        found: dict[str, Any] = super()._repr_mimebundle_(**given)
        if hasattr(self, "result_") and "text/html" in found:
            own = summary_figures.html(self.result_.summary, self.privacy_)
            found["text/html"] = own + html_form.folded(type(self).__name__, found["text/html"])
        return found

    def _repr_html_(self) -> str | None:
        """The HTML for notebooks; None if scikit-learn is set to show texts."""
        return self._repr_mimebundle_().get("text/html")

    def save(self, path: str | Path) -> None:
        """Write a run folder, which `load` reads and ``vertizo predict`` as well; no pickle.

        It has the models, and of the training records what each party prepares new ones by
        (means, spreads, names of categories); the records themselves are not in it.

        Raises:
            RunError: the folder cannot be written, or holds something.
        """
        check_is_fitted(self, "result_")
        folder, result = RunFolder(Path(path)), self.result_
        if folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
            raise RunError(f"{path} is there already; name a new folder")
        text = saved.text_of(self)  # before there is a folder
        folder.create(self._config, preparation=self._preparation)
        for row in result.metrics:
            folder.append_metrics(row)
        folder.save(result.summary["model"], dict(result.parameters))
        if result.raw_head is not None:
            folder.save(HEAD, {"head": result.raw_head})
        saved.write(folder.path, text)
        folder.write_summary(result.summary)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """A fitted estimator from the folder that `save`, or ``out``, left.

        Where its configuration names models in a Python file, predictions import that file.

        Raises:
            RunError: it holds no such estimator.
        """
        folder = Path(path)
        state = saved.read(folder, cls)
        predictor = Predictor.load(folder)
        if predictor.preparation is None:
            raise RunError(f"{folder} has no preparation.json, which predictions take")
        estimator = cls(**state.parameters)
        estimator._config, estimator._preparation = predictor.config, predictor.preparation
        for name, value in state.fitted.items():
            setattr(estimator, name, value)
        kept = RunFolder(folder)
        raw = raw_head_of(kept, predictor.config) if HEAD in predictor.summary else None
        summary, parameters = dict(predictor.summary), predictor.parameters
        estimator._finish(Result(summary, kept.metrics(), None, folder, parameters, raw))
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.target_tags.required = True
        return tags


def _unlike(name: str, names: Sequence[str]) -> str:
    """The name, with as many underscores in front as make it differ from all ``names``."""
    while name in names:
        name = f"_{name}"
    return name


def _seed(random_state: Any) -> int:
    """An integer seed as it is, or one drawn from what scikit-learn takes in its place."""
    if isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
