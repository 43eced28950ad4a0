"""The steps that the first-order methods share: embeddings one way, their gradient the other.

`Vafl`, `Split`, `CompressedVfl`, `FedBcd` and `FlexVfl` differ in timing, in codecs and in how many
local steps one exchange serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from vertizo.methods.base import ClientSide, Method, Outcome
from vertizo.models.base import Points
from vertizo.models.optimizers import Dense

if TYPE_CHECKING:
    from torch import Tensor


class FirstOrder(Method):
    """Embeddings one way, their gradient the other."""

    first_order_client: ClassVar[bool] = True
    as_pytorch: ClassVar[bool] = True

    @property
    def releases_per_query(self) -> int:
        """A record's gradient is clipped as a whole."""
        return 1

    @property
    def reply_is_per_record(self) -> bool:
        """It is."""
        return True

    @property
    def reply_is_gradient(self) -> bool:
        """It is."""
        return True

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
