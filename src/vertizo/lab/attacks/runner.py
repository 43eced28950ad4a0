"""Run attacks over several seeds, one attack or a whole table, and write their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vertizo.config import schema as configuration
from vertizo.config.error_lines import explain, override
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.text.suggestions import nearest
from vertizo.data.vertical import VerticalData
from vertizo.lab.attacks.base import Attack, why_several
from vertizo.lab.attacks.choice import ATTACKS
from vertizo.lab.attacks.scores import Figure, Measurement
from vertizo.lab.attacks.settings import setting, with_noise
from vertizo.run.experiment import Experiment


@dataclass(frozen=True)
class Trials:
    """Results of one attack on one method over seeds; no figures where it could not be tried."""

    attack: str
    method: str
    noise: bool
    """Whether the replies carried Gaussian noise."""
    seeds: tuple[int, ...]
    figures: Mapping[str, Figure]
    unfit: str | None = None
    """The reason why there are no figures; None if there are."""

    def as_dict(self) -> dict[str, Any]:
        """Return the results for JSON."""
        return {
            "attack": self.attack,
            "method": self.method,
            "noise": self.noise,
            "seeds": list(self.seeds),
            "figures": {key: figure.as_dict() for key, figure in self.figures.items()},
            **({} if self.unfit is None else {"not_applicable": self.unfit}),
        }


Configure = Callable[[int], ExperimentConfig]
"""Function from a seed to the configuration of its run."""


def make(name: str, settings: Sequence[str] = ()) -> Attack:
    """Make an attack by name, with options ``key=value``; ConfigError if one is unknown."""
    if name not in ATTACKS:
        known = [*ATTACKS, "table"]
        hint = nearest(name, known) or f"; known are {', '.join(known)}"
        raise ConfigError(f"there is no attack {name!r}{hint}")
    chosen = ATTACKS[name]
    tree: dict[str, Any] = {}
    override(tree, settings, chosen())
    try:
        return chosen.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"--set attack: {explain(error, chosen)}") from None


def split_settings(settings: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split settings into those of the attack, without their ``attack.``, and all others.

    >>> split_settings(["attack.steps=5", "epochs=2"])
    (['steps=5'], ['epochs=2'])
    """
    own = [s.removeprefix("attack.") for s in settings if s.startswith("attack.")]
    return own, [s for s in settings if not s.startswith("attack.")]


def configured(tried: Attack, path: Path | None, settings: Sequence[str]) -> tuple[Configure, int]:
    """Return the configuration by seed, and the first seed: of the file or the attack's own."""
    if path is not None:
        config = configuration.load(path, settings)
    else:
        method, left = "vafl", list[str]()
        for each in settings:
            key, _, value = each.partition("=")
            if key.strip() in ("method.name", "method"):
                method = value.strip()
            else:
                left.append(each)
        noise = any(s.replace(" ", "") == "privacy.mechanism=gaussian" for s in settings)
        config = setting(tried.setting, method, noise=noise, overrides=left)
    return partial(_seeded, config), config.seed


def _seeded(config: ExperimentConfig, seed: int) -> ExperimentConfig:
    return config.model_copy(update={"seed": seed})


def cell(
    path: Path | None, settings: Sequence[str], tried: Attack, method: str, noise: bool
) -> Configure:
    """Return a table cell's configuration by seed; ConfigError for a wrong file or override."""
    if path is None:
        made = partial(setting, tried.setting, method, noise=noise, overrides=settings)
        return lambda seed: made(seed=seed)
    config = configuration.load(path, settings, method)
    return lambda seed: _seeded(with_noise(config) if noise else config, seed)


def first_seed(path: Path | None, settings: Sequence[str]) -> int:
    """Return the first seed: of the file, or of the overrides; else 0."""
    if path is not None:
        return configuration.load(path, settings).seed
    return setting("sum", "vafl", overrides=[s for s in settings if s.startswith("seed=")]).seed


class Laboratory:
    """A runner of attacks, which loads the data once for trials that share it."""

    def __init__(self) -> None:
        self._data: dict[tuple[int, str], VerticalData] = {}

    def data(self, config: ExperimentConfig) -> VerticalData:
        """Load the data of a configuration, or return what was loaded last if it is the same."""
        key = config.seed, config.data.model_dump_json()
        if key not in self._data:
            self._data = {key: Experiment(config).data()}  # the last one: they may be large
        return self._data[key]

    def trials(
        self,
        attack: Attack,
        configure: Configure,
        seeds: Sequence[int],
        *,
        forgiving: bool = False,
        done: Callable[[], None] | None = None,
    ) -> Trials:
        """Run an attack on one method over seeds; ``done`` is called after every trial.

        Raises a `ConfigError` if the attack or the configuration does not fit, and a `RunError` if
        training diverges; if ``forgiving``, they are stored in `Trials.unfit` instead.
        """
        first = configure(seeds[0])
        method, noise = first.method.name, first.privacy.mechanism == "gaussian"
        results: list[dict[str, Measurement]] = []
        problem: str | None = None
        for seed in seeds:
            config = configure(seed)
            try:
                data = self.data(config)
                problem = why_several(data) or attack.unfit(config, data)
                if problem is None:
                    results.append(attack.trial(config, data))
            except (ConfigError, RunError) as error:
                if not forgiving:
                    raise
                problem = f"seed {seed}: {error}"
            if problem is not None and not forgiving:
                raise ConfigError(f"attack {attack.name!r}: {problem}")
            if done is not None:
                done()
            if problem is not None:
                return Trials(attack.name, method, noise, tuple(seeds), {}, unfit=problem)
        keys = dict.fromkeys(key for each in results for key in each)
        figures = {key: Figure(tuple(r[key] for r in results if key in r)) for key in keys}
        return Trials(attack.name, method, noise, tuple(seeds), figures)


@dataclass(frozen=True)
class Entry:
    """One cell of the table: an attack, and the settings of one method."""

    attack: Attack
    method: str
    noise: bool
    configure: Configure


def table(
    entries: Sequence[Entry], seeds: Sequence[int], done: Callable[[], None] | None = None
) -> Iterator[Trials]:
    """Yield every entry's trials as they finish; where an attack does not fit, with the reason."""
    laboratory = Laboratory()
    for entry in entries:
        try:
            entry.configure(seeds[0])
        except ConfigError as error:
            yield Trials(entry.attack.name, entry.method, entry.noise, (), {}, unfit=str(error))
            continue
        yield laboratory.trials(entry.attack, entry.configure, seeds, forgiving=True, done=done)
