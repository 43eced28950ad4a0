"""Options that several commands share, and what completes them in a shell."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer

from vertizo.core.errors import ConfigError

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the configuration, such as method.name=vafl. Can be repeated.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]
PartyConfig = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="YAML configuration of this party.")
]
StudyFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of all runs; finished ones are not repeated. Default: a folder under runs/.",
    ),
]
EngineName = Literal["local", "ray"]
Engine = Annotated[
    EngineName, typer.Option(help="Where to make the runs; ray needs the extra of that name.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Ray cluster to use. Default: one on this machine."),
]


def check_engine(engine: EngineName, ray_address: str | None) -> None:
    """Refuse a Ray cluster's address without Ray."""
    if ray_address is not None and engine != "ray":
        raise ConfigError(f"--ray-address {ray_address} is for --engine ray")


def complete_methods(incomplete: str) -> list[str]:
    """Names of methods behind the last comma."""
    from vertizo.methods.choice import METHODS

    return _behind_comma(incomplete, METHODS)


def complete_attacks(incomplete: str) -> list[str]:
    """Names of attacks behind the last comma."""
    from vertizo.attacks.choice import ATTACKS

    return _behind_comma(incomplete, ATTACKS)


def _behind_comma(incomplete: str, names: Iterable[str]) -> list[str]:
    done, comma, _ = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in names if name not in done.split(",")]


def complete_runs(incomplete: str) -> list[str]:
    """Run folders at most two levels below the folder that is typed already."""
    base = incomplete[: incomplete.rfind("/") + 1]
    found = (
        file.parent for depth in ("*", "*/*") for file in Path(base).glob(f"{depth}/config.yaml")
    )
    return sorted(str(folder) for folder in found)
