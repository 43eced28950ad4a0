"""``vertizo privacy explain``: what is and is not protected, in plain words."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vertizo.cli.options import AsJson, complete_runs
from vertizo.core.errors import RunError

if TYPE_CHECKING:
    from vertizo.config.schema import ExperimentConfig


def explain(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Run folder, or a configuration.", autocompletion=complete_runs
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Explain in plain words what a run protects and what it does not."""
    if (run / "job").is_file():
        _explain_member(run, as_json)
        return
    config, privacy = _of_folder(run) if run.is_dir() else _of_configuration(run)
    from vertizo.run.explanation import explain as put_into_words

    words = put_into_words(config, privacy)
    if as_json:
        print(json.dumps(asdict(words), ensure_ascii=False))
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
        for line in lines or ("nothing",):
            listed.add_row("  •", Text(line))
        console.print(listed)


def _of_configuration(path: Path) -> tuple[ExperimentConfig, dict[str, Any]]:
    from vertizo.config import schema

    config = schema.load(path)
    from vertizo.run.experiment import Experiment

    return config, Experiment(config).privacy()


def _of_folder(path: Path) -> tuple[ExperimentConfig, dict[str, Any]]:
    from vertizo.run.folder import RunFolder

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
    """Print what a feature holder knows of a job: its own part, and what it was told."""
    from vertizo.network.client_folder import ClientFolder

    found = ClientFolder(path).finished()
    if found is None:
        raise RunError(f"{path}: the job is not over; `vertizo join` goes on with it")
    if as_json:
        told = {key: found[key] for key in ("own_words", "words")}
        print(json.dumps(told, ensure_ascii=False))
        return
    print(f"privacy of what this party sent: {found['own_words']}")
    print(f"privacy, as the label holder says, which nobody here can check: {found['words']}")
