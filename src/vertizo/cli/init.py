"""``vertizo init``: a first configuration and a small table to try it on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from vertizo.cli.options import argument
from vertizo.core.errors import RunError

CONFIG_FILE, TABLE_FILE = "config.yaml", "customers.csv"


def init(
    folder: Annotated[Path, argument("Where to; made if it is missing.")] = Path("example"),
) -> None:
    """Write an example to begin with: a configuration and a small made-up table."""
    from vertizo.data.example import CONFIG, PARTNERS, RECORDS, TRAINED, table

    written = {folder / CONFIG_FILE: CONFIG, folder / TABLE_FILE: table()}
    for path in written:
        if path.exists() or path.is_symlink():
            raise RunError(f"{path} exists already, and is kept; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in written.items():
            with path.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
    except OSError as error:
        raise RunError(f"{folder} cannot be written to: {error.strerror}") from None
    config = shlex.quote(str(folder / CONFIG_FILE))
    print(f"{folder}: a configuration, and {RECORDS} made-up customers of a bank. Go on with")
    print(f"  vertizo train {config} --controls")
    print("  vertizo report runs/*")
    plan = f"--records {TRAINED} --clients {len(PARTNERS)} --epsilon 1 --delta 1e-5"
    print(f"  vertizo privacy plan {plan}")
