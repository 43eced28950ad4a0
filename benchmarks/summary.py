"""One table of what the benchmarks found, from the files they left.

Run: ``python benchmarks/summary.py [FOLDER]``
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
FACTS = ("cpu", "machine", "cores", "python", "vertizo", "torch", "jax")


def table(found: dict[str, Any]) -> Table:
    """The summaries of all files, by name."""
    made = Table(box=box.SIMPLE_HEAD)
    for heading in ("benchmark", "what", "figure", "beside"):
        made.add_column(heading)
    for name, results in found.items():
        lines = results.get("summary", ())
        shown = name
        for line in lines:
            made.add_row(shown, line["what"], line["figure"], line["beside"])
            shown = ""
        made.add_section()
    return made


def provenance(found: dict[str, Any]) -> dict[str, list[str]]:
    """Where figures come from → the benchmarks whose figures do."""
    origins: dict[str, list[str]] = {}
    for name, results in found.items():
        facts = [f"{fact} {results[fact]}" for fact in FACTS if fact in results]
        facts += [f"note: {results['note']}"] if "note" in results else []
        origins.setdefault(", ".join(facts), []).append(name)
    return origins


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=RESULTS)
    folder = parser.parse_args().folder
    found = {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))
    }
    told = {name: results for name, results in found.items() if results.get("summary")}
    console = Console(highlight=False, soft_wrap=True)
    console.print(table(told), markup=False)
    for facts, names in provenance(told).items():
        console.print(f"{', '.join(names)}: {facts}", markup=False)
    if silent := sorted(found.keys() - told.keys()):
        console.print(f"without a summary: {', '.join(silent)}", markup=False)


if __name__ == "__main__":
    main()
