"""Read the folders that a report is made from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import RunError
from vertizo.core.names import CONTROLS
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder

MOST_RUNS = 1000
REFERENCES = {"alone": "label holder alone", "pooled": "all columns pooled"}
"""Key of a reference without a federation (`vertizo.run.references.references`) → its name."""
DEPTH = 4
"""Number of levels of folders in which runs are looked for."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One run, finished or not."""

    path: Path
    config: ExperimentConfig
    yaml: str
    rows: tuple[Row, ...]
    summary: Mapping[str, Any] | None
    label: str | None = None
    served: bool = False
    """Whether it is a job of real parties."""

    @property
    def dataset(self) -> str:
        """Name of the run's data set."""
        return str(self.summary["dataset"]) if self.summary else self.config.data.name

    @property
    def when(self) -> str:
        """End of the run by its summary, or else by its last file: ``2026-05-17 09:30 UTC``."""
        said = (self.summary or {}).get("finished")
        if isinstance(said, str):
            with suppress(ValueError):
                return _moment(datetime.fromisoformat(said))
        files = [self.path / name for name in ("summary.json", "metrics.jsonl", "config.yaml")]
        newest = next(file for file in files if file.is_file())
        return _moment(datetime.fromtimestamp(newest.stat().st_mtime, UTC))

    def figure(self, key: str) -> float | None:
        """Return a figure of the summary by ``key`` or ``section.key``; None without one."""
        section, _, name = key.rpartition(".")
        found = (self.summary or {}).get(section) if section else self.summary
        return number(found, name) if isinstance(found, Mapping) else None

    def reference(self, whose: str, key: str) -> float | None:
        """Return a figure of one of `REFERENCES`, by its better model; None without one."""
        about, (purpose, _, name) = (self.summary or {}).get("references"), key.partition("_")
        if about is None or about["metric"] != name:
            return None
        figures = (about if purpose == "test" else about.get(purpose) or {}).get(whose) or {}
        better = max if name in ("auc", "accuracy") else min
        return better(figures.values(), default=None)


def _moment(when: datetime) -> str:
    utc = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    return f"{utc:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True)
class Attacks:
    """The results of ``vertizo attack`` in one folder."""

    path: Path
    command: str
    version: str
    results: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Worth:
    """The results of ``vertizo worth`` in one folder."""

    path: Path
    content: Mapping[str, Any]

    def has_left_out(self, run: Path) -> bool:
        """Whether a run trained a coalition of this study that leaves parties out."""
        whole = self.path / str(self.content.get("federation"))
        return run.is_relative_to(self.path) and not run.is_relative_to(whole)


@dataclass
class Material:
    """Everything that a report is made from."""

    runs: list[Run] = field(default_factory=list)
    attacks: list[Attacks] = field(default_factory=list)
    worths: list[Worth] = field(default_factory=list)
    commands: list[tuple[Path, str]] = field(default_factory=list)
    """Folders of comparisons, each with the command that made it."""


def read(paths: Sequence[Path]) -> Material:
    """Read everything in these folders; RunError if one is missing, damaged or without results."""
    material = Material()
    for path in dict.fromkeys(path.resolve() for path in paths):
        if not path.is_dir():
            raise RunError(
                f"{path} is no folder; name one of `vertizo train`, `vertizo compare`, "
                "`vertizo worth`, `vertizo tune`, `vertizo serve` or `vertizo attack --out`"
            )
        attacks = [_attacks(found) for found in _below(path, "attacks.json")]
        worths = [Worth(found.parent, _json(found)) for found in _below(path, "worth.json")]
        every = _runs(path, material)
        runs = [run for run in every if not any(w.has_left_out(run.path) for w in worths)]
        if not runs and not attacks and not worths:
            raise RunError(
                f"{path} holds nothing to report: no config.yaml of a run, no comparison.json, no "
                "worth.json and no attacks.json"
            )
        material.runs += runs
        material.worths += worths
        material.attacks += attacks
    return material


def _runs(path: Path, material: Material) -> list[Run]:
    """Read a run and its controls, or the runs of a comparison in its order."""
    if (path / "config.yaml").is_file():
        controls = (path / "controls" / control for control in CONTROLS)
        return [_run(p) for p in (path, *controls) if (p / "config.yaml").is_file()]
    order: list[str] = []
    if (path / "comparison.json").is_file():
        content = _json(path / "comparison.json")
        if isinstance(content.get("command"), str):
            material.commands.append((path, content["command"]))
        if isinstance(content.get("methods"), Mapping):
            order = list(content["methods"])
    runs = [_run(name.parent, _label(path, name)) for name in _below(path, "run_name")]
    if len(material.runs) + len(runs) > MOST_RUNS:
        raise RunError(f"{path} holds {len(runs)} runs; a report has at most {MOST_RUNS}")
    places = {label: place for place, label in enumerate(order)}
    return sorted(runs, key=lambda run: (places.get(run.label or "", len(order)), str(run.path)))


def _below(path: Path, name: str) -> Iterator[Path]:
    """Yield the files of that name in a folder, at most `DEPTH` levels deep, in order."""
    for depth in range(DEPTH):
        yield from sorted(path.glob("/".join([*["*"] * depth, name])))


def _label(path: Path, name: Path) -> str:
    """Return a run's label in its comparison, from the path of its file ``name``."""
    parts = [part for part in name.parent.relative_to(path).parts if part != "controls"]
    if len(parts) > 1 and parts[-1] in CONTROLS:
        parts.pop()
    if len(parts) > 1 and parts[-1].startswith("seed"):
        parts.pop()
    return "/".join(parts)


def _attacks(file: Path) -> Attacks:
    content = _json(file)
    results = content.get("results")
    if not isinstance(results, list) or not all(
        isinstance(one, Mapping) and isinstance(one.get("figures"), Mapping) for one in results
    ):
        raise RunError(f"{file}: there are no results of attacks in it")
    command, version = (str(content.get(key, "")) for key in ("command", "version"))
    return Attacks(file.parent, command, version, tuple(results))


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(checkpoint.kept(file))
    except ValueError as error:
        raise RunError(f"{file} cannot be used: {error}") from None
    if not isinstance(content, dict):
        raise RunError(f"{file} cannot be used: keys and values were expected")
    return content


def _run(path: Path, label: str | None = None) -> Run:
    folder = RunFolder(path)
    config, summary = folder.config(), folder.summary()
    if summary is not None and "privacy" not in summary:
        raise RunError(
            f"{folder.summary_file}: these are no closing figures of a run; of a job of real "
            "parties, report the label holder's folder"
        )
    try:
        rows = folder.metrics()
        yaml = (path / "config.yaml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{folder.metrics_file} cannot be used: {error}") from None
    served = (path / "federation.json").is_file()
    return Run(path, config, yaml, tuple(_usable(rows)), summary, label, served)


def _usable(rows: Sequence[Any]) -> Iterator[Row]:
    """Yield evaluation rows of the parameters in training, each later than the one before.

    A served job scores its last parameters on the test records as well, in a row of its own.
    """
    last = -1.0
    for row in rows:
        if not isinstance(row, Mapping) or row.get("model", "now") != "now":
            continue
        here = number(row, "round")
        if here is not None and here > last:
            last = here
            yield row


def number(row: Mapping[str, Any], key: str) -> float | None:
    """Return a finite figure of a row; None where there is none.

    >>> number({"loss": 0.5}, "loss"), number({"loss": None}, "loss"), number({}, "loss")
    (0.5, None, None)
    """
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    value = float(value)
    return value if abs(value) < float("inf") else None
