"""``vertizo privacy explain``: what is and is not protected, in plain words."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vertizo.config import schema as configuration
from vertizo.core.errors import RunError
from vertizo.network.client_folder import ClientFolder
from vertizo.run.experiment import Experiment
from vertizo.run.explanation import explain as put_into_words
from vertizo.run.folder import RunFolder


def explain(path: Path, *, as_json: bool) -> None:
    """Print the explanation of a run folder, or of what a configuration would run.

    Raises:
        UserError: there is no such run, or the configuration is wrong.
    """
    if (path / "job").is_file():
        _of_member(ClientFolder(path), as_json=as_json)
        return
    if path.is_dir():
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
    else:
        config = configuration.load(path)
        privacy = Experiment(config).privacy()
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
        listed = Table.grid(padding=(0, 1, 0, 0))  # which indents what follows a line's first
        for line in lines or ("nothing",):
            listed.add_row("  •", Text(line))
        console.print(listed)


def _of_member(folder: ClientFolder, *, as_json: bool) -> None:
    """Print what a feature holder knows of a job: its own part, and what it was told.

    Raises:
        RunError: the job is not over.
    """
    found = folder.finished()
    if found is None:
        raise RunError(f"{folder.path}: the job is not over; `vertizo join` goes on with it")
    if as_json:
        told = {key: found[key] for key in ("own_words", "words")}
        print(json.dumps(told, ensure_ascii=False))
        return
    print(f"privacy of what this party sent: {found['own_words']}")
    print(f"privacy, as the label holder says, which nobody here can check: {found['words']}")
