"""Figures of a running job for monitoring, read from the meters that it keeps anyway.

No figure depends on a label or on a secret sample: whoever reads them learns how far the job is,
which every member knows, and how much traffic there was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from cryptography.x509 import load_pem_x509_certificates

from vertizo.core.version import VERSION
from vertizo.network.serving.frames import PROTOCOL
from vertizo.network.serving.joining import Member, Progress
from vertizo.network.serving.serving import FederationService
from vertizo.network.transport.certificates import Credentials, common_name_of
from vertizo.network.transport.grpc import GrpcServer
from vertizo.network.transport.grpc_channel import GrpcChannel
from vertizo.privacy.accounting.guarantee import epsilon_charged
from vertizo.run.loop.job_state import STAGES, JobState

LEISURE = 50.0
"""Factor: ε is computed again only after so many times as long as computing it took."""


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
        self._service, self._server = service, server
        self._about = {"job": job, "party": party, "role": "label holder"}
        self._epsilon: float | None = None
        self._due = 0.0

    def __call__(self) -> Iterator[Figure]:
        """Yield all figures, as they are now."""
        service, server = self._service, self._server
        yield about(self._about)
        yield from certificates(server.credentials, server.seen)
        for member, seconds in service.silences().items():
            yield silence(member, seconds)
        for member, count in service.refusals().items():
            words = "Asks that were refused, since the process began."
            yield Figure("vertizo_refusals_total", words, count, {"member": member})
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
        if state is not None:
            yield from self._of(state)

    def _of(self, state: JobState) -> Iterator[Figure]:
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


class JoinedFigures:
    """The figures of a job at a member; ``progress`` gives its last progress."""

    def __init__(
        self,
        member: Member,
        channel: GrpcChannel,
        job: str,
        party: str,
        progress: Callable[[], Progress | None],
    ) -> None:
        self._member, self._channel, self._progress = member, channel, progress
        self._about = {"job": job, "party": party, "role": "member"}

    def __call__(self) -> Iterator[Figure]:
        """Yield all figures, as they are now."""
        channel = self._channel
        yield about(self._about)
        yield from certificates(channel.credentials, {})
        yield silence("label holder", channel.silence)
        yield connected(channel)
        if (here := self._progress()) is not None:
            yield Figure("vertizo_queries_total", "Queries answered.", here.answered)
            yield Figure("vertizo_queries_planned", "Queries of the whole job.", here.total)
            yield _epoch(self._member.settings.epochs * here.answered / here.total)
            yield _bytes(here.sent, "up", "all")
            yield _bytes(here.received, "down", "all")


def about(party: Mapping[str, str]) -> Figure:
    """The figure that names the job, the party and its version."""
    labels = {**party, "version": VERSION, "protocol": str(PROTOCOL)}
    return Figure("vertizo_info", "1, and what runs here.", 1, labels)


def silence(party: str, seconds: float) -> Figure:
    """The figure of how long another party was not heard."""
    words = "Seconds since a party was heard, or since the process began."
    return Figure("vertizo_silence_seconds", words, seconds, {"party": party})


def connected(channel: GrpcChannel) -> Figure:
    """The figure of whether a member has a connection."""
    words = "1 while there is a connection to the label holder."
    return Figure("vertizo_connected", words, channel.is_connected)


def _epoch(passes: float) -> Figure:
    return Figure("vertizo_epoch", "Passes over the training records, with fractions.", passes)


def _bytes(count: int, direction: str, kind: str) -> Figure:
    words = "Bytes of frames to the label holder (up) and from it (down), over the whole job."
    return Figure("vertizo_bytes_total", words, count, {"direction": direction, "kind": kind})


def certificates(mine: Credentials, others: Mapping[str, datetime]) -> Iterator[Figure]:
    """Yield days to the end of certificates: this party's, its authorities', other parties'."""
    own: Sequence[tuple[str, bytes]] = (("own", mine.certificate), ("authority", mine.authority))
    for kind, pem in own:
        for one in load_pem_x509_certificates(pem):
            yield _days(common_name_of(one), kind, one.not_valid_after_utc)
    for party, ends in dict(others).items():
        yield _days(party, "member", ends)


def _days(party: str, kind: str, ends: datetime) -> Figure:
    days = (ends - datetime.now(UTC)).total_seconds() / 86_400
    words = "Days to the end of a certificate; below 0, it has expired."
    return Figure("vertizo_certificate_days", words, days, {"party": party, "kind": kind})
