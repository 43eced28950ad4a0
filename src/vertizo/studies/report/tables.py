"""The methods of a study side by side, in figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vertizo.privacy.epsilon_text import bound_text, is_bounded
from vertizo.studies.comparison import mean_and_spread
from vertizo.studies.report.curves import CONTROL_NAMES
from vertizo.studies.report.measures import CLOSING, CURVES, Measure, count, present, short, size
from vertizo.studies.report.reading import number
from vertizo.studies.report.variants import Study, Variant


@dataclass(frozen=True)
class Cell:
    """A figure, and what it is sorted by."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Table:
    """A line for each variant."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


@dataclass(frozen=True)
class Headline:
    """What is to be known first of a variant."""

    name: str
    measure: str
    quality: str
    seeds: str
    controls: tuple[tuple[str, str], ...]
    bytes: str
    privacy: str
    guarantee: str
    """``exact``, ``published``, ``none`` or ``unfinished``."""


NOTHING = Cell("–")


def closing(variants: Sequence[Variant]) -> list[Measure]:
    """Measures of the finished runs on test records; on validation records if there are no others.

    A run without test records has what it was best at under ``best``.
    """
    found = present(CLOSING, _keys(variants))
    return found or present(CURVES, _keys(variants))


def _keys(variants: Sequence[Variant]) -> set[str]:
    keys: set[str] = set()
    for variant in variants:
        for run in variant.finished():
            summary = run.summary or {}
            keys |= {key for key in summary if number(summary, key) is not None}
            best = summary.get("best")
            if isinstance(best, Mapping):
                keys |= {key for key in best if number(best, key) is not None}
    return keys


def scores(variant: Variant, measure: Measure, control: str = "none") -> list[float]:
    """A measure of each finished seed."""
    found = []
    for run in variant.finished(control):
        summary = run.summary or {}
        best = summary.get("best")
        value = number(summary, measure.key)
        if value is None and isinstance(best, Mapping):
            value = number(best, measure.key)
        if value is not None:
            found.append(value)
    return found


def _score(variant: Variant, measure: Measure, control: str = "none") -> Cell:
    found = scores(variant, measure, control)
    if not found:
        return NOTHING
    mean, spread = mean_and_spread(found)
    return Cell(measure.text(mean, spread).removesuffix(f" {measure.unit}").strip(), mean)


def methods(study: Study) -> Table | None:
    """The table of finished variants; None where there is none."""
    variants = [variant for variant in study.variants if variant.finished()]
    if not variants:
        return None
    measures = closing(variants)
    controls = [c for c in CONTROL_NAMES if any(variant.finished(c) for variant in variants)]
    heads: list[str] = []
    for place, measure in enumerate(measures):
        heads.append(measure.heading)
        if not place:
            heads += [CONTROL_NAMES[control] for control in controls]
    heads += ["bytes up", "bytes down", "rounds", "seconds", "rounds/s", "staleness, rounds"]
    heads += ["peak memory", "seeds", "privacy"]
    return Table(tuple(heads), tuple((v.name, _cells(v, measures, controls)) for v in variants))


def _cells(
    variant: Variant, measures: Sequence[Measure], controls: Sequence[str]
) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    for place, measure in enumerate(measures):
        cells.append(_score(variant, measure))
        if not place:
            cells += [_score(variant, measure, control) for control in controls]
    cells += [_bytes(variant, "bytes_up", "bytes_table"), _bytes(variant, "bytes_down")]
    cells += [_plain(variant, "rounds", count), _plain(variant, "seconds", short)]
    cells += [_plain(variant, "rounds_per_second", count), _staleness(variant)]
    cells += [_plain(variant, "peak_memory_mib", lambda mib: f"{mib:,.0f} MiB")]
    cells += [Cell(str(len(variant.finished())), float(len(variant.finished())))]
    return (*cells, Cell(guarantee_text(variant.privacy)))


def _bytes(variant: Variant, *keys: str) -> Cell:
    found = variant.mean(*keys)
    return NOTHING if found is None else Cell(size(*found), found[0])


def _plain(variant: Variant, key: str, written: Any) -> Cell:
    found = variant.mean(key)
    if found is None:
        return NOTHING
    mean, spread = found
    text = str(written(mean))
    if spread is not None and key == "seconds":
        text += f" ± {written(spread)}"
    return Cell(text, mean)


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


def headlines(study: Study) -> list[Headline]:
    """A few figures of every variant."""
    measures = closing(study.variants)
    main = measures[0] if measures else None
    return [_headline(variant, main) for variant in study.variants]


def _headline(variant: Variant, main: Measure | None) -> Headline:
    finished, privacy = variant.finished(), variant.privacy
    if not finished:
        return _unfinished(variant)
    quality, controls = "no figures of quality", list[tuple[str, str]]()
    if main is not None:
        own = _score(variant, main)
        quality = f"{own.text} {main.unit}".strip()
        for control, name in CONTROL_NAMES.items():
            held = _score(variant, main, control)
            if held.value is not None:
                controls.append((name, f"{held.text} {main.unit}".strip()))
    seeds = "1 seed, no spread" if len(finished) == 1 else f"{len(finished)} seeds"
    waiting = len(variant.runs) - len(finished)
    if waiting > 0:
        seeds += f", {waiting} unfinished"
    up, down = variant.mean("bytes_up", "bytes_table"), variant.mean("bytes_down")
    traffic = f"{size(*up)} up, {size(*down)} down" if up and down else "not counted"
    return Headline(
        name=variant.name,
        measure=main.name if main else "",
        quality=quality,
        seeds=seeds,
        controls=tuple(controls),
        bytes=traffic,
        privacy=privacy_line(privacy),
        guarantee=str(privacy["guarantee"]) if privacy else "unfinished",
    )


def _unfinished(variant: Variant) -> Headline:
    run = variant.example
    where = f"round {run.rows[-1]['round']:,}" if run.rows else "before its first evaluation"
    return Headline(
        name=variant.name,
        measure="",
        quality="unfinished",
        seeds=f"stopped or still running, last seen in {where}" if run.rows else where,
        controls=(),
        bytes="counted at the end",
        privacy="The statement is made at the end.",
        guarantee="unfinished",
    )


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
