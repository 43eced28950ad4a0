"""Format the figures of ``worth.json`` as tables and sentences, for a terminal and the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST = 5
"""Most parties for which every coalition is trained: 31 coalitions of 5 parties."""
SHOWN = 10
"""Number of columns in the table of those used most."""
Content = Mapping[str, Any]
METRICS = {
    "auc": ("test AUC", 1.0, 4),
    "accuracy": ("test accuracy, %", 100.0, 2),
    "rmse": ("test RMSE", 1.0, 4),
    "pinball": ("test pinball loss", 1.0, 4),
    "huber": ("test Huber loss", 1.0, 4),
}
"""Key of a figure → its name, scale and digits."""


def metric(content: Content) -> str:
    """Return the name of the figure that is compared."""
    return METRICS[content["metric"]][0]


def figure(content: Content, value: float | None) -> str:
    """Format a figure in its own scale and digits."""
    _, scale, digits = METRICS[content["metric"]]
    return "-" if value is None else f"{scale * value:.{digits}f}"


def difference(content: Content, value: float) -> str:
    """Format a difference of two figures, with its sign."""
    _, scale, digits = METRICS[content["metric"]]
    return f"{scale * value:+.{digits}f}".replace("-", "−")


def between(content: Content, found: Mapping[str, float]) -> str:
    """Format a difference and its interval."""
    return f"{difference(content, found['value'])} {ends(content, found)}"


def ends(content: Content, found: Mapping[str, float]) -> str:
    """Format the interval of a difference."""
    low, high = (difference(content, found[end]) for end in ("low", "high"))
    return f"({low} to {high})"


def holder(content: Content) -> str:
    """Return the label holder's name, or "the label holder"."""
    return content["label_holder"] or "the label holder"


def who(content: Content, row: Mapping[str, Any]) -> tuple[str, str]:
    """Return who takes part in a row, and a note on it."""
    if row["kind"] == "alone":
        note = "gradient boosting" if content["label_holder"] else "no columns, nothing learnt"
        return f"{holder(content)} alone", note
    if row["kind"] == "pooled":
        return "all in one table", "gradient boosting"
    present, everybody = row["parties"], content["parties"]
    if len(present) == len(everybody):
        return "all, federated", ""
    absent = [party for party in everybody if party not in present]
    return (f"without {absent[0]}" if len(absent) == 1 else f"with {', '.join(present)}"), ""


def name(content: Content, row: Mapping[str, Any]) -> str:
    """Name a row in one line: who takes part, with the note in brackets."""
    called, note = who(content, row)
    return f"{called} ({note})" if note else called


def shown(content: Content) -> list[Mapping[str, Any]]:
    """Select the rows for people: one party, all but one, all, alone and pooled."""
    most = len(content["parties"])
    few = (1, most - 1, most)
    return [r for r in content["rows"] if r["kind"] != "federated" or len(r["parties"]) in few]


def table(content: Content, *, every: bool = False) -> list[list[str]]:
    """Tabulate rows: who takes part, the figure, its interval, and the gain over alone."""
    lines = []
    for row in content["rows"] if every else shown(content):
        if row["value"] is None:
            lines.append([name(content, row), "-", row["why"], "-"])
            continue
        value, low, high = (figure(content, row[key]) for key in ("value", "low", "high"))
        gain = "-" if row["gain"] is None else between(content, row["gain"])
        lines.append([name(content, row), value, f"{low} to {high}", gain])
    return lines


def headings(content: Content) -> list[str]:
    """Return the headings of `table`."""
    gain = f"gain over {holder(content)} alone"
    return ["who takes part", metric(content), "95 %", gain]


def parties(content: Content) -> tuple[list[str], list[list[str]]]:
    """Tabulate parties (headings, lines): loss without it, Shapley value, loss when permuted."""
    lost = {each["party"]: between(content, each) for each in content["left_out"]}
    values = {each["party"]: between(content, each) for each in content["shapley"] or ()}
    whole = (each for each in content["importance"] if each["column"] is None)
    used = {each["party"]: _loss(content, each) for each in whole}
    kinds = {"lost without it": lost, "Shapley value": values, "permuted": used}
    held = {name: own for name, own in kinds.items() if own or own is lost}
    order = dict.fromkeys([*content["parties"], *used])
    lines = [[party, *(own.get(party, "-") for own in held.values())] for party in order]
    return ["party", *held], lines


def columns(content: Content, most: int | None = None) -> list[list[str]]:
    """Tabulate the columns that the federation uses most: party, column, loss when permuted."""
    found = [each for each in content["importance"] if each["column"] is not None]
    found.sort(key=lambda each: -each["value"])
    return [[each["party"], each["column"], _loss(content, each)] for each in found[:most]]


def too_many(parties: int) -> str:
    """Write why there are no Shapley values of so many parties."""
    return (
        f"no Shapley values: {parties} parties have {2**parties:,} coalitions, and values are for "
        f"{MOST} at most; every party is left out once"
    )


def _loss(content: Content, each: Mapping[str, Any]) -> str:
    return f"{difference(content, each['value'])} ± {figure(content, each['spread'])}"


def verdicts(content: Content) -> list[str]:
    """Write a sentence on all parties together, and one on each: whether it adds anything."""
    said = []
    whole = next(row["gain"] for row in reversed(content["rows"]) if row["kind"] == "federated")
    if whole is not None and len(content["parties"]) > 1:
        gain = f"{between(content, whole)} {metric(content)}"
        said.append(f"All together add {gain} to {holder(content)} alone.")
    for each in content["left_out"]:
        found = "is not shown to add anything to what the others have"
        if each["low"] > 0:
            found = "adds to what the others have"
        elif each["high"] < 0:
            found = "makes the federation worse"
        said.append(f"{each['party']} {found}: {between(content, each)} {metric(content)}.")
    return said


def notes(content: Content) -> list[str]:
    """Write sentences that explain the figures, and their privacy cost."""
    level, seeds = f"{100 * content['level']:g} %", len(content["seeds"])
    better = "" if content["larger_is_better"] else " Gains are what errors fall by."
    said = [
        f"Intervals: {level} of {content['resamples']:,} bootstrap resamples of the "
        f"{content['tests']:,} test records, the same for all rows, so that differences are "
        f"paired.{better}",
        "They do not hold what depends on the training's seed"
        + (f"; figures are means over {seeds} seeds." if seeds > 1 else "; --seeds 3 shows more."),
        "All in one table: what gradient boosting reaches with every party's columns in one place, "
        "which a federation avoids; in a simulation only.",
    ]
    if content["head"] == "raw":
        said.append("Federated rows are of the raw head, which stays with the label holder.")
    if content["head"] != "raw" or content["raw_head"] != "boosting":
        kind = "the best" if content["raw_head"] == "auto" else f"a {content['raw_head']}"
        said.append(
            "Alone and in one table, gradient boosting predicts; in federations, "
            + (f"{kind} head" if content["head"] == "raw" else "the server's model")
            + ". Gains are of columns and models alike, unless server.final_head is 'boosting'."
        )
    if content["shapley"] is None and len(content["parties"]) > MOST:
        said.append(too_many(len(content["parties"])))
    elif content["shapley"] is None:
        said.append("no Shapley values: not every coalition was trained.")
    if content["importance"]:
        said.append(
            "permuted: what the federation of all loses when these columns of the test records "
            f"are exchanged at random, {content['repeats']} times a seed (± is their standard "
            "deviation)."
        )
    return [*said, *content["cost"]["words"]]
