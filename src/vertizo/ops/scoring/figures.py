"""Figures of online scores for monitoring."""

from __future__ import annotations

from collections.abc import Iterator

from vertizo.network.transport.grpc import GrpcServer
from vertizo.network.transport.grpc_channel import GrpcChannel
from vertizo.ops.figures import Figure, about, certificates, connected, silence
from vertizo.ops.scoring.member import ScoringMember
from vertizo.ops.scoring.scorer import Scorer
from vertizo.ops.scoring.service import ScoringService

NOBODY = "(no key)"
"""Name, in figures, of callers without a key."""


class MemberFigures:
    """The figures of a member: records that it was asked for."""

    def __init__(self, channel: GrpcChannel, job: str, party: str) -> None:
        self._channel = channel
        self._about = {"job": job, "party": party, "role": "member"}
        self.member: ScoringMember | None = None
        """The member; None until it is made."""

    def __call__(self) -> Iterator[Figure]:
        """Yield all figures, as they are now."""
        channel, member = self._channel, self.member
        yield about(self._about)
        yield from certificates(channel.credentials, {})
        yield silence("label holder", channel.silence)
        yield connected(channel)
        if member is not None:
            words = "Records that were asked for, and of these those that were there."
            for kind, count in (("asked", member.answered), ("found", member.found)):
                yield Figure("vertizo_lookups_total", words, count, {"kind": kind})


class ScoringFigures:
    """The figures of a label holder: requests, records and members."""

    def __init__(
        self, service: ScoringService, scorer: Scorer, server: GrpcServer, job: str, party: str
    ) -> None:
        self._service, self._scorer, self._server = service, scorer, server
        self._about = {"job": job, "party": party, "role": "label holder"}

    def __call__(self) -> Iterator[Figure]:
        """Yield all figures, as they are now."""
        service, server = self._service, self._server
        yield about(self._about)
        yield from certificates(server.credentials, server.seen)
        away = set(service.missing())
        for member, seconds in service.silences().items():
            yield silence(member, seconds)
            words = "1 while there is a connection to a member."
            yield Figure("vertizo_member_connected", words, member not in away, {"member": member})
        for member, count in service.refusals().items():
            words = "Asks that were refused, since the process began."
            yield Figure("vertizo_refusals_total", words, count, {"member": member})
        for kind, count in (("sent", service.found), ("kept", service.remembered)):
            words = "Embeddings that scores took, sent by a member or kept from before."
            yield Figure("vertizo_score_embeddings_total", words, count, {"from": kind})
        for name, counts in list(self._scorer.counts.items()):
            whose = {"caller": name or NOBODY}
            for outcome, count in list(counts.outcomes.items()):
                words = "Requests for scores, by what became of them."
                labels = {**whose, "outcome": outcome}
                yield Figure("vertizo_score_requests_total", words, count, labels)
            words = "Records that were scored."
            yield Figure("vertizo_scored_records_total", words, counts.records, whose)
            words = "Seconds in which requests for scores were answered."
            yield Figure("vertizo_score_seconds_total", words, counts.seconds, whose)
