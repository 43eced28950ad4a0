"""The closing figures of a run as people read them: for a terminal's table and for a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from vertizo.privacy import label_advantage
from vertizo.privacy.epsilon_text import bound_text

Summary = Mapping[str, Any]


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
    """What to call each figure, and its text; those of test records only where there are some."""
    lines = _scores("test", summary, summary)
    if not lines:  # all records were for training and validation
        lines = _scores("validation", summary, summary.get("best") or {})
    raw = _scores("test", summary, summary.get("raw_head", {}))
    heads = [(f"raw head: {name}", text) for name, text in raw if not name.startswith(" ")]
    staleness, advantage = summary["staleness"], label_advantage.of(summary["privacy"])
    mechanism = summary.get("mechanism", "none")
    memory = summary.get("peak_memory_mib")
    return [
        *lines,
        *heads,
        ("model", _model(summary)),
        ("clients", str(summary["clients"])),
        ("rounds", f"{summary['rounds']:,}"),
        ("rounds/s", f"{summary['rounds_per_second']:,.0f}"),
        ("seconds", f"{summary['seconds']:.1f}"),
        ("bytes up", size_text(summary["bytes_up"] + summary["bytes_table"])),
        ("bytes down", size_text(summary["bytes_down"])),
        ("staleness", f"mean {staleness['mean']:.0f}, max {staleness['max']}"),
        *([] if memory is None else [("peak memory", f"{memory:,.0f} MiB")]),
        *([] if mechanism == "none" else [("mechanism", mechanism)]),
        ("privacy", privacy_text(summary["privacy"])),
        *([] if advantage is None else [("label advantage", label_advantage.text(advantage))]),
        *_per_person(summary["privacy"]),
    ]


def _per_person(privacy: Summary) -> list[tuple[str, str]]:
    """ε of a person, where one may have several records."""
    if (most := privacy.get("records_per_person") or 1) == 1:
        return []
    return [("per person", f"ε {bound_text(privacy['epsilon_per_person'], 3)}, {most:,} records")]


def statements(summary: Summary) -> list[tuple[str, str]]:
    """What is guaranteed, and of a raw head that nothing is: what to call it, and the words."""
    sections = (("privacy", "privacy"), ("raw head", "raw_head"))
    return [(name, summary[key]["words"]) for name, key in sections if key in summary]


def _scores(purpose: str, summary: Summary, scores: Summary) -> list[tuple[str, str]]:
    """The task's measures on some records; ``purpose`` says which."""

    def score(name: str) -> Any:
        return scores.get(f"{purpose}_{name}")

    accuracy, auc, rmse = score("accuracy"), score("auc"), score("rmse")
    positive = summary["classes"][1] if auc is not None and summary.get("classes") else None
    loss = "loss" if accuracy is None else "log loss"
    figures: list[tuple[str, Any, str]] = [
        (f"{purpose} accuracy", None if accuracy is None else 100 * accuracy, "{:.2f} %"),
        (f"{purpose} AUC", auc, "{:.4f}"),
        ("  positive class", positive, "{}"),
        ("average precision", None if auc is None else score("average_precision"), "{:.4f}"),
        (f"{purpose} RMSE", rmse, "{:.4g}"),
        (f"{purpose} R²", None if rmse is None else score("r2"), "{:.4f}"),
        (f"{purpose} {loss}", score("loss"), "{:.4f}"),
    ]
    return [(name, text.format(value)) for name, value, text in figures if value is not None]


def _model(summary: Summary) -> str:
    return "last" if summary["model"] == "last" else f"best, round {summary['best']['round']:,}"


def privacy_text(privacy: Summary) -> str:
    """A statement in a few words, for a table."""
    if privacy["epsilon"] is None:
        return str(privacy["guarantee"])
    return f"{privacy['guarantee']}: ε {bound_text(privacy['epsilon'], 3)}, δ {privacy['delta']:g}"


def line(summary: Summary) -> str:
    """The figures in one line."""
    figures = ", ".join(f"{name.strip()} {text}" for name, text in rows(summary))
    return f"{summary['method']} on {summary['dataset']}: {figures}"


def html(summary: Summary) -> str:
    """The figures as a table, and below it what is guaranteed, for a notebook."""
    lines = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:right">{escape(text)}</td></tr>'
        for name, text in rows(summary)
    )
    title = escape(f"{summary['method']} on {summary['dataset']}")
    words = "".join(
        f'<p style="max-width:40em"><b>{escape(name.capitalize())}.</b> {escape(text)}</p>'
        for name, text in statements(summary)
    )
    return f"<table><caption><b>{title}</b></caption><tbody>{lines}</tbody></table>{words}"
