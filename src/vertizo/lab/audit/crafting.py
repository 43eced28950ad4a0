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

from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.lab.audit.setting import WORLDS, Setting
from vertizo.methods.directional_queries import AlongDirections
from vertizo.methods.dpzv import Dpzv
from vertizo.party.server import ServerParty
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


def values(setting: Setting, server: ServerParty, frame: bytes) -> NDArray[np.float64]:
    """What a server answers a query with, [values]; it then trains as it would."""
    [(_, answer)] = server.receive(frame)
    server.train_between_queries()
    reply = wire.decode(answer, setting.config.codecs.down)
    assert isinstance(reply, Reply)
    return reply.values.double().numpy().ravel()


class Crafter:
    """Chooses what a malicious client sends.

    Args:
        setting: what is known.
        stream: the adversary's own randomness.
    """

    def __init__(self, setting: Setting, stream: Stream) -> None:
        moves = setting.config.server.update != "none"
        seeds = [stream.child("shadows").seed(i) for i in range(SHADOWS if moves else 1)]
        self._shadows = [
            [setting.federation(world, seed, repeatable=True).server for world in WORLDS]
            for seed in seeds
        ]
        self._setting = setting
        self._generator = stream.child("candidates").generator()
        self._largest = setting.config.server.embedding_bound / 2

    def feed(self, frame: bytes) -> NDArray[np.float64]:
        """What the label makes of the answer, on average over shadows, times B: [values]."""
        told = [[values(self._setting, own, frame) for own in pair] for pair in self._shadows]
        mean = np.mean([one - zero for zero, one in told], 0)
        return np.asarray(mean * self._setting.config.batch_size, np.float64)

    def target(self, client: int, *, far: bool = False) -> Pair:
        """Embeddings of the target for which δ is +C with one label and −C with the other.

        Their middle is 0, or ``far`` from it, so that a server which trains there moves far.

        Raises:
            ConfigError: none were found.
        """
        setting = self._setting
        halves = self._random(setting.side.table.dims[client], -1, 2)
        middles = self._random(halves.shape[1], 0, 2) if far else torch.zeros_like(halves)
        found, signals = self._tried(client, torch.tensor([setting.record]), middles, halves)
        slopes, signals = found[..., 0], signals[..., 0]
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
        ``along`` the middle of the target's embeddings, [d_h], the others anywhere.

        Returns:
            Half the difference of ``h+`` and ``h−``, [batch, d_h].
        """
        halves = self._random(along.numel(), -2, 2)
        if along.norm() > 0:
            half = CANDIDATES // 2
            halves[:half] = halves[:half].norm(dim=1, keepdim=True) * (along / along.norm())
        _, signals = self._tried(client, ids, torch.zeros_like(halves), halves)
        places = signals.abs().argmax(0)
        signs = signals.gather(0, places.unsqueeze(0))[0].sign().to(torch.float32)
        return halves[places] * signs.unsqueeze(1)  # all records push the sum the same way

    def query(self, client: int, number: int, ids: Tensor, middle: Tensor, half: Tensor) -> bytes:
        """The frame of a query; embeddings [batch, d_h], the same for each direction.

        With tangents of zeros where the method sends tangents, which then tell nothing.
        """
        method, points = self._setting.config.method, torch.stack([middle + half, middle - half])
        if isinstance(method, AlongDirections):
            still = torch.zeros(method.num_directions, *middle.shape)
            embeddings = torch.cat([middle.unsqueeze(0), still])
        else:
            assert isinstance(method, Dpzv)
            embeddings = points.repeat(method.num_directions, 1, 1)
        return wire.encode(Query(client, number, ids, embeddings), self._setting.config.codecs.up)

    def _tried(
        self, client: int, ids: Tensor, middles: Tensor, halves: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Each record's δ at every shadow for each candidate, [shadows, 2, candidates, batch].

        And how far apart the labels put it once it is clipped, [candidates, batch].
        """
        setting = self._setting
        # h+ and h− in turn, the same for every record.
        turns = torch.stack([middles + halves, middles - halves], 1).flatten(0, 1)
        points = turns.unsqueeze(1).expand(-1, ids.numel(), -1)
        slopes = torch.stack(
            [
                torch.stack([setting.slopes(pair[w].side, client, ids, points, w) for w in WORLDS])
                for pair in self._shadows
            ]
        )
        clipped = setting.clipped(slopes)
        return slopes, (clipped[:, 1] - clipped[:, 0]).mean(0)

    def _random(self, dim: int, low: float, high: float) -> Tensor:
        """Vectors of any direction, [candidates, d_h], of lengths 10^low to 10^high."""
        directions = self._generator.standard_normal((CANDIDATES, dim))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        lengths = 10.0 ** self._generator.uniform(low, high, (CANDIDATES, 1))
        drawn = directions * lengths.clip(max=self._largest)
        return torch.from_numpy(drawn.astype(np.float32))
