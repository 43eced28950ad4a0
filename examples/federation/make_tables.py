"""Three organisations' tables about partly the same patients, from scikit-learn's breast cancer.

Each has its own columns, its own order, and not everybody: what three real parties would bring.
Beside them, new patients to predict, ``PARTY.new.csv``, whose diagnosis nobody has yet.

    python make_tables.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.datasets import load_breast_cancer

NEW = 60
"""Patients that come later."""


def main(folder: Path) -> None:
    whole = load_breast_cancer()
    names = [str(name).replace(" ", "_") for name in whole.feature_names]
    patients = [f"P{7919 * n % 100_003:06d}" for n in range(len(whole.target))]
    frame = pl.DataFrame(whole.data, schema=names).with_columns(
        pl.Series("patient", patients),
        pl.Series("diagnosis", np.where(whole.target == 0, "malignant", "benign")),
    )
    columns = {
        "hospital": ["diagnosis"],
        "lab": [name for name in names if name.startswith("mean")],
        "clinic": [name for name in names if not name.startswith("mean")],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (party, own) in enumerate(columns.items()):
        order = np.random.default_rng(seed)
        known = order.permutation(frame.height - NEW)[: round(0.96 * (frame.height - NEW))]
        new = frame.height - NEW + order.permutation(NEW)
        frame[known.tolist()].select("patient", *own).write_csv(folder / f"{party}.csv")
        features = [name for name in own if name != "diagnosis"]
        frame[new.tolist()].select("patient", *features).write_csv(folder / f"{party}.new.csv")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
