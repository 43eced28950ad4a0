"""``vertizo list``: what can be chosen."""

from __future__ import annotations

from typing import get_args

from rich.console import Console
from rich.table import Table

from vertizo import config
from vertizo.data.catalog import CATALOG


def show(kind: str) -> None:
    """Print names and a line on each."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in _entries(kind):
        table.add_row(name, text)
    Console().print(table)


def _entries(kind: str) -> list[tuple[str, str]]:
    if kind == "datasets":
        return [(name, entry.summary) for name, entry in CATALOG.items()]
    if kind == "methods":
        return [(_name(option), f"{option.paper}. {_doc(option)}") for option in _methods()]
    if kind == "models":
        sides = (("client", config.ClientModelConfig), ("server", config.ServerModelConfig))
        places: dict[type, list[str]] = {}
        for side, union in sides:
            for option in get_args(get_args(union)[0]):
                places.setdefault(option, []).append(side)
        return [
            (_name(option), f"{_doc(option)} ({' and '.join(where)})")
            for option, where in places.items()
        ]
    return [("none", "numbers as they are: float32, or rounded to float16 or bfloat16 (dtype)")]


def _methods() -> tuple[type[config.Dpzv], ...]:
    methods: tuple[type[config.Dpzv], ...] = get_args(get_args(config.MethodConfig)[0])
    return methods


def _name(option: type) -> str:
    name: str = option.model_fields["name"].default  # type: ignore[attr-defined]
    return name


def _doc(option: type) -> str:
    return (option.__doc__ or "").strip().splitlines()[0]
