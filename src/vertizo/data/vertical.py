"""`VerticalData`: a data set cut between parties, each with features of the same records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.core.text.suggestions import nearest
from vertizo.data.datasets.text_vectors import encoded_parts
from vertizo.data.options import DataConfig
from vertizo.data.pooled import Pooled, RecordFacts
from vertizo.data.prepared import Preparation, regression
from vertizo.data.record_split import choose, criterion_of
from vertizo.data.splits import describe, pieces
from vertizo.data.tabular import category_text
from vertizo.data.tabular.preprocessing import Bounds, Lists, Preprocessing, check_public
from vertizo.models.losses import Classification, MultiLabel, Regression, Task
from vertizo.protocol.messages import Purpose

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Holding:
    """One party's own features."""

    name: str
    values: Mapping[Purpose, Tensor]
    """[records, ...], by purpose; training records under ``train``."""
    cardinalities: tuple[int, ...] = ()
    """Number of categories of each of the first columns, which then hold codes from 0."""


@dataclass(frozen=True)
class VerticalData(RecordFacts):
    """A data set cut between parties: the clients' features, and the label holder's data."""

    name: str
    task: Task
    parties: tuple[str, ...]
    features: tuple[Mapping[Purpose, Tensor], ...]
    """Each party's own features, by purpose; training records under ``train``."""
    labels: Mapping[Purpose, Tensor]
    fitted_scaling: bool
    """Whether some party's features depend on statistics of the training records."""
    cardinalities: tuple[tuple[int, ...], ...] = ()
    """Each party's `Holding.cardinalities`; empty where no party has categories."""
    own: Holding | None = None
    """The label holder's own features, which enter the server model directly; None without."""
    fitted: tuple[str, ...] = ()
    """Parties, perhaps the label holder, whose features depend on such statistics."""
    preparation: Preparation | None = None
    """How new records of a raw table become features; None for other data."""
    are_images: bool = False
    """Whether each party's records are images, [channels, height, width]."""
    seats: tuple[int, ...] = ()
    """Each client's number among all of the split; empty where all of them take part."""
    seated: int = 0
    """Clients of the split, excluded ones included; 0 where all of them take part."""

    @property
    def records(self) -> int:
        """D, the number of training records."""
        return self.labels["train"].shape[0]

    @property
    def positive(self) -> str | None:
        """Name of the positive class, of two or of several labels; None for other tasks."""
        if isinstance(self.task, MultiLabel):
            return self.class_names[1] if self.class_names else None
        if not isinstance(self.task, Classification) or self.task.outputs != 2:
            return None
        return self.class_names[self.task.positive] if self.class_names else str(self.task.positive)

    def shape(self, party: int) -> tuple[int, ...]:
        """Shape of one record's features at one party."""
        return tuple(self.features[party]["train"].shape[1:])


def cut(pooled: Pooled, options: DataConfig, stream: Stream) -> VerticalData:
    """Set validation records aside and give every party its part of the features.

    The parties of a raw table then prepare their own columns, fitted on their own training rows.
    The stream chooses the validation records. ConfigError names the split or another key, and the
    data that it does not fit.
    """
    ranges, categories = options.ranges, options.categories
    cut_by = options.split, options.parties, options.columns, options.sizes
    names, parts = pieces(pooled, *cut_by)
    _check_holder(options.label_holder, names)
    _check_without(options, names)
    everybody = [name for name in names if name != options.label_holder]
    present = [place for place, name in enumerate(names) if name not in options.exclude_parties]
    names, parts = tuple(names[place] for place in present), [parts[place] for place in present]
    if pooled.levels is not None:
        check_public(pooled.name, pooled.columns or (), pooled.levels, ranges, categories)
    elif ranges or categories:
        key = "ranges" if ranges else "categories"
        raise ConfigError(f"data.{key} is set but {describe(pooled)} without raw columns")

    by = criterion_of(options, pooled.name, pooled.task, pooled.train_labels, pooled.times)
    chosen = choose(pooled.train.shape[0], options.validation, options.limit, stream, by)
    fits_something = pooled.levels is not None or isinstance(pooled.task, Regression)
    if fits_something and not chosen["train"].numel():
        raise ConfigError(
            f"data.validation is {options.validation}, which leaves no record to train on"
        )
    labels: dict[Purpose, Tensor] = {"test": pooled.test_labels}
    labels |= {purpose: pooled.train_labels[ids] for purpose, ids in chosen.items()}

    def trained(texts: Sequence[str]) -> list[str]:
        return [texts[place] for place in chosen["train"].tolist()]

    holdings, fitted = [], []
    preparations: dict[str, Preprocessing] = {}
    for name, piece in zip(names, parts, strict=True):
        # Cut first, then choose: a large data set is copied once.
        own_part = piece(pooled.train)
        values = {purpose: _selected(own_part, ids) for purpose, ids in chosen.items()}
        values["test"] = piece(pooled.test).contiguous()
        if options.encoder is not None:
            values = encoded_parts(values, chosen, options.encoder)
        holding, is_fitted = Holding(name, values), pooled.fitted_scaling
        if pooled.levels is not None:
            places = piece(torch.arange(len(pooled.columns or ())).unsqueeze(0))[0].tolist()
            own = [(pooled.columns or ())[place] for place in places]
            holding, prepare = hold(
                name, values, own, pooled.levels, ranges, categories, pooled.dates
            )
            preparations[name], is_fitted = prepare, prepare.fitted
        holdings.append(holding)
        fitted += [name] * is_fitted
    clients = [holding for holding in holdings if holding.name != options.label_holder]
    cardinalities = tuple(client.cardinalities for client in clients)
    task = learned_task(pooled.name, pooled.task, labels["train"], options, pooled.class_names)
    return VerticalData(
        name=pooled.name,
        task=task,
        parties=tuple(client.name for client in clients),
        features=tuple(client.values for client in clients),
        labels=labels,
        fitted_scaling=bool(fitted),
        cardinalities=cardinalities if any(cardinalities) else (),
        own=next((holding for holding in holdings if holding.name == options.label_holder), None),
        fitted=tuple(fitted),
        fitted_labels=pooled.fitted_labels
        or (isinstance(task, Regression) and options.label_range is None),
        class_names=pooled.class_names,
        preparation=Preparation(preparations, pooled.label, task, pooled.class_names)
        if preparations and pooled.label is not None
        else None,
        are_images=all(client.values["train"].dim() == 4 for client in clients),
        notes=pooled.notes,
        keys=_later(pooled.keys, trained),
        contents=_later(pooled.contents, trained),
        likeness=_later(pooled.likeness, lambda columns: list(map(trained, columns))),
        seats=tuple(everybody.index(client.name) for client in clients)
        if options.exclude_parties
        else (),
        seated=len(everybody) if options.exclude_parties else 0,
        weights=None if pooled.weights is None else pooled.weights[chosen["train"]],
        persons=None if pooled.persons is None else pooled.persons[chosen["train"]],
    )


def _later(first: Callable[[], A] | None, change: Callable[[A], B]) -> Callable[[], B] | None:
    """Change what ``first`` will compute, once it is asked for; None where there is nothing."""
    return None if first is None else lambda: change(first())


def _selected(values: Tensor, ids: Tensor) -> Tensor:
    """Copy some records into NumPy's memory, whose large pages make rows faster to find."""
    found = torch.from_numpy(np.empty((len(ids), *values.shape[1:]), values.numpy().dtype))
    torch.index_select(values, 0, ids, out=found)
    return found


def hold(
    name: str,
    values: Mapping[Purpose, Tensor],
    columns: Sequence[str],
    levels: Mapping[str, tuple[str, ...]],
    ranges: Bounds,
    categories: Lists,
    dates: Collection[str] = (),
) -> tuple[Holding, Preprocessing]:
    """Prepare a party's columns of a raw table, fitted on its own training rows."""
    prepare = Preprocessing(values["train"].numpy(), columns, levels, ranges, categories, dates)
    prepared = {purpose: prepare(whole.numpy()) for purpose, whole in values.items()}
    return Holding(name, prepared, prepare.cardinalities), prepare


def _check_holder(label_holder: str | None, names: Sequence[str]) -> None:
    if label_holder is None:
        return
    if label_holder not in names:
        hint = nearest(label_holder, names) or f"; they are {', '.join(map(repr, names))}"
        raise ConfigError(
            f"data.label_holder is {label_holder!r}, which is none of the parties{hint}"
        )
    if len(names) == 1:
        raise ConfigError(
            f"data.label_holder is {label_holder!r}, the only party, which leaves no client; "
            "cut the features between more parties"
        )


def _check_without(options: DataConfig, names: Sequence[str]) -> None:
    """Refuse excluded parties that do not exist, hold the labels, or leave no client."""
    for name in options.exclude_parties:
        if name not in names:
            hint = nearest(name, names) or f"; they are {', '.join(map(repr, names))}"
            raise ConfigError(
                f"data.exclude_parties names {name!r}, which is none of the parties{hint}"
            )
        if name == options.label_holder:
            raise ConfigError(
                f"data.exclude_parties names {name!r}, which is data.label_holder; name clients "
                "alone"
            )
    if {*options.exclude_parties, options.label_holder} >= {*names}:
        raise ConfigError(
            f"data.exclude_parties names {', '.join(map(repr, options.exclude_parties))}, which "
            "leaves no client"
        )


def learned_task(
    name: str,
    task: Task,
    labels: Tensor,
    options: DataConfig,
    class_names: Sequence[str] | None = None,
) -> Task:
    """The task with the positive class of data.positive, or with the scale of a regression.

    A regression's labels are centred and scaled by the training labels' mean and standard
    deviation, or by public bounds. ConfigError for regression keys of another task, or an invalid
    positive class.
    """
    if isinstance(task, MultiLabel):
        return task
    if isinstance(task, Classification):
        if options.label_range is not None:
            raise ConfigError(f"data.label_range is set but {name} is no regression")
        if options.loss != "squared":
            raise ConfigError(f"data.loss is {options.loss!r} but {name} is no regression")
        return _with_positive(name, task, options.positive, class_names)
    if options.positive is not None:
        raise ConfigError(
            f"data.positive is {options.positive!r} but {name} is a regression, without classes"
        )
    if options.label_range is not None:
        low, high = options.label_range
        return regression(options, (low + high) / 2, (high - low) / 2)
    values = labels.double()
    spread = float(values.std(unbiased=False))
    return regression(options, float(values.mean()), spread if spread > 0 else 1.0)


def _with_positive(
    name: str, task: Classification, positive: str | None, class_names: Sequence[str] | None
) -> Classification:
    """The task with that positive class; ConfigError where it is none of two."""
    if positive is None:
        return task
    names = class_names or tuple(map(str, range(task.outputs)))
    (wanted,) = category_text.names([positive], "data.positive", names)
    if task.outputs != 2:
        raise ConfigError(
            f"data.positive is {positive!r} but {name} has {task.outputs} classes; "
            "it is for two, leave it out"
        )
    if wanted not in names:
        raise ConfigError(
            f"data.positive is {positive!r}, which is no class of {name}; "
            f"it must be {names[0]!r} or {names[1]!r}"
        )
    return Classification(2, names.index(wanted))


def of_classes(options: Any, data: VerticalData) -> Tensor | None:
    """Weights of the classes, float32 [classes]; None where all are equal.

    Balanced ones are ``1 / (k · share)``, as in scikit-learn. ConfigError for an unknown class or
    a missing share.
    """
    given, shares = options.class_weights, options.class_shares
    if given is None:
        return None
    if not isinstance(data.task, Classification):
        raise ConfigError(f"data.class_weights is set but {data.name} is a regression")
    names = data.class_names or tuple(map(str, range(data.task.outputs)))
    if given != "balanced":
        given = _by_class("class_weights", given, names)
        return torch.tensor([given.get(name, 1.0) for name in names])
    if shares is None:
        counts = torch.bincount(data.labels["train"], minlength=len(names)).double()
        found = len(data.labels["train"]) / (len(names) * counts.clamp(min=1))
        return found.float()
    shares = _by_class("class_shares", shares, names)
    missing = next((name for name in names if name not in shares), None)
    if missing is not None:
        raise ConfigError(f"data.class_shares has no share of the class {missing!r}")
    return torch.tensor([1 / (len(names) * shares[name]) for name in names])


def _by_class(key: str, given: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """Numbers by class, under its name among ``names``; ConfigError for an unknown class."""
    found = category_text.names(given, f"data.{key}", names)
    given = dict(zip(found, given.values(), strict=True))
    unknown = next((name for name in given if name not in names), None)
    if unknown is not None:
        hint = nearest(unknown, names) or f"; they are {', '.join(map(repr, names))}"
        raise ConfigError(f"data.{key} has {unknown!r}, which is no class{hint}")
    return given
