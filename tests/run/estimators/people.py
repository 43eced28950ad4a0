"""Records for the tests of estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

import vertizo as vz

TINY: dict[str, Any] = {"method": "vafl", "epochs": 3, "batch_size": 20, "random_state": 0}
PARTIES = {"bank": ["age", "job"], "shop": ["city", "debt"]}


def people(rows: int = 120, seed: int = 0) -> pl.DataFrame:
    """Numbers, text, missing values; ``y`` is text that depends on two parties' columns."""
    rng = np.random.default_rng(seed)
    age, debt = rng.normal(40, 9, rows), rng.normal(0, 1, rows)
    city = rng.choice(["Rome", "Oslo", "Kyiv"], rows)
    score = (age - 40) / 9 + (city == "Oslo") + debt
    return pl.DataFrame(
        {
            "age": age,
            "job": rng.choice(["cook", "nurse", None], rows).tolist(),
            "city": city.tolist(),
            "debt": [None if index % 11 == 0 else float(debt[index]) for index in range(rows)],
            "y": ["late" if value > 0.3 else "paid" for value in score],
            "amount": 100 + 10 * score,
        }
    )


def classifier(**changed: Any) -> vz.VerticalClassifier:
    """A small one, on these parties."""
    return vz.VerticalClassifier(**{"parties": PARTIES, **TINY, **changed})
