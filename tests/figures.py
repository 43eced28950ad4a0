"""Measured figures of pages, and the results files that hold them.

``docs/figures.yaml`` names the files of each section that has such figures. Looked up in them is
every number of the section that has a decimal point, a ``±``, a ``%`` or a unit, and every number
of a table. It must be there as a number, as the mean of several seeds', or, with ``±``, as mean and
spread of the same ones; in the unit that the page gives it, rounded to the digits shown. Where a
file has a part named as the row or the column, it must be in that part.

Not looked up are code, headers, parts that `docs/generate` makes, a table's first column, its
columns of settings (*published*, *ε*, *batch*, *embedding size*), brackets that begin with
*published*, and settings (``ε = 0.1``).
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
MANIFEST = ROOT / "docs" / "figures.yaml"
FOLDERS = (ROOT / "experiments" / "results", ROOT / "benchmarks" / "results", ROOT / "examples")
"""Of results, and of notebooks, whose outputs are results too."""

MADE = re.compile(r"<!-- made: .*?<!-- end -->", re.DOTALL)
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
NOT_READ = re.compile(
    r"""```.*?```|`[^`\n]*`|<!--.*?-->   # code, marks
    |\]\([^)]*\)|\((?:[^()]*;\ )?published[^()]*(?:\([^()]*\)[^()]*)*\)   # links, of papers
    |[εδλμσq]\ [=≥≤<>]\ [−-]?[\d.]+(?!\d*\ ?×)|10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+   # settings
    """,
    re.DOTALL | re.VERBOSE,
)
NUMBER = re.compile(
    r"(?<![\w.,])(?P<sign>[+−-]?)(?P<value>\d+(?:,\d{3})+|\d+(?:\.\d+)?(?:e-\d+)?)"
    r"(?:\ ±\ (?P<spread>\d+(?:\.\d+)?))?"
    r"(?:\ ?(?P<unit>%|[KMG]B|MiB|ms|µs|s\b))?(?![\w]|[.,]\d)"
)
UNITS = {
    "": (1, 100),
    "%": (100, 1),
    "KB": (1e-3, 1),
    "MB": (1e-6, 1),
    "GB": (1e-9, 1e-3, 1),
    "MiB": (1, 1 / 2**20),
    "s": (1,),
    "ms": (1, 1e3),
    "µs": (1, 1e6),
}
"""What a number of a file is multiplied by, for each unit of a page."""
LEFT_OUT = ("published", "ε", "batch", "embedding size")
CURVES = ("curve", "curves", "pictures", "resamples")
NOT_FIGURES = ("seeds", "seed", "settings", "made_by")


@dataclass(frozen=True)
class Figure:
    """A number of a page, as it is written there."""

    text: str
    value: str
    spread: str | None
    unit: str
    line: int
    names: tuple[str, ...] = ()
    """Its row's and its column's, which narrow what is searched where a file has such a part."""

    def matches(self, value: float, written: str) -> bool:
        """Whether a file's number is this one in some unit, rounded to the digits written."""
        mantissa, _, exponent = written.partition("e")
        wanted = float(written.replace(",", ""))
        room = 0.5000001 * 10 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        return any(abs(abs(value) * scale - wanted) <= room for scale in UNITS[self.unit])


@dataclass(frozen=True)
class Section:
    """A section's own text, down to the next heading, and what the manifest says of it."""

    page: str
    name: str
    text: str
    line: int
    """Of the page, where the text begins."""
    files: tuple[str, ...]
    also: frozenset[str] = frozenset()
    """What counts beside means of seeds: ``seeds``, ``curves``."""
    quoted: frozenset[str] = frozenset()
    derived: Mapping[str, str] = field(default_factory=dict)
    """Two numbers of the files and an operator, for each figure that is made of them."""

    @property
    def figures(self) -> list[Figure]:
        return [*_figures(self.text, self.line)]


@dataclass
class Numbers:
    """What can be looked up of results files."""

    single: list[float] = field(default_factory=list)
    pairs: list[tuple[float, float]] = field(default_factory=list)
    """Means and spreads: standard deviations and standard errors."""

    def has(self, figure: Figure) -> bool:
        if figure.spread is None:
            return any(figure.matches(each, figure.value) for each in self.single)
        return any(
            figure.matches(mean, figure.value) and figure.matches(spread, figure.spread)
            for mean, spread in self.pairs
        )


# Pages


def manifest() -> dict[str, Any]:
    """For each page its sections: their files, or a text that says why there are none."""
    return yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))


def parts(text: str) -> Iterator[tuple[str, int, str]]:
    """Heading, first line and own text of each section of a page, but what is made from code."""
    text = _blank(MADE, text)
    heads = [*HEADING.finditer(_blank(FENCE, text))]
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=True):
        yield head[1], text.count("\n", 0, head.start()) + 1, text[head.start() : end]


def sections(page: str, text: str, known: Mapping[str, Any]) -> Iterator[Section]:
    """What of a page has files in ``known``; ValueError where that names no section of it."""
    found = {name: (line, own) for name, line, own in parts(text)}
    for name, said in known.items():
        if name not in found:
            raise ValueError(f"{page} has no section {name!r}, which docs/figures.yaml names")
        if isinstance(said, dict):
            line, own = found[name]
            derived = dict(each.split(" = ") for each in said.get("derived", ()))
            quoted, also = (frozenset(said.get(key, ())) for key in ("quoted", "also"))
            files = tuple(said["files"])
            yield Section(page, name, own, line, files, also, quoted, derived)


def _figures(text: str, first: int) -> Iterator[Figure]:
    lines = _blank(NOT_READ, text).split("\n")
    header: list[str] | None = None
    row = ""
    for place, line in enumerate(lines):
        if not line.lstrip().startswith("|"):
            header = None
            for match, unit in _with_units(line):
                figure = _figure(match, unit, first + place)
                if "." in figure.value or figure.spread or figure.unit not in ("", "s"):
                    yield figure
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if header is None:
            header = cells
            continue
        row = cells[0] or row
        columns = list(zip(header, cells, strict=True))
        settings = [cell for column, cell in columns[1:] if column == "batch"]
        for column, cell in columns[1:]:
            if not any(word == column or "published" in column for word in LEFT_OUT):
                named = COLUMN_UNIT.search(column)
                for match, unit in _with_units(cell):
                    unit = unit or (named[1] if named else "")
                    yield _figure(match, unit, first + place, (row, *settings, column))


COLUMN_UNIT = re.compile(r"(?:^|, |in |\()(MB|GB|KB|MiB|ms|µs|s|%)(?!\w)")


def _with_units(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Numbers and their units; in ``1.8 to 2.1 MB`` both have one."""
    found = list(NUMBER.finditer(text))
    units = [match["unit"] or "" for match in found]
    for place in range(len(found) - 2, -1, -1):
        between = text[found[place].end() : found[place + 1].start()]
        if not units[place] and between in (" to ", " and ", " or ", " / ", ", ", "; "):
            units[place] = units[place + 1]
    return zip(found, units, strict=True)


def _figure(match: re.Match[str], unit: str, line: int, names: tuple[str, ...] = ()) -> Figure:
    return Figure(match[0].strip(), match["value"], match["spread"], unit, line, names)


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """The text with spaces for what the pattern finds, so that lines stay."""
    return pattern.sub(lambda match: re.sub(r"[^\n|]", " ", match[0]), text)


def unlisted(text: str, known: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Line, section and text of what looks measured in a section that is none of ``known``."""
    for name, first, own in parts(text):
        for number, line in enumerate(_blank(NOT_READ, own).split("\n"), first):
            if name not in known and (match := LOOKS_MEASURED.search(line)):
                yield number, name, match[0]


LOOKS_MEASURED = re.compile(r"\d ± \d|\d\.\d+ ?%|(?<![\d.])0\.[5-9]\d\d?(?!\d)")
"""A spread, a percentage with decimals, an accuracy or AUC."""


# Files


def path_of(name: str) -> Path:
    """Where a results file of this name lies; ValueError where there is none."""
    for folder in FOLDERS:
        if (folder / name).is_file():
            return folder / name
    raise ValueError(f"no results file {name}")


@dataclass(frozen=True)
class Results:
    """Files, or parts of them."""

    files: tuple[tuple[Any, tuple[str, ...]], ...]
    """The content of each, and the parts of it that are meant, from the outside in."""

    @classmethod
    def read(cls, names: Sequence[str]) -> Results:
        """``FILE`` or ``FILE#PART#PART OF IT``; ValueError where there is none."""
        found = []
        for each in names:
            name, *words = each.split("#")
            content = json.loads(path_of(name).read_text(encoding="utf-8"))
            if name.endswith(".ipynb"):
                content = ["".join(_printed(cell)) for cell in content["cells"]]
            found.append((content, tuple(words)))
            if not _within((content,), words):
                raise ValueError(f"{name} has nothing named {' in '.join(reversed(words))}")
        return cls(tuple(found))

    def numbers(self, section: Section, names: Sequence[str] = ()) -> Numbers:
        """The figures that a section may have, of parts of these names where there are any.

        A table, whose cells have names, shows no point of a curve.
        """
        found = Numbers()
        for content, words in self.files:
            parts: tuple[Any, ...] = (content,)
            for name in names:
                narrower = [part for part in _within(parts, [name]) if isinstance(part, dict)]
                parts = tuple(narrower) or parts
            for part in _within(parts, words) or _within((content,), words):
                _read(part, found, "seeds" in section.also, "curves" in section.also and not names)
        return found


def _within(parts: Sequence[Any], words: Sequence[str]) -> tuple[Any, ...]:
    for word in map(_plain, words):
        parts = [part for one in parts for part in _parts(one, word) if word]
    return tuple(parts)


def _plain(name: str) -> str:
    """A name as files write it: ``VFL-Cascaded, signs`` is ``cascaded signs``."""
    name = re.sub(r"[`,]| accuracy$| noise$", "", name.lower()).removeprefix("vfl-")
    return DATASETS.get(name, name)


DATASETS = {
    each.replace("-", " "): each for each in ("breast-cancer", "bank-marketing", "credit-default")
}


def _parts(node: Any, word: str) -> Iterator[Any]:
    """The parts of a file that stand under a key of this name, or say the word themselves."""
    if isinstance(node, dict):
        if any(word == f"{value}" for value in node.values() if not isinstance(value, list | dict)):
            yield node
            return
        for key, value in node.items():
            if word in (key, key.rpartition(".")[2]):
                yield value
            else:
                yield from _parts(value, word)
    elif isinstance(node, list):
        for value in node:
            yield from _parts(value, word)


def _printed(cell: Mapping[str, Any]) -> Iterator[str]:
    for output in cell.get("outputs", ()):
        yield from output.get("text", output.get("data", {}).get("text/plain", ()))


def _read(node: Any, found: Numbers, seeds: bool, curves: bool) -> None:
    if isinstance(node, bool) or node is None:
        return
    if isinstance(node, int | float):
        if math.isfinite(node):
            found.single.append(float(node))
    elif isinstance(node, str):
        found.single += [float(each.replace(",", "")) for each in WRITTEN.findall(node)]
        found.pairs += [(float(mean), float(spread)) for mean, spread in PAIR.findall(node)]
    elif isinstance(node, dict):
        if "mean" in node and "standard_error" in node:
            found.pairs.append((node["mean"], node["standard_error"] or 0.0))
        for key, value in node.items():
            if key not in NOT_FIGURES and (curves or key not in CURVES):
                _read(value, found, seeds, curves)
    else:
        several = _add(node, found)
        for values in _by_seed(node):
            _add(values, found)
        for value in node if seeds or not several else ():
            _read(value, found, seeds, curves)


WRITTEN = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
PAIR = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?) ± (\d+(?:\.\d+)?)")
"""In a file's texts: a benchmark's summaries, cells of a table, a notebook's outputs."""


def _add(values: Sequence[Any], found: Numbers) -> bool:
    """Mean and spread of one figure's values; False where this is something else."""
    real = [float(each) for each in values if isinstance(each, int | float)]
    if len(real) != len(values) or not 1 < len(real) <= 20 or not all(map(math.isfinite, real)):
        return False
    mean, spread = statistics.fmean(real), statistics.stdev(real)
    found.single.append(mean)
    found.pairs += [(mean, spread), (mean, spread / math.sqrt(len(real)))]
    return True


def _by_seed(rows: Sequence[Any]) -> Iterator[list[float]]:
    """The figures of rows that differ in their seed alone."""
    groups: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if isinstance(row, dict) and "seed" in row:
            same = json.dumps([value for value in row.values() if isinstance(value, str)])
            group = groups.setdefault(same, {})
            for key, value in row.items():
                if isinstance(value, int | float):
                    group.setdefault(key, []).append(float(value))
    for group in groups.values():
        yield from group.values()


# Pages against files


def faults(section: Section) -> list[str]:
    """A line for each figure of the section that is not in its files."""
    page, found = section.page, []
    try:
        results = Results.read(section.files)
    except ValueError as error:
        return [f"{page}: {error}"]
    used = set()
    everything = results.numbers(section)
    narrowed: dict[tuple[str, ...], Numbers] = {}
    for figure in section.figures:
        used.add(figure.value)
        if figure.value in section.derived:
            if not _follows(figure, section.derived[figure.value], everything):
                formula = f"{figure.value} = {section.derived[figure.value]}"
                found.append(f"{page}:{figure.line}: {formula} does not hold")
        elif figure.value not in section.quoted:
            if figure.names not in narrowed:
                narrowed[figure.names] = results.numbers(section, figure.names)
            if not narrowed[figure.names].has(figure):
                files = ", ".join(section.files)
                found.append(f"{page}:{figure.line}: {figure.text} is not in {files}")
    idle = {*section.quoted, *section.derived} - used
    return found + [f"{page}: {each} is not in its section {section.name!r}" for each in idle]


def _follows(figure: Figure, formula: str, known: Numbers) -> bool:
    """Whether two numbers of the files give the figure, within a unit of its last digit."""
    left, operator, right = formula.split()
    digits = len(figure.value.partition(".")[2])
    for written in (left, right):
        operand = Figure(written, written, None, figure.unit, figure.line)
        plain = Figure(written, written, None, "", figure.line)
        if not known.has(operand) and not known.has(plain):
            return False
    a, b = float(left.replace(",", "")), float(right.replace(",", ""))
    value = {"-": a - b, "/": a / b, "*": a * b, "+": a + b}[operator]
    value *= 100 if figure.unit == "%" and operator == "/" else 1
    return abs(abs(value) - float(figure.value)) <= 1.0000001 * 10**-digits
