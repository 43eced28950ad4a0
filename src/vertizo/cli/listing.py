"""``vertizo list``: what can be chosen."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vertizo.attacks.choice import ATTACKS
from vertizo.config import architectures
from vertizo.core.options import options_of
from vertizo.data.datasets.catalog import CATALOG
from vertizo.methods.choice import METHODS
from vertizo.protocol.codecs.choice import CodecChoice


def show(kind: str) -> None:
    """Print names and a line on each."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in _entries(kind):
        table.add_row(Text(name), Text(text))
    Console().print(table)


def _entries(kind: str) -> list[tuple[str, str]]:
    if kind == "datasets":
        return [(name, entry.summary) for name, entry in CATALOG.items()]
    if kind == "methods":
        methods = METHODS.values()
        return [(_name(method), f"{method.paper}: {_doc(method)}") for method in methods]
    if kind == "attacks":
        attacks = ATTACKS.values()
        return [(a.name, f"{a.paper}: {_doc(a)} Adversary: {a.adversary}.") for a in attacks]
    if kind == "models":
        places: dict[str, list[str]] = {}
        for side, choice in (
            ("client", architectures.ClientModelConfig),
            ("server", architectures.ServerModelConfig),
        ):
            for option in options_of(choice):
                places.setdefault(_name(option), [_doc(option)]).append(side)
        return [(name, f"{doc} ({' and '.join(on)})") for name, (doc, *on) in places.items()]
    return [(_name(codec), _doc(codec)) for codec in options_of(CodecChoice)]


def _name(option: Any) -> str:
    return str(option.model_fields["name"].default)


def _doc(option: type) -> str:
    return (option.__doc__ or "").strip().splitlines()[0]
