"""Run studies of rows and columns: tables, sweeps over an axis, and curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, NamedTuple

from vertizo.core.names import CONTROLS
from vertizo.lab.comparison import curve, value_of
from vertizo.lab.reproduction.figures import Finished, held
from vertizo.lab.reproduction.outcome import (
    Grid,
    Line,
    Outcome,
    Picture,
    Point,
    published_line,
    text_of,
)
from vertizo.lab.reproduction.runs import Case, Made, Order, Tree, configure, make, makers
from vertizo.lab.reproduction.study import CellConfig, ColumnConfig, GridConfig, PanelConfig

MOST_POINTS = 100
"""Most points of a curve; more cannot be told apart in a picture."""
X: dict[str, tuple[str, tuple[str, ...], float]] = {
    "epoch": ("epochs", ("epoch",), 1.0),
    "round": ("rounds", ("round",), 1.0),
    "megabytes": ("MB, both directions", ("bytes_up", "bytes_down"), 1e6),
    "megabytes-up": ("MB to the server", ("bytes_up",), 1e6),
    "megabytes-down": ("MB to the clients", ("bytes_down",), 1e6),
}
"""Key of a curve's x axis → its words, the figures of an evaluation that it adds, and its unit."""
Y_WORDS = {
    "accuracy": "accuracy, validation (%)",
    "train_accuracy": "running accuracy, training (%)",
    "loss": "loss, validation",
    "train_loss": "running loss, training",
}


@dataclass(frozen=True)
class Cell:
    """One cell of a table: a row's figure in a column."""

    row: str
    column: str
    values: list[float]
    """The figure of each seed that has one."""
    seeds: int = 0
    diverged: int = 0
    published: float | str | None = None
    skip: str | None = None
    holds: str | None = None
    """The ε that holds for a noised run, in words (`figures.held`)."""
    controls: Mapping[str, list[float]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the cell for JSON, without empty entries."""
        return {key: value for key, value in asdict(self).items() if value or key == "values"}


Cells = Mapping[tuple[str, str], Cell]


class Spot(NamedTuple):
    """The runs behind one cell of a table."""

    label: str
    """Name of the runs: the row, and the column where it has settings of its own."""
    trees: list[Tree]
    controls: tuple[str, ...]
    skip: str | None


def spot(study: GridConfig, row: str, column: str) -> Spot:
    """Return the runs behind the cell of a row and a column."""
    line, asked = study.rows[row], study.columns[column]
    source = asked.runs or column
    there, own = study.columns[source], line.cells.get(source) or CellConfig()
    trees = [study.settings, line.settings, there.settings, own.settings]
    label = f"{row}.{source}" if there.settings or own.settings else row
    controls = tuple(own.controls or CONTROLS) if line.controls else ()
    return Spot(label, trees, controls, line.skip or there.skip or asked.skip or own.skip)


def run(study: GridConfig, order: Order) -> Outcome:
    """Make a study's runs, and read its figures."""
    made = make(cases(study, order), order)
    cells = {at: _cell(study, *at, made) for at in product(study.rows, study.columns)}
    pictures = [_curves(study, panel, made) for panel in study.panels]
    if study.kind == "sweep":
        pictures.insert(0, _sweep(study, cells))
    figures = {"cells": [cell.as_dict() for cell in cells.values()], "curves": _seeds(made)}
    notes = tuple(_notes(study, cells))
    return Outcome((_grid(study, cells),), tuple(pictures), notes, figures, makers(made))


def _seeds(made: Mapping[str, Made]) -> dict[str, Any]:
    """Return every run's accuracy or loss over epochs: label → control → one curve a seed."""
    return {
        label: {
            control: [curve(run.metrics) if run is not None else None for run in runs]
            for control, runs in case.everything.items()
        }
        for label, case in made.items()
    }


def cases(study: GridConfig, order: Order) -> list[Case]:
    """List the cases to run, one for each different configuration that is not skipped."""
    found: dict[str, Case] = {}
    for row, column in product(study.rows, study.columns):
        label, trees, controls, skip = spot(study, row, column)
        if skip is None and label not in found:
            config = configure(f"{study.paper}, {label}", trees, order.overrides)
            seeds = order.seeds or study.rows[row].seeds or study.seeds
            found[label] = Case(label, config, seeds, controls)
    return list(found.values())


def _cell(study: GridConfig, row: str, column: str, made: Mapping[str, Made]) -> Cell:
    line, figure = study.rows[row], study.columns[column].figure
    own = line.cells.get(column) or CellConfig()
    published = line.published.get(column) if own.published is None else own.published
    label, *_, reason = spot(study, row, column)
    if reason is not None:
        return Cell(row, column, [], published=published, skip=reason)
    found = made[label]

    def values(runs: tuple[Finished | None, ...]) -> list[float]:
        read = (figure.read(each) for each in runs if each is not None)
        return [value for value in read if value is not None]

    controls = found.controls if figure.of_controls else {}
    return Cell(
        row=row,
        column=column,
        values=values(found.runs),
        published=published,
        seeds=len(found.runs),
        diverged=found.runs.count(None),
        controls={control: values(runs) for control, runs in controls.items()},
        holds=held(found.finished[0].summary) if found.finished else None,
    )


def _grid(study: GridConfig, cells: Cells) -> Grid:
    """Build the table: for each row what was measured, published, and reached by controls."""
    lines: list[tuple[str, ...]] = []
    for row, line in study.rows.items():
        own = [(column, cells[row, name]) for name, column in study.columns.items()]
        lines.append((line.words, *(_measured(column, cell) for column, cell in own)))
        known = {c.column: c.published for _, c in own if c.published is not None}
        lines += published_line(known, study.columns, ",g")
        for control, words in CONTROLS.items():
            each = [(column, cell.controls.get(control, [])) for column, cell in own]
            if any(values for _, values in each):
                found = (text_of(values, column.figure.digits) for column, values in each)
                lines.append((f"  {words}", *found))
        if len({cell.holds for _, cell in own}) > 1:
            lines.append(("  ε that holds", *(cell.holds or "–" for _, cell in own)))
    columns = study.columns.values()
    headings = (", ".join(filter(None, (each.words, each.figure.unit))) for each in columns)
    return Grid(study.title, tuple(headings), tuple(lines))


def _measured(column: ColumnConfig, cell: Cell) -> str:
    if cell.skip is not None:
        return "not run"
    if cell.diverged == cell.seeds:
        return "diverged"
    missing = "reached" if column.figure.is_goal else ""
    text = text_of(cell.values, column.figure.digits, missing, cell.seeds - cell.diverged)
    return text if not cell.diverged else f"{text} ({cell.diverged} of {cell.seeds} diverged)"


def _notes(study: GridConfig, cells: Cells) -> Iterator[str]:
    """Yield why some cells were not run, each reason once; and the ε that hold."""
    reasons: dict[str, list[str]] = {}
    for cell in cells.values():
        if cell.skip is not None:
            row, column = study.rows[cell.row], study.columns[cell.column]
            both = f"{row.words}, {column.words}"
            where = row.words if row.skip else column.words if column.skip else both
            reasons.setdefault(cell.skip, []).append(where)
    for reason, places in reasons.items():
        yield f"Not run: {'; '.join(dict.fromkeys(places))}: {reason}"
    for label, line in study.rows.items():
        own = {cell.holds for cell in cells.values() if cell.row == label}
        if len(own) == 1 and None not in own:
            yield f"{line.words}: ε that holds is {own.pop()}."
    if any(cell.holds for cell in cells.values()):
        yield (
            "ε that holds is about labels, against all clients together: 'none' where nothing "
            "bounds what they learn, whatever a published formula states. Behind it stands what "
            "the noise gives by itself: all replies that name a record if nothing else about its "
            "label left the server, or what one client sends of it, against the server."
        )


def _sweep(study: GridConfig, cells: Cells) -> Picture:
    """Build a sweep's picture: a line for each row, and a dashed one of published numbers."""
    places = {key: column for key, column in study.columns.items() if column.at is not None}
    lines = []
    for row, line in study.rows.items():
        own = [(column.at or 0.0, cells[row, key]) for key, column in places.items()]
        points = tuple(Point.of(at, cell.values) for at, cell in own if cell.values)
        known = tuple(
            Point.of(at, [float(cell.published)])
            for at, cell in own
            if isinstance(cell.published, float | int)
        )
        both = Line(line.words, points), Line(f"{line.words}, published", known, published=True)
        lines += [each for each in both if each.points]
    figure = next(iter(places.values())).figure
    ticks = {column.at or 0.0: column.tick or f"{column.at or 0.0:g}" for column in places.values()}
    return Picture(
        study.title,
        study.axis,
        f"{figure.words} ({figure.unit})" if figure.unit else figure.words,
        tuple(lines),
        log_x=study.log_x,
        ticks=ticks if any(column.tick for column in places.values()) else {},
    )


def _curves(study: GridConfig, panel: PanelConfig, made: Mapping[str, Made]) -> Picture:
    """Build a panel's picture: a curve for each row, as the mean over seeds."""
    column = panel.column or next(iter(study.columns))
    lines = []
    for row in panel.rows or list(study.rows):
        label, *_, skip = spot(study, row, column)
        points = _curve(panel, made[label].finished) if skip is None else ()
        if points:
            lines.append(Line(study.rows[row].words, points))
    x, y = X[panel.x][0], Y_WORDS[panel.y]
    return Picture(panel.words, x, y, tuple(lines), log_x=panel.log_x, markers=False)


def _curve(panel: PanelConfig, runs: list[Finished]) -> tuple[Point, ...]:
    """Average the evaluations that all seeds have, at most about `MOST_POINTS` of them."""
    if not runs:
        return ()
    _, keys, unit = X[panel.x]
    scale = 100.0 if "accuracy" in panel.y else 1.0
    count = min(len(run.metrics) for run in runs)
    step = max(1, -(-count // MOST_POINTS))
    points = []
    for place in sorted({*range(0, count, step), count - 1}):
        rows = [run.metrics[place] for run in runs]
        values = [value for row in rows if (value := value_of(row, panel.y)) is not None]
        x = sum(sum(float(row[key]) for key in keys) / unit for row in rows) / len(rows)
        if len(values) == len(rows) and (not panel.log_x or x > 0):
            points.append(Point.of(x, [scale * value for value in values]))
    return tuple(points)
