"""Clients that send tangents of their own making, for methods that ask along directions.

The target's tangents are so long that its label takes its K numbers from norm C on one side of 0
to norm C on the other; all other records have none, and add exactly nothing. What comes back is
linear in the release, number by number, by factors that everybody knows: it is undone. Where the
server moves its copy of the embeddings by its step, the next client, who knows the step, moves
them back.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.attacks.audit.crafting import values
from vertizo.attacks.audit.setting import Setting, World
from vertizo.config.architectures import SumConfig
from vertizo.core.errors import ConfigError
from vertizo.methods.along import AlongDirections
from vertizo.models.losses import Regression
from vertizo.party.checks import mended
from vertizo.protocol import wire
from vertizo.protocol.messages import Query

SIZE = 1e4
"""How long a tangent is: far beyond any clip, and short enough that steps along it are undone."""


class CraftedTangents:
    """Adds up what was released, along the direction in which the label moves it.

    Args:
        setting: of a method that asks along directions, and a server that sums.
        size: length of the target's tangents; any float, which the server may mend.

    Raises:
        ConfigError: another method or server.
    """

    name = "malicious"
    statistic = "sum of what was released, along the direction in which the label moves it"

    def __init__(self, setting: Setting, size: float = SIZE) -> None:
        config, method = setting.config, setting.config.method
        if not isinstance(method, AlongDirections) or not isinstance(
            config.server.model, SumConfig
        ):
            raise ConfigError(
                f"method is {method.name!r} and server.model {config.server.model.name!r}; tangents "
                "are crafted for 'tangent' or 'label-statistic', and 'sum'"
            )
        self._setting, self._method, self._size = setting, method, size
        others = torch.arange(setting.data.records)
        others = others[others != setting.record][: config.batch_size - 1]
        self._ids = torch.cat([torch.tensor([setting.record]), others])

    def observe(self, world: World, seed: int) -> NDArray[np.float64]:
        """Play all queries of all clients: that sum, times B, [1]."""
        setting, count = self._setting, self._method.num_directions
        server = setting.server(world, seed)
        dims = server.side.table.dims
        rows = [torch.zeros(dim) for dim in dims]  # of the target, where the server has them
        found = 0.0
        for number in range(setting.config.epochs):
            for client, dim in enumerate(dims):
                rows[client] = torch.zeros(dim)
                rows[client] = self._middle - torch.stack(rows).sum(0)
                sent = Query(client, number, self._ids, self._points(rows[client]))
                frame = wire.encode(sent, setting.config.codecs.up)
                told = values(setting, server, frame)[:count]
                query = Query(client, number, self._ids, self._arrived(sent.embeddings))
                along = (query.embeddings[1:, 0] @ self._contrast(dim)).double()
                if not along.any():
                    continue  # nothing arrived that tells labels apart
                released = torch.from_numpy(told) / self._factors(query)
                found += float(along @ released.nan_to_num(0.0, 0.0, 0.0) / along.norm())
                moved = self._method.answered(query, released.float(), server.side.plan.noise_std)
                if moved.moved is not None:
                    rows[client] = moved.moved[0]
        return np.array([found * setting.config.batch_size])

    def _points(self, row: Tensor) -> Tensor:
        """The target's embedding and tangents, and zeros, [1 + K, batch, d_h]."""
        count = self._method.num_directions
        points = torch.zeros(1 + count, len(self._ids), len(row))
        shares = torch.linspace(1, 2, count)  # not alike, as those of honest clients
        points[0, 0] = row
        points[1:, 0] = self._size * torch.outer(shares / shares.norm(), self._contrast(len(row)))
        return points

    def _arrived(self, points: Tensor) -> Tensor:
        """What the server makes of them."""
        return mended(points, self._setting.config.server.embedding_bound)

    def _factors(self, query: Query) -> Tensor:
        """What each released number is multiplied by on its way into the reply, [K]."""
        ones, noise_std = torch.ones(self._method.num_directions), self._setting.side.plan.noise_std
        return self._method.answered(query, ones, noise_std).values[: len(ones)].double()

    def _contrast(self, dim: int) -> Tensor:
        """Along which the label moves a slope from above 0 to below it, [d_h]."""
        if dim == 1:
            return torch.ones(1)
        contrast = torch.zeros(dim)
        for sign, label in zip((-1.0, 1.0), self._setting.labels, strict=True):
            contrast[int(label)] = sign
        return contrast

    @property
    def _middle(self) -> float:
        """The sum of embeddings at which slopes of the two labels are as far on either side."""
        is_regression = isinstance(self._setting.data.task, Regression)
        return sum(self._setting.labels) / 2 if is_regression else 0.0
