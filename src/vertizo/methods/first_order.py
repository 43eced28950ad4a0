"""The first-order methods: embeddings one way, their gradient the other.

1. A client sends its embeddings ``h_m`` [batch, d_h]: of a batch of its own when it is ready, or
   in step with the others of one that the server names.
2. The server computes the loss with the other clients' last embeddings, which in step are fresh,
   answers with ``∂L/∂h_m`` [batch, d_h], and makes Q_0 steps ``w_0 ← w_0 − η_0 ∂L/∂w_0`` on them:
   the embeddings stay those of the round, ``w_0`` moves.
3. Client m makes Q_m steps ``w_m ← w_m − η_m (∂h_m/∂w_m)ᵀ ∂L/∂h_m`` with what it was told: it
   embeds the batch anew before each; what it knows of the others stays as it was.

`FirstOrder` has the steps; the methods below it differ in timing, in codecs and in Q.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, PositiveInt

from vertizo.core.errors import ConfigError
from vertizo.core.names import Timing
from vertizo.methods.base import ClientSide, Method, Outcome
from vertizo.models.base import Points
from vertizo.models.optimizers import Dense
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.uniform import Uniform

if TYPE_CHECKING:
    from torch import Tensor

IN_STEP: tuple[Timing, ...] = ("synchronous",)


class FirstOrder(Method):
    """Embeddings one way, their gradient the other."""

    first_order_client: ClassVar[bool] = True
    as_pytorch: ClassVar[bool] = True
    releases_per_query: ClassVar[int] = 1  # a record's gradient is clipped as a whole
    reply_is_per_record: ClassVar[bool] = True
    reply_is_gradient: ClassVar[bool] = True

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """A gradient of the embeddings' shape."""
        return (batch, embedding_dim)

    def ask(self, side: ClientSide, number: int, features: Tensor) -> Tensor:
        """``h``, [1, batch, d_h]."""
        passed = number * self.steps_of(side.index)
        embeddings, pullback = side.differentiable.forward(Points(features), passed)
        side.pending = number, pullback
        return embeddings.unsqueeze(0)

    def told(self, outcome: Outcome) -> Tensor:
        """``∂f_i/∂h_m`` of every record, [batch, d_h]."""
        return outcome.gradient()

    def tell(self, side: ClientSide, number: int, features: Tensor, values: Tensor) -> None:
        """``w_m ← w_m − η_m (∂h/∂w_m)ᵀ ∂L/∂h``, Q times, embedding the batch anew before each."""
        model, steps, pullback = side.differentiable, self.steps_of(side.index), side.taken(number)
        for passed in range(number * steps, (number + 1) * steps):
            if pullback is None:  # a later local step, or a client that was restarted in between
                _, pullback = model.forward(Points(features), passed)
            side.step(Dense(pullback(values)))
            model.settle()
            pullback = None


class Vafl(FirstOrder):
    """First-order clients; the reply is the gradient with respect to the embeddings.

    Each client at its own pace, one step for one answer. Every record's label can be read off that
    answer: this is the baseline that the zeroth-order methods are held against. Its private
    variants are options of the run: noise on the answer (``privacy.mechanism: gaussian``, each
    record's gradient clipped before the noise) or on the embedding (``embedding-noise``).
    """

    paper: ClassVar[str] = "VAFL (asynchronous vertical federated learning, first order)"

    name: Literal["vafl"] = "vafl"


class Split(FirstOrder):
    """First-order clients in step; together, gradient descent on the joined model.

    Split learning between feature holders and a label holder. The round waits for the slowest.
    """

    paper: ClassVar[str] = "Split learning (synchronous, first order)"
    timings: ClassVar[tuple[Timing, ...]] = IN_STEP

    name: Literal["split"] = "split"


class LocalSteps(FirstOrder):
    """First-order clients in step, and as many local steps of every party for one exchange."""

    timings: ClassVar[tuple[Timing, ...]] = IN_STEP

    local_steps: int = Field(default=1, gt=0)
    """Q, steps of every party for one exchange."""

    @property
    def server_steps(self) -> int:
        """Q."""
        return self.local_steps

    def steps_of(self, client: int) -> int:
        """Q."""
        return self.local_steps


class CompressedVfl(LocalSteps):
    """First-order clients in step, compressed embeddings, Q local steps a round.

    The server sees ``C(h_m)``; each client back-propagates through its own ``h_m``. The paper's
    clients get the server model and everybody's embeddings and so recompute ``∂L/∂h_m`` before each
    local step; here nothing but the gradient leaves the server. With Q = 1 and the 8 bits of the
    default codec the bytes are those that the papers report for it.
    """

    paper: ClassVar[str] = "Compressed-VFL (compressed embeddings, local steps)"
    up: ClassVar[Codec] = Uniform(bits=8)

    name: Literal["compressed-vfl"] = "compressed-vfl"


class FedBcd(LocalSteps):
    """First-order clients in step; every party makes Q local steps a round.

    FedBCD-p, all parties in parallel: block coordinate descent (Liu et al. 2022).
    """

    paper: ClassVar[str] = "FedBCD (federated block coordinate descent, in parallel)"

    name: Literal["fedbcd"] = "fedbcd"
    local_steps: int = Field(default=5, gt=0)
    """Q, steps of every party for one exchange."""


class FlexVfl(FirstOrder):
    """First-order clients in step, each with a number of local steps of its own.

    As many as it has time for: a slow client makes few, so that nobody waits long (Castiglia et al.
    2023).
    """

    paper: ClassVar[str] = "Flex-VFL (flexible VFL with heterogeneous parties)"
    timings: ClassVar[tuple[Timing, ...]] = IN_STEP

    name: Literal["flex-vfl"] = "flex-vfl"
    local_steps: tuple[PositiveInt, ...] = Field(default=(2,), min_length=1)
    """Q_m, one number for each client in order, or one for all of them."""
    server_local_steps: PositiveInt = 2
    """Q_0, steps of the server for one exchange."""

    @property
    def server_steps(self) -> int:
        """Q_0."""
        return self.server_local_steps

    def check(self, clients: int) -> None:
        """Raises ConfigError unless there is one number of steps, or one for each client."""
        if len(self.local_steps) not in (1, clients):
            raise ConfigError(
                f"method.local_steps has {len(self.local_steps)} numbers for {clients} clients; "
                "give one for each, or one for all"
            )

    def steps_of(self, client: int) -> int:
        """Q_m."""
        return self.local_steps[client if len(self.local_steps) > 1 else 0]
