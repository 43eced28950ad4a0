"""One upload: clients prepare numbers of each record without labels, and a head learns from them.

No query is asked and no reply is given. Each client makes K numbers of every record, of its own
features alone (`client.pretrain`: components, splines, centroids, filters; or a fixed encoder's),
and uploads them once. The label holder fits a head on its raw labels (`server.final_head`); nothing
that depends on a label ever reaches a client, so that ε = 0 for labels. Head and predictions are
not covered, and stay with the label holder.

It is the control ``label-free`` as a method (`vertizo.run.build.label_free`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from vertizo.core.errors import ConflictError
from vertizo.core.names import Timing, UpdateName
from vertizo.methods.base import ClientSide, Features, Method, Outcome

if TYPE_CHECKING:
    from torch import Tensor

SILENT = "clients of method 'one-shot' ask nothing"


class OneShot(Method):
    """Uploads numbers that were made without labels; a head on raw labels predicts."""

    paper: ClassVar[str] = "FedOnce (arXiv 2208.10278), one-shot VFL (arXiv 2303.16270)"
    timings: ClassVar[tuple[Timing, ...]] = ("asynchronous",)
    server_update: ClassVar[UpdateName] = "none"
    server_updates: ClassVar[tuple[UpdateName, ...]] = ("none",)
    asks: ClassVar[bool] = False
    releases_per_query: ClassVar[int] = 0  # there is no query

    name: Literal["one-shot"] = "one-shot"

    def estimated_dimensions(self, parameters: int, embedding_dim: int, batch_size: int) -> float:
        """0: nothing is estimated."""
        return 0.0

    def ask(self, side: ClientSide, number: int, features: Features) -> Tensor:
        """Raises ConflictError: there are no queries."""
        raise ConflictError(SILENT)

    def told(self, outcome: Outcome) -> Tensor:
        """Raises ConflictError: there are no queries."""
        raise ConflictError(SILENT)

    def tell(self, side: ClientSide, number: int, features: Features, values: Tensor) -> None:
        """Raises ConflictError: there are no queries."""
        raise ConflictError(SILENT)
