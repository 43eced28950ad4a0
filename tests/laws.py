"""Whether a sample may be of a law."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tests.lazy import Lazy

stats = Lazy("scipy.stats")


def plausible(sample: NDArray[np.float64], std: float) -> bool:
    """Whether the sample may be of N(0, std²): by its variance and by its shape."""
    squares = float((sample**2).sum()) / std**2
    tail = min(stats.chi2.cdf(squares, sample.size), stats.chi2.sf(squares, sample.size))
    return tail > 1e-4 and stats.kstest(sample.ravel() / std, "norm").pvalue > 1e-4
