"""The choice of ``method: auto`` among its candidates: by trials, or by advice for an ε.

A trial trains a candidate on some of the training records and scores it on others: the validation
records or, where all are few, each of four folds in turn. No test record takes part.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vertizo.config import auto
from vertizo.config.choosing import Open
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError
from vertizo.data.vertical import VerticalData
from vertizo.models.losses import Classification, MultiLabel
from vertizo.party.closing_scores import headline
from vertizo.privacy import mechanism_advice as choosing
from vertizo.protocol.messages import Purpose
from vertizo.run.build import data_defaults
from vertizo.run.build.data_defaults import complete
from vertizo.run.loop.federation import build
from vertizo.run.loop.training import Progress, Training

FOLDS = 4
EVERY = 60.0
"""Seconds between two lines about one trial."""
MOST = 10_000
"""Training records in a candidate's trials, at most; the chosen candidate trains on all."""
NAMES = {
    "network": "split learning of networks",
    "linear": "split learning of linear parts",
    "dpzv": "DPZV",
    "vafl": "VAFL",
    "split": "split learning",
}
GRADIENTS = "Its clients receive gradients, from which labels can be told"
RAW = "Its replies are made of raw labels without noise"
STAYS = (
    "If the model may stay with the label holder, method one-shot has ε = 0; with 16 numbers of "
    "each record from each client it predicted classes better than what is advised under ε = 1 on "
    "our tables."
)

METRICS = {
    "test_auc": "AUC",
    "test_accuracy": "accuracy",
    "test_rmse": "RMSE",
    "test_pinball": "pinball loss",
    "test_huber": "Huber loss",
    "test_loss": "loss",
}

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Choice:
    """The chosen configuration, and why it was chosen."""

    config: ExperimentConfig
    words: str
    figures: Mapping[str, float]
    """Candidate → its figure on records that it did not train on, for those that were tried."""

    def section(self) -> dict[str, Any]:
        """The section ``choice`` of a run's summary."""
        return {"words": self.words, "tried": dict(self.figures)}


def silent(line: str) -> None:
    """Tell nobody."""


def chosen(given: Open, data: VerticalData, tell: Tell = silent) -> Choice:
    """Choose the configuration to train on these data; ``tell`` gets a line for each trial.

    Raises:
        ConfigError: nothing fits what was given.
        RunError: every trial failed.
    """
    if given.epsilon is not None:
        return _advised(given, data)
    records = data.records + len(data.labels["validation"])
    candidates = given.candidates(records)
    if len(candidates) == 1:
        ((name, config),) = candidates.items()
        return Choice(config, f"Method auto: {NAMES[name]}; no other fits the options.", {})
    summaries: dict[str, list[Mapping[str, Any]]] = {}
    for name, config in candidates.items():
        tell(f"method auto: trying {NAMES[name]}")
        try:
            parts = _parts(data, config.seed)
            summaries[name] = [_trained(config, part, tell) for part in parts]
        except (ConfigError, RunError) as error:  # it does not fit, or diverged: another will do
            tell(f"method auto: {NAMES[name]} is left out: {error}")
            last = error
    if not summaries:
        raise RunError(f"method auto: no candidate could be tried ({last}); name a method")
    metric = f"test_{headline(data.task)}"
    if not all(metric in one for each in summaries.values() for one in each):
        metric = "test_loss"  # of an AUC both classes must be there
    tried = {name: [float(one[metric]) for one in each] for name, each in summaries.items()}
    best = _best(tried, 1 if metric in ("test_auc", "test_accuracy") else -1)
    means = {name: statistics.fmean(each) for name, each in tried.items()}
    words = _words(best, means, METRICS[metric], len(tried[best]), candidates[best])
    return Choice(candidates[best], words, means)


def _best(tried: Mapping[str, Sequence[float]], sign: int) -> str:
    """The candidate with the best mean; with folds the linear one, unless it is clearly behind.

    Clearly: by more than one standard error of the differences by fold (Breiman et al. 1984). Folds
    of few records tell candidates apart no better, and linear parts have the least to go wrong.
    """
    best = max(tried, key=lambda name: sign * statistics.fmean(tried[name]))
    if "linear" not in tried or len(tried[best]) == 1:
        return best
    ahead = [sign * (one - other) for one, other in zip(tried[best], tried["linear"], strict=True)]
    error = statistics.stdev(ahead) / math.sqrt(len(ahead))
    return best if statistics.fmean(ahead) > error else "linear"


def _words(
    best: str, figures: Mapping[str, float], metric: str, parts: int, config: ExperimentConfig
) -> str:
    by = f"of {parts} folds" if parts > 1 else "on validation records"
    others = ", ".join(f"{NAMES[n]} {f:.4g}" for n, f in figures.items() if n != best)
    leak = GRADIENTS if config.method.first_order_client else RAW
    return (
        f"Method auto: {NAMES[best]}, by its {metric} {by}, {figures[best]:.4g}"
        f"{f' ({others})' if others else ''}. {leak}; with an ε another is taken."
    )


def _advised(given: Open, data: VerticalData) -> Choice:
    """The choice that `vertizo privacy plan` advises for an ε, by public facts alone."""
    privacy, task = given.first().privacy, data.task
    assert privacy.epsilon is not None
    if not isinstance(task, Classification) or isinstance(task, MultiLabel):
        words = "Method auto: DPZV, the method that keeps an ε for regressions and several labels."
        return Choice(given.first(), f"{words} {STAYS}", {})
    case = choosing.Case(data.records, len(data.parties), task.outputs)
    count = data_defaults.tangents(privacy.epsilon, privacy.delta, data.records)
    ways = choosing.ways(case, privacy.epsilon, privacy.delta, count)
    way, why = choosing.chosen(ways, case, privacy.epsilon, "labels")
    config = given.parsed(auto.advised(given.given, way.name))
    words = f"Method auto: {way.settings}, as {why} (vertizo privacy plan). {STAYS}"
    return Choice(config, words, {})


def _trained(config: ExperimentConfig, part: VerticalData, tell: Tell) -> Mapping[str, Any]:
    said = time.monotonic()

    def progress(at: Progress) -> None:
        nonlocal said
        if (now := time.monotonic()) - said > EVERY:
            said = now
            tell(f"method auto: {at.round:,} of {at.total:,} rounds")

    federation = build(complete(config, part), part)
    return Training(federation, progress=progress).run(resume=False).summary


def _parts(data: VerticalData, seed: int) -> Iterator[VerticalData]:
    """Yield the data of each trial of a candidate: of one, or of each fold."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(data.records)[:MOST])
    if len(data.labels["validation"]):
        yield _part(data, order)
    else:
        for fold in (order[start::FOLDS] for start in range(FOLDS)):
            yield _part(data, order[~torch.isin(order, fold)], fold)


def _part(data: VerticalData, trained: Tensor, tested: Tensor | None = None) -> VerticalData:
    """The data of a trial: some of the training records to train, and others to test.

    ``tested`` are training records as well; None tests on the validation records.
    """
    trained = trained.sort()[0]

    def some(values: Mapping[Purpose, Tensor]) -> dict[Purpose, Tensor]:
        train, validation = values["train"], values["validation"]
        test = validation if tested is None else train[tested]
        return {"train": train[trained], "validation": validation, "test": test}

    own, weights = data.own, data.weights
    return replace(
        data,
        features=tuple(map(some, data.features)),
        labels=some(data.labels),
        own=None if own is None else replace(own, values=some(own.values)),
        weights=None if weights is None else weights[trained],
        persons=None,
        keys=None,
        contents=None,
        likeness=None,
    )
