"""``vertizo train``: trains with a live bar, and prints a table of figures at the end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console

from vertizo.cli.console import more_at, print_table, say
from vertizo.cli.options import AsJson, Details, Settings, argument, complete_runs, option
from vertizo.core.errors import ConfigError, Interrupted
from vertizo.core.names import CONTROLS
from vertizo.core.text import strict_json

if TYPE_CHECKING:
    from vertizo.run.experiment import Experiment


def train(
    config: Annotated[
        Path | None, argument("YAML configuration. Default: DPZV on scikit-learn's digits.")
    ] = None,
    settings: Settings = None,
    out: Annotated[Path | None, option("Run folder. Default: a new one in runs/.", "DIR")] = None,
    resume: Annotated[
        Path | None, option("Continue the run in this folder.", "DIR", complete=complete_runs)
    ] = None,
    controls: Annotated[
        bool,
        option(
            "Also run the controls: frozen clients, random updates, no labels.", None, "--controls"
        ),
    ] = False,
    track: Annotated[
        list[str] | None,
        option(
            "Also write evaluations to tensorboard=DIR, mlflow=DIR or mlflow=URI. Can be repeated.",
            "KIND=PLACE",
        ),
    ] = None,
    details: Details = False,
    as_json: AsJson = False,
) -> None:
    """Train one federation in this process and write a run folder."""
    from vertizo.config.environment import Variable, source_of

    if resume is None:
        from vertizo.config import choosing

        chosen = choosing.load(config, settings or [])  # refused before PyTorch is imported
    elif config is not None or settings or out is not None:
        set_ = [source_of(one) for one in settings or [] if isinstance(one, Variable)]
        what = ", ".join(["CONFIG, --set and --out", *set_])
        raise ConfigError(f"--resume continues a run as configured; leave out {what}")
    from vertizo.config import auto
    from vertizo.config.choosing import Open
    from vertizo.core.plugins.registry import short
    from vertizo.run.experiment import Experiment
    from vertizo.run.loop import tracking
    from vertizo.run.results import summary_figures
    from vertizo.run.results.folder import RunFolder, new_folder

    tracking.check(track or [])
    place: AbstractContextManager[Path]
    if resume is not None:
        chosen, place = RunFolder(resume).config(), nullcontext(resume)
        controls = controls or (resume / "controls").is_dir()
    elif out is not None:
        place = nullcontext(out)
    else:
        known = chosen.first() if isinstance(chosen, Open) else chosen
        method = auto.AUTO if isinstance(chosen, Open) else known.method.name
        place = new_folder(f"{known.data.title}-{short(method)}-seed{known.seed}")
    with place as folder:
        if resume is None:
            RunFolder(folder).check_is_new()
        experiment = Experiment(chosen)
        if isinstance(chosen, Open):
            experiment.settle(_note)
        summaries = _all(experiment, folder, resume is not None, controls, track or [])
    first = summaries[0]
    beside = summary_figures.beside_controls(first, summaries[1:]) if controls else None
    if beside and beside.endswith(summary_figures.NOT_PAID) and "instead" not in first:
        from vertizo.run import instead

        first["instead"] = instead.advised(experiment.config, experiment.data(), first, _note)
        RunFolder(folder).write_summary(first)
    if as_json:
        print(strict_json.line(first))
        return
    controlled = [CONTROLS[summary["control"]] for summary in summaries[1:]]
    say([f"controls: {beside}"] if beside else [])
    say([f"instead: {first['instead']['words']}"] if "instead" in first else [])
    lines = summary_figures.rows if details else summary_figures.brief
    figures = [dict(lines(summary)) for summary in summaries]
    shown = figures if details else figures[:1]
    names = dict.fromkeys(name for each in shown for name in each)
    rows = [[name, *(each.get(name, "-") for each in figures)] for name in names]
    print_table(["", "run", *controlled], rows, f"{first['method']} on {first['dataset']}")
    said = [f"{name}: {words}" for name, words in summary_figures.statements(first)]
    say([*said, f"run folder: {folder}", *([] if details else [more_at(folder)])])


def _note(line: str) -> None:
    say(line, Console(stderr=True))


def _all(
    experiment: Experiment, folder: Path, resume: bool, controls: bool, track: Sequence[str]
) -> list[dict[str, Any]]:
    """Train the run and its controls; return their summaries, the run's first."""
    from vertizo.privacy.options import ON_LABELS
    from vertizo.run.build.label_free import controls_of
    from vertizo.run.experiment import Experiment
    from vertizo.run.loop.ledger_session import can_go_on, check_pays
    from vertizo.run.results import checkpoint

    config = experiment.config
    counted = [name for name in controls_of(config) if name != "label-free"] if controls else []
    times, names = 1 + len(counted), ", ".join(counted)
    if counted and config.privacy.ledger is not None and config.privacy.mechanism not in ON_LABELS:
        _note(f"note: the ledger is charged {times} times: {names} as well")
        if not resume:
            check_pays(config, experiment.data(), times)
    elif counted and config.privacy.mechanism == "gaussian" and config.privacy.epsilon:
        _note(
            f"note: each ε is of one run; {names} read the same labels, so that for whoever sees "
            f"all {times} runs ε and δ add up (privacy.ledger counts them together)"
        )
    try:
        summaries = [_run(experiment, folder, resume, track)]
        for control in controls_of(config) if controls else ():
            with checkpoint.writing(folder / "controls"):
                (folder / "controls").mkdir(exist_ok=True)
            place = folder / "controls" / control
            controlled = Experiment(config.model_copy(update={"control": control}))
            begun = (place / "config.yaml").is_file()
            summaries.append(_run(controlled, place, begun, track))
    except Interrupted as error:
        if not (folder / "config.yaml").is_file():
            raise
        hint = f"continue with --resume {shlex.quote(str(folder))}{' --controls' * controls}"
        if not can_go_on(config, begun=True):
            hint = "secret noise cannot be repeated: start again, or with a seed (--set seed=0)"
        raise Interrupted(f"{error}; {hint}") from None
    return summaries


def _run(
    experiment: Experiment, folder: Path, resume: bool, track: Sequence[str]
) -> dict[str, Any]:
    from vertizo.run import live, references
    from vertizo.run.results.folder import RunFolder

    known = RunFolder(folder).summary() if resume else None
    if known is not None:
        return known
    errors = Console(stderr=True)
    config = experiment.config
    is_control = config.control != "none"
    if not is_control:
        say((f"note: {note}" for note in experiment.data().notes), errors)
    with (
        live.bar(CONTROLS[config.control] if is_control else config.method.name, errors) as show,
        experiment.opened(folder, resume=resume, progress=show, track=track) as training,
    ):
        if not is_control:
            say((f"note: {note}" for note in training.federation.notes), errors)
        summary = training.run(resume=resume).summary
    if not is_control and (found := references.references(experiment.config, experiment.data())):
        summary |= {"references": found}
        RunFolder(folder).write_summary(summary)
    return summary
