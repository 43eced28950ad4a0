"""From the options of an optimiser to the optimiser."""

from __future__ import annotations

from vertizo.config.optimizer import OptimizerConfig
from vertizo.models.optimizers import Adam, Decay, Optimizer, Sgd

ADAM_RATE = 1e-3
"""η of Adam, whose steps are of one length however long gradients are."""


def made(options: OptimizerConfig, rate: float, steps: int) -> Optimizer:
    """What moves one party's parameters, at that rate, in so many steps of the run."""
    kind, momentum, shrunk = options.schedule, options.momentum, options.weight_decay
    decay = None if kind == "none" else Decay(steps, kind, options.milestones, options.factor)
    if options.algorithm == "adam":
        return Adam(rate, momentum, options.beta2, decay, shrunk)
    return Sgd(rate, momentum, decay, shrunk)
