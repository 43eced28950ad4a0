"""What the clients of several runs send in one round.

Embeddings are made for *items*, clients of runs, ordered by client and then by run: a client's
items are a slice. In an asynchronous round a run has one item, in a synchronous one all its
clients. Neighbouring clients of the same layers are evaluated together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo import kernels, validate
from vertizo.batched.clients import ClientHalves
from vertizo.batched.members import Member
from vertizo.errors import RefusedError
from vertizo.models.layers import Layers

Ids = NDArray[np.int64]
Failures = dict[int, RefusedError]
"""Place of a run in the round → why it ends there."""


@dataclass(frozen=True)
class Part:
    """One client's items."""

    client: int
    runs: slice
    """Whose, in the round."""
    embeddings: Tensor
    """[points, items, batch, d_h]."""


@dataclass(frozen=True)
class Block:
    """Items of clients of the same layers, evaluated together."""

    halves: ClientHalves
    askers: Sequence[tuple[int, int]]
    """(client, place of the run in the round) of each."""
    parts: Sequence[Part]
    embeddings: Tensor
    """[points, items, batch, d_h]."""


@dataclass(frozen=True)
class Asked:
    """All items of a round."""

    ids: Ids
    """Record IDs, [runs, batch]."""
    blocks: Sequence[Block]

    @property
    def parts(self) -> list[Part]:
        """All, by client."""
        return [part for block in self.blocks for part in block.parts]


class Asking:
    """The clients' side of a round.

    Args:
        stacks: every client's layers; clients of the same have the same object.
        halves: makes the client halves of clients of some layers.
        bound: H_max.
    """

    def __init__(
        self,
        stacks: Sequence[Layers],
        halves: Callable[[Layers], ClientHalves],
        bound: float,
    ) -> None:
        self._stacks = stacks
        self._halves = halves
        self._bound = bound

    def ask(self, members: Sequence[Member], clients: Sequence[int] | None) -> Asked:
        """The next query of one client of every run, or of all its clients.

        Args:
            members: the runs, ordered by client.
            clients: the one of each run; None where all ask together.
        """
        if clients is None:
            count = range(len(members[0].models))
            askers = [(client, place) for client in count for place in range(len(members))]
        else:
            askers = [(client, place) for place, client in enumerate(clients)]
        ids = _ids(members, clients)
        blocks: list[Block] = []
        for _, grouped in groupby(askers, key=lambda asker: id(self._stacks[asker[0]])):
            own = list(grouped)
            stacks = self._stacks[own[0][0]]
            halves = self._halves(stacks)
            inputs = np.empty((len(own), ids.shape[1], stacks.inputs), np.float32)
            for row, (client, place) in zip(inputs, own, strict=True):
                features = members[place].features[client]
                kernels.gather(row, features, ids[place], len(features))
            items = [members[place].item(client) for client, place in own]
            embeddings = halves.ask(items, inputs)
            blocks.append(Block(halves, own, _parts(own, embeddings), embeddings))
        return Asked(ids, blocks)

    def check(self, asked: Asked, members: Sequence[Member], failures: Failures) -> None:
        """Mend or refuse embeddings out of bounds, as a server does, and spent budgets."""
        for block in asked.blocks:
            bounded = validate.is_bounded(block.embeddings, self._bound)
            if bounded and members[0].plan.releases is None:
                continue
            for item, (client, place) in enumerate(block.askers):
                own, plan = block.embeddings[:, item], members[place].plan
                try:
                    if not bounded and plan.tolerant:
                        own.copy_(validate.mended(own, self._bound))
                    elif not bounded:
                        validate.bounded(f"the embeddings of client {client}", own, self._bound)
                    plan.admit(client, torch.from_numpy(asked.ids[place]))
                except RefusedError as error:
                    failures.setdefault(place, error)


def _ids(members: Sequence[Member], clients: Sequence[int] | None) -> Ids:
    """Record IDs, [runs, batch]."""
    if clients is None:
        return np.stack([member.announced().numpy() for member in members])
    parties = [m.federation.clients[c] for m, c in zip(members, clients, strict=True)]
    return np.stack([party.batches.ids(party.answered).numpy() for party in parties])


def _parts(askers: Sequence[tuple[int, int]], embeddings: Tensor) -> list[Part]:
    """A block's items by client."""
    found, start = [], 0
    for client, own in groupby(askers, key=lambda asker: asker[0]):
        places = [place for _, place in own]
        stop = start + len(places)
        runs = slice(places[0], places[-1] + 1)
        found.append(Part(client, runs, embeddings[:, start:stop]))
        start = stop
    return found
