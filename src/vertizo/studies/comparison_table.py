"""A comparison's figures as people read them: a line for each figure, a text for each method."""

from __future__ import annotations

from collections.abc import Sequence

from vertizo.run.summary_figures import size_text
from vertizo.studies.comparison import CONTROLS, Row, mean_and_spread

QUALITY = (
    ("test_accuracy", "test accuracy %", 100.0),
    ("test_auc", "AUC", 1.0),
    ("test_average_precision", "avg. precision", 1.0),
    ("test_loss", "test loss", 1.0),
    ("test_rmse", "test RMSE", 1.0),
    ("test_r2", "R²", 1.0),
)


def lines(found: Sequence[Row]) -> list[list[str]]:
    """The name of each figure, then its text for every method: mean and spread over seeds."""
    quality = [entry for entry in QUALITY if found[0].figures(entry[0])]
    table = [
        [heading, *(_figure(row, key, scale) for row in found)] for key, heading, scale in quality
    ]
    key, _, scale = quality[0]
    table[1:1] = [
        [f"  {name}", *(_figure(row, key, scale, control) for row in found)]
        for control, name in CONTROLS.items()
        if any(control in row.controls for row in found)
    ]
    if key == "test_accuracy":
        for target in found[0].bytes_to:
            reached = (_reached(row, target) for row in found)
            table.append([f"bytes to {100 * target:g} %", *reached])
    up = (size_text(_mean(row, "bytes_up") + _mean(row, "bytes_table")) for row in found)
    table += [
        ["bytes up", *up],
        ["bytes down", *(size_text(_mean(row, "bytes_down")) for row in found)],
        ["rounds", *(f"{_mean(row, 'rounds'):,.0f}" for row in found)],
        ["seconds", *(f"{_mean(row, 'seconds'):,.1f}" for row in found)],
        ["peak MiB", *(f"{_mean(row, 'peak_memory_mib'):,.0f}" for row in found)],
        ["privacy", *(str(row.summaries[0]["privacy"]["guarantee"]) for row in found)],
    ]
    return table


def _figure(row: Row, key: str, scale: float, control: str = "none") -> str:
    figures = row.figures(key, control)
    if not figures:
        return "-"
    mean, spread = mean_and_spread(figures)
    digits = 2 if scale == 100 else 4
    text = f"{scale * mean:.{digits}f}"
    return text if spread is None else f"{text} ± {scale * spread:.{digits}f}"


def _mean(row: Row, key: str) -> float:
    return mean_and_spread(row.figures(key))[0]


def _reached(row: Row, target: float) -> str:
    """Mean bytes of the seeds that reached the target, and how many did where not all."""
    each = row.bytes_to[target]
    got = [count for count in each if count is not None]
    if not got:
        return "-"
    text = size_text(sum(got) / len(got))
    return text if len(got) == len(each) else f"{text} ({len(got)} of {len(each)})"
