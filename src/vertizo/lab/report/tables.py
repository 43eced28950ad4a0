"""The report's tables: variants' figures, attacks on them, and keys in which they differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from vertizo.core.names import CONTROLS
from vertizo.lab.attacks.choice import ATTACKS
from vertizo.lab.comparison import Row, mean_and_spread
from vertizo.lab.comparison_table import paid
from vertizo.lab.report.measures import CLOSING, CURVES, RAW, Measure, count, short, size
from vertizo.lab.report.reading import REFERENCES, Attacks, Run, number
from vertizo.lab.report.variants import IGNORED, Study, Variant
from vertizo.privacy.accounting import label_advantage
from vertizo.privacy.epsilon_text import bound_text, is_bounded
from vertizo.run.results.summary_figures import NOT_PAID

Written = Callable[[float, float | None], str]


class Cell(NamedTuple):
    """A table cell: its text, and the value that it is sorted by."""

    text: str
    value: float | None = None


NOTHING = Cell("–")
BESIDE = CONTROLS | REFERENCES
"""Controls and references, which stand beside a figure."""


def _cell(figures: Sequence[float | None], written: Written) -> Cell:
    """Make a cell of the mean over seeds that have a figure."""
    known = [figure for figure in figures if figure is not None]
    if not known:
        return NOTHING
    mean, spread = mean_and_spread(known)
    return Cell(written(mean, spread), mean)


def closing(variants: Sequence[Variant]) -> list[Measure]:
    """List the finished runs' measures on test records, or else on validation records.

    A run without test records has its best evaluation's figures under ``best``.
    """
    runs = [run for variant in variants for run in variant.finished()]
    for measures in (CLOSING, CURVES):
        if known := [m for m in measures if any(_closing(run, m) is not None for run in runs)]:
            return known
    return []


def _closing(run: Run, measure: Measure) -> float | None:
    value, best = run.figure(measure.key), (run.summary or {}).get("best")
    return number(best, measure.key) if value is None and isinstance(best, Mapping) else value


def _score(variant: Variant, measure: Measure, control: str = "none") -> Cell:
    return _cell([_closing(run, measure) for run in variant.finished(control)], measure.bare)


def _beside(variant: Variant, measure: Measure, what: str) -> Cell:
    """Make the cell of the same figure of a control, or of a reference without a federation."""
    if what in CONTROLS:
        return _score(variant, measure, what)
    return _cell([run.reference(what, measure.key) for run in variant.finished()], measure.bare)


def _closed(written: Written, *keys: str) -> Callable[[Variant], Cell]:
    """Make a column: the sum of closing figures, averaged over seeds that have the first one."""

    def cell(variant: Variant) -> Cell:
        runs = [run for run in variant.finished() if run.figure(keys[0]) is not None]
        return _cell([sum(run.figure(key) or 0.0 for key in keys) for run in runs], written)

    return cell


def _seconds(mean: float, spread: float | None) -> str:
    return short(mean) if spread is None else f"{short(mean)} ± {short(spread)}"


def _staleness(variant: Variant) -> Cell:
    parts = [(run.summary or {}).get("staleness") for run in variant.finished()]
    means, largest = (
        [value for p in parts if isinstance(p, Mapping) and (value := number(p, key)) is not None]
        for key in ("mean", "max")
    )
    if not largest:
        return NOTHING
    return _cell(means, lambda mean, _: f"mean {mean:.0f}, max {max(largest):,.0f}")


def guarantee_text(privacy: Mapping[str, Any] | None) -> str:
    """Write a privacy statement in a few words, for a table."""
    if privacy is None:
        return "not known before the end"
    guarantee, epsilon, delta = (privacy.get(key) for key in ("guarantee", "epsilon", "delta"))
    if is_bounded(privacy) and isinstance(epsilon, float) and isinstance(delta, float):
        return f"{guarantee}: ε = {bound_text(epsilon, 3)}, δ = {delta:g}"
    if guarantee == "published":
        return "published formula, which does not hold"
    return str(guarantee)


def _advantage(privacy: Mapping[str, Any] | None) -> Cell:
    found = None if privacy is None else label_advantage.of(privacy)
    return NOTHING if found is None else Cell(label_advantage.text(found), found)


UP = _closed(size, "bytes_up", "bytes_table")
DOWN = _closed(size, "bytes_down")
COLUMNS: tuple[tuple[str, Callable[[Variant], Cell]], ...] = (
    ("bytes up", UP),
    ("bytes down", DOWN),
    ("rounds", _closed(lambda mean, _: count(mean), "rounds")),
    ("seconds", _closed(_seconds, "seconds")),
    ("rounds/s", _closed(lambda mean, _: count(mean), "rounds_per_second")),
    ("staleness, rounds", _staleness),
    ("peak memory", _closed(lambda mib, _: f"{mib:,.0f} MiB", "peak_memory_mib")),
    ("seeds", lambda variant: Cell(str(len(variant.finished())), float(len(variant.finished())))),
    ("privacy", lambda variant: Cell(guarantee_text(variant.privacy))),
    ("label advantage", lambda variant: _advantage(variant.privacy)),
)
"""Columns of the table of methods, beside figures of quality."""
NEEDED = ("bytes up", "bytes down", "rounds", "seconds", "privacy")
"""Those of `COLUMNS` that the short table has."""


def methods(study: Study) -> dict[str, Any] | None:
    """Build the table of finished variants, a line for each; None without any."""
    variants = [variant for variant in study.variants if variant.finished()]
    if not variants:
        return None
    measures = closing(variants)
    scores: list[tuple[str, Callable[[Variant], Cell]]]
    scores = [(measure.heading, partial(_score, measure=measure)) for measure in measures]
    scores[1:1] = [
        (words, partial(_beside, measure=measures[0], what=what))
        for what, words in BESIDE.items()
        if measures and any(_beside(each, measures[0], what) != NOTHING for each in variants)
    ]
    columns = [*scores, *COLUMNS]
    rows = [(variant.name, [cell(variant) for _, cell in columns]) for variant in variants]
    heads = [head for head, _ in columns]
    held = 1 + sum(head in BESIDE.values() for head in heads)
    shown = [at for at, head in enumerate(heads) if (measures and at < held) or head in NEEDED]
    return {
        "heads": [heads[at] for at in shown],
        "rows": [(name, [cells[at] for at in shown]) for name, cells in rows],
        "whole": {"heads": heads, "rows": rows},
    }


def heads(study: Study) -> dict[str, Any] | None:
    """Tabulate both heads of each finished variant that has two; None without any."""
    variants = [variant for variant in study.variants if variant.finished() and variant.raw_head]
    measures = [measure for measure in closing(variants) if measure in RAW]
    if not measures:
        return None
    held = [control for control in CONTROLS if any(v.finished(control) for v in variants)]
    columns = [(measure.heading, measure, "none") for measure in measures]
    columns[1:1] = [(CONTROLS[control], measures[0], control) for control in held]
    rows = [
        (f"{variant.name}, {name}", [_score(variant, of[m], control) for _, m, control in columns])
        for variant in variants
        for name, of in zip(variant.head_names, ({m: m for m in RAW}, RAW), strict=True)
    ]
    return {"heads": [head for head, *_ in columns], "rows": rows}


def headlines(study: Study) -> list[dict[str, Any]]:
    """Build the headline of every variant: quality, controls, bytes and privacy."""
    return [_headline(variant, _main(study, variant)) for variant in study.variants]


def _main(study: Study, variant: Variant) -> Measure | None:
    """Return the study's first measure if the variant has it, or else the variant's own first."""
    measures = [*closing(study.variants)[:1], *closing([variant])]
    return next((m for m in measures if _score(variant, m) != NOTHING), None)


def _headline(variant: Variant, main: Measure | None) -> dict[str, Any]:
    finished, privacy = variant.finished(), variant.privacy
    found: dict[str, Any] = {
        "name": variant.name,
        "measure": main.name if main and finished else "",
        "controls": [],
        "interval": "",
        "verdict": "",
        "instead": "",
        "when": variant.when,
        "head": None,
        "privacy": privacy_line(privacy if finished else None),
        "guarantee": str(privacy["guarantee"]) if privacy and finished else "unfinished",
    }
    if not finished:
        rows = variant.example.rows
        last = f"stopped or still running, last seen in round {rows[-1]['round']:,}" if rows else ""
        return {
            **found,
            "quality": "unfinished",
            "seeds": last or "before its first evaluation",
            "bytes": "counted at the end",
        }
    quality = "no figures of quality"
    if main is not None:
        quality = f"{_score(variant, main).text} {main.unit}".strip()
        found["controls"] = _controls(variant, main)
        found["interval"] = _interval(finished, main)
        found["verdict"] = _verdict(variant)
        if found["verdict"].casefold() == NOT_PAID:
            found["instead"] = (finished[0].summary or {}).get("instead", {}).get("words", "")
        if variant.is_raw:
            found["head"] = variant.head_names[1]
        if variant.raw_head and main in RAW:
            found["head"], name = variant.head_names
            raw = _score(variant, RAW[main])
            if raw != NOTHING:
                found["controls"].append((name, f"{raw.text} {main.unit}".strip()))
                controls = _controls(variant, RAW[main])
                found["controls"] += [
                    (f"raw, {control}", text)
                    for control, text in controls
                    if control != CONTROLS["label-free"]  # which has this head alone
                ]
    seeds = "1 seed, no spread" if len(finished) == 1 else f"{len(finished)} seeds"
    waiting = len(variant.runs) - len(finished)
    up, down = UP(variant), DOWN(variant)
    return {
        **found,
        "quality": quality,
        "seeds": f"{seeds}, {waiting} unfinished" if waiting > 0 else seeds,
        "bytes": "not counted" if NOTHING in (up, down) else f"{up.text} up, {down.text} down",
    }


def _verdict(variant: Variant) -> str:
    """Write whether training the clients is seen to pay, by controls with the same seeds."""
    kinds = {kind: variant.finished(kind) for kind in ("none", *CONTROLS)}
    seeds = [run.config.seed for run in kinds["none"]]
    summaries = {
        kind: [run.summary or {} for run in runs]
        for kind, runs in kinds.items()
        if [run.config.seed for run in runs] == seeds
    }
    words = (paid(Row(variant.name, summaries, {})) or "").rpartition("; ")[2]
    return words[:1].upper() + words[1:]


def _interval(finished: Sequence[Run], measure: Measure) -> str:
    """Write the interval of a single seed's figure over resampled test records; else nothing."""
    ends = [finished[0].figure(f"{measure.key}_{end}") for end in ("low", "high")]
    known = [measure.bare(end) for end in ends if end is not None]
    return " to ".join(known) if len(finished) == 1 and len(known) == 2 else ""


def _controls(variant: Variant, measure: Measure) -> list[tuple[str, str]]:
    """List the same figure of the controls that were run, and of references."""
    held = [(name, _beside(variant, measure, what)) for what, name in BESIDE.items()]
    return [(name, f"{c.text} {measure.unit}".strip()) for name, c in held if c != NOTHING]


def privacy_line(privacy: Mapping[str, Any] | None) -> str:
    """Write the guarantee in one plain line."""
    if privacy is None:
        return "The statement is made at the end."
    guarantee = privacy.get("guarantee")
    if is_bounded(privacy):
        covers = privacy.get("covers")
        things = ", ".join(map(str, covers)) if isinstance(covers, list) and covers else "labels"
        epsilon, delta = number(privacy, "epsilon"), number(privacy, "delta")
        if epsilon is not None and delta is not None:
            simulated = "Simulated: " if guarantee == "simulated" else ""
            bound = f"{simulated}ε = {bound_text(epsilon)} at δ = {delta:g}"
            advantage = label_advantage.text(label_advantage.of(privacy))
            return f"{bound}, label advantage {advantage}, for each training record: {things}."
    if guarantee == "published":
        claim = number(privacy, "epsilon_published")
        said = "" if claim is None else f" (it says ε = {claim:.4g})"
        return f"No guarantee: noise by the published formula{said}, which does not hold."
    return "No privacy guarantee."


def attacks(source: Attacks) -> dict[str, Any]:
    """Build the table of one ``attacks.json``: what adversaries found, beside their controls."""
    rows, unfit = [], []
    for result in source.results:
        name, method = str(result.get("attack", "?")), str(result.get("method", "?"))
        noise, kind = bool(result.get("noise", False)), ATTACKS.get(name)
        if result.get("not_applicable"):
            beside = " with noise" if noise else ""
            unfit.append(f"{name} on {method}{beside}: {result['not_applicable']}")
        for key, figure in result["figures"].items():
            if not isinstance(figure, Mapping):
                continue
            mean, control = number(figure, "mean"), number(figure, "control")
            error, bound = number(figure, "standard_error"), number(figure, "bound")
            if mean is None or control is None:
                continue
            counts = figure.get("guesses")
            each = [c for c in counts if isinstance(c, int)] if isinstance(counts, list) else []
            rows.append(
                {
                    "attack": name,
                    "adversary": kind.adversary if kind else "",
                    "figure": kind.figures.get(key, key) if kind else str(key),
                    "method": method,
                    "noise": noise,
                    "found": f"{mean:.3f}" if error is None else f"{mean:.3f} ± {error:.3f}",
                    "value": mean,
                    "control": f"{control:.3f}",
                    "control_value": control,
                    "bound": "" if bound is None else f"{bound:.3f}",
                    "guesses": f"{sum(each):,}",
                }
            )
    bounded = any(row["bound"] for row in rows)
    return {"source": source, "rows": rows, "bounded": bounded, "unfit": unfit}


def differences(variants: Sequence[Variant]) -> dict[str, Any] | None:
    """Tabulate the keys in which variants differ, a column for each; None if they do not differ."""
    trees = [_flat(variant.example.config.model_dump(mode="json")) for variant in variants]
    rows = []
    for key in dict.fromkeys(key for tree in trees for key in tree if key not in IGNORED):
        values = [tree.get(key, "–") for tree in trees]
        if len(set(values)) > 1:
            rows.append((key, values))
    return {"names": [variant.name for variant in variants], "rows": rows} if rows else None


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Flatten a configuration to ``section.key`` → value as text."""
    found: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{above}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            found[f"{above}{key}"] = "unset" if value is None else text
    return found
