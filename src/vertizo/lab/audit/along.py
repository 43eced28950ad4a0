"""Adversary of the audit with crafted tangents, for methods that ask along directions.

The target's tangents are so long that its label moves its K numbers from norm C on one side of 0
to norm C on the other; all other records have none, and add exactly nothing. The reply is linear in
the release, number by number, with factors that everybody knows: they are divided out. Where the
server moves its copy of the embeddings by its step, the next client, who knows the step, moves
them back.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.config.architectures import SumConfig
from vertizo.core.errors import ConfigError
from vertizo.lab.audit.crafting import values
from vertizo.lab.audit.setting import Setting, World
from vertizo.methods.base import Answered
from vertizo.methods.directional_queries import AlongDirections
from vertizo.models.losses import Regression
from vertizo.party.checks import mended
from vertizo.protocol import wire
from vertizo.protocol.messages import Query

SIZE = 1e4
"""Length of a tangent: far beyond any clip, and short enough that steps along it can be undone."""


class CraftedTangents:
    """Malicious clients that sum the releases along the direction in which the label moves them.

    ``size`` is the length of the target's tangents; any float, which the server may mend.
    ConfigError unless the setting's method asks along directions, and its server sums.
    """

    name = "malicious"
    statistic = "sum of what was released, along the direction in which the label moves it"

    def __init__(self, setting: Setting, size: float = SIZE) -> None:
        config, method = setting.config, setting.config.method
        model = config.server.model
        if not (isinstance(method, AlongDirections) and isinstance(model, SumConfig)):
            raise ConfigError(
                f"method is {method.name!r} and server.model {model.name!r}; tangents are crafted "
                "for 'tangent' or 'label-statistic', and 'sum'"
            )
        self._setting, self._method, self._size = setting, method, size
        others = torch.arange(setting.data.records)
        others = others[others != setting.record][: config.batch_size - 1]
        self._ids = torch.cat([torch.tensor([setting.record]), others])
        self._dims = setting.side.table.dims
        self._prepared = {dim: self._prepare(dim) for dim in set(self._dims)}

    def observe(self, world: World, seed: int) -> NDArray[np.float64]:
        """Play all queries of all clients; return the sum of the releases, times B, [1]."""
        setting, server = self._setting, self._setting.server(world, seed)
        rows = [torch.zeros(dim) for dim in self._dims]  # of the target, where the server has them
        found = 0.0
        for number in range(setting.config.epochs):
            for client, dim in enumerate(self._dims):
                sent, along, factors = self._prepared[dim]
                rows[client] = torch.zeros(dim)
                rows[client] = self._middle - torch.stack(rows).sum(0)
                sent[0, 0] = rows[client]
                query = Query(client, number, self._ids, sent)
                frame = wire.encode(query, setting.config.codecs.up)
                told = torch.from_numpy(values(setting, server, frame)[: len(along)])
                released = (told / factors).nan_to_num(0.0, 0.0, 0.0)
                found += float(along @ released)
                moved = self._answered(sent, released.float()).moved
                if moved is not None:
                    rows[client] = moved[0]
        return np.array([found * setting.config.batch_size])

    def _prepare(self, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        """Prepare the queries of a client with embeddings of size ``dim``.

        Returns embeddings and tangents, but for the target's embedding, [1 + K, batch, d_h]; the
        unit vector along which the label moves the release, [K]; and the factor of each of its
        numbers in the reply, [K].
        """
        count, contrast = self._method.num_directions, self._contrast(dim)
        shares = torch.linspace(1, 2, count)  # not alike, as those of honest clients
        sent = torch.zeros(1 + count, len(self._ids), dim)
        sent[1:, 0] = self._size * torch.outer(shares / shares.norm(), contrast)
        arrived = mended(sent, self._setting.config.server.embedding_bound)
        along = (arrived[1:, 0] @ contrast).double()
        factors = self._answered(sent, torch.ones(count)).values[:count].double()
        return sent, along / along.norm().clamp(min=1e-300), factors

    def _answered(self, sent: Tensor, released: Tensor) -> Answered:
        """Compute the method's reply to a query, and its step, from a release."""
        arrived = mended(sent, self._setting.config.server.embedding_bound)
        query = Query(0, 0, self._ids, arrived)
        return self._method.answered(query, released, self._setting.side.plan.noise_std)

    def _contrast(self, dim: int) -> Tensor:
        """Return the direction along which the label moves a slope from above 0 to below, [d_h]."""
        if dim == 1:
            return torch.ones(1)
        contrast = torch.zeros(dim)
        for sign, label in zip((-1.0, 1.0), self._setting.labels, strict=True):
            contrast[int(label)] = sign
        return contrast

    @property
    def _middle(self) -> float:
        """The sum of embeddings at which the two labels' slopes are opposite numbers."""
        is_regression = isinstance(self._setting.data.task, Regression)
        return sum(self._setting.labels) / 2 if is_regression else 0.0
