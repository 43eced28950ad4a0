"""Search for embeddings whose reply reveals the label, by trying many on shadow servers.

A shadow is a server of the adversary's own, built from what it knows. Shadows come in pairs, one of
each world, with the same randomness: any difference between the two comes from the label. Where the
server model moves, several pairs sample what noise may make of it.
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
"""Number of pairs of embeddings that are tried for one query."""
SHADOWS = 3
"""Number of pairs of shadows where the server model moves."""
ENOUGH = 0.999
"""Candidates with this share of the best signal count as equal, and are chosen by length."""


@dataclass(frozen=True)
class Pair:
    """A client's ``h+`` and ``h−`` of one record, as their middle and half difference, [d_h]."""

    middle: Tensor
    half: Tensor


def values(setting: Setting, server: ServerParty, frame: bytes) -> NDArray[np.float64]:
    """Send a query to a server, let it train as in a run; return the reply's values, [values]."""
    [(_, answer)] = server.receive(frame)
    server.train_between_queries()
    reply = wire.decode(answer, setting.config.codecs.down)
    assert isinstance(reply, Reply)
    return reply.values.double().cpu().numpy().ravel()


class Crafter:
    """A builder of malicious clients' queries.

    Args:
        setting: the game's setting, which the adversary knows.
        stream: the adversary's own random stream.
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
        """Return how far the label moves a query's reply, times B, [values]: mean over shadows."""
        told = [[values(self._setting, own, frame) for own in pair] for pair in self._shadows]
        mean = np.mean([one - zero for zero, one in told], 0)
        return np.asarray(mean * self._setting.config.batch_size, np.float64)

    def target(self, client: int, *, far: bool = False) -> Pair:
        """Find embeddings of the target for which δ is +C with one label and −C with the other.

        Their middle is 0, or ``far`` from it, so that a server which trains there moves far.
        ConfigError if no embeddings were found that tell the labels apart.
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
        """Find embeddings of records with known labels whose δ reveal how far w_0 moved.

        Their middle is 0, so that the server learns little from them; half of the difference of
        ``h+`` and ``h−`` is returned, [batch, d_h]. Half of the candidates lie ``along`` the middle
        of the target's embeddings, [d_h], the others anywhere.
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
        """Encode a query; ``middle`` and ``half`` are [batch, d_h], the same for each direction.

        Where the method sends tangents, these are zeros, whose replies tell nothing.
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
        """Evaluate candidates: each record's δ at every shadow, [shadows, 2, candidates, batch].

        The second result is the mean distance of the two labels' clipped δ, [candidates, batch].
        """
        setting = self._setting
        # h+ and h− in turn, the same for every record.
        turns = torch.stack([middles + halves, middles - halves], 1).flatten(0, 1)
        points = turns.unsqueeze(1).expand(-1, ids.numel(), -1)
        found = [
            torch.stack([setting.slopes(pair[w].side, client, ids, points, w) for w in WORLDS])
            for pair in self._shadows
        ]
        slopes = torch.stack(found)
        clipped = setting.clipped(slopes)
        return slopes, (clipped[:, 1] - clipped[:, 0]).mean(0)

    def _random(self, dim: int, low: float, high: float) -> Tensor:
        """Draw vectors of any direction, [candidates, d_h], with lengths of 10^low to 10^high."""
        directions = self._generator.standard_normal((CANDIDATES, dim))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        lengths = 10.0 ** self._generator.uniform(low, high, (CANDIDATES, 1))
        drawn = directions * lengths.clip(max=self._largest)
        return torch.from_numpy(drawn.astype(np.float32))
