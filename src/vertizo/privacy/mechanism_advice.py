"""Advice on which mechanism to take: what each costs and protects, before there is data.

Ways to spend one ε: noise on every reply, as DPZV has it; on few tangent queries; on one label
statistic; or once, on the labels (docs/privacy.md, Labels that are private from the start). Beside
them the way that spends nothing: one upload without labels, and a model that stays where they are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vertizo.core.errors import ConfigError
from vertizo.core.validate import fraction, positive
from vertizo.privacy.accounting import forecast, guarantee, label_advantage
from vertizo.privacy.accounting.gaussian import delta_of, mu_of
from vertizo.privacy.clipping import moved, relabelled
from vertizo.privacy.labels.private_labels import RandomisedResponse
from vertizo.privacy.options import mechanism_for

Cover = Literal["labels", "features"]
TEACHER_NUMBERS = 150
"""Numbers of a record that all clients together upload for a teacher."""
EPOCHS = 5
"""Epochs of noised replies about batches that are assumed."""
SWEEPS = 4
"""Tangent queries of each client that are assumed."""
READING = (
    "DPZV: noise on every reply; tangent, statistic: on few queries about all records; teacher, "
    "response: labels made private once. Noise: σ of one number of a mean, over what one record is "
    "clipped to; of a response, the share of labels that are exchanged. Signal / noise: a forecast "
    "for all replies to one client, from runs on tables and images; below 1 little is learned. "
    "Numbers are of one record and client. A raw head on the clients' numbers "
    "(server.final_head) costs no ε against them in any of these. "
    "All: labels, and each client's features against the others where public bounds prepared them."
)
SIGNALS = {
    "DPZV": forecast.REPLY,
    "tangent": forecast.TANGENT,
    "statistic": forecast.STATISTIC,
}
UPLOADED = 16
"""Numbers of a record that each client uploads for method one-shot, unless it is told otherwise."""
NARROW = 2
"""Numbers of an embedding up to which few directions describe it."""


@dataclass(frozen=True)
class Case:
    """A federation: D records, M clients, k classes, embeddings of d_h numbers.

    ``positives`` is the share of the rarer of two classes, where it is public.
    """

    records: int
    clients: int
    classes: int = 2
    width: int = 1
    positives: float | None = None

    def __post_init__(self) -> None:
        for name in ("records", "clients", "width"):
            positive(name, getattr(self, name))
        if self.classes < 2:
            raise ConfigError(f"classes is {self.classes}; it must be 2 or more")


@dataclass(frozen=True)
class Way:
    """One way to spend ε, with what it costs and what it protects."""

    name: str
    settings: str
    """How a configuration asks for it."""
    covers: tuple[Cover, ...]
    """features: each client's against the others, where public bounds prepared them."""
    noise: float
    """σ of one number of a mean that is released, as a multiple of what one record is clipped to;
    of randomised response the share of labels that are exchanged."""
    trained: int
    """Numbers of one record that one client reveals in training."""
    predicted: int
    """Numbers of one record that one client reveals for each prediction."""
    rounds: int
    """Queries of one client, an upload being one."""
    megabytes: float
    """Megabytes that all clients send, uncompressed."""
    advantage: float
    """Label advantage."""
    signal: float | None = None
    """Signal to noise of all releases to one client (`vertizo.privacy.accounting.forecast`)."""


def ways(case: Case, epsilon: float, delta: float, tangents: int) -> list[Way]:
    """All ways to spend ε; ``tangents`` is K of a tangent query. Raises as `calibrate`."""
    positive("epsilon", epsilon)
    fraction("delta", delta)
    width, clients, records = case.width, case.clients, case.records
    gaussian = delta_of(mu_of(epsilon, delta), 0.0)
    batch = min(max(records // 20, 64), 2000, records)
    left = forecast.rarity(case.positives)

    def noised(queries: int) -> float:
        """σ/C of replies to so many queries of every client; the server's updates take more."""
        return guarantee.calibrate(epsilon, delta, clients=clients, queries=queries).reply

    response = RandomisedResponse(epsilon, case.classes, os.urandom)
    exchanged = 1 - response.keep
    teacher = moved(relabelled(1.0)) / mu_of(epsilon, delta) / records
    uploads, points = math.ceil(TEACHER_NUMBERS / clients), (1 + tangents) * width
    batches = EPOCHS * math.ceil(records / batch)
    labels: tuple[Cover, ...] = ("labels",)
    both: tuple[Cover, ...] = ("labels", "features")
    # Settings, what is covered, noise, numbers to train, rounds.
    rows = {
        "DPZV": ("method: dpzv", both, noised(EPOCHS) / batch, 2 * width * EPOCHS, batches),
        "tangent": ("method: tangent", labels, noised(SWEEPS) / records, SWEEPS * points, SWEEPS),
        "statistic": ("method: label-statistic", both, noised(1) / records, points, 1),
        "teacher": ("mechanism: teacher", labels, teacher, uploads + width * EPOCHS, 1 + batches),
        "response": ("mechanism: randomised-response", labels, exchanged, width * EPOCHS, batches),
        "one-shot": ("method: one-shot", both, 0.0, UPLOADED, 1),
    }
    advantages = {"response": response.keep - response.other, "one-shot": 0.0}
    found = []
    for name, (settings, covers, noise, trained, rounds) in rows.items():
        signal = None
        if name in SIGNALS:
            numbers = 1 if name == "DPZV" else tangents
            signal = forecast.of_queries(SIGNALS[name] * left, noise, rounds, numbers)
        predicted = UPLOADED if name == "one-shot" else width
        sent, advantage = 4e-6 * trained * records * clients, advantages.get(name, gaussian)
        about = noise, trained, predicted, rounds, sent, advantage, signal
        found.append(Way(name, settings, covers, *about))
    return found


def table(found: Sequence[Way]) -> list[list[str]]:
    """A table for people: headings with a column for each way, then a row for each figure."""
    return [
        ["", *(way.name for way in found)],
        ["covers", *("labels" if len(way.covers) == 1 else "all" for way in found)],
        ["noise", *(f"{way.noise:.2g}" for way in found)],
        ["signal / noise", *(forecast.text(way.signal) for way in found)],
        ["numbers to train", *(f"{way.trained:,}" for way in found)],
        ["numbers to predict", *(f"{way.predicted:,}" for way in found)],
        ["rounds", *(f"{way.rounds:,}" for way in found)],
        ["MB sent", *(f"{way.megabytes:,.3g}" for way in found)],
        ["label advantage", *(label_advantage.text(way.advantage) for way in found)],
    ]


def three_ways(found: Sequence[Way], advised: Way, epsilon: float) -> list[str]:
    """Sentences on which way fits which federation: without labels, under ε, or unprotected."""
    uploaded = next(way for way in found if way.name == "one-shot").trained
    return [
        "If the model may stay with the label holder: method one-shot, at ε = 0. Clients upload up "
        f"to {uploaded} numbers of each record (client.model.outputs), made without labels, and "
        "get nothing back. With so many it predicted better on our tables than what is advised "
        "under ε = 1; with one number of each, training under ε = 1 did.",
        f"If the model is handed on, or fewer numbers are to be given away: {advised.settings}, "
        f"at ε = {epsilon:g}. Embeddings of one or two numbers (client.model.outputs) tell least.",
        "If nothing has to be guaranteed: method auto without an ε, which predicts best. Clients "
        "can tell labels from what they are sent.",
    ]


def chosen(found: Sequence[Way], case: Case, epsilon: float, cover: Cover) -> tuple[Way, str]:
    """The way that is advised for a federation, and why."""
    by_name = {way.name: way for way in found}
    if cover == "features":
        if case.width <= NARROW:
            why = "a reply has nothing of other clients in it, and one release is all there is"
            return by_name["statistic"], why
        why = "its replies alone carry noise that covers features as well as labels, at this width"
        return by_name["DPZV"], why
    if case.width <= NARROW and case.classes == 2:
        if (by_name["tangent"].signal or 0.0) < forecast.LITTLE:
            why = "records are few: one release for everything has the least noise"
            return by_name["statistic"], why
        why = (
            "embeddings are narrow: few queries tell all; label-statistic did as well on our tables"
        )
        return by_name["tangent"], why
    if mechanism_for(epsilon, teachable=True) == "randomised-response":
        share = by_name["response"].noise
        why = f"{100 * (1 - share):.0f} % of labels stay right, and training on them is free"
        return by_name["response"], why
    why = "one release pays for any number of rounds, and its labels are right more often"
    return by_name["teacher"], why
