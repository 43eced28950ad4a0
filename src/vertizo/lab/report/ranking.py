"""ROC, precision and calibration curves of two classes, from test scores kept in run folders.

The curves of a variant, and of its controls, are those of the first finished seed. They depend on
raw test labels, which no guarantee covers: the page has to stay with the label holder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vertizo.core.names import CONTROLS
from vertizo.lab.report import plot
from vertizo.lab.report.curves import Drawing, Line, Point
from vertizo.lab.report.measures import Axis, Measure
from vertizo.lab.report.reading import Run
from vertizo.lab.report.variants import Study
from vertizo.run.loop.evaluation import TESTED
from vertizo.run.results.folder import RunFolder

MOST = 150
"""Most points of a line."""
BINS = 10
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Shares of the records that the table selects, each by its threshold on the probability."""
AXIS = Axis("share", "share", "share", "share", ())
ROC = Measure("roc", "ROC: true positive rate", diagonal=True)
PRECISION = Measure("pr", "Precision")
CALIBRATION = Measure("calibration", "Calibration: share of positives", diagonal=True)
TITLES = {
    "roc": ("false positive rate", "ROC"),
    "pr": ("recall", "Precision and recall"),
    "calibration": ("predicted probability, in tenths of the records", "Calibration"),
}

Array = NDArray[np.float64]


class Tested(NamedTuple):
    """Labels and predictions of one run's test records."""

    positive: NDArray[np.bool_]
    likely: Array
    """Predicted probability of the positive class, [records]."""


def tested(run: Run) -> Tested | None:
    """Load a run's test scores; None unless there are two classes that both occur."""
    folder, summary = RunFolder(run.path), run.summary or {}
    if not folder.has(TESTED):
        return None
    kept = folder.load(TESTED, "model", "labels", "logits", "positive")
    head = run.config.predicts_by if run.config.predicts_by in kept["logits"] else "private"
    logits, positive = kept["logits"].get(head), kept["positive"]
    if kept["model"] != summary.get("model") or logits is None or positive is None:
        return None
    is_positive = (kept["labels"] == positive).numpy()
    if logits.shape[1] != 2 or is_positive.all() or not is_positive.any():
        return None
    likely = logits.double().softmax(1)[:, positive].nan_to_num().numpy()
    return Tested(is_positive, likely)


def figure(study: Study, name: str) -> dict[str, Any] | None:
    """Build three plots of the same lines, for the template; None if no run kept test scores."""
    found = list(_each(study))
    if not found:
        return None
    lines = tuple(line for line, _ in found)
    measures = [ROC, PRECISION, CALIBRATION]
    drawing = Drawing(lines, tuple(measures), (AXIS,))
    plots = []
    for measure in measures:
        made = plot.plot(drawing, measure, AXIS)
        assert made is not None, "every line has every curve"
        title = TITLES[measure.key][0]
        axis = Axis(AXIS.key, title, title, title, ())
        plots.append(made._replace(title=title, axis=axis))
    ends = "; ".join(f"{line.name} {_auc(kept):.4f}" for line, kept in found[: plot.MOST_WORDS])
    tenths = "Each point is a tenth of the test records, by the probability predicted for them."
    return {
        "name": name,
        "drawing": drawing,
        "plots": plots,
        "choices": [("measure", "Show", [(key, words) for key, (_, words) in TITLES.items()])],
        "readings": plot.readings(drawing, plots),
        "words": {
            "roc": f"Area under the ROC curve: {ends}. The diagonal is chance.",
            "pr": f"Positives are {100 * found[0][1].positive.mean():.3g} % of the test records, "
            "which is the precision of chance.",
            "calibration": f"{tenths} On the diagonal, probabilities are what they say.",
        },
        "table": _table(found),
        "about": "what would be caught above a threshold",
        "looks": [plot.look(line) for line in lines],
    }


def _each(study: Study) -> Iterator[tuple[Line, Tested]]:
    for place, variant in enumerate(study.variants):
        for control in ("none", *CONTROLS):
            run = next(iter(variant.finished(control)), None)
            kept = None if run is None else tested(run)
            if kept is None:
                continue
            name = variant.name if control == "none" else f"{variant.name}, {CONTROLS[control]}"
            yield Line(name, place, control, 1, _curves(kept)), kept


def _curves(kept: Tested) -> Mapping[str, Sequence[Point]]:
    from sklearn.metrics import precision_recall_curve, roc_curve

    false, true, _ = roc_curve(*kept)
    precision, recall, _ = precision_recall_curve(*kept, drop_intermediate=True)
    order = np.argsort(kept.likely, kind="stable")
    bins = [part for part in np.array_split(order, BINS) if len(part)]
    predicted = np.array([kept.likely[part].mean() for part in bins])
    seen = np.array([kept.positive[part].mean() for part in bins])
    return {
        "roc": _points(false, true),
        "pr": _points(recall[-2::-1], precision[-2::-1]),  # the last is of no record at all
        "calibration": _points(predicted, seen),
    }


def _points(across: Array, upright: Array) -> list[Point]:
    """Select at most `MOST` points of a curve, evenly along it; its ends always."""
    along = np.cumsum(np.abs(np.diff(across, prepend=0)) + np.abs(np.diff(upright, prepend=0)))
    wanted = np.searchsorted(along, np.linspace(along[0], along[-1], MOST - 1))
    chosen = np.unique([0, *np.minimum(wanted, len(along) - 1), len(along) - 1])
    return [Point({"share": float(across[at])}, float(upright[at]), None) for at in chosen]


def _auc(kept: Tested) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(*kept))


def _table(found: Sequence[tuple[Line, Tested]]) -> dict[str, Any]:
    """Tabulate for each line without control what it catches above the thresholds of `SHARES`."""
    rows = []
    for line, (positive, likely) in found:
        if line.control != "none":
            continue
        for share in SHARES:
            size = max(1, round(share * len(likely)))
            last = np.partition(likely, -size)[-size]
            caught = likely >= last
            precision, recall = positive[caught].mean(), positive[caught].sum() / positive.sum()
            false = (caught & ~positive).sum() / (~positive).sum()
            figures = (precision, recall, false, precision / positive.mean())
            texts = [f"{100 * figure:.1f}" for figure in figures[:3]] + [f"{figures[3]:.2f}"]
            places = [f"{100 * caught.mean():.1f}", f"{last:.4f}"]
            rows.append({"name": line.name, "places": places, "figures": texts})
    measures = ["precision, %", "recall, %", "false positives, %", "lift"]
    return {"axes": ["selected, %", "from probability"], "measures": measures, "rows": rows}
