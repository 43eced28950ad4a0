"""The closing figures of a run as text, for a terminal's table, or as HTML for a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vertizo.core.names import CONTROLS
from vertizo.party.metrics import chosen_by
from vertizo.privacy.accounting import label_advantage
from vertizo.privacy.epsilon_text import bound_text
from vertizo.run.results import html_form

Summary = Mapping[str, Any]
BOUNDS = "  95 % (bootstrap)"
"""Name of the row below a figure that has its interval (`vertizo.party.closing_scores`)."""
NOT_PAID = "training the clients has not paid"
"""The end of a verdict if the best control is ahead."""


def size_text(count: float) -> str:
    """A number of bytes in units of a thousand.

    >>> size_text(1234567)
    '1.23 MB'
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def rows(summary: Summary) -> list[tuple[str, str]]:
    """Each figure's name and text; on validation records if there are no test records."""
    lines = scores_of("test", summary, summary)
    if not lines:  # all records were for training and validation
        lines = scores_of("validation", summary, summary.get("best") or {})
    head = summary.get("raw_head", {})
    raw = scores_of("test", summary, head)
    heads = [(f"raw head: {name}", text) for name, text in raw if name.startswith("test ")]
    if head.get("test_loss", math.nan) == summary.get("test_loss"):  # they are the run's figures
        heads = [("head", f"raw, {head['kind']}")]
    staleness, advantage = summary["staleness"], label_advantage.of(summary["privacy"])
    mechanism = summary.get("mechanism", "none")
    memory, card = summary.get("peak_memory_mib"), summary.get("card_memory_mib")
    return [
        *lines,
        *heads,
        ("model", _model(summary)),
        ("clients", str(summary["clients"])),
        *([("numbers of a record", _numbers(summary["numbers"]))] if "numbers" in summary else []),
        ("rounds", f"{summary['rounds']:,}"),
        ("rounds/s", f"{summary['rounds_per_second']:,.0f}"),
        ("seconds", f"{summary['seconds']:.1f}"),
        ("bytes up", size_text(summary["bytes_up"] + summary["bytes_table"])),
        ("bytes down", size_text(summary["bytes_down"])),
        ("staleness", f"mean {staleness['mean']:.0f}, max {staleness['max']}"),
        *([] if memory is None else [("peak memory", f"{memory:,.0f} MiB")]),
        *([] if card is None else [("card's memory", f"{card:,.0f} MiB")]),
        *([] if mechanism == "none" else [("mechanism", mechanism)]),
        ("privacy", privacy_text(summary["privacy"])),
        *([] if advantage is None else [("label advantage", label_advantage.text(advantage))]),
        *_per_person(summary["privacy"]),
    ]


NEEDED = (
    *("head", "numbers of a record", "rounds", "seconds", "bytes up", "bytes down"),
    *("privacy", "label advantage", "per person"),
)


def brief(summary: Summary) -> list[tuple[str, str]]:
    """The main ones of `rows`: the first figure of each head, its interval, costs and ε."""
    lines = rows(summary)
    raw = next((at for at, (name, _) in enumerate(lines) if name.startswith("raw head: ")), 0)
    bounds = 1 if lines[1][0] == BOUNDS else 0
    return [line for at, line in enumerate(lines) if at in (0, bounds, raw) or line[0] in NEEDED]


def _numbers(dims: Sequence[int]) -> str:
    """The sizes of a record's embeddings as text: of all clients together, and of each.

    >>> _numbers([16, 16, 3]), _numbers([5])
    ('35 (16 + 16 + 3)', '5')
    """
    each = " + ".join(map(str, dims[:4])) + (" + …" if len(dims) > 4 else "")
    return f"{sum(dims)} ({each})" if len(dims) > 1 else str(sum(dims))


def _per_person(privacy: Summary) -> list[tuple[str, str]]:
    """The row with a person's ε, if one may have several records."""
    if (most := privacy.get("records_per_person") or 1) == 1:
        return []
    return [("per person", f"ε {bound_text(privacy['epsilon_per_person'], 3)}, {most:,} records")]


def statements(summary: Summary) -> list[tuple[str, str]]:
    """Sentences on how the method was chosen, what is guaranteed, and on a raw head, with names.

    References without a federation, if the summary has some, come first.
    """
    sections = (("method auto", "choice"), ("privacy", "privacy"), ("raw head", "raw_head"))
    found = [
        (name, summary[key]["words"].removeprefix("Method auto: "))
        for name, key in sections
        if key in summary
    ]
    about = summary.get("references")
    return [*([] if about is None else [("without a federation", _without(about))]), *found]


def _without(about: Summary) -> str:
    """A sentence on the figures of models without a federation."""

    def figures(each: Mapping[str, float]) -> str:
        by = {"linear": "a linear model"}
        return ", ".join(f"{value:.4f} by {by.get(kind, kind)}" for kind, value in each.items())

    alone, name = about["alone"], {"auc": "AUC", "rmse": "RMSE"}.get(about["metric"])
    own = "nothing, as it has no columns" if alone is None else figures(alone)
    return (
        f"test {name or about['metric']} of the label holder alone: {own}; of all columns in one "
        f"table: {figures(about['pooled'])}. Both are made of raw labels, the latter "
        "in a simulation alone; no ε covers them."
    )


def beside_controls(run: Summary, controls: Sequence[Summary]) -> str | None:
    """A verdict on whether a run beats its controls, whose clients learn nothing; None without
    test records or controls.

    It is ahead by the first figure that has an interval, if the best control's lies outside that.
    A control that predicts by a raw head is held against the run's raw head, where there is one.
    """
    names = ("auc", "accuracy", "pinball", "huber", "rmse")
    name = next((name for name in names if run.get(f"test_{name}_low") is not None), None)
    controls = [each for each in controls if each.get(f"test_{name}") is not None]
    if name is None or not controls:
        return None
    sign, raw = 1 if name in ("auc", "accuracy") else -1, run.get("raw_head", {})

    def beside(control: Summary) -> Summary:
        has_raw = f"test_{name}_low" in raw and control["control"] == "label-free"
        return raw if has_raw else run

    def ahead_by(control: Summary) -> float:
        return sign * float(control[f"test_{name}"] - beside(control)[f"test_{name}"])

    best = max(controls, key=ahead_by)
    mine = beside(best)
    figure, low, high = (mine[f"test_{name}{end}"] for end in ("", "_low", "_high"))
    scores = scores_of("test", run, mine)
    at = [row for row, _ in scores].index(BOUNDS)
    (words, own), (_, interval) = scores[at - 1 : at + 1]
    whose = "the run's raw head's" if mine is raw else "the run's"
    against = f"{CONTROLS[best['control']]}: {words} {dict(rows(best))[words]}"
    other = sign * best[f"test_{name}"]
    if other > sign * figure:
        near = f", though within its interval, {interval}" if low <= sign * other <= high else ""
        return f"{against}, better than {whose} {own}{near}; {NOT_PAID}"
    if low <= sign * other <= high:
        return (
            f"{against}, within the interval of {whose} {own}, {interval}; "
            "that training the clients pays is not shown"
        )
    ahead = f"{whose} {own}, {interval}, is better than every control's, by one seed"
    return f"the best is {against}; {ahead}"


def scores_of(purpose: str, summary: Summary, scores: Summary) -> list[tuple[str, str]]:
    """Names and texts of the task's scores on the records of one ``purpose``."""

    def score(name: str) -> Any:
        return scores.get(f"{purpose}_{name}")

    def percent(name: str) -> Any:
        return None if (value := score(name)) is None else 100 * value

    auc, every = score("auc"), ", every label" if summary.get("labels") else ""
    loss = "loss" if score("accuracy") is None else "log loss"
    figures: list[tuple[str, str, tuple[Any, ...]]] = [
        (f"{purpose} AUC", "{:.4f}", (auc,)),
        (BOUNDS, "{:.4f} to {:.4f}", (score("auc_low"), score("auc_high"))),
        ("  positive class", "{}", (None if auc is None else summary.get("positive"),)),
        ("average precision", "{:.4f}", (score("average_precision"),)),
        ("KS, Gini", "{:.4f}, {:.4f}", (score("ks"), score("gini"))),
        ("top 10 %: lift, recall", "{:.2f}, {:.1f} %", (score("lift_10"), percent("recall_10"))),
        (
            "at 0.5: precision, recall, F1",
            "{:.1f} %, {:.1f} %, {:.3f}",
            (percent("precision"), percent("recall"), score("f1")),
        ),
        ("Brier score", "{:.4f}", (score("brier"),)),
        *(
            (f"  AUC of {label}", "{:.4f}", (score(f"auc_{place}"),))
            for place, label in enumerate(summary.get("labels") or (), 1)
        ),
        ("labels wrong (Hamming)", "{:.2f} %", (percent("hamming"),)),
        (f"{purpose} accuracy{every}", "{:.2f} %", (percent("accuracy"),)),
        (BOUNDS, "{:.2f} to {:.2f} %", (percent("accuracy_low"), percent("accuracy_high"))),
        ("balanced accuracy", "{:.2f} %", (percent("balanced_accuracy"),)),
        ("macro F1", "{:.4f}", (score("f1_macro"),)),
        ("macro AUC", "{:.4f}", (score("auc_macro"),)),
        (f"{purpose} pinball loss", "{:.4g}", (score("pinball"),)),
        (BOUNDS, "{:.4g} to {:.4g}", (score("pinball_low"), score("pinball_high"))),
        ("labels below", "{:.1f} %", (percent("below"),)),
        (f"{purpose} Huber loss", "{:.4g}", (score("huber"),)),
        (BOUNDS, "{:.4g} to {:.4g}", (score("huber_low"), score("huber_high"))),
        (f"{purpose} RMSE", "{:.4g}", (score("rmse"),)),
        (BOUNDS, "{:.4g} to {:.4g}", (score("rmse_low"), score("rmse_high"))),
        (f"{purpose} MAE", "{:.4g}", (score("mae"),)),
        (f"{purpose} R²", "{:.4f}", (score("r2"),)),
        (f"{purpose} {loss}", "{:.4f}", (score("loss"),)),
    ]
    return [(name, text.format(*each)) for name, text, each in figures if None not in each]


def metric_text(row: Summary) -> str | None:
    """The figure of an evaluation that models are chosen by, as text; None for losses.

    >>> metric_text({"validation_loss": 0.3, "validation_accuracy": 0.9})
    'acc 90.0 %'
    """
    of = "validation_" if "validation_loss" in row else "test_"
    name = chosen_by(row, of)
    value = row.get(f"{of}{name}")
    if value is None or name == "loss":
        return None
    return f"AUC {value:.3f}" if name == "auc" else f"acc {100 * value:.1f} %"


def _model(summary: Summary) -> str:
    return "last" if summary["model"] == "last" else f"best, round {summary['best']['round']:,}"


def privacy_text(privacy: Summary) -> str:
    """A privacy statement in a few words, for a table."""
    if privacy["epsilon"] is None:
        return str(privacy["guarantee"])
    return f"{privacy['guarantee']}: ε {bound_text(privacy['epsilon'], 3)}, δ {privacy['delta']:g}"


def line(summary: Summary) -> str:
    """A run's figures in one line."""
    figures = ", ".join(f"{name.strip()} {text}" for name, text in rows(summary))
    return f"{summary['method']} on {summary['dataset']}: {figures}"


def html(summary: Summary, privacy: str | None = None) -> str:
    """A summary as HTML: the first figure, what is guaranteed, the main figures, the rest folded.

    ``privacy`` takes the place of the summary's own words on it.
    """
    said = dict(statements(summary))
    guaranteed = {name: said.pop(name) for name in ("privacy", "raw head") if name in said}
    if privacy is not None:
        guaranteed = {"privacy": privacy}
    needed, every = brief(summary), rows(summary)
    of = needed[: 2 if needed[1][0] == BOUNDS else 1]
    verdict = ", ".join(f"{name.strip()} {text}" for name, text in of)
    title = f"{summary['method']} on {summary['dataset']}"
    told = [(title, verdict), *((name.capitalize(), text) for name, text in guaranteed.items())]
    rest = html_form.paragraphs((name.capitalize(), text) for name, text in said.items())
    return (
        html_form.paragraphs(told)
        + html_form.table(needed)
        + html_form.folded("All figures", html_form.table(every) + rest)
    )
