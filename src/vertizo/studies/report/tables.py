"""Variants side by side: their figures, what adversaries learnt of them, and how they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vertizo.attacks.choice import ATTACKS
from vertizo.privacy.epsilon_text import bound_text, is_bounded
from vertizo.studies.comparison import CONTROLS, mean_and_spread
from vertizo.studies.report.measures import CLOSING, CURVES, Measure, count, short, size
from vertizo.studies.report.reading import Attacks, number
from vertizo.studies.report.variants import IGNORED, Study, Variant, flat, text


@dataclass(frozen=True)
class Cell:
    """A figure, and what it is sorted by."""

    text: str
    value: float | None = None


NOTHING = Cell("–")


def closing(variants: Sequence[Variant]) -> list[Measure]:
    """Measures of the finished runs on test records; on validation records if there are no others.

    A run without test records has what it was best at under ``best``.
    """
    summaries = [run.summary or {} for variant in variants for run in variant.finished()]

    def present(measures: Sequence[Measure]) -> list[Measure]:
        return [m for m in measures if any(_closing(s, m) is not None for s in summaries)]

    return present(CLOSING) or present(CURVES)


def _closing(summary: Mapping[str, Any], measure: Measure) -> float | None:
    best, value = summary.get("best"), number(summary, measure.key)
    return number(best, measure.key) if value is None and isinstance(best, Mapping) else value


def _score(variant: Variant, measure: Measure, control: str = "none") -> Cell:
    each = (_closing(run.summary or {}, measure) for run in variant.finished(control))
    found = [value for value in each if value is not None]
    if not found:
        return NOTHING
    mean, spread = mean_and_spread(found)
    return Cell(measure.bare(mean, spread), mean)


def methods(study: Study) -> dict[str, Any] | None:
    """The table of finished variants, a line for each; None where there is none."""
    variants = [variant for variant in study.variants if variant.finished()]
    if not variants:
        return None
    measures = closing(variants)
    controls = [c for c in CONTROLS if any(variant.finished(c) for variant in variants)]
    heads = [measure.heading for measure in measures]
    heads[1:1] = [CONTROLS[control] for control in controls] if measures else []
    heads += ["bytes up", "bytes down", "rounds", "seconds", "rounds/s", "staleness, rounds"]
    heads += ["peak memory", "seeds", "privacy"]
    return {"heads": heads, "rows": [(v.name, _cells(v, measures, controls)) for v in variants]}


def _cells(variant: Variant, measures: Sequence[Measure], controls: Sequence[str]) -> list[Cell]:
    cells = [_score(variant, measure) for measure in measures]
    cells[1:1] = [_score(variant, measures[0], c) for c in controls] if measures else []
    seeds = len(variant.finished())
    return [
        *cells,
        _mean(variant, size, "bytes_up", "bytes_table"),
        _mean(variant, size, "bytes_down"),
        _mean(variant, lambda mean, _: count(mean), "rounds"),
        _mean(variant, _seconds, "seconds"),
        _mean(variant, lambda mean, _: count(mean), "rounds_per_second"),
        _staleness(variant),
        _mean(variant, lambda mib, _: f"{mib:,.0f} MiB", "peak_memory_mib"),
        Cell(str(seeds), float(seeds)),
        Cell(guarantee_text(variant.privacy)),
    ]


def _mean(variant: Variant, written: Callable[[float, float | None], str], *keys: str) -> Cell:
    found = variant.mean(*keys)
    return NOTHING if found is None else Cell(written(*found), found[0])


def _seconds(mean: float, spread: float | None) -> str:
    return short(mean) if spread is None else f"{short(mean)} ± {short(spread)}"


def _staleness(variant: Variant) -> Cell:
    parts = [(run.summary or {}).get("staleness") for run in variant.finished()]
    known = [part for part in parts if isinstance(part, Mapping)]
    means = [value for part in known if (value := number(part, "mean")) is not None]
    largest = [value for part in known if (value := number(part, "max")) is not None]
    if not means or not largest:
        return NOTHING
    mean, _ = mean_and_spread(means)
    return Cell(f"mean {mean:.0f}, max {max(largest):,.0f}", mean)


def guarantee_text(privacy: Mapping[str, Any] | None) -> str:
    """A statement in a few words, for a table."""
    if privacy is None:
        return "not known before the end"
    guarantee, epsilon, delta = (privacy.get(key) for key in ("guarantee", "epsilon", "delta"))
    if is_bounded(privacy) and isinstance(epsilon, float) and isinstance(delta, float):
        return f"{guarantee}: ε = {bound_text(epsilon, 3)}, δ = {delta:g}"
    if guarantee == "published":
        return "published formula, which does not hold"
    return str(guarantee)


def headlines(study: Study) -> list[dict[str, Any]]:
    """What is to be known first of every variant."""
    main = next(iter(closing(study.variants)), None)
    return [_headline(variant, main) for variant in study.variants]


def _headline(variant: Variant, main: Measure | None) -> dict[str, Any]:
    finished, privacy = variant.finished(), variant.privacy
    found: dict[str, Any] = {"name": variant.name, "measure": "", "controls": []}
    if not finished:
        rows = variant.example.rows
        last = f"stopped or still running, last seen in round {rows[-1]['round']:,}" if rows else ""
        return {
            **found,
            "quality": "unfinished",
            "seeds": last or "before its first evaluation",
            "bytes": "counted at the end",
            "privacy": privacy_line(None),
            "guarantee": "unfinished",
        }
    quality = "no figures of quality"
    if main is not None:
        quality = f"{_score(variant, main).text} {main.unit}".strip()
        held = [(name, _score(variant, main, control)) for control, name in CONTROLS.items()]
        found["measure"] = main.name
        found["controls"] = [
            (name, f"{cell.text} {main.unit}".strip()) for name, cell in held if cell != NOTHING
        ]
    seeds = "1 seed, no spread" if len(finished) == 1 else f"{len(finished)} seeds"
    waiting = len(variant.runs) - len(finished)
    up, down = variant.mean("bytes_up", "bytes_table"), variant.mean("bytes_down")
    return {
        **found,
        "quality": quality,
        "seeds": f"{seeds}, {waiting} unfinished" if waiting > 0 else seeds,
        "bytes": f"{size(*up)} up, {size(*down)} down" if up and down else "not counted",
        "privacy": privacy_line(privacy),
        "guarantee": str(privacy["guarantee"]) if privacy else "unfinished",
    }


def privacy_line(privacy: Mapping[str, Any] | None) -> str:
    """What is guaranteed, in one plain line."""
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
            return f"{bound} for each training record: {things}."
    if guarantee == "published":
        claim = number(privacy, "epsilon_published")
        said = "" if claim is None else f" (it says ε = {claim:.4g})"
        return f"No guarantee: noise by the published formula{said}, which does not hold."
    return "No privacy guarantee."


def attacks(source: Attacks) -> dict[str, Any]:
    """What adversaries were seen to learn, by one ``attacks.json``, beside what none would."""
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
    """Keys in which variants differ, a column for each; None where they do not."""
    trees = [flat(variant.example) for variant in variants]
    rows = []
    for key in dict.fromkeys(key for tree in trees for key in tree if key not in IGNORED):
        values = [text(tree[key]) if key in tree else "–" for tree in trees]
        if len(set(values)) > 1:
            rows.append((key, values))
    return {"names": [variant.name for variant in variants], "rows": rows} if rows else None
