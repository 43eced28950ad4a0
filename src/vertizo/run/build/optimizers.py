"""Building an optimiser from its options."""

from __future__ import annotations

import torch
from torch import Tensor

from vertizo.config.sections.optimizer import GivenConfig, L2Config, OptimizerConfig
from vertizo.models.optimizers import Adam, Decay, Optimizer, Penalty, Sgd
from vertizo.run.build.models import callable_at
from vertizo.zeroth_order.penalties import GivenPenalty, KnownPenalty

ADAM_RATE = 1e-3
"""Default η of Adam, whose steps have one length however long gradients are."""


def made(
    options: OptimizerConfig,
    rate: float,
    steps: int,
    parameters: Tensor,
    *,
    smoothing: float = 1e-3,
    forward: bool = False,
    differentiated: bool = False,
    key: str = "optimizer",
) -> Optimizer:
    """Make the optimiser of one party's parameters, for that rate and so many ``steps`` of a run.

    ``smoothing`` and ``forward`` say how its regulariser is estimated; ``key`` is the options' key
    in a configuration. ConfigError if there is no such regulariser, or if a user's own fails for
    the first ``parameters``, or is to be ``differentiated`` and has no gradient.
    """
    kind, momentum, shrunk = options.schedule, options.momentum, options.weight_decay
    decay = None if kind == "none" else Decay(steps, kind, options.milestones, options.factor)
    chosen = options.regularizer
    penalty: Penalty | None = None
    if isinstance(chosen, GivenConfig):
        path = f"{key}.regularizer.path"
        function = callable_at(path, chosen.path, "be a function of the parameters")
        penalty = GivenPenalty(function, shrunk, smoothing, forward, f"{path} {chosen.path!r}")
        at = parameters.to("cpu", torch.float64, copy=True)
        penalty.exact(at) if differentiated else penalty.value(at)
    elif not isinstance(chosen, L2Config):
        penalty = KnownPenalty(chosen.name, shrunk)
    if penalty is not None:
        shrunk = 0.0
    if options.algorithm == "adam":
        return Adam(rate, momentum, options.beta2, decay, shrunk, penalty)
    return Sgd(rate, momentum, decay, shrunk, penalty)
