"""The guarantees of variants, in words and in the figures behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vertizo.lab.report.measures import short
from vertizo.lab.report.reading import number
from vertizo.lab.report.variants import Study, Variant
from vertizo.privacy.epsilon_text import is_bounded
from vertizo.run.trained.explanation import explain

NEEDED = {
    "counted", "covers", "words", "noise_std", "noise_source", "epsilon_published",
    "server_noise_std", "secret_steps", "clip", "max_participations", "max_releases",
    "replies_alone_epsilon", "epsilon", "delta",
}  # fmt: skip
"""Keys that an explanation needs; older runs have fewer."""
FIGURES = (
    ("epsilon", "ε of the whole run"),
    ("delta", "δ"),
    ("label_advantage", "label advantage: gain over guessing, at most"),
    ("records_per_person", "training records of one person, at most"),
    ("epsilon_per_person", "ε of such a person"),
    ("label_advantage_per_person", "label advantage about all labels of such a person"),
    ("mu", "μ of replies and of updates on batches that clients know"),
    ("noise_std", "σ on the sum of a reply"),
    ("clip", "clip C of a record's part of a reply"),
    ("server_noise_std", "σ on the sum of a private update of the server"),
    ("server_clip", "clip of a private update of the server"),
    ("max_participations", "queries that may name one record, at most"),
    ("max_releases", "noised releases that may depend on one record, at most"),
    ("replies_alone_mu", "μ of the replies alone (no guarantee by itself)"),
    ("replies_alone_epsilon", "ε of the replies alone (no guarantee by itself)"),
    ("epsilon_published", "ε by the published formula (does not hold)"),
)
STEPS = (
    ("count", "steps of the server on secret samples"),
    ("sampling", "probability that a record is in a secret sample"),
    ("noise_multiplier", "noise multiplier of such a step"),
)
TITLES = {
    "exact": "Exact guarantee",
    "simulated": "Simulated: what secret noise would guarantee",
    "published": "Published formula: no guarantee",
    "none": "No guarantee",
}


def statements(study: Study) -> list[dict[str, Any]]:
    """Build the statement of every finished variant; variants with equal statements share one."""
    found: list[dict[str, Any]] = []
    for variant in study.variants:
        if variant.privacy is None:
            continue
        made = _statement(variant, variant.privacy)
        same = next((one for one in found if {**one, "names": []} == made), None)
        if same is None:
            found.append(made)
        (same or made)["names"].append(variant.name)
    return found


def _statement(variant: Variant, privacy: Mapping[str, Any]) -> dict[str, Any]:
    run = variant.example
    guarantee = str(privacy.get("guarantee", "none"))
    # None for a ledger of the run's own, in memory
    ledger = run.config.privacy.ledger
    if ledger is None and run.served and guarantee == "exact":
        ledger = run.path / "ledger.sqlite"
    return {
        "names": [],
        "guarantee": guarantee,
        "title": TITLES.get(guarantee, guarantee),
        "explanation": explain(run.config, privacy) if privacy.keys() >= NEEDED else None,
        "words": str(privacy.get("words", "")),
        "heads": _heads(variant),
        "figures": _figures(privacy),
        "ledger": None if ledger is None else str(ledger),
    }


def _heads(variant: Variant) -> list[tuple[str, str]]:
    """Return what holds for each head, where there are two."""
    head = (variant.example.summary or {}).get("raw_head")
    if variant.is_raw and isinstance(head, Mapping):
        return [(variant.head_names[1], str(head.get("words", "")))]
    if variant.raw_head is None:
        return []
    private, raw = variant.head_names
    server = "What is said above holds of the server's model, and of all that clients see."
    return [(private, server), (raw, str(variant.raw_head.get("words", "")))]


def _figures(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    steps = privacy.get("secret_steps")
    sources = (privacy, FIGURES), (steps if isinstance(steps, Mapping) else {}, STEPS)
    lines = [
        (words, short(value))
        for source, figures in sources
        for key, words in figures
        if (value := number(source, key)) is not None
    ]
    texts = (("noise_source", "noise"), ("counted", "counted"))
    return [*lines, *((words, str(privacy[key])) for key, words in texts if privacy.get(key))]


def differ(found: Sequence[Study]) -> bool:
    """Whether guarantees cover different things, so that their ε are not comparable."""
    about = set()
    for privacy in _all(found):
        if is_bounded(privacy):
            covers = privacy.get("covers")
            things = tuple(map(str, covers)) if isinstance(covers, list) else ()
            about.add((things, *(privacy.get(key) for key in ("guarantee", "delta", "counted"))))
    return len(about) > 1


def has_noise(found: Sequence[Study]) -> bool:
    """Whether some run has noise on its replies."""
    return any(number(privacy, "noise_std") is not None for privacy in _all(found))


def _all(found: Sequence[Study]) -> list[Mapping[str, Any]]:
    every = (variant.privacy for study in found for variant in study.variants)
    return [privacy for privacy in every if privacy is not None]
