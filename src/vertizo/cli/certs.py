"""``vertizo certs``: certificates for parties, from a test authority."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vertizo.cli.console import say


def certs(
    folder: Annotated[Path, typer.Argument(help="Where to create a folder for each party.")],
    server: Annotated[str | None, typer.Option(metavar="NAME", help="The label holder.")] = None,
    member: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A feature holder. Can be repeated."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Host name or address of the label holder. Can be repeated."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="Days until the certificates expire.")] = 90,
) -> None:
    """Create a test authority and a certificate for each party, to try things."""
    from vertizo.network import authority

    made = authority.issue(folder, server, member or [], host or [], days)
    table = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    for heading in ("party", "is", "holds until", "folder"):
        table.add_column(heading, overflow="fold")
    for one in made:
        role = f"server at {', '.join(one.hosts)}" if one.hosts else "member"
        row = (one.name, role, f"{one.expires:%Y-%m-%d}", str(one.folder))
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
    say(
        "\nGive each party its own folder over a channel you trust; no other party may see its "
        f"key.pem.\nThis is a test authority. Anyone with {folder / authority.FOLDER / 'key.pem'} "
        "can make certificates in any party's name: keep it safe to add parties later, or delete "
        "it.\nOrganisations use their own authorities, with the same file names."
    )
