"""What a durable ledger may spend, and what people are told of what it has spent."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

from vertizo.core.errors import ConfigError
from vertizo.core.validate import fraction, positive
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.events import SecretSteps
from vertizo.privacy.ledger import mu_of_units

LARGEST = 2**62
"""Of IDs and of units: sums of two still fit 64 bits."""


@dataclass(frozen=True)
class LedgerBudget:
    """Public constants, fixed before the first query of the first run and never changed.

    The two budgets (docs/mathematics.md, Composition and budgets): ``clients · share`` units of μ²
    for replies about one record, and
    the secret steps of all runs together. They are never exchanged.

    Args:
        name: of the records, such as a data set's name.
        records: D.
        clients: M. A client has the same index in every run.
        share: units of μ² that one record may be charged for replies to one client, in all runs.
        epsilon: what the whole budget comes to at ``delta``, as stated to the people it protects.
        delta: δ.
        secret: ``count`` of all runs together, and the constants of each step; None for none.

    Raises:
        ConfigError: a number is out of range.
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
            if type(value) is not int or not 0 < value <= LARGEST:
                raise ConfigError(f"{what}: {value!r}; it must be a whole number from 1 to 2⁶²")
        if self.clients * self.share > LARGEST:
            raise ConfigError(f"{self.clients} clients' shares of {self.share} units pass 2⁶²")
        positive("epsilon", self.epsilon)
        fraction("delta", self.delta)

    @property
    def mu(self) -> float:
        """μ of all replies that may ever depend on one record."""
        return mu_of_units(self.clients * self.share)

    @property
    def steps(self) -> int:
        """T_s, secret steps of all runs together."""
        return self.secret.count if self.secret else 0

    def check_epsilon(self) -> None:
        """Raise ConfigError if the stated ε is below what the two budgets come to.

        A millionth is allowed for rounding: of the units, and of a root that was searched for.
        """
        from vertizo.privacy.guarantee import joined_epsilon

        found = joined_epsilon(self.mu, self.secret, self.delta)
        if found > self.epsilon * (1 + 1e-6):
            raise ConfigError(
                f"epsilon {self.epsilon:g} is stated, but μ = {self.mu:.6g} for replies and "
                f"{self.steps} secret steps come to {found:.6g} at δ = {self.delta:g}"
            )

    def to_json(self) -> str:
        """As it is kept in the file."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> LedgerBudget:
        """What `to_json` wrote.

        Raises:
            ValueError, TypeError, ConfigError: it did not.
        """
        fields = json.loads(text)
        if fields["secret"] is not None:
            fields["secret"] = SecretSteps(**fields["secret"])
        return LedgerBudget(**fields)


@dataclass(frozen=True)
class ClientSpending:
    """What the replies to one client have cost."""

    largest: int
    """Units charged to the record that was charged most."""
    mean: float
    """Units, over all records."""
    share: int
    """Units that a record may be charged."""

    @property
    def left(self) -> int:
        """Units that every record still has."""
        return self.share - self.largest

    @property
    def largest_fraction(self) -> float:
        """Of the share, for the record that was charged most."""
        return self.largest / self.share

    @property
    def mean_fraction(self) -> float:
        """Of the share, over all records."""
        return self.mean / self.share


@dataclass(frozen=True)
class LedgerSummary:
    """A ledger at a glance; ``print`` it.

    Everything in it follows from record IDs and public constants.
    """

    identity: str
    budget: LedgerBudget
    runs: tuple[str, ...]
    replies: int
    """Replies that were charged, in all runs."""
    clients: tuple[ClientSpending, ...]
    spent: int
    """Units charged to the record that was charged most, over all clients together."""
    steps: int
    """Secret steps made, in all runs."""

    @property
    def steps_left(self) -> int:
        """Secret steps that may still be made."""
        return self.budget.steps - self.steps

    def __str__(self) -> str:
        budget = self.budget
        whole = budget.clients * budget.share
        lines = [
            f"{budget.name}: {budget.records} records, {budget.clients} clients, "
            f"ε = {bound_text(budget.epsilon, 6)} at δ = {budget.delta:g} for all runs together",
            f"runs: {len(self.runs)} ({', '.join(self.runs) or 'none yet'})",
            f"replies: {self.replies}; most spent on one record: μ = {mu_of_units(self.spent):.4g} "
            f"of {budget.mu:.4g} ({_percent(self.spent / whole)} of μ²)",
        ]
        lines += [
            f"client {number}: {_percent(client.largest_fraction)} of its share of the record "
            f"charged most, {_percent(client.mean_fraction)} on average"
            for number, client in enumerate(self.clients)
        ]
        if budget.secret is not None:
            secret = budget.secret
            lines.append(
                f"secret steps: {self.steps} of {secret.count}, {self.steps_left} left "
                f"(q = {secret.sampling:g}, z = {secret.noise_multiplier:g})"
            )
        return "\n".join(lines)


def _percent(part: float) -> str:
    """Rounded up, so that what is not used up is not called so, nor something nothing."""
    return f"{math.ceil(part * 1000) / 10:.1f} %"
