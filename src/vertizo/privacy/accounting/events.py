"""What leaves the server about one record, described apart from what it comes to.

Everything here is a public constant, fixed before the first query.
`vertizo.privacy.accounting.guarantee` turns it into ε.
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
"""What all queries that name one record may be charged together; ledgers count in 64 bits."""


@dataclass(frozen=True)
class GaussianRelease:
    """A sum over records, each clipped to norm C, with Gaussian noise of σ on each number.

    ``slack`` is by how much more than 2C replacing a record may move what the noise is added to,
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
        return moved(self.clip_norm) + self.slack

    @property
    def mu(self) -> float:
        """μ of one release for a record in it."""
        return self.sensitivity / self.noise_std


@dataclass(frozen=True)
class SecretSteps:
    """T_s server steps on samples that nobody else knows.

    Each record is in each sample with probability q, independently; what is added up is clipped to
    C and gets noise of standard deviation z·C. Every record is charged for every step.
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


@dataclass(frozen=True)
class LedgerBudget:
    """What all runs on a durable ledger may release; fixed before the first query of the first run.

    Two budgets (docs/mathematics.md, Composition and budgets), of which one never pays for the
    other: ``clients · share`` units of μ² for replies about one record, and the secret steps.

    Args:
        name: of the records, such as a data set's name.
        clients: M. A client has the same index in every run.
        share: units of μ² that one record may be charged for replies to one client.
        epsilon: what the whole budget comes to at ``delta``, as stated to the people it protects.
        delta: 0 for private labels that need none.
        secret: ``count`` of all runs together, and the constants of each step.
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
        """As it is kept in the file."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> LedgerBudget:
        """What `to_json` wrote; ValueError, TypeError, KeyError or ConfigError: it did not."""
        fields = json.loads(text)
        if fields["secret"] is not None:
            fields["secret"] = SecretSteps(**fields["secret"])
        return LedgerBudget(**fields)


class Charges(NamedTuple):
    """What was charged so far, by all runs."""

    units: int
    """To the record that was charged most, over all clients."""
    steps: int
    """Secret steps."""
    runs: int
    epsilon: float
    """What all of it comes to at most, once the whole budget is spent."""
