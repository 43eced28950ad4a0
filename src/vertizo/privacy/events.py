"""What leaves the server about one record, described apart from what it comes to.

Everything here is a public constant, fixed before the first query. `vertizo.privacy.guarantee`
turns it into ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vertizo.core.validate import fraction, positive
from vertizo.privacy.grid_accounting import GridCorrection
from vertizo.privacy.ledger import mu_of_units, units


@dataclass(frozen=True)
class GaussianRelease:
    """A sum over records, each clipped to norm C, with Gaussian noise on it.

    Args:
        clip_norm: C, the largest norm of one record's contribution.
        noise_std: σ, of each number of the sum.
        slack: by how much more than 2C replacing a record may move what the noise is added to,
            where a sum is cut to a grid.
    """

    clip_norm: float
    noise_std: float
    slack: float = 0.0

    def __post_init__(self) -> None:
        positive("clip", self.clip_norm)
        positive("noise_std", self.noise_std)

    @property
    def sensitivity(self) -> float:
        """How far replacing one record moves the sum at most: 2C, and the slack."""
        return 2 * self.clip_norm + self.slack

    @property
    def mu(self) -> float:
        """μ of one release for a record in it."""
        return self.sensitivity / self.noise_std


@dataclass(frozen=True)
class SecretSteps:
    """Server steps on samples that nobody else knows.

    Each record is in each sample with probability q, independently; what is added up is clipped to
    C and gets noise of standard deviation z·C. Every record is charged for every step.

    Args:
        count: T_s.
        sampling: q.
        noise_multiplier: z.
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
    """All that may ever depend on one record.

    Args:
        clients: M.
        queries: k, queries of each client that may name one record.
        reply: one of the numbers, or vectors, of a reply.
        per_query: how many of those a query is answered with.
        step: the server's own update on a query's batch, where it makes one.
        steps_per_query: such updates for each query; in synchronous rounds one for M queries.
        secret: updates on secret samples, where it makes those.
        grid: what noise on a grid differs from Gaussian noise by; nothing for Gaussian noise.
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
        """μ of all that is made of one query: its reply, and the update on its batch."""
        step = self.step.mu * math.sqrt(self.steps_per_query) if self.step else 0.0
        return math.hypot(self.reply_mu, step)

    @property
    def cost(self) -> int:
        """Units that a record is charged for a query that names it.

        Where noise is so small that a ledger could not count as far (μ in the thousands), the most
        that it can count: queries are numbered all the same, and `known_mu` is not cut off.
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
        """μ of everything made of batches that clients know: replies and updates on them."""
        exact = self.query_mu * math.sqrt(self.clients * self.queries)
        return max(mu_of_units(self.clients * self.share), exact)


MOST_UNITS = 2**62
"""What all queries that name one record may be charged together; ledgers count in 64 bits."""
