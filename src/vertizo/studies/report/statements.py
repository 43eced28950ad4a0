"""What each variant guarantees: in words, and in the figures that the words stand on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vertizo.privacy.epsilon_text import is_bounded
from vertizo.run.explanation import Explanation, explain
from vertizo.studies.report.measures import short
from vertizo.studies.report.reading import number
from vertizo.studies.report.variants import Study, Variant

NEEDED = {
    "counted", "covers", "words", "noise_std", "noise_source", "epsilon_published",
    "server_noise_std", "secret_steps", "clip", "max_participations", "max_releases",
    "replies_alone_epsilon", "epsilon", "delta",
}  # fmt: skip
"""What an explanation is made from; older runs have less."""
FIGURES = (
    ("epsilon", "ε of the whole run"),
    ("delta", "δ"),
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
TITLES = {
    "exact": "Exact guarantee",
    "simulated": "Simulated: what secret noise would guarantee",
    "published": "Published formula: no guarantee",
    "none": "No guarantee",
}


@dataclass(frozen=True)
class Privacy:
    """What holds for some variants, which share it to the last figure."""

    names: tuple[str, ...]
    guarantee: str
    title: str
    explanation: Explanation | None
    words: str
    figures: tuple[tuple[str, str], ...]
    ledger: str | None
    """The file that the runs draw on; None for a ledger of their own, in memory."""


def statements(study: Study) -> list[Privacy]:
    """Of every finished variant."""
    found: dict[object, tuple[list[str], Privacy]] = {}
    for variant in study.variants:
        privacy = variant.privacy
        if privacy is None:
            continue
        made = _statement(variant, privacy)
        key = made.words, made.explanation, made.figures, made.ledger
        found.setdefault(key, ([], made))[0].append(variant.name)
    return [
        Privacy(tuple(names), p.guarantee, p.title, p.explanation, p.words, p.figures, p.ledger)
        for names, p in found.values()
    ]


def _statement(variant: Variant, privacy: Mapping[str, Any]) -> Privacy:
    run = variant.example
    guarantee = str(privacy.get("guarantee", "none"))
    explanation = explain(run.config, privacy) if privacy.keys() >= NEEDED else None
    ledger = run.config.privacy.ledger
    if ledger is None and run.served and guarantee == "exact":
        ledger = run.path / "ledger.sqlite"
    return Privacy(
        names=(),
        guarantee=guarantee,
        title=TITLES.get(guarantee, guarantee),
        explanation=explanation,
        words=str(privacy.get("words", "")),
        figures=tuple(_figures(privacy)),
        ledger=None if ledger is None else str(ledger),
    )


def _figures(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = [
        (words, short(value))
        for key, words in FIGURES
        if (value := number(privacy, key)) is not None
    ]
    secret = privacy.get("secret_steps")
    if isinstance(secret, Mapping):
        for key, words in (
            ("count", "steps of the server on secret samples"),
            ("sampling", "probability that a record is in a secret sample"),
            ("noise_multiplier", "noise multiplier of such a step"),
        ):
            value = number(secret, key)
            if value is not None:
                lines.append((words, short(value)))
    for key, words in (("noise_source", "noise"), ("counted", "counted")):
        if privacy.get(key):
            lines.append((words, str(privacy[key])))
    return lines


def differ(found: Sequence[Study]) -> bool:
    """Whether guarantees are about different things, so that their ε are not comparable."""
    about = set()
    for study in found:
        for variant in study.variants:
            privacy = variant.privacy
            if privacy is not None and is_bounded(privacy):
                covers = privacy.get("covers")
                things = tuple(map(str, covers)) if isinstance(covers, list) else ()
                kind = privacy.get("guarantee"), privacy.get("delta"), privacy.get("counted")
                about.add((things, *kind))
    return len(about) > 1


def has_noise(found: Sequence[Study]) -> bool:
    """Whether some run was made under noise, so that its exact figures are to be kept."""
    return any(
        variant.privacy is not None and number(variant.privacy, "noise_std") is not None
        for study in found
        for variant in study.variants
    )
