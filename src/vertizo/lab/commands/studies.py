"""Commands that make many runs: ``vertizo compare``, ``tune``, ``worth`` and ``reproduce``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from rich.console import Console

from vertizo.cli.console import (
    command_line,
    grid,
    is_wider,
    live_bar,
    more_at,
    print_list,
    print_table,
    resumable,
    room,
    say,
)
from vertizo.cli.console import show as show_table
from vertizo.cli.options import (
    AsJson,
    Details,
    Settings,
    argument,
    comma_separated,
    complete_methods,
    option,
)
from vertizo.core import system
from vertizo.core.errors import ConfigError
from vertizo.core.names import CONTROLS
from vertizo.core.text import strict_json
from vertizo.core.text.messages import counted
from vertizo.core.version import VERSION

if TYPE_CHECKING:
    from vertizo.lab.comparison import Standing
    from vertizo.lab.reproduction.outcome import Outcome, Picture
    from vertizo.lab.reproduction.study import Study

Measure = Literal["validation", "train"]
SHOWN = 4
"""Number of trials in a search's table, beside the configured one."""
StudyFolder = Annotated[
    Path | None,
    option(
        "Folder of all runs; finished ones are not repeated. Default: a folder under runs/.", "DIR"
    ),
]
EngineName = Literal["local", "ray"]
Engine = Annotated[EngineName, option("Where to run; ray needs the extra of that name.")]
RayAddress = Annotated[
    str | None, option("Ray cluster to use. Default: one on this machine.", "HOST:PORT")
]

RunsPerCard = Annotated[int, option("Runs at a time on each graphics card.", min=1)]


def _check_engine(engine: EngineName, ray_address: str | None) -> None:
    """Raise a `ConfigError` for a Ray cluster's address without the Ray engine."""
    if ray_address is not None and engine != "ray":
        raise ConfigError(f"--ray-address {ray_address} is for --engine ray")


def compare(
    config: Annotated[
        Path | None,
        argument("YAML configuration; its section `methods` can change keys for each method."),
    ] = None,
    methods: Annotated[
        str | None,
        option(
            "Methods, or entries of the section `methods`. Default: all of that section.",
            "A,B,…",
            complete=complete_methods,
        ),
    ] = None,
    seeds: Annotated[int, option("Runs of each method.", min=1)] = 1,
    settings: Settings = None,
    out: StudyFolder = None,
    targets: Annotated[
        str, option("Accuracies in %; the table counts the bytes until each is reached.", "A,B,…")
    ] = "60,80,90,95",
    by: Annotated[
        Measure, option("Accuracy that the targets are for; train is the running one.")
    ] = "validation",
    controls: Annotated[
        bool,
        option(
            "Also run every method with frozen clients, with random updates, and without labels."
        ),
    ] = True,
    jobs: Annotated[
        int | None,
        option("Runs at a time. Default: 1, or what the Ray cluster has room for.", min=1),
    ] = None,
    runs_per_card: RunsPerCard = 1,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    details: Details = False,
    as_json: AsJson = False,
) -> None:
    """Run several methods on the same data and print one table."""
    _check_engine(engine, ray_address)
    labels = comma_separated(methods)
    if len(set(labels)) < len(labels):
        raise ConfigError(f"--methods {methods} names a method twice")
    reached = _targets(targets)
    from vertizo.config import schema, tree

    for label in labels or (tree.labels(config) if config is not None else []):
        schema.load(config, settings or [], label)  # refused before PyTorch is imported
    from vertizo.lab import comparison, comparison_table, notebook
    from vertizo.lab.engines import Processes, RayCluster

    configs = comparison.configurations(config, settings or [], labels)
    if not configs:
        from vertizo.methods.choice import METHODS

        raise ConfigError(
            "--methods is missing and the configuration has no section 'methods'; name some of "
            f"{', '.join(METHODS)}, separated by commas"
        )
    from vertizo.run.results.folder import RunFolder

    first = next(iter(configs.values()))
    folder = out or Path("runs") / f"compare-{first.data.title}"
    RunFolder(folder).check_is_for("comparison.json")
    runs = comparison.plan(configs, seeds, folder, controls=CONTROLS if controls else ())
    remarks = comparison.check(runs)
    errors = Console(stderr=True)
    workers = (
        RayCluster(ray_address, jobs, lambda line: say(line, errors), runs_per_card)
        if engine == "ray"
        else Processes(jobs or 1, runs_per_card=runs_per_card)
    )
    say((f"note: {remark}" for remark in remarks), errors)
    with resumable(folder), bar("compare", "runs", errors) as show:
        rows = notebook.made(runs, workers, folder, reached, by, command_line(), show)
    from vertizo.run import instead
    from vertizo.run.experiment import Experiment
    from vertizo.run.results.summary_figures import NOT_PAID

    found = notebook.of_comparison(rows)
    if as_json:
        print(strict_json.line(found.content))
        return
    verdict = [*found.verdict]
    if verdict[-1].endswith(NOT_PAID):
        best, _ = comparison_table.verdict(rows)
        experiment = Experiment(configs[best.label])
        data = experiment.data()
        other = instead.advised(experiment.config, data, best.first, lambda line: say(line, errors))
        verdict.append(f"instead: {other['words']}")
    say(verdict)
    for _, headings, lines in found.tables:
        print_table(headings, lines, found.title, whole=False)
    *notes, epsilon = found.notes
    if details:
        names, *cells = zip(*comparison_table.lines(rows), strict=True)
        figures = [[row.label, *each] for row, each in zip(rows, cells, strict=True)]
        print_table(["method", *names], figures, "all figures")
    if details and rows[0].bytes_to and "test_accuracy" in rows[0].first:
        until = f"until {by} accuracy first was that high when evaluated"
        notes.append(f"bytes to: both directions, {until}.")
    say([*notes, epsilon, f"runs: {folder}", *([] if details else [more_at(folder)])])


def _targets(text: str) -> list[float]:
    """Parse accuracies such as ``60,80`` or ``0.6,0.8`` to shares in [0, 1]."""
    found = []
    for part in filter(None, (part.rstrip("%") for part in comma_separated(text))):
        try:
            value = float(part)
        except ValueError:
            value = -1.0
        if not 0 < value <= 100:
            raise ConfigError(f"--targets {text}: {part!r} is not an accuracy; write 60,80,90,95")
        found.append(value / 100 if value > 1 else value)
    return found


def tune(
    config: Annotated[Path | None, argument("YAML configuration to search around.")] = None,
    trials: Annotated[int, option("Number of runs; the first is CONFIG as it is.", min=1)] = 30,
    out: Annotated[
        Path | None,
        option("Folder of the search, new or to continue. Default: a folder under runs/.", "DIR"),
    ] = None,
    settings: Settings = None,
    search: Annotated[
        list[str] | None,
        option(
            "Search this key over low..high, low..high:log or value,value,… Can be repeated. "
            "Default: the method's usual keys.",
            "KEY=SPEC",
        ),
    ] = None,
    objective: Annotated[
        str | None,
        option(
            "Validation figure to optimise: accuracy, auc, average_precision, loss or rmse. "
            "Default: auc for two classes, accuracy for more, rmse for a regression.",
            "NAME",
        ),
    ] = None,
    pruner: Annotated[str, option("Rule that stops bad trials.", "median|halving|none")] = "median",
    jobs: Annotated[int, option("Trials at a time.", min=1)] = 1,
    runs_per_card: RunsPerCard = 1,
    seed: Annotated[int, option("Seed of the search; runs have their own.", min=0)] = 0,
    timeout: Annotated[
        float | None, option("Start no trial after this time.", "SECONDS", min=0)
    ] = None,
    total_epsilon: Annotated[
        float | None, option("Reduce each trial's ε so that all together cost this ε.", "E")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search hyperparameters on validation records and report what all trials cost in privacy."""
    if pruner not in ("median", "halving", "none"):
        raise ConfigError(f"--pruner {pruner} is not one of median, halving, none")
    if total_epsilon is not None and total_epsilon <= 0:
        raise ConfigError(f"--total-epsilon is {total_epsilon:g}; it must be above 0")
    from vertizo.config import schema
    from vertizo.core.plugins.registry import short

    chosen = schema.load(config, settings or [])
    folder = out or Path("runs") / f"tune-{chosen.data.title}-{short(chosen.method.name)}"
    with resumable(folder):
        from vertizo.lab.tuning.search import Options
        from vertizo.lab.tuning.search import tune as run

        options = Options(
            trials=trials,
            search=tuple(search or ()),
            objective=objective,
            pruner=pruner,  # type: ignore[arg-type]
            seed=seed,
            jobs=jobs,
            runs_per_card=runs_per_card,
            timeout=timeout,
            total_epsilon=total_epsilon,
        )
        with bar("tune", "trials", Console(stderr=True)) as show:
            found = run(chosen, folder, options, show)
    if as_json:
        print(strict_json.line(found.as_dict()))
        return
    from vertizo.lab.tuning.results import BEST, lines, notes

    best = [record for record in found.ranked if record.number][:SHOWN]
    while True:
        headings, *rows = lines(found, best)
        table = grid(headings, rows, f"{found.method} on {found.dataset}")
        if len(best) < 2 or not is_wider(table, room()):
            break
        best.pop()
    table.rows[1].end_section = True
    show_table(table)
    its_run = folder / "trials" / f"{found.best.number:03d}"
    ending = [f"best configuration: {folder / BEST}", f"its run: {its_run}"]
    say([*notes(found), *ending])


def worth(
    config: Annotated[Path | None, argument("YAML configuration of the federation of all.")] = None,
    seeds: Annotated[int, option("Trainings of each coalition.", min=1)] = 1,
    settings: Settings = None,
    out: StudyFolder = None,
    shapley: Annotated[
        bool,
        option("Also train the other coalitions, of at most 5 feature holders, for their values."),
    ] = True,
    repeats: Annotated[
        int, option("Permutations of each party and column; 0 for none.", min=0)
    ] = 5,
    jobs: Annotated[int | None, option("Trainings at a time. Default: 1.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what each party adds: alone, without each, all together, all in one table."""
    from vertizo.config import choosing

    loaded = choosing.seeded(config, settings or [])
    from vertizo.run.experiment import settled

    errors = Console(stderr=True)
    chosen = settled(loaded, lambda line: say([line], errors))
    from vertizo.lab import notebook
    from vertizo.lab.engines import check_jobs
    from vertizo.lab.worth import study
    from vertizo.run.results.folder import RunFolder

    check_jobs(chosen, jobs)
    folder = out or Path("runs") / f"worth-{chosen.data.title}"
    RunFolder(folder).check_is_for(study.NAME)
    made = study.Worth(chosen, folder, seeds, shapley, repeats)
    made.check()
    say((f"note: {note}" for note in [*made.data.notes, *made.beforehand]), errors)

    def words(at: Standing) -> tuple[float, str]:
        return at.share, at.beside or f"{at.finished} of {at.total} trainings{at.latest}"

    with resumable(folder), live_bar(errors, "starting", words, "worth") as show:
        content = notebook.measured(made, jobs or 1, command_line(), show)
    if as_json:
        print(strict_json.line(content))
        return
    found = notebook.of_worth(content)
    for title, headings, lines in found.tables:
        print_table(headings, lines, title or found.title)
    costs = [words for _, words in found.privacy]
    files = [f"figures: {folder / study.NAME}", f"as a picture: vertizo report {folder}"]
    say([*found.verdict, *found.notes, *costs, *files])


def _complete_studies(incomplete: str) -> list[tuple[str, str]]:
    from vertizo.lab.reproduction import study

    return [(name, study.load(name).title) for name in study.names() if name.startswith(incomplete)]


def reproduce(
    name: Annotated[
        str | None,
        argument(
            "A table or figure of a paper (see --list), or a YAML file of the same form.",
            complete=_complete_studies,
        ),
    ] = None,
    show_list: Annotated[bool, option("List what can be reproduced.", None, "--list")] = False,
    quick: Annotated[bool, option("Run the small form, in minutes.", None, "--quick")] = False,
    columns: Annotated[
        str | None, option("Fill in only these columns of a table. Default: all.", "A,B,…")
    ] = None,
    seeds: Annotated[int | None, option("Runs of each entry. Default: the study's.", min=1)] = None,
    settings: Settings = None,
    out: StudyFolder = None,
    jobs: Annotated[int | None, option("Runs at a time. Default: one per core.", min=1)] = None,
    runs_per_card: RunsPerCard = 1,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce a table or figure of a paper and print it beside the published one."""
    _check_engine(engine, ray_address)
    if name is None and not show_list:
        raise ConfigError("which table or figure? `vertizo reproduce --list` shows all")
    from vertizo.lab.engines import Processes, RayCluster
    from vertizo.lab.reproduction import kinds, study
    from vertizo.lab.reproduction.runs import Order
    from vertizo.run.results.folder import RunFolder

    if name is None or show_list:
        _list_studies(as_json)
        return
    chosen = study.load(name, quick=quick)
    if columns is not None:
        chosen = study.only(chosen, comma_separated(columns))
    form = "-quick" if quick else ""
    short = Path(name).stem if name.endswith((".yaml", ".yml")) else name
    folder = out or Path("runs") / f"reproduce-{study.runs_of(name)}{form}"
    RunFolder(folder).check_is_for("")
    cores = system.cores()
    errors = Console(stderr=True)
    with resumable(folder), bar(f"reproduce {name}", "runs", errors) as show:
        order = Order(
            folder=folder,
            # No figure here is a peak memory, so several runs may share a process.
            engine=RayCluster(ray_address, jobs, lambda line: say(line, errors), runs_per_card)
            if engine == "ray"
            else Processes(jobs or cores, reused=True, runs_per_card=runs_per_card),
            seeds=seeds,
            overrides=tuple(settings or ()),
            report=show,
            jobs=jobs or cores,
            runs_per_card=runs_per_card,
        )
        found = kinds.run(chosen, order)
    conclude(
        chosen,
        found,
        folder,
        name=short,
        command=command_line(),
        quick=quick,
        seeds=seeds or chosen.seeds,
        settings=settings or (),
        as_json=as_json,
    )


def conclude(
    study: Study,
    found: Outcome,
    folder: Path,
    *,
    name: str,
    command: str,
    quick: bool,
    seeds: int,
    settings: Sequence[str] = (),
    as_json: bool = False,
    draw: Callable[[Sequence[Picture], Path], None] | None = None,
) -> None:
    """Write a study's outcome to ``NAME.json`` and ``NAME.svg`` of a folder, and print it.

    ``draw`` draws the pictures; default: `vertizo.lab.reproduction.plots.draw`.
    """
    from vertizo.lab.reproduction import outcome, plots

    content = {
        "name": name,
        "title": study.title,
        "paper": study.paper,
        "form": "quick" if quick else "full",
        "reduced": study.reduced,
        "command": command,
        "version": VERSION,
        "seeds": seeds,
        "settings": list(settings),
        **found.as_dict(),
        "about": list(study.notes),
    }
    place = outcome.write(folder, f"{name}-quick" if quick else name, content)
    figures = f"figures: {place}"
    if found.pictures and plots.available():
        (draw or plots.draw)(found.pictures, place.with_suffix(".svg"))
        figures += f", {place.with_suffix('.svg')}"
    elif found.pictures:
        figures += ", no picture: pip install 'vertizo[plots]'"
    if as_json:
        print(strict_json.line(content))
        return
    for each in found.grids:
        print_table(["", *each.columns], each.rows, each.title)
    notes = [study.paper]
    if study.reduced:
        notes.append(f"Reduced: {study.reduced}")
    if settings:
        notes.append(f"Changed: {', '.join(settings)}")
    over = counted(seeds, "seed")
    notes.append(
        "One seed: no spread." if over == "1 seed" else f"± is the standard deviation over {over}."
    )
    say([*notes, *found.notes, *study.notes, figures])


def _list_studies(as_json: bool) -> None:
    """Print all studies."""
    from vertizo.lab.reproduction import study

    found = [(name, study.load(name)) for name in study.names()]
    if as_json:
        entries = [
            {"name": name, "kind": each.kind, "paper": each.paper, "title": each.title}
            for name, each in found
        ]
        print(strict_json.line(entries))
    else:
        print_list(((name, f"{each.paper}: {each.title}") for name, each in found), no_wrap=True)


def study_schema() -> dict[str, Any]:
    """Return the JSON schema of a study's file, for ``vertizo schema``."""
    from pydantic import Tag

    from vertizo.cli.schema import generated
    from vertizo.core.options import chosen_by
    from vertizo.lab.reproduction.study import KINDS

    tagged = tuple(Annotated[options, Tag(kind)] for kind, options in KINDS.items())
    kinds: Any = Annotated[Union[tagged], chosen_by("kind", "table")]  # noqa: UP007
    found = generated(kinds, "Vertizo study")
    quick = {"type": "object", "description": "What its quick form changes."}
    for each in set(KINDS.values()):
        found["$defs"][each.__name__]["properties"]["quick"] = quick
    # A study with a base says what is different, and nothing need be complete.
    whole = {"oneOf": found.pop("oneOf")}
    return {**found, "if": {"required": ["base"]}, "then": {"type": "object"}, "else": whole}


def bar(
    command: str, what: str, console: Console
) -> AbstractContextManager[Callable[[Standing], None] | None]:
    """Show the progress of runs or trials, as a bar or as lines in a log."""

    def words(at: Standing) -> tuple[float, str]:
        return at.share, f"{at.finished} of {at.total} {what}{at.beside}{at.latest}"

    return live_bar(console, "starting", words, command)
