"""Bounds for discrete noise on a grid, from those for Gaussian noise; nothing is neglected.

Real parties release integers ``n = a + N_Z(0, s²)``: a is the clipped sum in units of the grid, s
the noise in the same units (`privacy/noise/secure.py`). All other accounting is about ``N(0, s²)``.
The two are so close that the difference can be bounded number by number.

Let p be the discrete Gaussian's probabilities and q those of ``N(0, s²)`` rounded to the nearest
integer. Rounding commutes with an integer shift, so that a release with noise q is a function of
one with noise ``N(0, s²)``: it is μ-GDP with ``μ = ‖a − a'‖/s``, and composes like it.

1. *Number by number.* ``q(n)/φ_s(n)``, with φ_s the normal density, is the mean of
   ``exp(−(2nu + u²)/(2s²))`` over u in [−½, ½]. It is at least ``exp(−1/(24s²))`` by Jensen, as u
   has mean 0 and variance 1/12, and at most ``sinh(x)/x ≤ exp(x²/6)`` with ``x = n/(2s²)``.
   ``p(n)/φ_s(n)`` is ``√(2π)s/Z``, and ``0 ≤ ln(Z/(√(2π)s)) ≤ z := 2.01·exp(−2π²s²)`` by Poisson's
   summation. Together

   * ``p(n) ≤ e^α q(n)`` for every n, ``α = 1/(24s²)``;
   * ``q(n) ≤ e^β p(n)`` where ``|n| ≤ m·s``, ``β = m²/(24s²) + z``, for any reach m;
   * beyond it q has at most ``τ = 2Φ(−m + 1/(2s))``.

2. *Transcripts.* Let P and P' be the laws of all that an observer sees, for two neighbouring data
   sets, and Q and Q' the same with noise q in place of p where a number depends on the record in
   which they differ. The joint law of the transcript and of whatever stays secret (a sampled batch,
   other noise) is a product of conditional ones that are alike but for those N numbers, however
   adaptively each was asked for. So ``P ≤ e^{Nα} Q``; and ``P' ≥ e^{−Nβ}(Q' − T')``, T' being the
   part of Q' in which some number's noise is beyond the reach, of mass at most Nτ. Both survive
   summing over what is secret.

3. *Hence*, for every ε,
   ``δ_P(ε) = Σ (P − e^ε P')₊ ≤ e^{Nα} δ_Q(ε − N(α + β)) + e^{ε − Nβ} Nτ``,

   where ``δ_Q`` is of any accountant that treats the noise as Gaussian, whatever else is composed
   in it. The reach is free: the smallest is taken at which the last term is a millionth of δ.

N is the most numbers that may depend on one record: releases times the numbers in each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vertizo.core.errors import ConfigError
from vertizo.core.validate import fraction, non_negative

TAIL_SHARE = 1e-6
"""Share of δ that is given to noise beyond the reach."""
REACHES = np.arange(2.0, 80.0, 0.25)
"""Reaches that are tried, in standard deviations; beyond the last lies less than 1e-1300."""


@dataclass(frozen=True)
class GridCorrection:
    """Turns bounds for Gaussian noise into bounds for noise on a grid.

    ``parts``: (numbers that may depend on one record, s in units of the grid) of each mechanism.

    >>> correction = GridCorrection(((700, 2**27),))
    >>> correction.epsilon(lambda delta: 1.0, 1e-5) - 1.0 < 1e-11
    True
    """

    parts: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for numbers, scale in self.parts:
            if numbers < 0 or scale < 1:
                raise ConfigError(
                    f"{numbers} numbers with noise of {scale} grid steps; "
                    "numbers must be 0 or more and the noise at least 1 step"
                )

    def __add__(self, other: GridCorrection) -> GridCorrection:
        """The correction for both kinds of noise, composed."""
        return GridCorrection(self.parts + other.parts)

    def times(self, count: int) -> GridCorrection:
        """The correction for ``count`` runs in a row."""
        return GridCorrection(tuple((count * numbers, scale) for numbers, scale in self.parts))

    def epsilon(self, gaussian: Callable[[float], float], delta: float) -> float:
        """ε of the discrete noise at δ; ``gaussian`` is ε at a given δ if the noise were Gaussian.

        ConfigError: noise on so coarse a grid has no bound for so many released numbers.
        """
        fraction("delta", delta)
        left = delta * (1 - TAIL_SHARE) * math.exp(-self._alpha)
        if left > 0:
            inner = gaussian(left)
            if math.isinf(inner):
                return inner
            for reach in REACHES:
                bound = inner + self._alpha + self._beta(reach)
                if self._log_tail(reach) + bound <= math.log(delta * TAIL_SHARE):
                    return bound
        raise ConfigError(
            "noise of "
            + " and ".join(f"{s} grid steps on {n} numbers" for n, s in self.parts)
            + f" cannot be bounded at delta = {delta:g}; a finer grid is needed"
        )

    def delta(self, gaussian: Callable[[float], float], epsilon: float) -> float:
        """δ of the discrete noise at ε; ``gaussian`` as of `epsilon`, at an ε of any sign."""
        non_negative("epsilon", epsilon)
        return min(1.0, *(self._delta(gaussian, epsilon, float(reach)) for reach in REACHES))

    def _delta(self, gaussian: Callable[[float], float], epsilon: float, reach: float) -> float:
        beta = self._beta(reach)
        try:
            tail = math.exp(epsilon - beta + self._log_tail(reach))
            return math.exp(self._alpha) * gaussian(epsilon - self._alpha - beta) + tail
        except OverflowError:
            return 1.0

    @property
    def _alpha(self) -> float:
        return math.fsum(n / (24 * s * s) for n, s in self.parts)

    def _beta(self, reach: float) -> float:
        terms = (
            n * (reach * reach / (24 * s * s) + 2.01 * math.exp(-2 * math.pi**2 * s * s))
            for n, s in self.parts
        )
        return math.fsum(terms)

    def _log_tail(self, reach: float) -> float:
        from scipy.special import log_ndtr

        logs = [math.log(2 * n) + float(log_ndtr(-reach + 0.5 / s)) for n, s in self.parts if n > 0]
        return float(np.logaddexp.reduce(logs)) if logs else -math.inf
