"""Embeddings that make a reply say which label it is, found by trying many on shadow servers.

A shadow is a server of the adversary's own, built from what it knows. Shadows come in pairs, one of
each world, with the same randomness: whatever differs between the two comes from the label. Where
the server model moves, several pairs stand for what noise may make of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.attacks.audit.setting import Setting
from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.protocol import wire
from vertizo.protocol.messages import Query, Reply

CANDIDATES = 128
"""Pairs of embeddings that are tried for one query."""
SHADOWS = 3
"""Pairs of shadows where the server model moves."""
ENOUGH = 0.999
"""Share of the best signal from which on other things decide."""


@dataclass(frozen=True)
class Pair:
    """One client's ``h+`` and ``h−`` of one record, as middle and half the difference, [d_h]."""

    middle: Tensor
    half: Tensor


class Shadows:
    """Pairs of servers that are fed what the real one will be.

    Args:
        setting: what is known.
        stream: the adversary's own randomness.
    """

    def __init__(self, setting: Setting, stream: Stream) -> None:
        self._setting = setting
        moves = setting.config.server.update != "none"
        seeds = [stream.child("shadows").seed(i) for i in range(SHADOWS if moves else 1)]
        self._pairs = [
            (
                setting.federation(0, seed, repeatable=True).server,
                setting.federation(1, seed, repeatable=True).server,
            )
            for seed in seeds
        ]

    def slopes(self, client: int, ids: Tensor, points: Tensor) -> Tensor:
        """δ in both worlds at every shadow: [shadows, 2, pairs, batch]."""
        setting = self._setting
        return torch.stack(
            [
                torch.stack(
                    [
                        setting.slopes(zero.side, client, ids, points, 0),
                        setting.slopes(one.side, client, ids, points, 1),
                    ]
                )
                for zero, one in self._pairs
            ]
        )

    def feed(self, frame: bytes) -> NDArray[np.float64]:
        """What the label makes of the answer, on average over shadows, times B: [values]."""
        down, batch_size = self._setting.config.codecs.down, self._setting.config.batch_size
        differences = []
        for servers in self._pairs:
            replies = [wire.decode(server.receive(frame)[0][1], down) for server in servers]
            for server in servers:
                server.train_between_queries()
            zero, one = (r.values.double().numpy() for r in replies if isinstance(r, Reply))
            differences.append((one - zero).ravel())
        return np.asarray(np.mean(differences, 0) * batch_size, np.float64)


class Crafter:
    """Chooses what a malicious client sends.

    Args:
        setting: what is known.
        stream: the adversary's own randomness.
    """

    def __init__(self, setting: Setting, stream: Stream) -> None:
        self.shadows = Shadows(setting, stream)
        self._setting = setting
        self._generator = stream.child("candidates").generator()
        self._largest = setting.config.server.embedding_bound / 2

    def target(self, client: int, *, far: bool = False) -> Pair:
        """Embeddings of the target for which δ is +C with one label and −C with the other.

        Args:
            client: who sends them.
            far: whether their middle is far from 0, so that a server which trains there moves far;
                otherwise it is 0.

        Raises:
            ConfigError: none were found.
        """
        setting = self._setting
        dim = setting.side.table.dims[client]
        halves = self._random(dim, -1, 2)
        middles = self._random(dim, 0, 2) if far else torch.zeros_like(halves)
        ids = torch.tensor([setting.record])
        slopes = self.shadows.slopes(client, ids, _points(middles, halves, 1))[..., 0]
        signals = _signals(setting, slopes)
        best = float(signals.max())
        if not best > 0:
            raise ConfigError(
                f"no embedding of client {client} was found that tells label "
                f"{setting.labels[0]:g} of record {setting.record} from {setting.labels[1]:g}; "
                "the server's replies may not depend on it, as with server.model.last_layer 'zeros'"
            )
        # Far beyond the clip on both sides: then the model may move, and the sum stays.
        margins = torch.minimum(slopes[:, 1], -slopes[:, 0]).amin(0)
        lengths = middles.norm(dim=1) if far else margins
        place = int(torch.where(signals >= ENOUGH * best, lengths, -torch.inf).argmax())
        return Pair(middles[place], halves[place])

    def probe(self, client: int, ids: Tensor, along: Tensor) -> Tensor:
        """Embeddings of records with known labels whose δ tell how far w_0 moved.

        Their middle is 0, so that the server learns little from them. Half of the candidates lie
        along the middle of the target's embeddings, the others anywhere.

        Args:
            client: who sends them.
            ids: int64 [batch].
            along: the middle of the target's embeddings, [d_h].

        Returns:
            Half the difference of ``h+`` and ``h−``, [batch, d_h].
        """
        setting = self._setting
        halves = self._random(along.numel(), -2, 2)
        if along.norm() > 0:
            half = CANDIDATES // 2
            halves[:half] = halves[:half].norm(dim=1, keepdim=True) * (along / along.norm())
        middles = torch.zeros_like(halves)
        points = _points(middles, halves, ids.numel())
        signals = _signals(setting, self.shadows.slopes(client, ids, points))
        places = signals.abs().argmax(0)
        signs = signals.gather(0, places.unsqueeze(0))[0].sign().to(torch.float32)
        return halves[places] * signs.unsqueeze(1)  # all records push the sum the same way

    def query(self, client: int, number: int, ids: Tensor, middle: Tensor, half: Tensor) -> bytes:
        """The frame of a query; embeddings [batch, d_h], the same for each direction."""
        points = torch.stack([middle + half, middle - half])
        embeddings = points.repeat(self._setting.method.num_directions, 1, 1)
        return wire.encode(Query(client, number, ids, embeddings), self._setting.config.codecs.up)

    def _random(self, dim: int, low: float, high: float) -> Tensor:
        """Vectors of any direction, [candidates, d_h], of lengths 10^low to 10^high."""
        directions = self._generator.standard_normal((CANDIDATES, dim))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        lengths = 10.0 ** self._generator.uniform(low, high, (CANDIDATES, 1))
        drawn = directions * lengths.clip(max=self._largest)
        return torch.from_numpy(drawn.astype(np.float32))


def _signals(setting: Setting, slopes: Tensor) -> Tensor:
    """How far apart the labels put each record's clipped δ: [shadows, 2, ...] → [...]."""
    clipped = setting.clipped(slopes)
    return (clipped[:, 1] - clipped[:, 0]).mean(0)


def _points(middles: Tensor, halves: Tensor, batch: int) -> Tensor:
    """``h+`` and ``h−`` in turn, the same for every record: [2 · pairs, batch, d_h]."""
    turns = torch.stack([middles + halves, middles - halves], 1).flatten(0, 1)
    return turns.unsqueeze(1).expand(-1, batch, -1)
