"""``vertizo init``: writes a first configuration, for a made-up table or your own (``--from``)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from textwrap import indent, wrap
from typing import TYPE_CHECKING, Annotated, Any

from vertizo.cli.options import argument, option
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.names import Encoding

if TYPE_CHECKING:
    from vertizo.data.first_look import Look
    from vertizo.data.tabular.csv_lines import CsvFormat


FILE = "config.yaml"
MOST_REASONS = 6
"""Columns of which a line says why they are left out; the file says it of all."""
GUESS = "nobody said who has which columns; this is a guess, change it"


def read(path: Path, delimiter: str | None, encoding: Encoding | None) -> tuple[Any, CsvFormat]:
    """Read a table, and find the format of its file.

    Raises:
        ConfigError, DataError: one line that names the option, or the file.
    """
    from vertizo.data import options
    from vertizo.data.tables import source_of
    from vertizo.data.tabular import frames
    from vertizo.data.tabular.csv_lines import CsvFormat, detected
    from vertizo.data.tabular.excel import is_workbook

    try:
        separator = None if delimiter is None else options.delimiter(delimiter, "--delimiter")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    form = CsvFormat()
    if path.is_file() and not is_workbook(path) and not frames.is_parquet(path):
        form = detected(path, separator, encoding)
    elif path.is_file() and (delimiter or encoding):
        raise ConfigError(f"--delimiter and --encoding are for CSV files, and {path} is none")
    return source_of(path, form), form


def text_of(table: Path, label: str, found: Look, form: CsvFormat, *, guessed: bool) -> str:
    """The text of a configuration for a table; ``table`` is the path that it writes."""
    from vertizo.config.error_lines import write_yaml

    parts: list[tuple[str, Mapping[str, Any]]] = []

    def say(comment: str, **keys: Any) -> None:
        parts.append((comment, {key: value for key, value in keys.items() if value is not None}))

    say(
        "",
        name="table",
        path=table.as_posix(),
        delimiter=None if form.delimiter == "," else form.delimiter,
        encoding=None if form.encoding == "utf-8" else form.encoding,
    )
    if found.key is None:
        say("No column tells records apart. Real parties need one: id names it.")
    say("What tells records apart; no model sees it." if found.key else "", id=found.key)
    say("What is to be predicted.", label=label)
    if found.classes is None:
        say("An ε takes public bounds of the label: label_range: [0, 100].", task="regression")
    else:
        second = " Figures are about the second." if len(found.classes) == 2 else ""
        say(
            f"Read off the labels; an ε takes them for public, so name all that can be.{second}",
            classes=list(found.classes),
        )
    who = "Who has which columns"
    say(f"{who}: {GUESS}." if guessed else f"{who}.", columns=dict(found.parties))
    say("The party that also has the labels." if found.holder else "", label_holder=found.holder)
    if found.dropped:
        say("\n".join(["Left out:", *found.dropped.values()]), drop=list(found.dropped))
    say("The share of records that no model sees before the final figures.", test=0.2)
    lines = ["# Every key, with its default: vertizo schema, or docs/configuration.md.", "data:"]
    for comment, keys in parts:
        lines += [f"  # {line}" for part in comment.split("\n") for line in wrap(part, 92)]
        lines += [indent(write_yaml({**keys}, in_lines=True).rstrip(), "  ")] if keys else []
    lines += ["", "# Tries some and takes the best; vertizo list methods names all."]
    lines += ["method: {name: auto}", ""]
    return "\n".join([*lines, "# The same seed repeats a run, bit for bit.", "seed: 0", ""])


def _trained(text: str, path: Path) -> int:
    """The number of records that train under an ε; raises what a run on them would raise."""
    from vertizo.config.error_lines import parse_yaml
    from vertizo.config.schema import parse
    from vertizo.run.experiment import Experiment

    tree = parse_yaml(text)
    tree["data"]["path"] = str(path)
    tree["method"]["name"] = "dpzv"  # one that is chosen takes trials
    return Experiment(parse(tree, "config.yaml")).data().records


def _listed(columns: Any) -> str:
    return ", ".join(map(repr, columns))


def write_new(folder: Path, texts: Mapping[str, str]) -> None:
    """Write all files, or none; RunError if one exists already, or cannot be written."""
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


def init(
    folder: Annotated[
        Path | None,
        argument("Where to; made if it is missing. Default: example; with --from where you are."),
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
    if table is None:
        _example(folder or Path("example"), customers, parties)
        return
    from vertizo.data.first_look import look, parties_of

    folder, named = folder or Path(), parties_of(party or [])
    source, form = read(table, delimiter, encoding)
    if label is None:
        columns = ", ".join(source.frame.columns[:20])
        raise ConfigError(f"--label is missing; name the column to predict: {table} has {columns}")
    found = look(source, label, id_, named or None, holder)
    config, place = folder / FILE, table.absolute()
    with suppress(ValueError):  # another drive of Windows
        place = Path(os.path.relpath(table.parent.resolve() / table.name, folder.resolve()))
    text = text_of(place, label, found, form, guessed=not named)
    records = _trained(text, table)
    write_new(folder, {FILE: text})
    held = ", ".join(f"{name} ({len(own)})" for name, own in found.parties.items())
    print(f"{config}: {source.frame.height} records, columns at {held}")
    if not named:
        print(f"note: {GUESS}")
    for why in [*found.dropped.values()][:MOST_REASONS]:
        print(f"note: left out: {why}")
    if others := [*found.dropped][MOST_REASONS:]:
        print(f"note: left out: {_listed(others)}; {FILE} says why")
    if found.unnamed:
        print(f"note: left out, as no --party names them: {_listed(found.unnamed)}")
    print("Go on with")
    quoted = shlex.quote(str(config))
    print(f"  vertizo train {quoted} --controls")
    if len(found.parties) > 1:
        print(f"  vertizo worth {quoted}")
    clients = len(found.parties) - (found.holder is not None)
    classes = len(found.classes or ())
    more = f" --classes {classes}" if classes > 2 else ""
    figures = f"--records {records} --clients {clients} --epsilon 1 --delta 1e-5{more}"
    print(f"  vertizo privacy plan {figures}")


def _example(folder: Path, customers: int | None, parties: bool) -> None:
    from vertizo.data.tutorial.example import CONFIG, PARTNERS, PRIVATE, RECORDS, table, trained

    if parties:
        from vertizo.data import tutorial

        write_new(folder, tutorial.texts())
        print(f"{folder}: tables and files of a hospital, a lab and a clinic. Go on with")
        print(f"  cd {shlex.quote(str(folder))}")
        print("  vertizo certs certs --server hospital --member lab --member clinic")
        return
    count = RECORDS if customers is None else customers
    texts = {FILE: CONFIG, "private.yaml": PRIVATE, "customers.csv": table(count)}
    write_new(folder, texts)
    config, private, _ = (shlex.quote(str(folder / name)) for name in texts)
    print(f"{folder}: two configurations, and {count} made-up customers of a bank. Go on with")
    print(f"  vertizo train {config} --controls")
    print("  vertizo report runs/*")
    plan = f"--records {trained(count)} --clients {len(PARTNERS)} --epsilon 1 --delta 1e-5"
    print(f"  vertizo privacy plan {plan}")
    print(f"  vertizo train {private}")
