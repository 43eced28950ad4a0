"""VFL-CZOFO's "intrinsic" privacy figures (Theorem 4.1): measured, and no guarantee.

The theorem treats the zeroth-order estimate of a gradient as that gradient with Gaussian noise of
variance ``σ² = tr(Ψ)/(q d_h)`` in every coordinate, Ψ being the covariance for one direction, and
states that every step is ε-private with ``σ = 2ζ √(2 ln(1.25/δ)) / (N ε)``, ζ being the largest
norm of a gradient. Over T steps it prints

    ``ε̄ = √(2T ln(1/δ') ε) + T ε (e^ε − 1)``,   ``δ̄ = Tδ + δ'``,

with ε inside the root. The composition theorem that it cites (Dwork, Rothblum and Vadhan 2010) has
it outside. Both are offered under names of their own; the paper's Table 2 follows what is printed.

No guarantee follows, for reasons that no measurement can mend: estimates are Gaussian only in the
limit of many directions; the client, who shares the directions, sees the slopes themselves and no
noise at all; who is in a batch is taken as hidden (the factor N), but the client chose it; and ζ is
the largest that was seen, not a bound.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vertizo.core.errors import ConfigError, DataError, RunError
from vertizo.core.names import LawName
from vertizo.core.randomness import Stream
from vertizo.core.validate import fraction, positive
from vertizo.data.prepare import prepare
from vertizo.methods.czofo import Czofo
from vertizo.models.base import Points
from vertizo.privacy.options import PrivacyConfig
from vertizo.run.build.data_defaults import complete
from vertizo.run.build.privacy import record_choice
from vertizo.run.build.schedule import planned_rounds
from vertizo.run.loop.federation import Federation, build
from vertizo.run.results.folder import RunFolder
from vertizo.zeroth_order.directions import record_directions
from vertizo.zeroth_order.estimators import forward_difference


def step_epsilon(variance: float, largest_gradient: float, records: int, delta: float) -> float:
    """Compute ε of one step, ``2ζ √(2 ln(1.25/δ)) / (N σ)``; σ² is of one coordinate.

    >>> f"{step_epsilon(1.61, 20.1, 60_000, 1e-6):.1e}"
    '2.8e-03'
    """
    positive("variance of the estimate", variance)
    positive("records", records)
    fraction("delta", delta)
    noise = records * math.sqrt(variance)
    return 2 * largest_gradient * math.sqrt(2 * math.log(1.25 / delta)) / noise


def total_as_printed(epsilon: float, steps: int, delta_prime: float) -> float:
    """Compute ε̄ of T steps as Theorem 4.1 prints it: ``√(2T ln(1/δ') ε) + T ε (e^ε − 1)``."""
    fraction("delta'", delta_prime)
    return math.sqrt(2 * steps * -math.log(delta_prime) * epsilon) + _drift(epsilon, steps)


def total_as_cited(epsilon: float, steps: int, delta_prime: float) -> float:
    """Compute ε̄ of T steps by the theorem it cites: ``√(2T ln(1/δ')) ε + T ε (e^ε − 1)``."""
    fraction("delta'", delta_prime)
    return math.sqrt(2 * steps * -math.log(delta_prime)) * epsilon + _drift(epsilon, steps)


def _drift(epsilon: float, steps: int) -> float:
    return steps * epsilon * math.expm1(epsilon) if epsilon < 700 else math.inf


def total_delta(delta: float, steps: int, delta_prime: float) -> float:
    """Compute ``δ̄ = Tδ + δ'``; a value of 1 or more says nothing."""
    return steps * delta + delta_prime


@dataclass(frozen=True)
class Frozen:
    """Measurements of ``repeats`` estimates on one frozen model.

    The variance σ² is of one coordinate of the whole estimate, the mean over all ``coordinates``
    of all records; ``largest_gradient``, ζ, is the largest norm of one record's row.
    """

    variance: float
    largest_gradient: float
    repeats: int
    coordinates: int


def measure(
    losses: Callable[[Tensor], Tensor],
    embeddings: Tensor,
    gradients: Tensor,
    *,
    directions: LawName,
    num_directions: int,
    smoothing: float,
    per_record: bool,
    stream: Stream,
    repeats: int = 100,
) -> Frozen:
    """Estimate the gradient many times at the same embeddings, and measure the spread.

    Args:
        losses: each record's loss at some points, [points, batch, d_h] → [points, batch].
        embeddings: one client's embeddings, [batch, d_h].
        gradients: the estimated gradients with respect to the embeddings, [batch, d_h].
        directions, num_directions: the law and the number q of the directions u.
        smoothing: the smoothing radius μ.
        per_record: whether slopes and gradients are of each record's loss (eq. 2), or of the
            batch's mean loss.
        stream: random stream of the directions.
        repeats: number of estimates, two or more.

    Raises:
        ConfigError: fewer than two repeats.
        DataError: a loss or gradient is not finite, or the estimates do not vary.
    """
    if repeats < 2:
        raise ConfigError(f"repeats is {repeats}; a variance needs 2 or more")
    batch, dimension = embeddings.shape
    plain = losses(embeddings.unsqueeze(0))[0]
    mean = torch.zeros(embeddings.shape, dtype=torch.float64)
    squares = torch.zeros_like(mean)
    for repeat in range(repeats):
        u, factor = record_directions(
            directions, num_directions, batch, dimension, stream.seed(repeat)
        )
        slopes = forward_difference(losses(embeddings + smoothing * u), plain, smoothing)
        if not per_record:
            slopes = slopes.mean(1, keepdim=True).expand(-1, batch)
        estimate = torch.einsum("jb,jbd->bd", slopes.to(u.dtype), u).to(torch.float64)
        estimate *= factor / num_directions
        before = estimate - mean  # Welford: small spreads about large means stay exact
        mean += before / (repeat + 1)
        squares += before * (estimate - mean)
    variance = float((squares / (repeats - 1)).mean())
    largest = float(torch.linalg.vector_norm(gradients.to(torch.float64), dim=1).max())
    if not (math.isfinite(variance) and math.isfinite(largest) and variance > 0):
        raise DataError(
            f"the estimates have variance {variance} and the largest gradient has norm {largest}; "
            "both must be finite, and the variance above 0"
        )
    return Frozen(variance, largest, repeats, batch * dimension)


@dataclass(frozen=True)
class Intrinsic:
    """Theorem 4.1's figures for measured numbers; its words say that none of them is a guarantee.

    σ² is the mean over the frozen models, ζ the largest over them: seen, not bounded. ``repeats``
    is the least of theirs, ``steps`` T, the replies to all clients, ``records`` N. Both totals are
    given: by the formula as printed, and as the theorem it cites has it.
    """

    variance: float
    largest_gradient: float
    models: int
    repeats: int
    steps: int
    records: int
    delta: float
    delta_prime: float
    step_epsilon: float
    epsilon_as_printed: float
    epsilon_as_cited: float
    total_delta: float

    @classmethod
    def of(
        cls,
        measured: Sequence[Frozen],
        *,
        steps: int,
        records: int,
        delta: float = 1e-6,
        delta_prime: float = 1e-6,
    ) -> Intrinsic:
        """Compute the figures from measurements along one run, whose mean stands for all T steps.

        δ is of one step, δ' of the composition. ConfigError if nothing was measured, or a number is
        out of range.
        """
        if not measured:
            raise ConfigError("measured is empty; the figures need at least one frozen model")
        positive("steps", steps)
        variance = statistics.fmean(one.variance for one in measured)
        largest = max(one.largest_gradient for one in measured)
        repeats = min(one.repeats for one in measured)
        seen = variance, largest, len(measured), repeats, steps, records, delta, delta_prime
        epsilon = step_epsilon(variance, largest, records, delta)
        return cls(
            *seen,
            step_epsilon=epsilon,
            epsilon_as_printed=total_as_printed(epsilon, steps, delta_prime),
            epsilon_as_cited=total_as_cited(epsilon, steps, delta_prime),
            total_delta=total_delta(delta, steps, delta_prime),
        )

    def words(self) -> str:
        """Write the figures in a paragraph for people."""
        return (
            "No privacy guarantee; VFL-CZOFO's Theorem 4.1 with measured numbers in it: the "
            f"estimator's variance is {self.variance:.3g} a coordinate ({self.repeats} estimates "
            f"on each of {self.models} frozen models), the largest gradient seen has norm "
            f"{self.largest_gradient:.3g}. One step would have ε = {self.step_epsilon:.2g}, all "
            f"{self.steps} of them ε = {self.epsilon_as_printed:.3g} by the formula as printed, "
            f"{self.epsilon_as_cited:.3g} by the theorem it cites, at δ = {self.total_delta:.2g}. "
            "That takes the estimates for Gaussian, the batch for hidden and the largest gradient "
            "seen for a bound; none of the three holds."
        )


AT_ONCE = 4096
"""Number of records that are embedded at a time."""


def intrinsic(folder: RunFolder, *, repeats: int = 100) -> Intrinsic:
    """Repeat each client's estimate on a czofo run's models, and put the spread into Theorem 4.1.

    The run's checkpoints are the frozen models: the last, and the best if one was kept; one batch
    of each client is used. RunError if there is no run of that method, or no checkpoint.
    """
    config = folder.config()
    if not isinstance(config.method, Czofo):
        raise RunError(
            f"{folder.path} holds a run of method {config.method.name!r}; the intrinsic figures "
            "are those of 'czofo'"
        )
    data = prepare(config.data, record_choice(config))
    federation = build(config.model_copy(update={"privacy": PrivacyConfig()}), data)
    stream = Stream.from_seed(config.seed).child("intrinsic")
    measured: list[Frozen] = []
    for name in ("last", "best"):
        if folder.has(name):
            state = folder.load(name)
            federation.parameters = state.get("parameters", state)
            measured += _at(federation, config.method, stream.child(name), repeats)
    if not measured:
        raise RunError(f"{folder.path} holds no checkpoint; finish the run with --resume")
    steps = planned_rounds(complete(config, data), data)
    return Intrinsic.of(measured, steps=steps, records=data.records)


def _at(federation: Federation, method: Czofo, stream: Stream, repeats: int) -> Iterator[Frozen]:
    """Yield a measurement for each client, with the table filled by the current models."""
    side = federation.server.side
    for m, model in enumerate(federation.models):
        features = federation.data.features[m]["train"]
        for ids in torch.split(torch.arange(len(features)), AT_ONCE):
            side.table.store(m, ids, model(features[ids]), 0)

    def losses(m: int, ids: Tensor, points: Tensor) -> Tensor:
        given, weights = side.table.points(ids, [(m, points)]), side.weights_of(ids)
        return side.model.evaluate(given, side.labels[ids], weights=weights).losses[:-1]

    for m, client in enumerate(federation.clients):
        ids = client.batches.ids(0)
        joined, weights = Points(side.table.points(ids).rows), side.weights_of(ids)
        rows = side.model.evaluate(joined, side.labels[ids], weights=weights).input_gradient(1.0)
        yield measure(
            partial(losses, m, ids),
            side.table.values[ids].narrow(1, sum(side.table.dims[:m]), side.table.dims[m]),
            side.table.part(m, rows),
            directions=method.directions,
            num_directions=method.num_directions,
            smoothing=method.smoothing,
            per_record=method.scalars == "record",
            stream=stream.child(m),
            repeats=repeats,
        )
