"""The space that is searched where none is given: what a method has to be told, around what it is.

Rates, smoothing and clips on a logarithmic scale, up to ten times less and more; momentum and the
batch's size by a few values.
"""

from __future__ import annotations

import math

from vertizo.config.schema import ExperimentConfig
from vertizo.core.names import PRIVATE
from vertizo.models.optimizers import Frozen
from vertizo.run.federation import Federation
from vertizo.studies.tuning.space import Choices, Domain, Range

FACTOR = 10.0
MOMENTA = (0.0, 0.5, 0.9, 0.95)


def default_space(config: ExperimentConfig, federation: Federation) -> dict[str, Domain]:
    """What is worth searching around a configuration.

    Args:
        config: what it is searched around.
        federation: made of it; knows rates that the configuration leaves to the program.
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
    """From a tenth of it to ten times as much."""
    return Range(_short(value / FACTOR), _short(value * FACTOR), log=True)


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


def _short(value: float) -> float:
    """Three digits, as people would write it."""
    return float(f"{value:.3g}")
