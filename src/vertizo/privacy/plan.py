"""The privacy plan: what every number that leaves the server passes through.

The server party asks it to `admit` a query before anything is computed, and to `commit` the answer,
which charges the records, before it leaves. The method hands over one row of values for each record
of the batch and gets back what may be sent; it never names ε. The plan clips, adds noise and
divides, in that order, and can say in a `Statement` what is then guaranteed, and what is not.

Averages divide by the nominal batch size, which is public and fixed, under every plan: a short last
batch then weighs each of its records like any other record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vertizo.core.arrays import graphs
from vertizo.core.errors import ConfigError
from vertizo.core.state import Stateful
from vertizo.core.validate import fraction
from vertizo.privacy.accounting import guarantee, label_advantage
from vertizo.privacy.accounting.events import Charges, Releases
from vertizo.privacy.accounting.gaussian import epsilon_of
from vertizo.privacy.clipping import CountedClip
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.ledger.base import Answered, Entry, Ledger
from vertizo.privacy.noise.mechanisms import NoiseSource
from vertizo.privacy.statement import Statement
from vertizo.protocol.wire import Frame

__all__ = ["Answer", "ClippedGaussian", "ClippedOnly", "NoPrivacy", "Plan"]


LABELS = ("labels",)


@dataclass(frozen=True)
class Answer:
    """A query and the frame that answers it."""

    client: int
    number: int
    query: Frame
    ids: Tensor
    reply: Frame


class Plan(Stateful, ABC):
    """A rule that turns per-record values into what may leave the server.

    A subclass says how it charges and what it releases; the rest has harmless defaults.
    """

    releases: Releases | None = None
    """All releases that may depend on one record; None without noise."""
    noise_std = 0.0
    """σ of each number of a released mean."""
    tolerant = False
    """Whether embeddings that are not finite or too large are mended instead of refused."""
    _ledger: Ledger | None = None

    @abstractmethod
    def admit(self, client: int, ids: Tensor) -> None:
        """Check that these records may be charged for one reply to ``client``; nothing changes.

        Raises:
            BudgetError: a record would be charged too often.
        """

    @abstractmethod
    def commit(self, answers: Sequence[Answer]) -> None:
        """Charge the records of all these answers and keep the replies, which may then leave."""

    @abstractmethod
    def begin_step(self, number: int) -> None:
        """Charge every record for step ``number`` of the server on a secret sample."""

    def answered(self, client: int) -> Answered | None:
        """The last answer to a client, if a ledger keeps it beyond this process."""
        return None if self._ledger is None else self._ledger.answered(client)

    def settle(self) -> None:
        """End the replay after a restart: whatever comes now is charged as new."""
        if self._ledger is not None:
            self._ledger.settle()

    def charges(self) -> Charges | None:
        """What all runs on the ledger's file were charged; None without a file."""
        return None if self._ledger is None else self._ledger.charges()

    @property
    def steps(self) -> int:
        """Secret steps charged so far."""
        return 0 if self._ledger is None else self._ledger.steps

    @abstractmethod
    def total(self, values: Tensor) -> Tensor:
        """Released mean over the batch: [batch] or [batch, K] → [1] or [K]."""

    @abstractmethod
    def each(self, values: Tensor) -> Tensor:
        """Released per-record values divided by the batch size: [batch, K] → [batch, K]."""

    def statement(
        self, *, server_is_private: bool, covers: Sequence[str] = LABELS, records: int | None = None
    ) -> Statement:
        """State what is guaranteed for the training records, of which there are ``records``.

        ``server_is_private`` says whether the server's own updates protect the labels, ``covers``
        which parts of a record pass through nothing but this plan and those updates.
        """
        return Statement("none", "No privacy guarantee: the server's replies carry no noise.")

    @property
    def clip_fraction(self) -> float | None:
        """Share of values that the clip changed so far; for the server's own eyes."""
        return None


class NoPrivacy(Plan):
    """A plan that passes values unchanged but for the division by B, and charges nothing."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size

    def admit(self, client: int, ids: Tensor) -> None:
        """Admit every query."""

    def commit(self, answers: Sequence[Answer]) -> None:
        """Charge nothing."""

    def begin_step(self, number: int) -> None:
        """Charge nothing."""

    def total(self, values: Tensor) -> Tensor:
        """Σ / B."""
        if not values.is_cpu:
            return (values.sum(0) / self._batch_size).to(torch.float32).reshape(-1)
        mean = np.add.reduce(values.numpy(), 0) / self._batch_size
        return torch.from_numpy(np.asarray(mean, np.float32).reshape(-1))

    def each(self, values: Tensor) -> Tensor:
        """Values / B."""
        if not values.is_cpu:
            return values / self._batch_size
        return torch.from_numpy(values.numpy() / self._batch_size)


class ClippedOnly(NoPrivacy):
    """A plan that clips values and adds no noise: what the clip alone costs, and no privacy."""

    STATE = ("_clip",)

    def __init__(self, batch_size: int, clip_norm: float) -> None:
        super().__init__(batch_size)
        self._clip = CountedClip(clip_norm)

    def total(self, values: Tensor) -> Tensor:
        """Σ clip_C(value_i) / B."""
        return super().total(self._clip(values))

    def each(self, values: Tensor) -> Tensor:
        """Each record's clipped values / B."""
        return super().each(self._clip(values).to(values.dtype).reshape(values.shape))

    @property
    def clip_fraction(self) -> float | None:
        """Share of records whose values the clip changed."""
        return self._clip.fraction

    def statement(
        self, *, server_is_private: bool, covers: Sequence[str] = LABELS, records: int | None = None
    ) -> Statement:
        """State that nothing is guaranteed."""
        words = (
            f"No privacy guarantee: the server's replies are clipped to {self._clip.clip.norm:g} "
            "and carry no noise."
        )
        return Statement("none", words, clip=self._clip.clip.norm)


NOT_COVERED = ("validation records", "test records")
"""Records that no guarantee covers: they choose the model or score it, without noise."""
SIMULATED = (
    ", is what the same run with secret noise would guarantee; this run's noise was made from its "
    "seed, and whoever knows the seed can take it off"
)


def in_words(
    figures: Statement, *, about: str = "", how: str = "", source: str = "Noise"
) -> Statement:
    """The statement with the sentence of an exact guarantee, or of a simulated one, called so.

    ``about`` what of a record, ``how`` it is done, and the name of the ``source`` of randomness.
    """
    name, ending = ("Simulated: ", SIMULATED) if figures.guarantee == "simulated" else ("", "")
    each = "each training record"
    if figures.records is not None:
        each = f"each of the {figures.records:,} training records"
    words = (
        f"{name}ε = {bound_text(figures.epsilon or 0.0)} at δ = {figures.delta:g} for {about}"
        f"{each}, against all clients together, malicious ones included{ending}. {how}"
        f"Label advantage: at most {label_advantage.text(figures.label_advantage)}. "
        f"Covered: {', '.join(figures.covers)}. Not covered: {', '.join(figures.not_covered)}. "
        f"{source}: {figures.noise_source}. Counted: {figures.counted}."
    )
    return replace(figures, words=words)


class ClippedGaussian(Plan):
    """``(Σ clip_C(value_i) + N(0, σ² I)) / B``: DPZV's eq. 8 with a clip that bounds both sides.

    One reply; the server party makes the calls, the method gives the values::

        plan.admit(client, ids)            # or refuse, before anything is computed
        values = one row a record          # [batch, K], of the method
        rows = clip(values)                # each to norm C; NaN and infinities become 0
        noised = Σ rows + N(0, σ² I)       # one record moves the sum by clip.sensitivity
        reply = noised / B                 # nominal: public and fixed
        plan.commit([reply's frame])       # charge every record, and keep the frame
        send the frame                     # only now

    σ is the noise on the sum, so that the guarantee does not depend on the batch size. Replacing
    one record moves the sum by at most 2C; a record that is used in k replies has ``μ = 2C√k/σ``,
    over all clients together and for any adaptive choice of batches and embeddings.

    Args:
        releases: all that may ever depend on one record; `Releases.reply` is what is made here.
        delta: δ at which ε is stated.
        published: μ by DPZV's formula, shown beside the guarantee; None where it has none.
        by_formula: whether that formula calibrated the noise; the statement then says so.
    """

    STATE = ("_made", "_clip", "_ledger")
    tolerant = True
    releases: Releases
    _ledger: Ledger

    def __init__(
        self,
        releases: Releases,
        *,
        batch_size: int,
        delta: float,
        ledger: Ledger,
        noise: NoiseSource,
        published: float | None = None,
        by_formula: bool = False,
    ) -> None:
        self.releases = releases
        self.delta = fraction("privacy.delta", delta)
        self._clip = CountedClip(releases.reply.clip_norm)
        clip = self._clip.clip
        if clip.sensitivity / noise.noise_std > releases.reply.mu * (1 + 1e-12):
            raise ConfigError(
                f"noise of σ = {noise.noise_std:g} is too small for clip {clip.norm:g}: "
                f"a reply is counted with μ = {releases.reply.mu:.6g}"
            )
        self._batch_size, self._ledger, self._noise = batch_size, ledger, noise
        self.noise_std = noise.noise_std / batch_size
        self._published, self._by_formula = published, by_formula
        self._made = 0

    def admit(self, client: int, ids: Tensor) -> None:
        """Refuse what would take a record past its budget."""
        self._ledger.admit(client, ids, self.releases.cost)

    def commit(self, answers: Sequence[Answer]) -> None:
        """Charge all of these answers, or none."""
        cost = self.releases.cost
        self._ledger.commit(
            [Entry(a.client, a.number, a.query, a.ids, cost, a.reply) for a in answers]
        )

    def begin_step(self, number: int) -> None:
        """Charge every record for a secret step."""
        self._ledger.begin_step(number)

    def total(self, values: Tensor) -> Tensor:
        """The clipped, noised mean, [K]."""
        return (self._noise.sum(*self._rows(values)) / self._batch_size).to(values.dtype)

    def each(self, values: Tensor) -> Tensor:
        """Every record's values clipped and noised on their own: no averaging hides them."""
        noised = self._noise.each(*self._rows(values.reshape(values.shape[0], -1)))
        return (noised / self._batch_size).to(values.dtype).reshape(values.shape)

    def _rows(self, values: Tensor) -> tuple[int, Tensor]:
        """The number of this release, and each record's clipped contribution, [batch, K]."""
        return graphs.each_call(self._next), self._clip(values)

    def _next(self) -> int:
        self._made += 1
        return self._made - 1

    @property
    def clip_fraction(self) -> float | None:
        """Share of records whose values the clip changed."""
        return self._clip.fraction

    def statement(
        self, *, server_is_private: bool, covers: Sequence[str] = LABELS, records: int | None = None
    ) -> Statement:
        """State an ε if the server's updates are private too; by the formula it is `published`."""
        releases, delta = self.releases, self.delta
        alone, step = releases.replies_alone_mu, releases.step
        published = None if self._published is None else epsilon_of(self._published, delta)
        named = releases.clients * releases.queries
        common = Statement(
            guarantee="none",
            words="",
            noise_std=releases.reply.noise_std,
            clip=releases.reply.clip_norm,
            server_noise_std=step.noise_std if step else None,
            server_clip=step.clip_norm if step else None,
            secret_steps=asdict(releases.secret) if releases.secret else None,
            max_participations=named,
            max_releases=named * releases.per_query,
            noise_source=self._noise.name,
            replies_alone_mu=alone,
            replies_alone_epsilon=epsilon_of(alone, delta),
            epsilon_published=published,
            counted=self._ledger.counted,
        )
        if self._by_formula:
            claim = "" if published is None else f" ε = {published:.4g}"
            words = (
                f"Published formula{claim} at δ = {delta:g}: it does not hold. It counts "
                "the batch as hidden, though the client drew it, and takes the server's updates as "
                f"free. The replies alone give ε = {common.replies_alone_epsilon:.4g} exactly; "
                "what the server model carries of the labels comes on top."
            )
            return replace(common, guarantee="published", words=words)
        if not server_is_private:
            words = (
                "No privacy guarantee: the server trains on the raw labels, and its later replies "
                f"depend on them. The noise on the replies alone would give μ = {alone:.4g}; that "
                "is not what an observer of this run is limited to."
            )
            return replace(common, words=words)
        bounded = replace(
            common,
            guarantee="exact" if self._noise.is_secret else "simulated",
            epsilon=guarantee.epsilon(releases, delta),
            delta=delta,
            label_advantage=label_advantage.of_releases(releases),
            mu=releases.known_mu,
            covers=tuple(covers),
            records=records,
            not_covered=NOT_COVERED,
        )
        return in_words(bounded)
