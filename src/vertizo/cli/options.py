"""Options that several commands share, and what completes them in a shell."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer


def option(
    text: str, value: str | None = None, *names: str, complete: Any = None, **more: Any
) -> Any:
    """Make an option: ``text`` is its help, ``value`` stands for its value there."""
    return typer.Option(*names, help=text, metavar=value, autocompletion=complete, **more)


def argument(text: str, value: str | None = None, complete: Any = None) -> Any:
    """Make an argument: ``text`` is its help, ``value`` its name there."""
    return typer.Argument(help=text, metavar=value, autocompletion=complete)


def complete_methods(incomplete: str) -> list[str]:
    """Complete names of methods behind the last comma."""
    from vertizo.methods.choice import METHODS

    return behind_comma(incomplete, METHODS)


def behind_comma(incomplete: str, names: Iterable[str]) -> list[str]:
    """Complete names behind the last comma, without those that are there already."""
    done, comma, _ = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in names if name not in done.split(",")]


def complete_runs(incomplete: str) -> list[str]:
    """Complete run folders at most two levels below the folder that is typed already."""
    base = Path(incomplete[: incomplete.rfind("/") + 1])
    return sorted(
        str(f.parent) for level in ("*", "*/*") for f in base.glob(f"{level}/config.yaml")
    )


HEAD = option(
    "private: the server's model. raw: what server.final_head fitted on raw labels. "
    "Default: the one that the run's figures are of.",
)
"""The option that says which of a run's heads predicts."""


def _with_environment(given: list[str] | None) -> list[str]:
    """All settings: those of the environment, then those of the command line, which win."""
    from vertizo.config.environment import settings_of

    return [*settings_of(os.environ), *(given or [])]


Settings = Annotated[
    list[str] | None,
    option(
        "Override a key of the configuration, such as method.name=vafl. Can be repeated.",
        "KEY=VALUE",
        "--set",
        callback=_with_environment,
    ),
]
Details = Annotated[bool, option("Print all figures.", None, "--details")]
AsJson = Annotated[bool, option("Print the result as one line of JSON.", None, "--json")]
PartyConfig = Annotated[Path, argument("YAML configuration of this party.", "CONFIG")]


def comma_separated(text: str | None) -> list[str]:
    """Split ``a,b`` into its names."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]
