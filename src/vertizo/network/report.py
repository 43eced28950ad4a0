"""What a served job leaves behind: rows of figures, and the summary at the end."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vertizo.core.errors import RunError
from vertizo.core.version import VERSION
from vertizo.models.base import State, copied
from vertizo.models.losses import Classification
from vertizo.party.metrics import Scores
from vertizo.run.simulator import Traffic

if TYPE_CHECKING:
    from vertizo.network.job import Job
    from vertizo.network.job_state import Course


def scored(course: Course, best: Callable[[], State]) -> tuple[Scores, State]:
    """Score the evaluation under way, all of whose embeddings are there.

    Args:
        course: of the job.
        best: gives the model's state of the best evaluation, for one that is of it.

    Returns:
        The scores, and the model's state now, which it has again.

    Raises:
        RunError: training diverged.
    """
    purpose, party = course.evaluations.purpose, course.job.party
    assert purpose is not None, "an evaluation is under way"
    model = party.side.model.model
    now = copied(model.state())
    if course.evaluations.model == "best":
        model.load(best())
    found = party.score(purpose)
    model.load(now)
    if not math.isfinite(found["loss"]):
        raise RunError(
            f"training diverged: the {purpose} loss is {found['loss']} in round {party.round}; "
            "lower client.optimizer.learning_rate or server.optimizer.learning_rate"
        )
    return found, now


def evaluation_row(
    course: Course, traffic: Traffic, seconds: float, found: Scores
) -> dict[str, Any]:
    """One line of ``metrics.jsonl``: of the evaluation under way, whose scores are ``found``."""
    job = course.job
    meter, seen = job.party.side.meter, job.party.side.meter.records
    row: dict[str, Any] = {
        "number": course.evaluations.number,
        "model": course.evaluations.model,
        "round": job.party.round,
        "epoch": job.party.round / _rounds_per_epoch(job),
        "seconds": seconds,
        "bytes_up": traffic.up,
        "bytes_down": traffic.down,
        "train_loss": meter.loss / seen if seen else None,
    }
    if isinstance(job.data.task, Classification):
        row["train_accuracy"] = meter.correct / seen if seen else None
    party, staleness = job.party, job.party.staleness
    improves = course.evaluations.purpose == "validation" and party.round > 0
    row["queries"] = [party.next_number(client) for client in range(party.clients)]
    row["staleness_mean"] = staleness.recent_mean
    row["staleness_max"] = None if staleness.recent_mean is None else staleness.recent_largest
    row |= {f"{course.evaluations.purpose}_{name}": value for name, value in found.items()}
    row["improved"] = improves and course.evaluations.is_best(row)
    return row


def _rounds_per_epoch(job: Job) -> float:
    clients = 1 if job.synchronous else job.party.clients
    return job.queries / job.config.epochs * clients


def summary_of(course: Course, traffic: Traffic, seconds: float) -> dict[str, Any]:
    """The closing figures; what could not be scored without a silent member is None."""
    job, config = course.job, course.job.config
    party, last, best = job.party, course.scores.get("last"), course.scores.get("best")
    has_best = course.evaluations.best is not None
    chosen = best if has_best else last

    def tested(row: dict[str, Any] | None) -> dict[str, Any] | None:
        if row is None:
            return None
        return {name: value for name, value in row.items() if name.startswith("test_")}

    return {
        "version": VERSION,
        "method": config.method.name,
        "dataset": job.data.name,
        "parties": list(job.data.parties),
        "clients": party.clients,
        "records": job.data.records,
        "classes": job.data.class_names and list(job.data.class_names),
        "control": config.control,
        "timing": config.simulation.timing,
        "rounds": party.round,
        "epochs": party.round / _rounds_per_epoch(job),
        "model": "best" if has_best else "last",
        **(tested(chosen) or {}),
        "last": tested(last),
        "best": course.evaluations.best,
        "bytes_up": traffic.up,
        "bytes_down": traffic.down,
        "bytes_table": traffic.table,
        "bytes_evaluation": traffic.evaluation,
        "seconds": seconds,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "parameters": {"server": party.side.model.parameters.numel()},
        "learning_rates": {"server": party.side.learning_rate},
        "staleness": {"mean": party.staleness.mean, "max": party.staleness.largest},
        "queries": [party.next_number(client) for client in range(party.clients)],
        "clip_fraction": party.side.plan.clip_fraction,
        "privacy": job.statement.as_dict(),
    }
