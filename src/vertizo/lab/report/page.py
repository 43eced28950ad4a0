"""Render the report's page: figures, tables and words in one file that needs nothing else."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vertizo.core.errors import ConfigError
from vertizo.core.version import VERSION
from vertizo.lab.report import curves, measures, plot, ranking, statements, tables, worth
from vertizo.lab.report.clients import timeline
from vertizo.lab.report.reading import Material
from vertizo.lab.report.variants import Study, studies
from vertizo.run.results import checkpoint

if TYPE_CHECKING:
    from jinja2 import Environment

NAME = "report.html"
"""Default file name of a report."""


def render(material: Material, title: str | None = None) -> str:
    """Render the page as HTML; the default title names the data and the methods."""
    found = studies(material.runs)
    style, script = source("page.css"), source("page.js")
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title or _title(found, material),
            parts=[_part(study, place) for place, study in enumerate(found)],
            worths=[worth.part(each) for each in material.worths],
            attacks=[tables.attacks(each) for each in material.attacks],
            commands=material.commands,
            differ=statements.differ(found),
            has_noise=statements.has_noise(found),
            style=style,
            script=script,
            policy=policy(style, script),
            version=VERSION,
            made_by=sorted({str((run.summary or {}).get("version", "")) for run in material.runs}),
        )
    )


def write(material: Material, out: Path, title: str | None = None) -> None:
    """Write the page to a file, in one step; RunError if it cannot be written."""
    check_name(out)
    content = render(material, title).encode("utf-8", "backslashreplace")
    with checkpoint.telling(f"--out {out} cannot be written"):
        out.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(out, content)


def check_name(out: Path) -> None:
    """Raise a `ConfigError` unless a page's name ends in .html or .htm."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {out} is no page; name a file that ends in .html")


def policy(style: str, script: str = "") -> str:
    """Build the page's content security policy, which allows this style and this script only."""
    own, ours = (b64encode(sha256(t.encode()).digest()).decode() for t in (style, script))
    scripts = f"script-src 'sha256-{ours}'; " if script else ""
    return (
        f"default-src 'none'; style-src 'sha256-{own}'; {scripts}base-uri 'none'; "
        "form-action 'none'"
    )


def _title(found: Sequence[Study], material: Material) -> str:
    if material.worths:
        sets = dict.fromkeys(str(each.content.get("dataset")) for each in material.worths)
        return f"What each party is worth: {', '.join(sets)}"
    if not found:
        return "Attacks"
    words = []
    for study in found[:3]:
        names = [variant.name for variant in study.variants]
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        words.append(f"{shown} on {study.dataset}")
    return "; ".join(words) + (" and more" if len(found) > 3 else "")


def _part(study: Study, place: int) -> dict[str, Any]:
    """Collect everything about one data set, for the template."""
    timelines = [(variant.name, timeline(variant.example)) for variant in study.variants]
    return {
        "study": study,
        "headlines": tables.headlines(study),
        "has_spread": any(len(variant.finished()) > 1 for variant in study.variants),
        "has_references": any((v.example.summary or {}).get("references") for v in study.variants),
        "curves": _figure(study, measures.CURVES, f"curves{place}", "round"),
        "ranking": ranking.figure(study, f"ranking{place}"),
        "methods": tables.methods(study),
        "heads": tables.heads(study),
        "timing": _figure(study, measures.TIMING, f"timing{place}", "virtual", of_time=True),
        "timelines": [(name, found) for name, found in timelines if found],
        "without_times": [name for name, found in timelines if not found],
        "statements": statements.statements(study),
        "unfinished": [v.name for v in study.variants if v.privacy is None],
        "differences": tables.differences(study.variants),
    }


def _figure(
    study: Study,
    chosen: Sequence[measures.Measure],
    name: str,
    first: str,
    *,
    of_time: bool = False,
) -> dict[str, Any] | None:
    """Build plots of the same lines, of which the page shows one at a time; None without any."""
    drawing = curves.drawing(study, chosen, of_time=of_time)
    if drawing is None:
        return None
    axes = sorted(drawing.axes, key=lambda axis: axis.key != first)
    made = (plot.plot(drawing, measure, axis) for measure in drawing.measures for axis in axes)
    plots = [each for each in made if each is not None]
    if not plots:
        return None
    shown = dict.fromkeys((each.measure.key, each.measure.name) for each in plots)
    against = dict.fromkeys((each.axis.key, each.axis.name) for each in plots)
    return {
        "name": name,
        "drawing": drawing,
        "plots": plots,
        "choices": [("measure", "Show", list(shown)), ("axis", "Against", list(against))],
        "readings": plot.readings(drawing, plots),
        "words": {m.key: plot.describe(drawing, m) for m in drawing.measures},
        "table": plot.table(drawing),
        "about": "some, evenly chosen; metrics.jsonl has all",
        "looks": [plot.look(line) for line in drawing.lines],
    }


def source(name: str) -> str:
    """Read a file beside the templates, unrendered."""
    templates = environment()
    assert templates.loader is not None
    return templates.loader.get_source(templates, name)[0]


@cache
def environment() -> Environment:
    """Return the Jinja environment, which escapes every value that a template inserts."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("vertizo.lab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
