"""The privacy cost of all trainings of a study of worth, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError
from vertizo.lab.tuning.composition import together
from vertizo.lab.tuning.privacy import Planned, beside
from vertizo.privacy.accounting.events import SecretSteps
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.privacy.options import ON_LABELS
from vertizo.run.build.label_free import controlled

STAYS = (
    "The figures are made of raw test labels, which nothing covers: they stay "
    "with the label holder."
)


def check_mechanism(config: ExperimentConfig) -> None:
    """Raise a `ConfigError` for private labels that a study of worth cannot share or use."""
    privacy = controlled(config).privacy
    if privacy.mechanism == "teacher":
        raise ConfigError(
            "privacy.mechanism is 'teacher', whose labels are made of all parties' columns, so "
            "that no party would be left out; use 'gaussian' or 'randomised-response'"
        )
    if privacy.mechanism in ON_LABELS and privacy.ledger is None:
        raise ConfigError(
            f"privacy.mechanism {privacy.mechanism!r} would make labels anew in every training; "
            "set privacy.ledger to a file, which keeps those of the first"
        )


def check_ledger(
    config: ExperimentConfig, open_runs: Sequence[tuple[Sequence[int], Planned]]
) -> None:
    """Check that a ledger can pay for all trainings to come, each with its clients' places in it.

    ConfigError if it is for server steps of other constants, RunError if it cannot pay for all.
    """
    path = controlled(config).privacy.ledger
    if path is None or config.privacy.mechanism in ON_LABELS or not open_runs:
        return
    tally = DurableLedger.inspect(path)
    left = tally.budget.share - tally.charged.max(1).astype(np.int64)
    steps = tally.steps_left
    if max(max(seats) for seats, _ in open_runs) >= len(left):
        return  # it is of other parties: the first training says so
    for paid, (seats, one) in enumerate(open_runs):
        if one.releases is None:
            return
        check_steps(config, one.releases.secret, tally.budget.secret)
        left[list(seats)] -= one.releases.share
        steps -= one.releases.secret.count if one.releases.secret is not None else 0
        if left.min() < 0 or steps < 0:
            raise RunError(
                f"the ledger {path} can pay for {paid} of the {len(open_runs)} trainings to come; "
                "use --no-shapley, which makes fewer, or a ledger for more runs (`vertizo privacy "
                f"ledger create FILE CONFIG --runs {len(open_runs) + 1}`)"
            )


def check_steps(
    config: ExperimentConfig, steps: SecretSteps | None, known: SecretSteps | None
) -> None:
    """Raise a `ConfigError` for secret steps of other constants than the ledger's.

    A federation of fewer parties makes fewer steps, with other noise at the same ε.
    """
    if steps is None or known is None:
        return
    ours, theirs = steps.noise_multiplier, known.noise_multiplier
    if (steps.sampling, ours) != (known.sampling, theirs):
        raise ConfigError(
            f"server.update is {config.server.update!r}, and the ledger {config.privacy.ledger} is "
            f"for steps with z = {theirs:.6g}, where a federation of fewer parties has "
            f"z = {ours:.6g} at the same ε; use a server.update whose ε a ledger adds up "
            "('private-sgd' or 'none'), or leave privacy.ledger out"
        )


def cost_of(config: ExperimentConfig, plans: Sequence[Planned]) -> dict[str, Any]:
    """Compute the cost of all trainings together: ``words``, and ε where there is a guarantee."""
    first, count = plans[0].statement, len(plans)
    config = controlled(config)
    ledger = config.privacy.ledger
    found: dict[str, Any] = {
        "trainings": count,
        "guarantee": first.guarantee,
        "ledger": None if ledger is None else str(ledger),
    }
    trained = f"{count} training{'s were' if count > 1 else ' was'} made"
    if not all(one.statement.is_bounded for one in plans):
        words = next(one.statement.words for one in plans if not one.statement.is_bounded)
        said = f"{trained}. That goes for each: {words}" if count > 1 else f"{trained}. {words}"
        return found | {"guarantee": "none", "words": [said, STAYS]}
    each, delta = max(one.statement.epsilon or 0.0 for one in plans), first.delta or 0.0
    covers = [x for x in first.covers if all(x in one.statement.covers for one in plans)]
    on_labels = config.privacy.mechanism in ON_LABELS
    total = each if on_labels else _total(plans, delta)
    found |= {
        "epsilon_each": each,
        "epsilon_together": None if math.isinf(total) else total,
        "delta": delta,
        "covers": covers,
    }
    single = f"{trained}, each by itself ε = {bound_text(each)} at δ = {delta:g}"
    if on_labels:
        words = f"{single}. All read the private labels in {ledger}: together they cost no more."
        return found | {"words": [words + beside([one.statement for one in plans]), STAYS]}
    bound = "no ε can be shown" if math.isinf(total) else f"ε = {bound_text(total)}"
    whole = [
        f"{single}; all together, by exact composition: {bound} for each training record "
        f"({', '.join(covers)}), against all parties together, whichever trainings they were in."
    ]
    if first.guarantee == "simulated":
        whole.append(
            "That is simulated: as if each training's noise were secret, which seeded noise is not."
        )
    if rest := beside([one.statement for one in plans]):
        whole.append(rest.strip())
    if ledger is not None:
        whole.append(
            f"All were charged to the ledger {ledger}: all runs that draw on it together have "
            f"{DurableLedger.stated(ledger)}."
        )
    elif total > 0:
        whole.append(
            "No ledger counts them: set privacy.ledger, and further runs on these records count on."
        )
    return found | {"words": [*whole, STAYS]}


def _total(plans: Sequence[Planned], delta: float) -> float:
    """Compose ε of all trainings at δ; infinite if the releases of one are unknown."""
    if all(one.statement.epsilon == 0 and one.statement.delta == 0 for one in plans):
        return 0.0
    known = [one.releases for one in plans if one.releases is not None]
    return together(known, delta) if len(known) == len(plans) else math.inf


def beforehand(config: ExperimentConfig, plans: Sequence[Planned], to_come: int) -> str:
    """Write a line on the trainings to be made, and their privacy cost."""
    config = controlled(config)
    cost, ledger, count = cost_of(config, plans), config.privacy.ledger, len(plans)
    parts = [f"{count} training{'s' * (count > 1)}"]
    if to_come < count:
        parts[0] += f", {to_come or 'none'} of them still to be begun"
    if "epsilon_each" not in cost:
        parts.append("without a guarantee")
    elif config.privacy.mechanism in ON_LABELS:
        parts.append(
            f"all on the private labels in {ledger}, ε = {bound_text(cost['epsilon_each'])}"
        )
    else:
        total = cost["epsilon_together"]
        whole = "no ε" if total is None else f"ε = {bound_text(total)}"
        parts.append(
            f"each ε = {bound_text(cost['epsilon_each'])}, all together {whole} at δ = "
            f"{cost['delta']:g} ({cost['guarantee']})"
        )
        if ledger is not None and to_come:
            parts.append(f"{to_come} to be charged to {ledger}, which pays for all of them")
    return "; ".join(parts)
