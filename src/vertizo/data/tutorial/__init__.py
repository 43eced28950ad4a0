"""Files of the tutorials on real parties and agents: three organisations' tables and settings.

The tables are made from scikit-learn's breast cancer: each has its own columns and order, and some
patients are missing. ``PARTY.new.csv`` has new patients to predict, whose diagnosis nobody has yet.
The YAML files are each party's configurations, for commands and for agents.
"""

from __future__ import annotations

from importlib.resources import files

from vertizo.core.plugins.lazy_import import polars as pl

NEW = 60
"""Number of new patients."""


def texts() -> dict[str, str]:
    """Name of each file → its content; every call gives the same."""
    here = files(__name__)
    settings = sorted(one.name for one in here.iterdir() if one.name.endswith(".yaml"))
    return _tables() | {name: (here / name).read_text(encoding="utf-8") for name in settings}


def _tables() -> dict[str, str]:
    import numpy as np
    from sklearn.datasets import load_breast_cancer

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
    made = {}
    for seed, (party, own) in enumerate(columns.items()):
        order = np.random.default_rng(seed)
        known = order.permutation(frame.height - NEW)[: round(0.96 * (frame.height - NEW))]
        new = frame.height - NEW + order.permutation(NEW)
        features = [name for name in own if name != "diagnosis"]
        made[f"{party}.csv"] = frame[known.tolist()].select("patient", *own).write_csv()
        made[f"{party}.new.csv"] = frame[new.tolist()].select("patient", *features).write_csv()
    return made
