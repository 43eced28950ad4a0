"""How far a served job is, in words."""

from __future__ import annotations

from vertizo.network.serving import FederationService
from vertizo.privacy.epsilon_text import bound_text
from vertizo.run.summary_figures import size_text


def stage(service: FederationService) -> str:
    """The job's stage in a word or two, for a log that nobody watches."""
    state = service.state
    if state is None:
        return f"waiting for {', '.join(service.missing())}"
    words = {
        "uploading": "the table is uploaded",
        "closing": "scoring",
        "done": "over; members are told",
    }
    return words.get(state.phase, state.phase)


def progress(service: FederationService) -> tuple[float, str]:
    """How far the job is, and the words beside the bar."""
    state = service.state
    if state is None:
        return 0.0, stage(service)
    job, party = state.job, state.job.party
    if state.phase == "uploading":
        return 0.0, f"table: {size_text(service.traffic.table)}"
    parts = [f"{party.round:,} of {job.rounds:,} rounds"]
    meter = party.side.meter
    if meter.records:
        parts.append(f"loss {meter.loss / meter.records:.3f}")
    accuracy = state.last.get("validation_accuracy", state.last.get("test_accuracy"))
    if accuracy is not None:
        parts.append(f"acc {100 * accuracy:.1f} %")
    parts.append(size_text(service.traffic.up + service.traffic.down))
    epsilon = job.statement.epsilon
    parts.append("no ε" if epsilon is None else f"ε {bound_text(epsilon, 3)}")
    if state.phase != "training":
        parts.append(state.phase)
    return party.round / max(job.rounds, 1), " · ".join(parts)
