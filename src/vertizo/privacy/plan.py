"""The privacy plan: what every number that leaves the server passes through.

The server party asks it to `admit` a query, which charges the records before anything is computed.
The method then hands over one row of values for each record of the batch and gets back what may be
sent; it never names ε. The plan clips, adds noise and divides, in that order, and can say in a
`Statement` what is then guaranteed, and what is not.

Averages divide by the nominal batch size, which is public and fixed, under every plan: a short last
batch then weighs each of its records like any other record.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from vertizo.privacy.accounting import compose, epsilon_of
from vertizo.privacy.clipping import BoundedSum, bounded_sum, clip
from vertizo.privacy.ledger import Ledger
from vertizo.privacy.mechanisms import NoiseSource
from vertizo.validate import fraction, positive

Guarantee = Literal["exact", "none"]


@dataclass(frozen=True)
class Statement:
    """What a run guarantees, in numbers and in words; figures that do not hold are absent."""

    guarantee: Guarantee
    epsilon: float | None
    delta: float | None
    mu: float | None
    noise_std: float | None
    clip: float | None
    max_participations: int | None
    """Queries of all clients that may name one record."""
    max_releases: int | None
    """Noised numbers, or vectors of a common clip, that may depend on it."""
    noise_source: str | None
    replies_alone_mu: float | None
    """μ of the replies if nothing else about the labels left the server; no guarantee by itself."""
    words: str

    def as_dict(self) -> dict[str, Any]:
        """For ``summary.json``."""
        return asdict(self)


class Plan(Protocol):
    """What per-record values pass through on their way out."""

    def admit(self, client: int, ids: Tensor) -> None:
        """Charge these records for one reply to ``client``.

        Raises:
            BudgetError: a record would be charged too often; nothing changed.
        """

    def total(self, values: Tensor) -> Tensor:
        """Released mean over the batch: [batch] or [batch, K] → [1] or [K]."""

    def each(self, values: Tensor) -> Tensor:
        """Released per-record values divided by the batch size: [batch, K] → [batch, K]."""

    def statement(self, *, server_is_private: bool) -> Statement:
        """What holds, given whether the server's own updates protect the labels."""

    @property
    def clip_fraction(self) -> float | None:
        """Share of values that the clip changed so far; for the server's own eyes."""

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint of a simulation must hold."""

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state``."""


class NoPrivacy:
    """Values pass unchanged but for the division.

    Args:
        batch_size: nominal B.
    """

    clip_fraction: float | None = None

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size

    def admit(self, client: int, ids: Tensor) -> None:
        """Nothing is charged."""

    def total(self, values: Tensor) -> Tensor:
        """Σ / B."""
        mean = values.numpy().sum(0, keepdims=values.dim() == 1) / self._batch_size
        return torch.from_numpy(mean.astype(np.float32))

    def each(self, values: Tensor) -> Tensor:
        """Values / B."""
        return values / self._batch_size

    def statement(self, *, server_is_private: bool) -> Statement:
        """None."""
        return Statement(
            guarantee="none",
            epsilon=None,
            delta=None,
            mu=None,
            noise_std=None,
            clip=None,
            max_participations=None,
            max_releases=None,
            noise_source=None,
            replies_alone_mu=None,
            words="No privacy guarantee: the server's replies carry no noise.",
        )

    def state(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        """Nothing."""


class ClippedGaussian:
    """``(Σ clip_C(value_i) + N(0, σ² I)) / B``: DPZV's eq. 8 with a clip that bounds both sides.

    σ is the noise on the sum, so that the guarantee does not depend on the batch size. Replacing
    one record moves the sum by at most 2C; a record that is used in k replies has ``μ = 2C√k/σ``,
    over all clients together and for any adaptive choice of batches and embeddings.

    Args:
        clip_norm: C, the largest norm of one record's values.
        noise_std: σ.
        batch_size: nominal B.
        delta: at which ε is stated.
        ledger: counts and refuses.
        noise: where the noise comes from.
        releases: how many times `total` is called for one query; so many entries it is charged.
    """

    def __init__(
        self,
        *,
        clip_norm: float,
        noise_std: float,
        batch_size: int,
        delta: float,
        ledger: Ledger,
        noise: NoiseSource,
        releases: int = 1,
    ) -> None:
        self.clip_norm = positive("privacy.clip", clip_norm)
        self.noise_std = positive("privacy.noise_std", noise_std)
        self.delta = fraction("privacy.delta", delta)
        self._batch_size = batch_size
        self._ledger = ledger
        self._noise = noise
        self._per_query = releases
        self._releases = 0
        self._clipped = torch.zeros(2, dtype=torch.int64)

    def admit(self, client: int, ids: Tensor) -> None:
        """Charge these records, or raise BudgetError and change nothing."""
        self._ledger.charge(client, ids, self._per_query)

    def total(self, values: Tensor) -> Tensor:
        """The clipped, noised mean, [K]."""
        self._count(values)
        return self._noised(bounded_sum(values, self.clip_norm)).to(values.dtype)

    def each(self, values: Tensor) -> Tensor:
        """Every record's values clipped and noised on their own: no averaging hides them."""
        self._count(values)
        clipped = clip(values.reshape(values.shape[0], -1), self.clip_norm)
        released = self._noised(BoundedSum(clipped, self.clip_norm))
        return released.to(values.dtype).reshape(values.shape)

    def _noised(self, bounded: BoundedSum) -> Tensor:
        noise = self._noise.normal(self._releases, tuple(bounded.values.shape))
        self._releases += 1
        return (bounded.values + self.noise_std * noise) / self._batch_size

    def _count(self, values: Tensor) -> None:
        rows = values.reshape(values.shape[0], -1)
        norms = rows.abs().squeeze(1) if rows.shape[1] == 1 else rows.norm(dim=1)
        self._clipped[0] += (~(norms <= self.clip_norm)).sum()
        self._clipped[1] += norms.numel()

    @property
    def clip_fraction(self) -> float | None:
        """Share of records whose values the clip changed."""
        changed, seen = self._clipped.tolist()
        return changed / seen if seen else None

    @property
    def mu(self) -> float:
        """μ of all replies that may ever depend on one record."""
        one = BoundedSum(torch.zeros(1), self.clip_norm).sensitivity / self.noise_std
        return compose([one] * self._ledger.max_participations)

    def statement(self, *, server_is_private: bool) -> Statement:
        """Exact where the server's updates protect labels as well, none where they do not."""
        mu = self.mu
        epsilon = epsilon_of(mu, self.delta)
        releases = self._ledger.max_participations
        if server_is_private:
            words = (
                f"Every record's label is protected with ε = {epsilon:.4g} at δ = {self.delta:g} "
                "against all clients together, malicious ones included, for this run alone. The "
                "clients' features are not protected by this, nor are labels used for validation."
            )
        else:
            words = (
                "No privacy guarantee: the server trains on the raw labels, and its later replies "
                f"depend on them. The noise on the replies alone would give μ = {mu:.4g}; that "
                "is not what an observer of this run is limited to."
            )
        return Statement(
            guarantee="exact" if server_is_private else "none",
            epsilon=epsilon if server_is_private else None,
            delta=self.delta if server_is_private else None,
            mu=mu if server_is_private else None,
            noise_std=self.noise_std,
            clip=self.clip_norm,
            max_participations=releases // self._per_query,
            max_releases=releases,
            noise_source=self._noise.name,
            replies_alone_mu=mu,
            words=words,
        )

    def state(self) -> dict[str, Tensor]:
        """Counts; never the noise."""
        counters = torch.cat([torch.tensor([self._releases]), self._clipped])
        return {"counters": counters, **self._ledger.state()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state``."""
        self._releases = int(state["counters"][0])
        self._clipped = state["counters"][1:].clone()
        self._ledger.load(state)
