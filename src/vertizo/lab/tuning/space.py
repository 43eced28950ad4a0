"""The search space: keys of a configuration, each with a range or a few values.

A value is kept as the text that ``--set key=value`` takes, so that a trial's configuration is
parsed like any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from vertizo.config.error_lines import override, usual
from vertizo.config.schema import ExperimentConfig, parse
from vertizo.config.tree import Tree
from vertizo.core.errors import ConfigError
from vertizo.core.names import PRIVATE
from vertizo.core.options import Options
from vertizo.core.text.suggestions import nearest
from vertizo.models.optimizers import Frozen
from vertizo.run.loop.federation import Federation

if TYPE_CHECKING:
    import optuna

MOMENTA = (0.0, 0.5, 0.9, 0.95)
FORM = "write key=low..high, key=low..high:log or key=value,value,…"
UNSEARCHABLE = {
    "data": "trials on other records cannot be compared",
    "seed": "the best of several seeds is luck",
    "method.name": "methods are compared, each tuned by itself (`vertizo compare`)",
    "control": "a control is not chosen",
    "privacy.delta": "all trials are stated at one δ",
    "privacy.mechanism": "all trials are protected in one way",
    "privacy.accounting": "all trials are accounted in one way",
    "privacy.ledger": "all trials draw on one ledger",
    "privacy.noise": "all trials draw their noise in one way",
    "evaluate_every": "it changes what is seen and not what is trained",
    "checkpoint_seconds": "it changes no number",
    "threads": "it changes no number",
}
"""Key or section that cannot be searched → the reason."""


@dataclass(frozen=True)
class Range:
    """A range of numbers, or of whole numbers, from ``low`` to ``high``."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def text(self, value: float) -> str:
        """Write a value as text, to four digits and within the range."""
        if self.whole:
            return str(int(value))
        return repr(min(max(float(f"{value:.4g}"), self.low), self.high))

    def stored(self, text: str) -> int | float:
        """Convert a written value to Optuna's."""
        return int(text) if self.whole else float(text)

    def suggest(self, trial: optuna.Trial, key: str) -> None:
        """Let Optuna propose a value, which it stores in the trial."""
        if self.whole:
            trial.suggest_int(key, int(self.low), int(self.high), log=self.log)
        else:
            trial.suggest_float(key, self.low, self.high, log=self.log)

    def ends(self) -> tuple[str, ...]:
        """Return the range's two ends as text."""
        return self.text(self.low), self.text(self.high)

    def holds(self, value: Any) -> bool:
        """Whether a value is a number in the range."""
        return isinstance(value, int | float) and self.low <= value <= self.high

    def draw(self, generator: np.random.Generator) -> str:
        """Draw a random value as text."""
        if self.log:
            # Whole numbers are rounded, so that each end has half of its share more.
            low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
            value = math.exp(generator.uniform(math.log(low), math.log(high)))
            return self.text(min(max(round(value) if self.whole else value, self.low), self.high))
        if self.whole:
            return self.text(int(generator.integers(int(self.low), int(self.high), endpoint=True)))
        return self.text(float(generator.uniform(self.low, self.high)))

    def __str__(self) -> str:
        return "..".join(self.ends()) + (":log" if self.log else "")


@dataclass(frozen=True)
class Choices:
    """A choice of a few values, kept as text."""

    values: tuple[str, ...]

    def text(self, value: Any) -> str:
        """Write a value as text."""
        return str(value)

    def stored(self, text: str) -> str:
        """Convert a written value to Optuna's, which is the same."""
        return text

    def suggest(self, trial: optuna.Trial, key: str) -> None:
        """Let Optuna propose a value, which it stores in the trial."""
        trial.suggest_categorical(key, self.values)

    def ends(self) -> tuple[str, ...]:
        """Return all values."""
        return self.values

    def draw(self, generator: np.random.Generator) -> str:
        """Draw a random value as text."""
        return self.values[int(generator.integers(len(self.values)))]

    def __str__(self) -> str:
        return ",".join(self.values)


Domain = Range | Choices
Space = Mapping[str, Domain]


def configured(base: Tree, values: Mapping[str, str], source: str = "--search") -> ExperimentConfig:
    """Parse a tree, with ``values`` in place of its own; ConfigErrors begin with ``source``."""
    tree = deepcopy(base)
    override(tree, [f"{key}={text}" for key, text in values.items()], ExperimentConfig())
    return parse(tree, source)


def value_at(config: ExperimentConfig, key: str) -> Any:
    """Return a configuration's value of a dotted key."""
    return attrgetter(key)(config)


def parse_space(texts: Sequence[str], base: Tree) -> dict[str, Domain]:
    """Parse ``key=spec`` texts to a space; ConfigError if one is malformed or does not fit.

    The ends of each range are tried on the configuration.
    """
    config = parse(base)
    space: dict[str, Domain] = {}
    for text in texts:
        key, separator, spec = text.partition("=")
        if not separator or not all(key.split(".")) or not spec.strip():
            raise ConfigError(f"--search {text}: {FORM}")
        if key in space:
            raise ConfigError(f"--search {text}: {key} is named twice")
        _check_key(key, config, text)
        space[key] = _domain(spec.strip(), _is_fraction(config, key), text)
        for end in space[key].ends():
            configured(base, {key: end}, f"--search {text}")
    return space


def _check_key(key: str, config: ExperimentConfig, text: str) -> None:
    for refused, reason in UNSEARCHABLE.items():
        if f"{key}.".startswith(f"{refused}."):
            raise ConfigError(f"--search {text}: {refused} is not searched; {reason}")
    known = list(_keys(config))
    if key not in known:
        hint = nearest(usual(key), [k for k in known if k not in UNSEARCHABLE])
        raise ConfigError(f"--search {text}: unknown key {key!r}{hint or f'; {FORM}'}")


def _keys(options: Options, before: str = "") -> Iterator[str]:
    """Yield the dotted keys of all values in a configuration."""
    for name in type(options).model_fields:
        value = getattr(options, name)
        if isinstance(value, Options):
            yield from _keys(value, f"{before}{name}.")
        else:
            yield f"{before}{name}"


def _is_fraction(config: ExperimentConfig, key: str) -> bool:
    """Whether a key accepts numbers that are not whole."""
    above, _, last = key.rpartition(".")
    section = value_at(config, above) if above else config
    annotation = type(section).model_fields[last].annotation
    return annotation is float or float in get_args(annotation)


def _domain(spec: str, is_fraction: bool, text: str) -> Domain:
    if ".." not in spec:
        values = tuple(_parts(spec))
        if len(set(values)) < 2 or len(set(values)) < len(values) or not all(values):
            raise ConfigError(f"--search {text}: a choice needs two or more values; {FORM}")
        return Choices(values)
    numbers, *flags = spec.split(":")
    if flags not in ([], ["log"]):
        raise ConfigError(f"--search {text}: {':'.join(flags)!r} is unknown; {FORM}")
    low_text, _, high_text = numbers.partition("..")
    try:
        low, high = float(low_text), float(high_text)
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigError(f"--search {text}: {numbers!r} is no range of numbers; {FORM}")
    whole = not is_fraction and low.is_integer() and high.is_integer()
    if not low < high:
        raise ConfigError(f"--search {text}: {low_text} is not below {high_text}; {FORM}")
    if flags and low <= 0:
        raise ConfigError(f"--search {text}: a logarithmic range begins above 0, not at {low_text}")
    return Range(low, high, bool(flags), whole)


def _parts(spec: str) -> Iterator[str]:
    """Split a text at commas that are not inside brackets."""
    depth, part = 0, ""
    for letter in spec:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += letter
    yield part.strip()


def default_space(config: ExperimentConfig, federation: Federation) -> dict[str, Domain]:
    """Build the default space: the keys that a method needs tuned, around their current values.

    Rates, smoothing and clips have a logarithmic range; momentum and the batch size a few values.
    The federation, which is built from the configuration, knows the rates that were left unset.
    """
    space: dict[str, Domain] = {}
    if not all(isinstance(optimizer, Frozen) for optimizer in federation.optimizers):
        _add_optimizer(space, "client", config, federation.learning_rates)
        smoothing = getattr(config.method, "smoothing", None)
        if smoothing is not None:
            space["method.smoothing"] = around(smoothing)
    update = config.server.update
    if update != "none":
        rate = federation.server.side.learning_rate
        _add_optimizer(space, "server", config, [] if rate is None else [rate])
    if update in ("zeroth-order", "forward-difference", "private-zeroth-order"):
        space["server.smoothing"] = around(config.server.smoothing)
    if config.privacy.epsilon is not None and config.privacy.clip is not None:
        # The noise follows the clip, so that ε stays.
        space["privacy.clip"] = around(config.privacy.clip)
        if update in PRIVATE:
            space["server.clip"] = around(config.server.clip)
    if update != "poisson-dp-sgd":  # there it decides how many secret steps are released
        size, most = config.batch_size, federation.data.records
        sizes = [n for n in (size // 2, size, 2 * size) if 0 < n <= most]
        if len(sizes) > 1:
            space["batch_size"] = Choices(tuple(map(str, sizes)))
    return space


def around(value: float) -> Range:
    """Return the logarithmic range from a tenth of a value to ten times as much, to 3 digits."""
    return Range(float(f"{value / 10:.3g}"), float(f"{value * 10:.3g}"), log=True)


def _add_optimizer(
    space: dict[str, Domain], side: str, config: ExperimentConfig, rates: list[float]
) -> None:
    options = config.client.optimizer if side == "client" else config.server.optimizer
    rate = options.learning_rate
    if rate is None and rates:  # each party has its own: their geometric mean
        rate = math.exp(math.fsum(math.log(each) for each in rates) / len(rates))
    if rate is not None:
        space[f"{side}.optimizer.learning_rate"] = around(rate)
    momenta = sorted({*MOMENTA, options.momentum})
    space[f"{side}.optimizer.momentum"] = Choices(tuple(map(repr, momenta)))
