"""`vertizo compare`, `vertizo worth` and `vertizo privacy plan` as functions."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, get_args

from rich.console import Console

from vertizo.config import choosing
from vertizo.config.choosing import Open, Source
from vertizo.config.tree import Tree
from vertizo.core.errors import ConfigError, VertizoError
from vertizo.core.names import CONTROLS
from vertizo.core.text.messages import Minutely
from vertizo.core.version import VERSION
from vertizo.lab import comparison, comparison_table, made_by, planning
from vertizo.lab.comparison import Measure, Row, Standing
from vertizo.lab.engines import Engine, Processes, Run, check_jobs
from vertizo.lab.findings import Dot, Findings, Picture, Table
from vertizo.lab.worth import study, words
from vertizo.models.losses import Classification, MultiLabel
from vertizo.run.experiment import Experiment, settled
from vertizo.run.results.folder import RunFolder

Config = Source | Experiment
Progress = Callable[[Standing], None] | None


@contextmanager
def _as_arguments() -> Iterator[None]:
    """Rewrite error messages inside to name arguments in place of the command's options."""
    try:
        yield
    except VertizoError as error:
        words = str(error)
        if "vertizo " not in words:  # else it names a command, with its options
            error.args = (re.sub(r"--([a-z]+)", r"\1", words.replace("--set ", "overrides: ")),)
        raise


@_as_arguments()
def compare(
    config: Config = None,
    methods: Sequence[str] = (),
    overrides: Sequence[str] = (),
    *,
    seeds: int = 1,
    out: str | Path | None = None,
    targets: Sequence[float] = (0.6, 0.8, 0.9, 0.95),
    by: Measure = "validation",
    controls: bool = True,
    jobs: int | None = None,
    verbose: bool = False,
) -> Findings:
    """Run several methods on the same data, as ``vertizo compare`` does.

    Args:
        config: a file, a dict, an `Experiment` or an `ExperimentConfig`; None for the defaults.
        methods: names, or entries of the configuration's section ``methods``; empty for all these.
        overrides: ``key=value``, applied last.
        seeds: runs of each method.
        out: folder of all runs, in which finished ones are not repeated; None keeps none.
        targets: accuracies in (0, 1]; the bytes until each is reached are counted.
        by: accuracy that the targets are for.
        controls: also run every method with clients that learn nothing.
        jobs: runs at a time, in processes; None runs them here, one after the other.
        verbose: say on standard error how far it is.

    Raises:
        ConfigError: names the key or argument, its value and what would be right.
        RunError: ``out`` cannot be used, or a run diverged.
    """
    _at_least(1, seeds=seeds, jobs=jobs)
    _check_names("methods", methods, "vafl")
    if len(set(methods)) < len(methods):
        raise ConfigError(f"methods is {list(methods)!r}, which names one twice")
    if by not in get_args(Measure):
        raise ConfigError(f"by is {by!r}; use one of {', '.join(get_args(Measure))}")
    for target in targets:
        if not isinstance(target, int | float) or not 0 < target <= 1:
            raise ConfigError(f"targets has {target!r}; accuracies are above 0, and at most 1")
    source, settings = _read(config, overrides)
    configs = comparison.configurations(source, settings, methods)
    if not configs:
        raise ConfigError("methods is empty and the configuration has no section 'methods'")
    with _folder(out, "comparison.json") as folder:
        kinds = CONTROLS if controls else ()
        runs = comparison.plan(configs, seeds, folder, controls=kinds)
        for note in comparison.check(runs):
            warnings.warn(note, UserWarning, stacklevel=2)
        engine, show = Processes(jobs, reused=True), _shown("compare", verbose)
        rows = made(runs, engine, folder, targets, by, "vertizo.compare", show)
        return of_comparison(rows)


def made(
    runs: Sequence[Run],
    engine: Engine,
    folder: Path,
    targets: Sequence[float],
    by: Measure,
    command: str,
    progress: Progress,
) -> list[Row]:
    """Make a comparison's runs, write ``comparison.json`` and return a row for each method."""
    summaries = comparison.execute(runs, engine, progress)
    found = comparison.rows(runs, summaries, targets, by)
    content = {
        "command": command,
        "version": VERSION,
        "dataset": summaries[runs[0]]["dataset"],
        "bytes_by": by,
        "made_by": made_by.runs(run.folder for run in runs),
        "methods": {row.label: row.as_dict() for row in found},
    }
    made_by.keep(folder / "comparison.json", content)
    return found


def of_comparison(rows: Sequence[Row]) -> Findings:
    """Convert a comparison's rows to findings, whose frame has a line for each run."""
    title = comparison_table.title(rows)
    headings, *lines = comparison_table.brief(rows)
    statements: dict[str, list[str]] = {}
    for row in rows:
        statements.setdefault(row.first["privacy"]["words"], []).append(row.label)
    return Findings(
        title=title,
        verdict=comparison_table.verdict(rows)[1],
        privacy=[(", ".join(of), said) for said, of in statements.items()],
        tables=[Table("", headings, lines)],
        notes=comparison_table.notes(rows),
        content={row.label: row.as_dict() for row in rows},
        records={"runs": [line for row in rows for line in row.records()]},
        picture=comparison_table.picture(rows),
    )


@_as_arguments()
def worth(
    config: Config = None,
    overrides: Sequence[str] = (),
    *,
    seeds: int = 1,
    out: str | Path | None = None,
    shapley: bool = True,
    repeats: int = 5,
    jobs: int | None = None,
    verbose: bool = False,
) -> Findings:
    """Measure what each party adds, as ``vertizo worth`` does.

    Args:
        config: a file, a dict, an `Experiment` or an `ExperimentConfig`; None for the defaults.
        overrides: ``key=value``, applied last.
        seeds: trainings of each coalition.
        out: folder of all trainings, in which finished ones are not repeated; None keeps none.
        shapley: also train the other coalitions, of at most 5 feature holders, for their values.
        repeats: permutations of each party and column; 0 for none.
        jobs: trainings at a time, in processes; None makes them here, one after the other.
        verbose: say on standard error what is about to be trained, and how far it is.

    Raises:
        ConfigError, DataError: name the key or argument, its value and what would be right.
        RunError: ``out`` or the ledger cannot be used, or a training diverged.
    """
    _at_least(1, seeds=seeds, jobs=jobs)
    _at_least(0, repeats=repeats)
    console = Console(stderr=True)

    def tell(line: str) -> None:
        if verbose:
            console.print(line, soft_wrap=True, highlight=False, markup=False)

    chosen = settled(choosing.seeded(*_read(config, overrides)), tell)
    check_jobs(chosen, jobs)
    with _folder(out, study.NAME) as folder:
        found = study.Worth(chosen, folder, seeds, shapley, repeats)
        found.check()
        for note in found.data.notes:
            warnings.warn(note, UserWarning, stacklevel=2)
        for line in found.beforehand:
            tell(line)
        content = measured(found, jobs, "vertizo.worth", _shown("worth", verbose))
    return of_worth(content)


def measured(
    found: study.Worth, jobs: int | None, command: str, progress: Progress
) -> dict[str, Any]:
    """Run a study that was checked, write ``worth.json`` and return its content."""
    began = perf_counter()
    content = found.run(jobs, progress)
    by = made_by.this(perf_counter() - began)
    content = {"command": command, "version": VERSION, "made_by": by, **content}
    made_by.keep(found.folder / study.NAME, content)
    return content


def of_worth(content: Mapping[str, Any]) -> Findings:
    """Convert the content of ``worth.json`` to findings, whose main frame has the table's rows."""
    metric, scale, _ = words.METRICS[content["metric"]]
    tables = [
        Table("", words.headings(content), words.table(content)),
        Table("What each party is worth", *words.parties(content)),
    ]
    if columns := words.columns(content, words.SHOWN):
        tables.append(Table("Columns used most", ["party", "column", "permuted"], columns))
    costs = content["cost"]["words"]
    lists = ("left_out", "shapley", "importance")
    rows = [{"who": words.name(content, row), **row} for row in content["rows"]]
    return Findings(
        title=f"{content['dataset']}, {content['method']}: {metric}",
        verdict=words.verdicts(content),
        privacy=[("", line) for line in costs],
        tables=tables,
        notes=words.notes(content)[: -len(costs)],
        content=content,
        records={"rows": rows, **{key: content[key] for key in lists if content[key]}},
        picture=Picture(
            f"{metric}, 95 % intervals",
            [
                Dot(
                    words.name(content, row),
                    scale * row["value"],
                    (scale * row["low"], scale * row["high"]),
                    int(row["kind"] != "federated"),
                )
                for row in words.shown(content)
                if row["value"] is not None
            ],
        ),
    )


@_as_arguments()
def plan(
    config: Config = None,
    overrides: Sequence[str] = (),
    *,
    records: int | None = None,
    clients: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    classes: int | None = None,
    width: int | None = None,
    positives: float | None = None,
    cover: Literal["labels", "features"] = "labels",
    clip: float = 1.0,
    releases: int = 1,
    server: planning.Server = "poisson-dp-sgd",
    server_share: float = 0.5,
    server_clip: float = 1.0,
    records_per_person: int = 1,
    steps: int | None = None,
    sampling: float | None = None,
) -> Findings:
    """Compare mechanisms for an ε, as ``vertizo privacy plan`` does.

    Nothing is trained. With ``epochs`` and ``batch``, the noise of
    replies is worked out.

    Args:
        config: a file, a dict, an `Experiment` or an `ExperimentConfig`, for records, clients,
            classes, epsilon and delta where these are left out.
        overrides: ``key=value``, applied last.
        records: D, the number of training records.
        clients: M, the number of clients.
        epsilon: the ε to reach.
        delta: the δ at which ε is stated; 1e-5 where nothing says another.
        epochs: E, queries of each client about each record.
        batch: B, records in a query.
        classes: k, the number of classes; 2 where nothing says another.
        width: d_h, numbers of an embedding.
        positives: share of the rarer of two classes, where it is public, for the forecast.
        cover: what must be covered.
        clip: C, the clip of replies.
        releases: numbers in a reply, each with its own clip and noise.
        server: training of the server model.
        server_share: share of the budget (of μ²) for the server.
        server_clip: C, the clip of the server's updates.
        records_per_person: records of one person at most.
        steps: server steps on secret samples; one for each round by default.
        sampling: q, rate of secret samples; B/D by default.

    Raises:
        ConfigError: names the argument, its value and what would be right.
    """
    given = locals()
    wanted = {key: given[key] for key in planning.Asked.model_fields}
    known: dict[str, Any] = {"delta": 1e-5, "classes": 2}
    if config is not None or overrides:
        known |= _public(*_read(config, overrides), any_task=epochs is not None)
    return planning.planned({**wanted, **{k: v for k, v in known.items() if wanted[k] is None}})


def _public(
    source: Path | Tree | None, overrides: Sequence[str], *, any_task: bool
) -> dict[str, Any]:
    """Read the public figures of a federation from a configuration, to plan for it."""
    loaded = choosing.load(source, overrides)
    if isinstance(loaded, Open):  # any method will do: nothing is tried out for a plan
        loaded = loaded.parsed({**loaded.given, "method": {"name": "dpzv"}})
    data, privacy = Experiment(loaded).data(), loaded.privacy
    known = {"records": data.records, "clients": len(data.parties), "delta": privacy.delta}
    if privacy.epsilon is not None:
        known["epsilon"] = privacy.epsilon
    if isinstance(data.task, Classification) and not isinstance(data.task, MultiLabel):
        known["classes"] = data.task.outputs
    elif not any_task:
        raise ConfigError(
            f"{data.name} has no classes, which the comparison of mechanisms is for; 'dpzv' keeps "
            "an ε there: give epochs and batch for the noise of its replies"
        )
    return known


def _read(config: Config, overrides: Sequence[str]) -> tuple[Path | Tree | None, list[str]]:
    """Return the source of a configuration, and all overrides of it."""
    _check_names("overrides", overrides, "seed=1")
    source, first = config.given() if isinstance(config, Experiment) else (config, ())
    return choosing.source_of(source), [*first, *overrides]


@contextmanager
def _folder(out: str | Path | None, name: str) -> Iterator[Path]:
    """Yield the folder for a study, or without ``out`` one that is removed at the end."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="vertizo-") as place:
            yield Path(place)
        return
    RunFolder(Path(out)).check_is_for(name)
    yield Path(out)


def _shown(command: str, verbose: bool) -> Progress:
    """Make a callback that prints a study's progress, a line a minute; None if not verbose."""
    if not verbose:
        return None
    line = Minutely(Console(stderr=True))

    def tell(at: Standing) -> None:
        done = at.beside or f"{at.finished} of {at.total} runs{at.latest}"
        line(at.share, f"{command}: {done}")

    return tell


def _check_names(name: str, given: Any, example: str) -> None:
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    if not is_list or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"{name} is {given!r}; use a list of texts, as [{example!r}]")


def _at_least(least: int, **amounts: int | None) -> None:
    for name, value in amounts.items():
        if value is not None and (not isinstance(value, int) or value < least):
            raise ConfigError(f"{name} is {value!r}; it must be an integer, {least} or more")
