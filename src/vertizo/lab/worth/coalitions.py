"""Coalitions of parties that train together, and the Shapley value of each party.

Shapley (1953): the mean of what a party adds to those that came before it, over all orders of the
parties. It is linear in the figures of the coalitions, so that a bootstrap of these is one of
the values, and the values of all parties add up to what they gain together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vertizo.config.schema import ExperimentConfig
from vertizo.lab.engines import Run

LONGEST = 80
"""Most characters of a folder's name that is made of the parties' names."""

Array = NDArray[np.float64]
Coalition = tuple[str, ...]


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


def runs(
    config: ExperimentConfig,
    parties: Sequence[str],
    some: Sequence[Coalition],
    seeds: int,
    folder: Path,
) -> dict[Coalition, list[Run]]:
    """Plan the trainings of each coalition, one for each seed, in folders of their own."""
    found: dict[Coalition, list[Run]] = {}
    for coalition in some:
        absent = [party for party in parties if party not in coalition]
        left_out = {"exclude_parties": [*config.data.exclude_parties, *absent]}
        data, label = config.data.model_copy(update=left_out), folder_name(coalition, parties)
        found[coalition] = []
        for seed in range(config.seed, config.seed + seeds):
            own = config.model_copy(update={"data": data, "seed": seed})
            found[coalition].append(Run(label, "none", own, folder / label / f"seed{seed}"))
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
