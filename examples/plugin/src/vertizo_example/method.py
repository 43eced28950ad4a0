"""ZO-signSGD (Liu, Chen, Chen and Hong, ICLR 2019) for vertical federated learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from vertizo.methods.base import ClientSide, Features, Method, Outcome
from vertizo.zeroth_order.estimators import outputs, two_point


@dataclass(frozen=True)
class Signs:
    """A step of the same length along every parameter (`vertizo.models.optimizers.Gradient`)."""

    values: Tensor

    def add_to(self, vector: Tensor, scale: float | Tensor) -> None:
        vector.add_(self.values * scale)

    def held(self) -> tuple[Tensor, float] | None:
        return self.values, 1.0

    def norm(self) -> float:
        return float(self.values.norm())


class ZoSign(Method):
    """Two-point clients that step by the sign of each number of their estimate.

    However large a slope is, no parameter moves by more than the learning rate.
    """

    paper: ClassVar[str] = "ZO-signSGD (signSGD via zeroth-order oracle), algorithm 1"

    smoothing: float = Field(default=1e-3, gt=0)
    """λ: losses are compared at ``w ± λu``."""

    @property
    def points(self) -> int:
        return 2

    @property
    def releases_per_query(self) -> int:
        """One number of each record is clipped: declared, so that runs may state their ε.

        What that rests on is tested by `vertizo.testing.check_method`.
        """
        return 1

    def ask(self, side: ClientSide, number: int, features: Features) -> Tensor:
        (u,) = side.directions("gaussian").of_query(number)
        return outputs(side.model, features, u, (self.smoothing, -self.smoothing))

    def told(self, outcome: Outcome) -> Tensor:
        return two_point(outcome.losses[0], outcome.losses[1], self.smoothing)

    def tell(self, side: ClientSide, number: int, features: Features, values: Tensor) -> None:
        (u,) = side.directions("gaussian").of_query(number)
        estimate = torch.zeros_like(side.model.parameters)
        u.add_to(estimate, values.item())
        side.step(Signs(estimate.sign_()))
