"""``vertizo list``: what can be chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from vertizo.core.registry import Registry

Kind = Literal["methods", "datasets", "models", "codecs", "attacks"]


def list_(kind: Annotated[Kind, typer.Argument(help="What to list.")]) -> None:
    """List what you can choose, with one line about each."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in _entries(kind):
        table.add_row(Text(name), Text(text))
    Console().print(table)


def _entries(kind: Kind) -> list[tuple[str, str]]:
    if kind == "attacks":
        from vertizo.attacks.choice import ATTACKS

        attacks = ATTACKS.values()
        return [(a.name, f"{a.paper}: {_doc(a)} Adversary: {a.adversary}.") for a in attacks]
    builtin: list[tuple[str, str]]
    registry: Registry[Any]
    if kind == "datasets":
        from vertizo.data.datasets.catalog import CATALOG

        registry = CATALOG
        builtin = [(name, entry.summary) for name, entry in CATALOG.items()]
    elif kind == "methods":
        from vertizo.methods.choice import METHODS

        registry = METHODS
        builtin = [(name, f"{m.paper}: {_doc(m)}") for name, m in METHODS.items()]
    elif kind == "codecs":
        from vertizo.protocol.codecs.catalog import CODECS

        registry = CODECS
        builtin = [(name, _doc(codec)) for name, codec in CODECS.items()]
    else:
        from vertizo.config.architectures import CLIENT_MODELS, SERVER_MODELS

        registry = CLIENT_MODELS
        places: dict[str, list[str]] = {}
        for side, models in (("client", CLIENT_MODELS), ("server", SERVER_MODELS)):
            for name, option in models.items():
                places.setdefault(name, [_doc(option)]).append(side)
        builtin = [(name, f"{doc} ({' and '.join(on)})") for name, (doc, *on) in places.items()]
    return builtin + [(name, f"by {each.value}") for name, each in registry.offered().items()]


def _doc(option: type) -> str:
    return (option.__doc__ or "").strip().splitlines()[0]
