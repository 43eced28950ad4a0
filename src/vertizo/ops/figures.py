"""Figures of a job, or of online scores, for monitoring, read from meters that are there anyway.

No figure depends on a label or on a secret sample: whoever reads them learns how far the job is,
which every member knows, and how much traffic there was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from cryptography.x509 import load_pem_x509_certificates

from vertizo.core.version import VERSION
from vertizo.network.serving.frames import PROTOCOL
from vertizo.network.serving.joining import Member, Progress
from vertizo.network.serving.service import MemberService
from vertizo.network.serving.serving import FederationService
from vertizo.network.transport.certificates import Credentials, common_name_of
from vertizo.network.transport.grpc import GrpcServer
from vertizo.network.transport.grpc_channel import GrpcChannel
from vertizo.privacy.accounting.guarantee import epsilon_charged
from vertizo.run.loop.job_state import STAGES, JobState

if TYPE_CHECKING:
    from vertizo.ops.scoring.member import ScoringMember
    from vertizo.ops.scoring.scorer import Scorer
    from vertizo.ops.scoring.service import ScoringService

LEISURE = 50.0
"""Factor: ε is computed again only after so many times as long as computing it took."""
NOBODY = "(no key)"
"""Name, in figures, of callers without a key."""


class Figure(NamedTuple):
    """One number, by the name that Prometheus gives it; counters end in ``_total``."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = {}


class ServedFigures:
    """The figures of a job at its label holder."""

    def __init__(
        self, service: FederationService, server: GrpcServer, job: str, party: str
    ) -> None:
        self._service, self._server, self._names = service, server, (job, party)
        self._epsilon: float | None = None
        self._due = 0.0

    def __call__(self) -> Iterator[Figure]:
        """Yield all figures, as they are now."""
        service, server = self._service, self._server
        yield from _served(service, server, *self._names)
        words = "Connections of parties that are no members, since the process began."
        yield Figure("vertizo_strangers_total", words, server.strangers)
        traffic = service.traffic
        for up, kind, count in (
            ("up", "training", traffic.up),
            ("up", "table", traffic.table),
            ("up", "evaluation", traffic.evaluation),
            ("down", "training", traffic.down),
        ):
            yield _bytes(count, up, kind)
        state = service.state
        phase = "waiting" if state is None else state.phase
        for name in ("waiting", *STAGES):
            words = "1 for the phase that the job is in."
            yield Figure("vertizo_phase", words, name == phase, {"phase": name})
        if state is None:
            return
        job, made = state.job, state.job.party.round
        yield Figure("vertizo_rounds_total", "Steps of the server in this job.", made)
        yield Figure("vertizo_rounds_planned", "Steps that the whole job has.", job.rounds)
        yield _epoch(made / job.rounds_per_epoch)
        if (epsilon := job.statement.epsilon) is not None:
            words = "ε that the whole job is stated to cost."
            yield Figure("vertizo_epsilon_stated", words, epsilon)
        if (charged := self._charged(state)) is not None:
            words = "ε of all that the ledger was charged so far, by all its jobs; rounded up."
            yield Figure("vertizo_epsilon_charged", words, charged)

    def _charged(self, state: JobState) -> float | None:
        """ε of the charges in the ledger, computed in a fiftieth of the time at most; or None."""
        plan, delta = state.job.party.side.plan, state.job.statement.delta
        if plan.releases is None or delta is None or (charges := plan.charges()) is None:
            return None
        began = time.monotonic()
        if self._epsilon is None or began >= self._due:
            self._epsilon = epsilon_charged(plan.releases, delta, charges)
            took = time.monotonic() - began
            self._due = began + LEISURE * took
        return self._epsilon


def joined_figures(
    member: Member,
    channel: GrpcChannel,
    job: str,
    party: str,
    progress: Callable[[], Progress | None],
) -> Iterator[Figure]:
    """Yield the figures of a job at a member; ``progress`` gives its last progress."""
    yield from _joined(channel, job, party)
    if (here := progress()) is not None:
        yield Figure("vertizo_queries_total", "Queries answered.", here.answered)
        yield Figure("vertizo_queries_planned", "Queries of the whole job.", here.total)
        yield _epoch(member.settings.epochs * here.answered / here.total)
        yield _bytes(here.sent, "up", "all")
        yield _bytes(here.received, "down", "all")


def scoring_figures(
    service: ScoringService, scorer: Scorer, server: GrpcServer, job: str, party: str
) -> Iterator[Figure]:
    """Yield the figures of online scores at a label holder: requests, records and members."""
    yield from _served(service, server, job, party)
    away = set(service.missing())
    for member in service.members:
        words = "1 while there is a connection to a member."
        yield Figure("vertizo_member_connected", words, member not in away, {"member": member})
    for kind, count in (("sent", service.found), ("kept", service.remembered)):
        words = "Embeddings that scores took, sent by a member or kept from before."
        yield Figure("vertizo_score_embeddings_total", words, count, {"from": kind})
    for name, counts in list(scorer.counts.items()):
        whose = {"caller": name or NOBODY}
        for outcome, count in list(counts.outcomes.items()):
            words = "Requests for scores, by what became of them."
            labels = {**whose, "outcome": outcome}
            yield Figure("vertizo_score_requests_total", words, count, labels)
        words = "Records that were scored."
        yield Figure("vertizo_scored_records_total", words, counts.records, whose)
        words = "Seconds in which requests for scores were answered."
        yield Figure("vertizo_score_seconds_total", words, counts.seconds, whose)


def lookup_figures(
    member: ScoringMember, channel: GrpcChannel, job: str, party: str
) -> Iterator[Figure]:
    """Yield the figures of online scores at a member: records that it was asked for."""
    yield from _joined(channel, job, party)
    words = "Records that were asked for, and of these those that were there."
    for kind, count in (("asked", member.answered), ("found", member.found)):
        yield Figure("vertizo_lookups_total", words, count, {"kind": kind})


def _served(service: MemberService, server: GrpcServer, job: str, party: str) -> Iterator[Figure]:
    """Yield what is told of every service of a label holder."""
    yield from _about(job, party, "label holder", server.credentials, server.seen)
    for member, seconds in service.silences().items():
        yield _silence(member, seconds)
    for member, count in service.refusals().items():
        words = "Asks that were refused, since the process began."
        yield Figure("vertizo_refusals_total", words, count, {"member": member})


def _joined(channel: GrpcChannel, job: str, party: str) -> Iterator[Figure]:
    """Yield what is told of every connection of a member."""
    yield from _about(job, party, "member", channel.credentials, {})
    yield _silence("label holder", channel.silence)
    words = "1 while there is a connection to the label holder."
    yield Figure("vertizo_connected", words, channel.is_connected)


def _about(
    job: str, party: str, role: str, mine: Credentials, others: Mapping[str, datetime]
) -> Iterator[Figure]:
    """Yield what runs here, and the days to the end of certificates.

    The certificates are this party's, its authorities', and ``others``: party → end.
    """
    labels = {"job": job, "party": party, "role": role}
    labels |= {"version": VERSION, "protocol": str(PROTOCOL)}
    yield Figure("vertizo_info", "1, and what runs here.", 1, labels)
    for kind, pem in (("own", mine.certificate), ("authority", mine.authority)):
        for one in load_pem_x509_certificates(pem):
            yield _days(common_name_of(one), kind, one.not_valid_after_utc)
    for name, ends in dict(others).items():
        yield _days(name, "member", ends)


def _silence(party: str, seconds: float) -> Figure:
    words = "Seconds since a party was heard, or since the process began."
    return Figure("vertizo_silence_seconds", words, seconds, {"party": party})


def _epoch(passes: float) -> Figure:
    return Figure("vertizo_epoch", "Passes over the training records, with fractions.", passes)


def _bytes(count: int, direction: str, kind: str) -> Figure:
    words = "Bytes of frames to the label holder (up) and from it (down), over the whole job."
    return Figure("vertizo_bytes_total", words, count, {"direction": direction, "kind": kind})


def _days(party: str, kind: str, ends: datetime) -> Figure:
    days = (ends - datetime.now(UTC)).total_seconds() / 86_400
    words = "Days to the end of a certificate; below 0, it has expired."
    return Figure("vertizo_certificate_days", words, days, {"party": party, "kind": kind})
