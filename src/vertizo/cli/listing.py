"""``vertizo list``: what can be chosen."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

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
    if kind == "datasets":
        from vertizo.data.datasets.catalog import CATALOG

        return [(name, entry.summary) for name, entry in CATALOG.items()]
    if kind == "methods":
        from vertizo.methods.choice import METHODS

        methods = METHODS.values()
        return [(_name(method), f"{method.paper}: {_doc(method)}") for method in methods]
    if kind == "attacks":
        from vertizo.attacks.choice import ATTACKS

        attacks = ATTACKS.values()
        return [(a.name, f"{a.paper}: {_doc(a)} Adversary: {a.adversary}.") for a in attacks]
    from vertizo.core.options import options_of

    if kind == "codecs":
        from vertizo.protocol.codecs.choice import CodecChoice

        return [(_name(codec), _doc(codec)) for codec in options_of(CodecChoice)]
    from vertizo.config.architectures import ClientModelConfig, ServerModelConfig

    places: dict[str, list[str]] = {}
    for side, choice in (("client", ClientModelConfig), ("server", ServerModelConfig)):
        for option in options_of(choice):
            places.setdefault(_name(option), [_doc(option)]).append(side)
    return [(name, f"{doc} ({' and '.join(on)})") for name, (doc, *on) in places.items()]


def _name(option: Any) -> str:
    return str(option.model_fields["name"].default)


def _doc(option: type) -> str:
    return (option.__doc__ or "").strip().splitlines()[0]
