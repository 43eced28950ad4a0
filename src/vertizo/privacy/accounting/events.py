"""Descriptions of what leaves the server about one record, by public constants alone.

All are fixed before the first query. `vertizo.privacy.accounting.guarantee` turns them into ε.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import NamedTuple

from vertizo.core.errors import ConfigError
from vertizo.core.validate import fraction, positive
from vertizo.privacy.accounting.gaussian import mu_of_units, units
from vertizo.privacy.accounting.grid import GridCorrection
from vertizo.privacy.clipping import moved

MOST_UNITS = 2**62
"""Most units that all queries that name one record may be charged; ledgers count in 64 bits."""


@dataclass(frozen=True)
class GaussianRelease:
    """A sum over records, each clipped to norm C, with Gaussian noise of σ on each number.

    ``slack`` is how much more than 2C replacing a record may move a sum that is cut to a grid.
    """

    clip_norm: float
    noise_std: float
    slack: float = 0.0

    def __post_init__(self) -> None:
        positive("clip", self.clip_norm)
        positive("noise_std", self.noise_std)

    @property
    def sensitivity(self) -> float:
        """The most that replacing one record moves the sum: 2C, and the slack."""
        return moved(self.clip_norm) + self.slack

    @property
    def mu(self) -> float:
        """μ of one release for a record in it."""
        return self.sensitivity / self.noise_std


@dataclass(frozen=True)
class SecretSteps:
    """T_s (``count``) steps of the server on samples that nobody else knows.

    Each record is in each sample with probability q (``sampling``), independently. Each adds at
    most C; the sum gets noise of σ = z·C (``noise_multiplier``). Every record is charged for every
    step.
    """

    count: int
    sampling: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        positive("secret steps", self.count)
        fraction("the secret sampling rate", self.sampling)
        positive("the secret noise multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class Releases:
    """All releases that may ever depend on one record.

    Args:
        queries: k, queries of each client that may name one record.
        reply: one release in a reply: a number, or a vector that is clipped as one.
        per_query: releases in a reply.
        step: the server's own update on a query's batch; None without one.
        steps_per_query: such updates for each query; in synchronous rounds one for M queries.
        secret: updates on secret samples; None without any.
        grid: how noise on a grid differs from Gaussian noise; None for Gaussian noise.
    """

    clients: int
    queries: int
    reply: GaussianRelease
    per_query: int = 1
    step: GaussianRelease | None = None
    steps_per_query: float = 1.0
    secret: SecretSteps | None = None
    grid: GridCorrection | None = None

    @property
    def reply_mu(self) -> float:
        """μ of one whole reply."""
        return self.reply.mu * math.sqrt(self.per_query)

    @property
    def query_mu(self) -> float:
        """μ of all that one query causes: its reply, and the update on its batch."""
        step = self.step.mu * math.sqrt(self.steps_per_query) if self.step else 0.0
        return math.hypot(self.reply_mu, step)

    @property
    def cost(self) -> int:
        """Units that each record of a query is charged.

        At most what a ledger can count, which is reached where μ is in the thousands; there queries
        are counted all the same, and `known_mu` is not cut off.
        """
        return min(units(self.query_mu), MOST_UNITS // (self.clients * self.queries))

    @property
    def share(self) -> int:
        """Units that a record may be charged for the queries of one client."""
        return self.queries * self.cost

    @property
    def replies_alone_mu(self) -> float:
        """μ of the replies of all clients, if nothing else left the server."""
        return self.reply_mu * math.sqrt(self.clients * self.queries)

    @property
    def known_mu(self) -> float:
        """μ of all releases about batches that clients know: replies, and updates on them."""
        exact = self.query_mu * math.sqrt(self.clients * self.queries)
        return max(mu_of_units(self.clients * self.share), exact)


@dataclass(frozen=True)
class LedgerBudget:
    """What all runs on a durable ledger may release; fixed before the first query of the first run.

    Two budgets (docs/mathematics.md, Composition and budgets), of which one never pays for the
    other: ``clients · share`` units of μ² for replies about one record, and the secret steps.

    Args:
        name: the records' name, such as a data set's.
        clients: M. A client has the same index in every run.
        share: units of μ² that one record may be charged for replies to one client.
        epsilon: ε of the whole budget at ``delta``, as stated to the people it protects.
        delta: 0 for private labels that need none.
        secret: the secret steps of all runs together; None without any.
    """

    name: str
    records: int
    clients: int
    share: int
    epsilon: float
    delta: float
    secret: SecretSteps | None = None

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.name.isprintable():
            raise ConfigError(f"a ledger's name is {self.name!r}; name the records in one line")
        for what, value in (
            ("records", self.records),
            ("clients", self.clients),
            ("a client's share of a record", self.share),
        ):
            if type(value) is not int or not 0 < value <= MOST_UNITS:
                raise ConfigError(f"{what}: {value!r}; it must be a whole number from 1 to 2⁶²")
        if self.clients * self.share > MOST_UNITS:
            raise ConfigError(f"{self.clients} clients' shares of {self.share} units pass 2⁶²")
        positive("epsilon", self.epsilon)
        if self.delta:
            fraction("delta", self.delta)

    @property
    def mu(self) -> float:
        """μ of all replies that may ever depend on one record."""
        return mu_of_units(self.clients * self.share)

    @property
    def steps(self) -> int:
        """T_s, secret steps of all runs together."""
        return self.secret.count if self.secret else 0

    def to_json(self) -> str:
        """The budget as text, as a ledger's file keeps it."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> LedgerBudget:
        """Read what `to_json` wrote; ValueError, TypeError, KeyError or ConfigError otherwise."""
        fields = json.loads(text)
        if fields["secret"] is not None:
            fields["secret"] = SecretSteps(**fields["secret"])
        return LedgerBudget(**fields)


class Charges(NamedTuple):
    """What all runs on a ledger were charged so far."""

    units: int
    """Units charged to the record that was charged most, over all clients."""
    steps: int
    """Secret steps."""
    runs: int
    epsilon: float
    """ε of the whole budget, which bounds that of the charges."""
