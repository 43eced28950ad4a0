"""What parties are worth, as tables: of ``experiments/results/worth_*.json``, which `vertizo worth`
leaves as ``worth.json``; the commit is added where a result is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from vertizo.lab.worth import words
from vertizo.privacy.epsilon_text import bound_text

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
SHOWN = 5
"""Columns in the table of those used most."""


def tables(name: str) -> str:
    """All about one study: who takes part, what each party adds, columns, and how it was made."""
    content = json.loads((RESULTS / f"worth_{name}.json").read_text(encoding="utf-8"))
    gain = f"gain over {words.holder(content)} alone"
    heads = ["who takes part", words.metric(content), "95 %", gain]
    parts = [_table(heads, words.table(content)), _table(*words.parties(content))]
    columns = ["party", "column", "permuted"]
    parts.append(_table(columns, words.columns(content, SHOWN)))
    parts.append("\n".join(f"* {line}" for line in words.verdicts(content)) + "\n")
    seeds, cost = content["seeds"], content["cost"]
    together = (
        f"ε = {bound_text(cost['epsilon_each'])} for each training, "
        f"{bound_text(cost['epsilon_together'])} for all "
        f"({cost['guarantee']}, δ = {cost['delta']:g}); "
        if "epsilon_each" in cost
        else ""
    )
    parts.append(
        f"`{content['command']}`: {cost['trainings']} trainings (seeds {seeds[0]} to {seeds[-1]}), "
        f"{content['seconds']:.0f} seconds on one core; {together}{content['tests']:,} test "
        f"records, {content['resamples']:,} resamples; commit {content['commit']}, "
        f"`experiments/results/worth_{name}.json`.\n"
    )
    return "\n".join(parts)


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(_rows(heads, lines)) + "\n"


def _rows(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for line in lines:
        yield f"| {' | '.join(line)} |"
