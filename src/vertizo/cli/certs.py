"""``vertizo certs``: certificates for parties, from a test authority."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text


def certs(
    folder: Path, server: str | None, members: Sequence[str], hosts: Sequence[str], days: int
) -> None:
    """Make a folder for each party, and say what is in them and what to do with them."""
    from vertizo.network import authority

    made = authority.issue(folder, server, members, hosts, days)
    table = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    for heading in ("party", "is", "holds until", "folder"):
        table.add_column(heading, overflow="fold")
    for one in made:
        role = f"server at {', '.join(one.hosts)}" if one.hosts else "member"
        row = (one.name, role, f"{one.expires:%Y-%m-%d}", str(one.folder))
        table.add_row(*(Text(cell) for cell in row))
    console = Console()
    console.print(table)
    console.print(
        Text(
            f"\nHand each party its own folder, over a way you trust; key.pem is for its eyes only."
            f"\nThis is a test authority. Whoever has {folder / authority.FOLDER / 'key.pem'} can "
            f"make certificates in any party's name: keep it safe to add parties later, or throw "
            f"it away.\nOrganisations use authorities of their own, and put their files under the "
            f"same names."
        ),
        soft_wrap=True,
    )
