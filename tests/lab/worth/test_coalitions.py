"""Coalitions and Shapley values, against games that are solved by hand."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
from tests.rows import each

from vertizo.lab.worth.study import Array, Coalition, coalitions, folder_name, shapley


def game(parties: str, **worth: float) -> dict[Coalition, Array]:
    """What coalitions gain, by their letters; the others nothing."""
    return {
        some: np.array(worth.get("".join(some), 0.0))
        for size in range(1, len(parties) + 1)
        for some in combinations(parties, size)
    }


@each(
    "gains, values",
    [
        (game("a", a=0.3), {"a": 0.3}),
        # Gloves: a has the left one, b and c a right one each.
        (game("abc", ab=1.0, ac=1.0, abc=1.0), {"a": 4 / 6, "b": 1 / 6, "c": 1 / 6}),
        # Twins, of whom one suffices, and one who does harm.
        (
            game("abc", a=2.0, b=2.0, ab=2.0, c=-1.0, ac=1.0, bc=1.0, abc=1.0),
            {"a": 1.0, "b": 1.0, "c": -1.0},
        ),
    ],
)
def test_values_of_games_by_hand(gains: dict[Coalition, Array], values: dict[str, float]) -> None:
    found = shapley(list(values), gains)
    assert {party: float(value) for party, value in found.items()} == pytest.approx(values)


def test_values_are_means_over_orders_and_add_up_in_every_resample() -> None:
    parties = "abcde"
    some = coalitions(parties, every=True)
    assert len(some) == len(set(some)) == 31
    drawn = np.random.default_rng(0).normal(size=(31, 7))
    gains = dict(zip(some, drawn, strict=True))
    found = shapley(parties, gains)
    assert sum(found.values()) == pytest.approx(gains[tuple(parties)])
    orders = list(permutations(parties))
    by_orders = dict.fromkeys(parties, np.zeros(7))
    for order in orders:
        for place, party in enumerate(order):
            after, before = (tuple(sorted(order[:end])) for end in (place + 1, place))
            joined = gains[after] - (gains[before] if before else 0.0)
            by_orders[party] = by_orders[party] + joined / len(orders)
    for party in parties:
        assert found[party] == pytest.approx(by_orders[party])


def test_names_of_folders_never_meet() -> None:
    for parties in (("a", "b", "a+b"), ("a/b", "c", "..", "party0"), ("x" * 79, "y", "z")):
        some = coalitions(parties, every=True)
        names = [folder_name(each, parties) for each in some]
        assert len({name.lower() for name in names}) == len(some), parties
        assert not any({*name} & {*"/\\"} or name.startswith(".") for name in names)
