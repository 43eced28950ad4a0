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
    """An option: its line of ``--help``, what stands there for its value, and its own names."""
    return typer.Option(*names, help=text, metavar=value, autocompletion=complete, **more)


def argument(text: str, value: str | None = None, complete: Any = None) -> Any:
    """An argument: its line of ``--help``, and what it is called there."""
    return typer.Argument(help=text, metavar=value, autocompletion=complete)


def complete_methods(incomplete: str) -> list[str]:
    """Names of methods behind the last comma."""
    from vertizo.methods.choice import METHODS

    return behind_comma(incomplete, METHODS)


def behind_comma(incomplete: str, names: Iterable[str]) -> list[str]:
    """Names that may follow the last comma."""
    done, comma, _ = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in names if name not in done.split(",")]


def complete_runs(incomplete: str) -> list[str]:
    """Run folders at most two levels below the folder that is typed already."""
    base = Path(incomplete[: incomplete.rfind("/") + 1])
    return sorted(
        str(f.parent) for level in ("*", "*/*") for f in base.glob(f"{level}/config.yaml")
    )


HEAD = option(
    "private: the server's model. raw: what server.final_head fitted on raw labels. "
    "Default: the one that the run's figures are of.",
)
"""Which of a job's heads predicts."""


def _with_environment(given: list[str] | None) -> list[str]:
    """Settings of the environment, which those of the command line follow and override."""
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
    """The names in ``a,b``."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]
