"""The commands of studies: report, reproduce and tune."""

from __future__ import annotations

from collections.abc import Callable

import typer


def register(app: typer.Typer) -> None:
    """Add the commands to the program's."""
    commands: tuple[Callable[..., None], ...] = ()
    for command in commands:
        app.command()(command)
