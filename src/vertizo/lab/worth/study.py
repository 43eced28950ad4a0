"""The study of worth: the label holder alone, federations of coalitions, and all columns pooled.

Every figure is of the same test records, and every interval a bootstrap over the same resamples of
them: a difference between two rows has an interval of its own, which is to be read in place of the
overlap of the rows' intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, DataError, RunError
from vertizo.core.names import Head
from vertizo.data.vertical import VerticalData
from vertizo.lab import comparison
from vertizo.lab.comparison import Standing
from vertizo.lab.engines import Processes, Run
from vertizo.lab.tuning.privacy import Planned, planned
from vertizo.lab.worth import words
from vertizo.lab.worth.cost import beforehand, check_ledger, check_mechanism, cost_of
from vertizo.lab.worth.importance import importances
from vertizo.models.losses import Classification, MultiLabel
from vertizo.party.closing_scores import LEVEL, headline, interval, resampled, resamples
from vertizo.party.metrics import scores
from vertizo.run import references
from vertizo.run.build.label_free import controlled
from vertizo.run.experiment import Experiment
from vertizo.run.loop.evaluation import TESTED
from vertizo.run.loop.ledger_session import can_go_on
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder

NAME = "worth.json"
TEXTS = "no gradient boosting: the columns are tokens of texts"
LONGEST = 80
"""Most characters of a folder's name that is made of the parties' names."""
Array = NDArray[np.float64]
Coalition = tuple[str, ...]
Progress = Callable[[Standing], None]


def coalitions(parties: Sequence[str], *, every: bool) -> list[Coalition]:
    """List the coalitions to train: all parties, all but one, and with ``every`` all others.

    The empty coalition is never among them.

    >>> coalitions("ab", every=True)
    [('a', 'b'), ('a',), ('b',)]
    >>> len(coalitions("abcd", every=False)), len(coalitions("abcd", every=True))
    (5, 15)
    """
    least = 1 if every else max(1, len(parties) - 1)
    sizes = range(len(parties), least - 1, -1)
    return [some for size in sizes for some in combinations(parties, size)]


def shapley(parties: Sequence[str], gains: Mapping[Coalition, Array]) -> dict[str, Array]:
    """Compute each party's Shapley value from every coalition's gain over the empty one.

    Shapley (1953): the mean of what a party adds to those that came before it, over all orders of
    the parties. It is linear in the figures of the coalitions, so that a bootstrap of these is one
    of the values, and the values of all parties add up to what they gain together.

    >>> found = shapley("ab", {("a",): np.array(1.0), ("b",): np.array(2), ("a", "b"): np.array(2)})
    >>> {party: float(value) for party, value in found.items()}
    {'a': 0.5, 'b': 1.5}
    """
    size, found = len(parties), {}
    for party in parties:
        others = [other for other in parties if other != party]
        total: Array = np.zeros(())
        for before in (some for k in range(size) for some in combinations(others, k)):
            joined = tuple(each for each in parties if each == party or each in before)
            gained = gains[joined] - (gains[before] if before else 0.0)
            total = total + gained / (size * math.comb(size - 1, len(before)))
        found[party] = total
    return found


def folder_name(coalition: Coalition, parties: Sequence[str]) -> str:
    """Name the folder of a coalition's runs by its parties, or by their numbers if names are unfit.

    >>> folder_name(("a", "b"), ("a", "b", "c")), folder_name(("a",), ("a", "x/y"))
    ('a+b', 'party0')
    """
    unfit = {*'+/\\:*?"<>|'}
    named = all(p.isprintable() and not unfit & {*p} and not p.startswith(".") for p in parties)
    differ = len({p.lower() for p in parties}) == len(parties)
    if named and differ and len("+".join(parties)) <= LONGEST:
        return "+".join(coalition)
    return "party" + "+".join(str(parties.index(party)) for party in coalition)


@dataclass(frozen=True)
class Figure:
    """The headline figure of one row; larger is better, so that errors are negative."""

    values: tuple[float, ...]
    """The figure of each seed."""
    drawn: Array
    """The figure on each resample of the test records, as the mean over seeds."""

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return float(np.mean(self.values))


@dataclass(frozen=True)
class Worth:
    """A study of worth, not trained yet; the configuration's seed is the first of ``seeds``."""

    config: ExperimentConfig
    folder: Path
    seeds: int = 1
    shapley: bool = True
    repeats: int = 5
    plans: list[tuple[Coalition, Planned]] = field(default_factory=list, repr=False)
    """Each coalition with the privacy plan of its training; filled by `check`."""
    beforehand: list[str] = field(default_factory=list, repr=False)
    """Lines on the trainings to be made and their cost; filled by `check`."""

    @cached_property
    def data(self) -> VerticalData:
        """The data of all parties, with the first seed's validation records."""
        return Experiment(self.config).data()

    @cached_property
    def parties(self) -> tuple[str, ...]:
        """The clients, which are the parties that may be left out."""
        return self.data.parties

    @property
    def every(self) -> bool:
        """Whether every coalition is trained."""
        return self.shapley and len(self.parties) <= words.MOST

    @property
    def head(self) -> Head:
        """The head whose predictions are compared."""
        head = controlled(self.config).server.final_head
        return "private" if head == "private" else "raw"

    @cached_property
    def runs(self) -> dict[Coalition, list[Run]]:
        """Coalition → its trainings, one for each seed, in folders of their own."""
        config, found = self.config, dict[Coalition, list[Run]]()
        for coalition in coalitions(self.parties, every=self.every):
            absent = [party for party in self.parties if party not in coalition]
            left_out = {"exclude_parties": [*config.data.exclude_parties, *absent]}
            data, label = (
                config.data.model_copy(update=left_out),
                folder_name(coalition, self.parties),
            )
            found[coalition] = []
            for seed in range(config.seed, config.seed + self.seeds):
                own = config.model_copy(update={"data": data, "seed": seed})
                place = self.folder / label / f"seed{seed}"
                found[coalition].append(Run(label, "none", own, place))
        return found

    def check(self) -> None:
        """Check that the study can be made before it begins; raise a `UserError` if it cannot."""
        config, data = self.config, self.data
        if config.control != "none":
            raise ConfigError(f"control is {config.control!r}; what is worth something trains")
        for key in ("stragglers", "activation"):
            if getattr(config.simulation, key):
                raise ConfigError(
                    f"simulation.{key} is about certain clients, some of which are left out; leave "
                    "it out"
                )
        check_mechanism(config)
        if isinstance(data.task, MultiLabel):
            raise ConfigError(
                "data.label is a list; `vertizo worth` is about one label: name one of them"
            )
        labels, task = data.labels["test"], data.task
        kinds = len(np.unique(labels.numpy()))
        if not kinds or (isinstance(task, Classification) and task.outputs == 2 and kinds < 2):
            raise DataError(
                f"{data.name}: worth is measured on test records"
                + (" of both classes, and all are of one" if kinds else ", and there are none")
            )
        self.plans[:] = [
            (coalition, planned(runs[0].config, self._of(coalition)))
            for coalition, runs in self.runs.items()
        ]
        to_come = []
        for coalition, plan in self.plans:
            for run in self.runs[coalition]:
                if (run.folder / "config.yaml").is_file():
                    self._check_same(run, coalition)
                else:
                    to_come.append(([self.parties.index(party) for party in coalition], plan))
        check_ledger(config, to_come)
        self.beforehand[:] = [beforehand(config, self._all_plans, len(to_come))]
        if self.shapley and not self.every:
            self.beforehand.append(words.too_many(len(self.parties)))

    @property
    def _all_plans(self) -> list[Planned]:
        """The privacy plan of each training."""
        return [plan for _, plan in self.plans for _ in range(self.seeds)]

    def _check_same(self, run: Run, coalition: Coalition) -> None:
        folder = RunFolder(run.folder)
        Experiment(run.config, self._of(coalition)).check_same(folder, "name another --out")
        over = folder.summary() is not None
        if not over and not can_go_on(controlled(run.config), begun=folder.has("last")):
            raise RunError(
                f"{run.folder} holds a broken-off run with privacy.noise 'secure', which cannot be "
                "repeated; remove that folder, and it is trained (and charged) anew"
            )

    def _of(self, coalition: Coalition) -> VerticalData:
        """Return the data of a coalition alone."""
        data = self.data
        places = [self.parties.index(party) for party in coalition]
        held = data.preparation
        if held is not None:
            absent = {*self.parties} - {*coalition}
            kept = {name: own for name, own in held.parties.items() if name not in absent}
            held = replace(held, parties=kept)
        return replace(
            data,
            parties=coalition,
            features=tuple(data.features[place] for place in places),
            cardinalities=tuple(data.cardinalities[place] for place in places)
            if data.cardinalities
            else (),
            preparation=held,
        )

    def run(self, jobs: int | None = 1, progress: Progress | None = None) -> dict[str, Any]:
        """Make the trainings that are left, after `check`; return the content of ``worth.json``.

        There are ``jobs`` trainings at a time in processes, or with None one after the other here.
        ``progress`` is called with the progress of trainings, and then of permutations.
        """
        engine = Processes(jobs, reused=True)
        summaries = comparison.execute([*chain(*self.runs.values())], engine, progress)

        def permuting(share: float) -> None:
            if progress is not None:
                progress(Standing(len(summaries), len(summaries), share, "columns permuted"))

        found = {coalition: self._trained(runs) for coalition, runs in self.runs.items()}
        alone, everything = self._without_federation()
        whole = [run.folder for run in self.runs[self.parties]]
        permuted = importances(whole, self.head, self.repeats, permuting) if self.repeats else []
        return {
            "dataset": self.data.name,
            "metric": headline(self.data.task),
            "larger_is_better": self._sign > 0,
            "parties": list(self.parties),
            "label_holder": None if self.data.own is None else self.data.own.name,
            "method": summaries[self.runs[self.parties][0]]["method"],
            "federation": self.runs[self.parties][0].label,
            "head": self.head,
            "raw_head": controlled(self.config).server.final_head,
            "seeds": [run.config.seed for run in self.runs[self.parties]],
            "tests": len(self.data.labels["test"]),
            "level": LEVEL,
            "resamples": resamples(len(self.data.labels["test"])),
            "rows": self._rows(alone, found, everything),
            "shapley": self._shapley(alone, found),
            "left_out": self._left_out(alone, found),
            "importance": permuted,
            "repeats": self.repeats,
            "cost": cost_of(self.config, self._all_plans),
        }

    @property
    def _sign(self) -> int:
        return 1 if isinstance(self.data.task, Classification) else -1

    def _figure(self, each: Sequence[Tensor]) -> Figure:
        """Compute the headline figure from the test records' logits, one tensor for each seed."""
        task, labels = references.plain(self.data.task), self.data.labels["test"]
        name, sign = headline(task), self._sign
        values = tuple(sign * scores(task, logits, labels)[name] for logits in each)
        drawn = [sign * resampled(task, logits, labels) for logits in each]
        return Figure(values, np.mean(drawn, 0))

    def _trained(self, runs: Sequence[Run]) -> Figure:
        each = []
        for run in runs:
            folder = RunFolder(run.folder)
            if not folder.has(TESTED):
                raise RunError(f"{run.folder} kept no test scores; an older version made it")
            kept = folder.load(TESTED, "logits")["logits"]
            if self.head not in kept:
                raise RunError(f"{run.folder} kept no scores of the {self.head} head")
            each.append(kept[self.head])
        return self._figure(each)

    def _without_federation(self) -> tuple[Figure | None, Figure | None]:
        """Return the figures of the label holder alone, and of all columns in one table.

        Their predictions are kept in files between calls.
        """
        found: dict[str, list[Tensor]] = {"alone": [], "pooled": []}
        for run in self.runs[self.parties]:
            place = self.folder / "boosting" / f"seed{run.config.seed}.safetensors"
            known = checkpoint.load(place) if place.is_file() else {}
            if known.get("digest") != run.config.digest:
                data = Experiment(run.config).data()
                known = {
                    "digest": run.config.digest,
                    "alone": references.alone(run.config, data),
                    "pooled": references.pooled(run.config, data),
                }
                place.parent.mkdir(parents=True, exist_ok=True)
                checkpoint.save(place, known)
            for name, each in found.items():
                if known[name] is not None:
                    each.append(known[name])
        alone, everything = (self._figure(own) if own else None for own in found.values())
        return alone, everything

    def _rows(
        self, alone: Figure | None, found: Mapping[Coalition, Figure], everything: Figure | None
    ) -> list[dict[str, Any]]:
        """Build the rows of the table: alone, federations by size, and all columns pooled."""

        def row(kind: str, parties: Sequence[str], figure: Figure | None) -> dict[str, Any]:
            if figure is None:
                return {"kind": kind, "parties": list(parties), "value": None, "why": TEXTS}
            gain = None if alone is None or kind == "alone" else _with_ends(figure, alone)
            low, high = sorted(self._sign * end for end in interval(figure.drawn))
            return {
                "kind": kind,
                "parties": list(parties),
                "value": self._sign * figure.mean,
                "low": low,
                "high": high,
                "values": [self._sign * value for value in figure.values],
                "gain": gain,
            }

        by_size = sorted(found, key=len)
        return [
            row("alone", (), alone),
            *(row("federated", each, found[each]) for each in by_size),
            row("pooled", self.parties, everything),
        ]

    def _left_out(
        self, alone: Figure | None, found: Mapping[Coalition, Figure]
    ) -> list[dict[str, Any]]:
        """Compute what the whole federation loses without each party."""
        whole, lost = found[self.parties], []
        for party in self.parties:
            others = tuple(other for other in self.parties if other != party)
            if (rest := found[others] if others else alone) is not None:
                lost.append({"party": party, **_with_ends(whole, rest)})
        return lost

    def _shapley(
        self, alone: Figure | None, found: Mapping[Coalition, Figure]
    ) -> list[dict[str, Any]] | None:
        """Compute each party's Shapley value of the gain over the label holder alone.

        None unless every coalition was trained, and the label holder alone has a figure.
        """
        if not self.every or alone is None:
            return None
        means = {each: np.array(f.mean - alone.mean) for each, f in found.items()}
        drawn = {each: f.drawn - alone.drawn for each, f in found.items()}
        values, ends = shapley(self.parties, means), shapley(self.parties, drawn)
        return [
            {"party": party, "value": float(values[party]), **_ends(ends[party])}
            for party in self.parties
        ]


def _ends(drawn: Array) -> dict[str, float]:
    low, high = interval(drawn)
    return {"low": low, "high": high}


def _with_ends(one: Figure, other: Figure) -> dict[str, float]:
    """Return the difference of two figures, with the interval of the paired difference."""
    return {"value": one.mean - other.mean, **_ends(one.drawn - other.drawn)}
