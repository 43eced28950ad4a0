"""``vertizo init``: a first configuration and a small table to try it on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from vertizo.cli.options import argument, option
from vertizo.core.errors import ConfigError
from vertizo.core.names import Encoding

CONFIG_FILE, PRIVATE_FILE, TABLE_FILE = "config.yaml", "private.yaml", "customers.csv"


def init(
    folder: Annotated[
        Path | None,
        argument(
            "Where to; made if it is missing. Default: example; with --from where you are.",
        ),
    ] = None,
    customers: Annotated[
        int | None, option("How many to make up. Default: 600.", min=50, max=1_000_000)
    ] = None,
    parties: Annotated[
        bool, option("A hospital, a lab and a clinic instead, as the pages on real parties have.")
    ] = False,
    table: Annotated[
        Path | None,
        option(
            "Your own CSV, Excel or Parquet file: writes a config.yaml that trains on it.",
            "FILE",
            "--from",
        ),
    ] = None,
    label: Annotated[str | None, option("With --from: the column to predict.", "COLUMN")] = None,
    party: Annotated[
        list[str] | None,
        option(
            "With --from: a party and its columns, such as bank=income,balance. Once for each; "
            "without, the columns are cut by a guess.",
            "NAME=COLUMNS",
        ),
    ] = None,
    holder: Annotated[
        str | None, option("With --from: who has the labels. Default: the first party.", "NAME")
    ] = None,
    id_: Annotated[
        str | None,
        option("With --from: what tells records apart. Default: found.", "COLUMN", "--id"),
    ] = None,
    delimiter: Annotated[
        str | None,
        option("With --from: between the values of a CSV file. Default: found.", "CHAR"),
    ] = None,
    encoding: Annotated[
        Encoding | None, option("With --from: of a CSV file. Default: found.")
    ] = None,
) -> None:
    """Write a configuration to begin with: of a small made-up table, or of your own."""
    of_own = {
        "label": label,
        "party": party,
        "holder": holder,
        "id": id_,
        "delimiter": delimiter,
        "encoding": encoding,
    }
    of_example = {"customers": customers, "parties": parties or None}
    needless = of_own if table is None else of_example
    if (wrong := next((key for key in needless if needless[key] is not None), None)) is not None:
        because = "which is missing" if table is None else "which brings a table of its own"
        verb = "is for a table of" if table is None else "makes up tables; leave out"
        raise ConfigError(f"--{wrong} {verb} --from, {because}")
    if table is not None:
        from vertizo.cli.first_config import write

        form = (delimiter, encoding)
        write(folder or Path(), table, label, party or [], holder, id_, *form)
        return
    _example(folder or Path("example"), customers, parties)


def _example(folder: Path, customers: int | None, parties: bool) -> None:
    from vertizo.cli.first_config import write_new
    from vertizo.data.example import CONFIG, PARTNERS, PRIVATE, RECORDS, table, trained

    if parties:
        from vertizo.data import tutorial

        write_new(folder, tutorial.texts())
        print(f"{folder}: tables and files of a hospital, a lab and a clinic. Go on with")
        print(f"  cd {shlex.quote(str(folder))}")
        print("  vertizo certs certs --server hospital --member lab --member clinic")
        return
    count = RECORDS if customers is None else customers
    write_new(folder, {CONFIG_FILE: CONFIG, PRIVATE_FILE: PRIVATE, TABLE_FILE: table(count)})
    config, private = (shlex.quote(str(folder / name)) for name in (CONFIG_FILE, PRIVATE_FILE))
    print(f"{folder}: two configurations, and {count} made-up customers of a bank. Go on with")
    print(f"  vertizo train {config} --controls")
    print("  vertizo report runs/*")
    plan = f"--records {trained(count)} --clients {len(PARTNERS)} --epsilon 1 --delta 1e-5"
    print(f"  vertizo privacy plan {plan}")
    print(f"  vertizo train {private}")
