"""Run a hyperparameter search in a folder, from which it can be resumed.

===================  ===============================================================
tune.json            what is searched, and how; another search is refused the folder
trials.journal       the trials, as Optuna keeps them
trials/NNN           each trial's run folder; test figures in that of the best alone
best.yaml            the best trial's complete configuration; ``vertizo train`` takes it
results.json         all trials, importances, test figures, what it costs in privacy
===================  ===============================================================
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from vertizo.config.schema import ExperimentConfig
from vertizo.config.tree import Tree
from vertizo.core import digests
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.text import strict_json
from vertizo.data.vertical import VerticalData
from vertizo.lab import cards
from vertizo.lab.comparison import Standing
from vertizo.lab.engines import check_jobs, share_done
from vertizo.lab.processes import Inline, Pool, processes
from vertizo.lab.tuning.composition import calibrate
from vertizo.lab.tuning.privacy import Plan, affordable_trials, check_ledger, unledgered
from vertizo.lab.tuning.results import Results, conclude
from vertizo.lab.tuning.space import Range, configured, default_space, parse_space, value_at
from vertizo.lab.tuning.study import FILE, PrunerName, Study, check_library
from vertizo.lab.tuning.trial import Ended, choose, run_trial, without_tests
from vertizo.privacy.accounting.events import Releases
from vertizo.run.experiment import Experiment
from vertizo.run.results import checkpoint, provenance
from vertizo.run.results.folder import RunFolder

SETTINGS = "tune.json"
Show = Callable[[Standing], None]


@dataclass(frozen=True)
class Options:
    """Options of a search."""

    trials: int = 30
    """Number of trials, the configured one included."""
    search: tuple[str, ...] = ()
    """``key=spec`` of each searched key; empty for the method's default space."""
    objective: str | None = None
    """Name of the objective (`vertizo.lab.tuning.trial.choose`); None for the default one."""
    pruner: PrunerName = "median"
    """Rule by which trials are stopped early (`vertizo.lab.tuning.study.Study`)."""
    seed: int = 0
    """Seed of the proposals; every trial's run has the configured seed."""
    jobs: int = 1
    runs_per_card: int = cards.RUNS_PER_CARD
    timeout: float | None = None
    """Seconds after which no trial is begun any more; None for no limit."""
    total_epsilon: float | None = None
    """ε of all trials together, to which each trial's ε is calibrated; None to leave each trial
    the configured one."""


def tune(
    config: ExperimentConfig, folder: Path, options: Options, show: Show | None = None
) -> Results:
    """Search around a configuration, or resume a search; test the best trial once, at the end.

    The configuration is trial 0; ``show`` is called with the search's progress.

    Raises:
        ConfigError, DataError: the configuration, the options or the data do not fit; nothing was
            written.
        RunError: the folder or the ledger cannot be used, or no trial ran to its end.
        Interrupted: the search was stopped; the same call resumes it.
    """
    if not config.method.asks:
        raise ConfigError(
            f"method {config.method.name!r} makes no evaluation on the way, by which trials are "
            "compared; set server.final_head to 'auto', which chooses by validation records, and "
            "compare client.model.outputs with `vertizo compare`"
        )
    check_library()
    experiment = Experiment(config)
    data = without_tests(experiment.data())
    search = _Search(_resolved(experiment.config), data, folder, options)
    search.check()
    with checkpoint.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with RunFolder(folder).locked():
        search.study.mend()
        search.write(SETTINGS, strict_json.text(search.settings(), indent=2))
        search.run(show)
        return conclude(search.plan, search.study, options.trials, search.write)


def _resolved(config: ExperimentConfig) -> Tree:
    """Return a configuration as a tree, with its learning rates' schedules filled in.

    A rate that the program chooses falls, and one that is given need not: with the schedule filled
    in, trials differ in their rates alone.
    """
    tree: Tree = config.model_dump(mode="json")
    for side, options in (("client", config.client.optimizer), ("server", config.server.optimizer)):
        tree[side]["optimizer"]["decay"] = options.schedule
    return tree


class _Search:
    def __init__(self, base: Tree, data: VerticalData, folder: Path, options: Options) -> None:
        self._folder, self._options = folder, options
        objective = choose(options.objective, data)
        if options.search:
            space = parse_space(options.search, base)
        else:
            space = default_space(configured(base, {}), unledgered(configured(base, {}), data))
        plan = Plan(base, data, space, options.seed)
        if options.total_epsilon is not None:
            plan = replace(plan, base=_calibrated(plan, options.total_epsilon, options.trials))
        self.plan = plan
        self._spent = False
        self.study = Study(folder, space, objective, options.seed, options.pruner)

    def check(self) -> None:
        """Raise an error if the search cannot be made, before anything is written."""
        first = self.plan.first.statement
        if self.plan.config.privacy.ledger is not None:
            check_jobs(self.plan.config, self._options.jobs)
            if not first.is_bounded:
                raise ConfigError(
                    "privacy.ledger needs a configuration with an exact guarantee; this one has "
                    f"{first.guarantee!r}: {first.words}"
                )
        self.plan.all_planned(self._options.trials)
        known = self._known()
        for key, value in self.settings().items():
            if known is None or known.get(key, value) == value:
                continue
            if key == "table":
                other = next(name for name in value if known[key].get(name) != value[name])
                raise RunError(
                    f"{self._folder} holds a search on another {other} than there is now (its "
                    "SHA-256 is another one); bring that table back, or name another --out"
                )
            raise RunError(
                f"{self._folder} holds a search with another {key} "
                f"{_difference(known.get(key), value)}; name another --out"
            )
        begun = self.study.records() if (self._folder / FILE).is_file() else []
        check_ledger(self.plan, [record.number for record in begun], self._options.trials)

    def _known(self) -> Mapping[str, Any] | None:
        """Read the settings of the search in the folder; None for a new or an empty folder."""
        folder, path = self._folder, self._folder / SETTINGS
        with checkpoint.telling(f"--out {folder} cannot be used"):
            if folder.exists() and not folder.is_dir():
                raise RunError(f"--out {folder} is a file; name a folder")
            there = {each.name for each in folder.iterdir()} if folder.exists() else set()
            if SETTINGS not in there and there - {".lock", digests.NAME}:
                raise RunError(
                    f"--out {folder} holds something else than a search; name another folder"
                )
            try:
                return json.loads(digests.content(path)) if SETTINGS in there else None
            except ValueError as error:
                raise RunError(f"{path} is damaged: {error}; name another --out") from None

    def settings(self) -> dict[str, Any]:
        """Return the settings that must be the same when the search is resumed."""
        config = {**self.plan.base}
        del config["checkpoint_seconds"], config["threads"]
        total = self._options.total_epsilon
        files = provenance.digests(self.plan.config.data.files)
        return {
            "configuration": json.loads(json.dumps(config)),
            "space": {key: str(domain) for key, domain in self.plan.space.items()},
            "objective": self.study.objective.name,
            "pruner": self.study.pruner,
            "seed": self.study.seed,
            "total_epsilon": total,
            # The share of each trial was found for so many.
            **({} if total is None else {"trials": self._options.trials}),
            **({"table": files} if files else {}),
        }

    def write(self, name: str, text: str) -> None:
        """Write a file of the search's folder."""
        checkpoint.keep(self._folder / name, f"{text.rstrip()}\n".encode())

    def run(self, show: Show | None) -> None:
        """Make all trials that are left: in this process, or several at a time in others."""
        if self._options.jobs > 1:
            make_there = partial(_in_child, replace(self.study))  # of which nothing is open
            places = cards.places([self.plan.config], self._options.runs_per_card)
            with processes(self._options.jobs, reused=True, places=places) as pool:
                self._drive(pool, make_there, show)
            return

        def make(number: int, config: ExperimentConfig) -> Ended:
            watch = self.study.watched(number)
            if show is not None:
                watch.share = lambda done: show(self._standing(done))
            place, objective = self.study.folder_of(number), self.study.objective
            return run_trial(config, self.plan.data, place, objective, watch)

        self._drive(Inline(), make, show)

    def _drive(
        self,
        pool: Pool[tuple[int, ExperimentConfig]],
        make: Callable[[int, ExperimentConfig], Ended],
        show: Show | None,
    ) -> None:
        """Make trials until none is left, and record how they ended."""
        for done in pool.make((task, make, task) for task in self._tasks()):
            if done is not None:
                (number, _), future = done
                ended: Ended = future.result()
                self.study.end(number, ended)
                self._spent = self._spent or ended.outcome == "out of budget"
            elif show is not None:
                places = [(self.study.folder_of(n), config) for n, config in pool.going.values()]
                show(self._standing(sum(share_done(*place) for place in places)))

    def _tasks(self) -> Iterator[tuple[int, ExperimentConfig]]:
        """Yield the trials to make or resume; a trial whose values do not fit fails at once."""
        until = time.monotonic() + (math.inf if (t := self._options.timeout) is None else t)
        ledger = self.plan.config.privacy.ledger
        waiting = self.study.unfinished()
        while not self._spent:
            number = len(self.study.records())
            if waiting:
                begun = waiting.pop(0)
            elif number >= self._options.trials or time.monotonic() >= until:
                return
            elif ledger is not None and not affordable_trials(ledger, self.plan, [number]):
                return  # other runs may have drawn on it
            else:
                begun = self.study.propose(self.plan.drawn(number) if number else self._first())
            try:
                config = self.plan.settings(begun.number, begun.values)
                self.plan.check(begun.number, config)
            except ConfigError as error:
                self.study.end(begun.number, Ended("failed", reason=str(error)))
            else:
                yield begun.number, config

    def _first(self) -> dict[str, str]:
        """Return the configured values of the searched keys; empty unless all are in the space."""
        found: dict[str, str] = {}
        for key, domain in self.plan.space.items():
            value = value_at(self.plan.config, key)  # None for a rate left to the program
            if isinstance(domain, Range):
                texts = [domain.text(value)] if domain.holds(value) else []
            else:
                trees = {text: configured(self.plan.base, {key: text}) for text in domain.values}
                texts = [text for text, tree in trees.items() if value_at(tree, key) == value]
            if not texts:
                return {}
            found[key] = texts[0]
        return found

    def _standing(self, going: float) -> Standing:
        """Return the search's progress; ``going`` adds up the finished shares of running trials."""
        ended = sum(record.outcome != "begun" for record in self.study.records())
        total = self._options.trials
        best = next(iter(self.study.ranked()), None)
        beside = ""
        if best is not None and best.score is not None:
            beside = f", best {best.score.value:.4f} (trial {best.number})"
        return Standing(ended, total, min(1.0, (ended + going) / total), beside)


_kept: dict[str, Any] = {}
"""The study and the data, which a process keeps from one trial to the next."""


def _in_child(study: Study, number: int, config: ExperimentConfig) -> Ended:
    study = _kept.setdefault("study", study)
    if "data" not in _kept:
        _kept["data"] = without_tests(Experiment(config).data())
    watch = study.watched(number)
    return run_trial(config, _kept["data"], study.folder_of(number), study.objective, watch)


def _calibrated(plan: Plan, total: float, trials: int) -> Tree:
    """Set the ε of each trial so that all trials together stay within ``total``."""
    privacy = plan.config.privacy
    wanted = "--total-epsilon sets privacy.epsilon of each trial"
    if privacy.mechanism != "gaussian" or privacy.epsilon is None or privacy.ledger is not None:
        raise ConfigError(
            f"{wanted}; it needs privacy.epsilon (any value), with mechanism gaussian and "
            "no privacy.ledger"
        )
    noise = {"privacy.epsilon", "privacy.noise_std", "privacy.server_noise_std"} & plan.space.keys()
    if noise:
        raise ConfigError(f"{wanted}; leave --search {min(noise)} out")

    def with_share(epsilon: float) -> Tree:
        return {**plan.base, "privacy": {**plan.base["privacy"], "epsilon": epsilon}}

    def releases(epsilon: float) -> list[Releases]:
        planned = replace(plan, base=with_share(epsilon)).all_planned(trials)
        found = []
        for statement, own in planned:
            if not statement.is_bounded or own is None:
                raise ConfigError(f"--total-epsilon needs an exact guarantee: {statement.words}")
            found.append(own)
        return found

    return with_share(calibrate(total, privacy.delta, trials, releases))


def _difference(known: Any, wanted: Any) -> str:
    """Describe how two settings differ; of two mappings, by the first key that differs."""
    path = ""
    while isinstance(known, dict) and isinstance(wanted, dict):
        key = next(key for key in {**known, **wanted} if known.get(key) != wanted.get(key))
        path, known, wanted = f"{path}.{key}", known.get(key), wanted.get(key)
    where = f"({path.lstrip('.')}) " if path else ""
    return f"{where}than {wanted!r}: {known!r}"
