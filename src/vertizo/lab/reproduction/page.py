"""Write the documentation's page of measured results, from the files of the results.

``python -m vertizo.lab.reproduction.page experiments/results docs/reproduction.md`` writes the
tables into the page, between its two markers; a test compares them with the files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vertizo.core.errors import ConfigError
from vertizo.lab.reproduction.study import SCRIPTS, names

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def measured(results: Path) -> str:
    """Render a folder of results as Markdown: full forms first, then quick ones, then the rest."""
    kinds: dict[str, list[str]] = {"Full forms": [], "Quick forms": [], "Not measured yet": []}
    for name in sorted([*names(), *SCRIPTS]):
        full, quick = results / f"{name}.json", results / f"{name}-quick.json"
        if full.is_file():
            kinds["Full forms"].append(_section(full))
        elif quick.is_file():
            kinds["Quick forms"].append(_section(quick))
        else:
            kinds["Not measured yet"].append(f"#### {name}\n")
    return "\n".join(
        f"### {kind}\n\n" + "\n".join(sections) for kind, sections in kinds.items() if sections
    )


def _section(file: Path) -> str:
    content = json.loads(file.read_text("utf-8"))
    name, command = content["name"], content["command"]
    if name in SCRIPTS:  # measured when `vertizo reproduce` still made it
        command = command.replace(f"vertizo reproduce {name}", f"python {SCRIPTS[name]}")
    seeds = "1 seed" if content["seeds"] == 1 else f"{content['seeds']} seeds"
    lines = [f"#### {name}", "", f"{content['paper']}: {content['title']}. `{command}`, {seeds}."]
    if content["reduced"]:
        lines.append(f"Reduced: {content['reduced']}.")
    if content["settings"]:
        lines.append(f"Changed: `{' '.join(content['settings'])}`.")
    picture = file.with_suffix(".svg")
    if picture.is_file():
        lines += ["", f"![{content['title']}](../experiments/results/{picture.name})"]
    for table in content["tables"]:
        lines += ["", *_table(table)]
    for note in content["notes"]:
        lines += ["", note]
    return "\n".join([*lines, ""])


def _table(table: Mapping[str, Any]) -> Iterator[str]:
    columns = [table["title"], *table["columns"]]
    yield f"| {' | '.join(_cell(text) for text in columns)} |"
    yield f"|---|{'--:|' * (len(columns) - 1)}"
    for first, *cells in table["rows"]:
        name = f"*{first.strip()}*" if first.startswith(" ") else _cell(first)
        yield f"| {' | '.join([name, *map(_cell, cells)])} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def updated(page: str, results: Path) -> str:
    """Replace the results between a page's markers; raise a `ConfigError` if it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"the page has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{measured(results)}\n{END}{after}"


if __name__ == "__main__":
    folder, target = map(Path, sys.argv[1:3])
    target.write_text(updated(target.read_text("utf-8"), folder), "utf-8")
