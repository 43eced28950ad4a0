"""``vertizo init``: a first configuration and a small table to try it on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from vertizo.cli.options import argument, option
from vertizo.core.errors import RunError

CONFIG_FILE, PRIVATE_FILE, TABLE_FILE = "config.yaml", "private.yaml", "customers.csv"


def init(
    folder: Annotated[Path, argument("Where to; made if it is missing.")] = Path("example"),
    customers: Annotated[int, option("How many to make up.", min=50, max=1_000_000)] = 600,
    parties: Annotated[
        bool, option("A hospital, a lab and a clinic instead, as the pages on real parties have.")
    ] = False,
) -> None:
    """Write an example to begin with: two configurations and a small made-up table."""
    from vertizo.data.example import CONFIG, PARTNERS, PRIVATE, table, trained

    if parties:
        from vertizo.data import tutorial

        _write(folder, tutorial.texts())
        print(f"{folder}: tables and files of a hospital, a lab and a clinic. Go on with")
        print(f"  cd {shlex.quote(str(folder))}")
        print("  vertizo certs certs --server hospital --member lab --member clinic")
        return
    _write(folder, {CONFIG_FILE: CONFIG, PRIVATE_FILE: PRIVATE, TABLE_FILE: table(customers)})
    config, private = (shlex.quote(str(folder / name)) for name in (CONFIG_FILE, PRIVATE_FILE))
    print(f"{folder}: two configurations, and {customers} made-up customers of a bank. Go on with")
    print(f"  vertizo train {config} --controls")
    print("  vertizo report runs/*")
    plan = f"--records {trained(customers)} --clients {len(PARTNERS)} --epsilon 1 --delta 1e-5"
    print(f"  vertizo privacy plan {plan}")
    print(f"  vertizo train {private}")


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    """All files, or none; RunError where one is there already, or cannot be written."""
    written = {folder / name: text for name, text in texts.items()}
    for path in written:
        if path.exists() or path.is_symlink():
            raise RunError(f"{path} exists already, and is kept; name another folder")
    begun: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in written.items():
            with path.open("x", encoding="utf-8", newline="\n") as file:
                begun.append(path)
                file.write(text)
    except OSError as error:
        for path in begun:
            with suppress(OSError):
                path.unlink()
        raise RunError(f"{folder} cannot be written to: {error.strerror}") from None
