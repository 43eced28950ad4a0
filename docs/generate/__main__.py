"""Write what the pages take from the code: ``python docs/generate`` (``make docs`` does it).

Drawings go to ``docs/methods``, ``docs/widths.svg`` and ``docs/worth.svg``, computed bounds to
``experiments/results/label_advantage.json``. In pages, what stands between
``<!-- made: … -->`` and ``<!-- end -->`` is replaced. A test holds every file against this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import advantages
import api
import commands
import options
import scoring
import traffic
import widths
import worth
import worth_chart
from canvas import draw
from rounds import ROUNDS

DOCS = Path(__file__).parents[1]
MADE = re.compile(r"(<!-- made: ([a-z -]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

PARTNERS = {
    "alone": "label holder alone (family, age)",
    "without finances": "with the employer",
    "without work": "with the bank",
    "federated": "with both",
    "pooled": "all columns in one table",
}
"""Adult's parties, in the picture of what they are worth."""


def files() -> Iterator[tuple[Path, str]]:
    """Every file that is made, or holds what is made, as it should be."""
    for round_ in ROUNDS:
        yield DOCS / "methods" / f"{round_.name}.svg", draw(round_)
    yield DOCS / "widths.svg", widths.draw()
    yield DOCS / "worth.svg", worth_chart.draw("adult", "Who earns more than 50,000?", PARTNERS)
    yield advantages.RESULTS, advantages.content()
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if MADE.search(text):
            yield page, MADE.sub(lambda match: f"{match[1]}\n{part(match[2])}\n{match[4]}", text)


def part(name: str) -> str:
    """What stands between two marks."""
    kind, _, method = name.partition(" ")
    match kind:
        case "options":
            return options.method_table(method)
        case "bytes":
            return traffic.method_table(method)
        case "traffic":
            return traffic.overview()
        case "commands":
            return commands.page()
        case "configuration":
            return options.configuration()
        case "api":
            return api.page()
        case "states":
            return options.states()
        case "advantages":
            return advantages.comparison()
        case "agent":
            return options.agent()
        case "job":
            return options.job()
        case "scoring":
            return options.scoring() if method == "keys" else scoring.figures()
        case "worth":
            return worth.tables(method)
    raise ValueError(f"unknown part {name!r}")


def main() -> None:
    """Write what has changed."""
    for path, text in files():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main()
