"""``vertizo privacy``: explains what a run protects, and manages ledgers."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vertizo.cli.options import AsJson, Settings, argument, complete_runs, option
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.text import strict_json

if TYPE_CHECKING:
    from vertizo.config.schema import ExperimentConfig


def explain(
    run: Annotated[Path, argument("Run folder or configuration.", "RUN", complete=complete_runs)],
    as_json: AsJson = False,
) -> None:
    """Explain in plain words what a run protects and what it does not."""
    if (run / "job").is_file():
        _explain_member(run, as_json)
        return
    if run.is_dir():
        config, privacy = _of_folder(run)
    else:
        from vertizo.config import schema

        config = schema.load(run)
        from vertizo.run.experiment import Experiment

        privacy = Experiment(config).privacy()
    from vertizo.run.loop.ledger_session import charged_beside, file_of
    from vertizo.run.trained.explanation import explain as put_into_words

    words = put_into_words(config, privacy)
    if run.is_dir() and (file := file_of(run, config)) is not None:
        try:
            today = [f"Today {line}." for line in charged_beside(file)]
        except RunError as error:
            today = [f"Whether these records are charged elsewhere is not known now: {error}."]
        words = replace(words, how=(*words.how, *today))
    if as_json:
        print(strict_json.line(asdict(words)))
        return
    console = Console()
    console.print(f"[bold]Guarantee: {words.guarantee}[/bold]", highlight=False)
    for paragraph in (words.promise, words.summary):
        console.print(paragraph, highlight=False, markup=False)
    for title, lines in (
        ("Protected", words.protected),
        ("Not protected", words.not_protected),
        ("How", words.how),
    ):
        console.print(f"\n[bold]{title}[/bold]")
        listed = Table.grid(padding=(0, 1, 0, 0))  # which indents a line's continuation
        listed.add_column()
        listed.add_column(overflow="fold")  # of a long path, the end matters
        for line in lines or ("nothing",):
            listed.add_row("  •", Text(line))
        console.print(listed)


def _of_folder(path: Path) -> tuple[ExperimentConfig, dict[str, Any]]:
    from vertizo.run.results.folder import RunFolder

    folder = RunFolder(path)
    config, summary = folder.config(), folder.summary()
    if summary is None:
        raise RunError(
            f"{path} holds an unfinished run; finish it with --resume, or explain "
            f"{path / 'config.yaml'}"
        )
    privacy = summary.get("privacy", {})
    if not {"counted", "covers"} <= privacy.keys():
        raise RunError(
            f"{folder.summary_file}: there is no privacy section of this version in it; run "
            f"{path / 'config.yaml'} again, or explain that"
        )
    return config, privacy


def _explain_member(path: Path, as_json: bool) -> None:
    """Print a feature holder's own privacy statement, and the one it was told."""
    from vertizo.network.serving.client_folder import ClientFolder

    found = ClientFolder(path).finished()
    if found is None:
        raise RunError(f"{path}: the job is not over; `vertizo join` continues it")
    if as_json:
        told = {key: found[key] for key in ("own_words", "words")}
        print(strict_json.line(told))
        return
    print(f"privacy of what this party sent: {found['own_words']}")
    print(f"privacy, as the label holder says, which nobody here can check: {found['words']}")


Ledger = Annotated[Path, argument("The ledger's file.", "LEDGER")]


def ledger_create(
    ledger: Ledger,
    config: Annotated[Path, argument("YAML configuration of the runs or of a label holder.")],
    settings: Settings = None,
    runs: Annotated[int, option("Runs that the budget pays for.", min=1)] = 1,
    further: Annotated[
        bool,
        option(
            "Allow records that have a ledger already; the ε of all their ledgers add up.",
            None,
            "--further",
        ),
    ] = False,
) -> None:
    """Create a ledger with a fixed budget for runs, or set a file apart for private labels."""
    from vertizo.config import schema
    from vertizo.config.error_lines import read_yaml

    if "federation" in read_yaml(config):
        from vertizo.network.serving.options import load_serve

        job = load_serve(config, settings or [])
        chosen = job.experiment()
        from vertizo.network.serving.job import budget_for_jobs, charged_data

        data = charged_data(job)
        budget = partial(budget_for_jobs, job, data, runs)
    else:
        chosen = schema.load(config, settings or [])
        from vertizo.run.loop import ledger_session

        data = ledger_session.charged_data(chosen)
        budget = partial(ledger_session.budget_for, chosen, data, runs)
    from vertizo.privacy.options import ON_LABELS
    from vertizo.run.loop.ledger_session import create

    if runs > 1 and chosen.privacy.mechanism in ON_LABELS:
        raise ConfigError(
            f"--runs is {runs} but private labels are paid for once, for any number of runs; "
            "leave it out"
        )
    create(ledger, chosen, data, budget, further=further)
    ledger_show(ledger)
    print(f"use it with --set privacy.ledger={ledger}")


def ledger_show(ledger: Ledger) -> None:
    """Print how much of the budget is spent and left."""
    from vertizo.privacy.labels import label_file
    from vertizo.privacy.ledger.durable import DurableLedger
    from vertizo.run.loop.ledger_session import charged_beside

    has_labels = ledger.is_file() and label_file.has_labels(ledger)
    print(label_file.told(ledger) if has_labels else DurableLedger.inspect(ledger))
    for line in charged_beside(ledger):
        print(line)


def ledger_accept(ledger: Ledger) -> None:
    """Confirm that a moved ledger is the newest copy and the only one in use."""
    from vertizo.privacy.ledger.durable import DurableLedger

    print(DurableLedger.accept(ledger))
