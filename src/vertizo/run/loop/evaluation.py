"""The figures of a run, simulated or served: of each evaluation, and the summary at its end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vertizo.core.errors import NonFiniteError, RunError
from vertizo.core.memory import of_card
from vertizo.core.system import peak_memory
from vertizo.core.version import VERSION
from vertizo.models.losses import MultiLabel, Regression
from vertizo.party.closing_scores import LEVEL, resamples
from vertizo.party.final_head import MISSING, WORDS, Chosen
from vertizo.party.metrics import Scores, chosen_by
from vertizo.protocol.messages import Purpose
from vertizo.run.build.labels import are_protected
from vertizo.run.loop.job_state import Job, JobState, Which
from vertizo.run.loop.traffic import Traffic
from vertizo.run.results.provenance import now

HEAD, CHOSEN = "raw_head", "chosen_head"
"""Keys of the raw head, and of how it was chosen, in summaries, checkpoints and rows."""
WORSE = (
    "Its loss on test records is above the private head's; predictions are the private head's "
    "unless the raw one is asked for."
)
"""Words added to those on a raw head that does worse than the private one."""
INTERVALS = "percentiles of a bootstrap over test records"
TESTED = "test_scores"
"""Name of the checkpoint that keeps what `tested` returns."""


def score(job: Job, purpose: Purpose, *, closing: bool = False) -> Scores:
    """Score a partition whose embeddings have all been uploaded; empty if it has no records.

    When ``closing``, test records have all figures of `vertizo.party.closing_scores`.
    Raises NonFiniteError if training diverged; `diverged` says what to do. If labels are protected,
    predictions alone decide that, since members see when a job ends: labels that are far from all
    predictions may make the loss infinite.
    """
    if not len(job.data.labels[purpose]):
        return {}
    if purpose == "train":
        return job.party.score_head()
    if job.config.is_label_free:  # the server's model is not trained; how long a score takes, and
        job.party.used(purpose)  # what it is, would depend on labels before members were told
        return {}
    scores = job.party.score(purpose, whole=closing and purpose == "test")
    of_labels = are_protected(job.config) and job.party.scoring.is_finite
    if not math.isfinite(scores["loss"]) and not of_labels:
        raise NonFiniteError(f"the {purpose} loss is {scores['loss']}")
    return scores


def diverged(job: Job, error: NonFiniteError) -> RunError:
    """The error of a run whose numbers are no longer finite, with advice."""
    return RunError(
        f"training diverged in round {job.party.round}: {error}; "
        "lower client.optimizer.learning_rate or server.optimizer.learning_rate, or raise "
        "method.smoothing if it is very small"
    )


def evaluation_row(
    job: Job, purpose: Purpose, scores: Scores, traffic: Traffic, times: Mapping[str, float]
) -> dict[str, Any]:
    """Make a line of ``metrics.jsonl``: scores on a partition, traffic and times so far.

    The job's meters count since the last evaluation.
    """
    party, meter, staleness = job.party, job.party.side.meter.read(), job.party.staleness.read()
    seen, mean = meter.records, staleness.recent_mean
    row: dict[str, Any] = {
        "round": party.round,
        "epoch": party.round / job.rounds_per_epoch,
        **times,
        "bytes_up": traffic.up,
        "bytes_down": traffic.down,
        "train_loss": meter.loss / seen if seen else None,
    }
    if not isinstance(job.data.task, Regression):
        row["train_accuracy"] = meter.correct / seen if seen else None
    row["queries"] = [party.next_number(client) for client in range(party.clients)]
    row["staleness_mean"] = mean
    row["staleness_max"] = None if mean is None else staleness.recent_largest
    if purpose == "train" and isinstance(party.head, Chosen):
        row[CHOSEN] = {"kind": party.head.kind, "tried": party.head.tried}
    of = HEAD if purpose == "train" else purpose
    return row | {f"{of}_{name}": value for name, value in scores.items()}


def _head(state: JobState) -> dict[str, Any]:
    """The section of a summary about the raw head; empty if none was wanted."""
    kind, row = state.job.config.server.final_head, state.scores.get("head")
    if kind == "private":
        return {}
    if row is None:
        return {HEAD: {"kind": kind, "words": MISSING}}
    scores = {key.removeprefix(f"{HEAD}_"): row[key] for key in row if key.startswith(f"{HEAD}_")}
    tested = {f"test_{name}": value for name, value in scores.items()}
    return {HEAD: {"kind": kind, **tested, **row.get(CHOSEN, {}), "words": WORDS}}


def tested(job: Job, model: Which) -> dict[str, Any]:
    """The logits [records, outputs] of test records by head, and their labels, for a checkpoint.

    Empty if this process has not scored all test records.
    """
    logits = job.party.scoring.tested
    if not logits:
        return {}
    kept = {"model": "last" if model == "now" else model, "labels": job.data.labels["test"]}
    return kept | {"logits": dict(logits), "positive": getattr(job.data.task, "positive", None)}


def summary_of(state: JobState, traffic: Traffic, seconds: float) -> dict[str, Any]:
    """Make the closing figures; those that needed a silent member's embeddings are None."""
    job, config, party, task = state.job, state.job.config, state.job.party, state.job.data.task
    model = "last" if state.evaluations.best is None else "best"
    head, tests = _head(state), len(job.data.labels["test"])
    scored, of = state.evaluations.best or state.last, f"{job.progress}_"

    def of_tests(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if not row:
            return None
        return {key: value for key, value in row.items() if key.startswith("test_")}

    raw, last, tested = head.get(HEAD, {}), state.scores.get("last"), state.scores.get(model)
    if config.is_label_free:  # there is no other head
        last = tested = scored = raw
        of = "test_"
    elif config.predicts_by == "raw" and "test_loss" in raw:
        tested = raw
    shown = of_tests(tested) or {}
    if raw.get("test_loss", -math.inf) > shown.get("test_loss", math.inf):
        head = {HEAD: {**raw, "words": f"{raw['words']} {WORSE}"}}
    return {
        "version": VERSION,
        "method": config.method.name,
        "dataset": job.data.name,
        "parties": list(job.data.parties),
        "clients": party.clients,
        "numbers": list(party.side.table.dims),
        "records": job.data.records,
        "classes": job.data.class_names and list(job.data.class_names),
        "positive": job.data.positive,
        **({"labels": list(task.names)} if isinstance(task, MultiLabel) else {}),
        "control": config.control,
        "timing": config.simulation.timing,
        "mechanism": config.privacy.mechanism,
        "rounds": party.round,
        "epochs": party.round / job.rounds_per_epoch,
        **({"stopped_early": state.stopping.is_due} if state.stopping.options.is_wanted else {}),
        "model": model,
        "metric": chosen_by(scored, of),
        "intervals": {"method": INTERVALS, "level": LEVEL, "resamples": resamples(tests)},
        **shown,
        "last": of_tests(last),
        "best": state.evaluations.best,
        **head,
        "bytes_up": traffic.up,
        "bytes_down": traffic.down,
        "bytes_table": traffic.table,
        "bytes_evaluation": traffic.evaluation,
        "finished": now(),
        "seconds": seconds,
        "peak_memory_mib": peak_memory(),
        **({} if (card := of_card()) is None else {"card_memory_mib": 1024 * card[0]}),
        "parameters": {"server": party.side.model.parameters.numel()},
        "learning_rates": {"server": party.side.learning_rate},
        "staleness": {"mean": party.staleness.read().mean, "max": party.staleness.largest},
        "clip_fraction": party.side.plan.clip_fraction,
        "privacy": job.statement.as_dict(),
    }
