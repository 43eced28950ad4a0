"""The options that say where runs are made."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class EngineName(StrEnum):
    """Where runs are made."""

    LOCAL = "local"
    RAY = "ray"


Engine = Annotated[
    EngineName, typer.Option(help="Where runs are made; ray needs the extra of that name.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="A Ray cluster; without it, one on this machine."),
]
