"""How runs were configured: all of it, and where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vertizo.studies.report.variants import IGNORED, Variant, flat, text


@dataclass(frozen=True)
class Differences:
    """Keys in which variants differ; a column for each variant."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def differences(variants: Sequence[Variant]) -> Differences | None:
    """None where there is one variant, or they do not differ."""
    if len(variants) < 2:
        return None
    trees = [flat(variant.example) for variant in variants]
    keys = dict.fromkeys(key for tree in trees for key in tree if key not in IGNORED)
    rows = []
    for key in keys:
        values = tuple(text(tree[key]) if key in tree else "–" for tree in trees)
        if len(set(values)) > 1:
            rows.append((key, values))
    if not rows:
        return None
    return Differences(tuple(variant.name for variant in variants), tuple(rows))
