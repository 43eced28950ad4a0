"""Several runs, each at its own round: the round that most of them have next is made for those.

Rounds can be made together where the same client asks, or one of the same layers, and about as many
records. Which client asks is up to each run's own clock, so that the runs drift apart; they share
nothing, and none waits for another but to make a larger round.
"""

from __future__ import annotations

from collections.abc import Sequence

from vertizo.batched.answers import (
    Answering,
    DpzvAnswers,
    FirstOrderAnswers,
    ForwardDifferenceAnswers,
)
from vertizo.batched.asking import Failures
from vertizo.batched.clients import ClientHalves, FirstOrderHalves, ZerothOrderHalves
from vertizo.batched.members import Member
from vertizo.batched.rounds import Rounds
from vertizo.memory import BLOCK
from vertizo.methods.base import Method
from vertizo.methods.dpzv import Dpzv
from vertizo.methods.forward_difference import ForwardDifference
from vertizo.models.layers import Layers
from vertizo.models.linear_stack import LinearStack

Key = tuple[int, int]
"""Layers of the client that asks, -1 for all clients, and records of a batch."""


class Lockstep:
    """Advances runs of one kind (`vertizo.batched.kinds`), as many as possible at a time.

    Args:
        members: the runs, started or gone on with.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        known: dict[tuple[object, ...], Layers] = {}
        clients = [
            known.setdefault(model.layers, Layers(model.layers)) for model in members[0].models
        ]
        kinds = list(known.values())
        self._kind = [kinds.index(stacks) for stacks in clients]
        server = members[0].federation.server.side.head.model
        assert isinstance(server, LinearStack), "what else is never made together"
        method = members[0].config.method
        self._rounds = Rounds(
            members,
            clients,
            Layers(server.layers),
            lambda own: _halves(method, own),
            _server(method),
        )
        self._most = _most(members[0], [*clients, Layers(server.layers)])
        self._waiting: dict[Key, dict[int, int]] = {}
        """Key → run → the client that asks."""
        for run in range(len(members)):
            self._enter(run)

    def step(self) -> tuple[Sequence[int], Failures]:
        """One round of as many runs as have the same kind of round next.

        Returns:
            The runs that made it, and those that cannot go on; none where none has rounds left.
        """
        if not self._waiting:
            return [], {}
        key = max(self._waiting, key=lambda each: (len(self._waiting[each]), each))
        asking = self._waiting.pop(key)
        runs = sorted(asking, key=lambda run: (asking[run], run))
        pieces = -(-len(runs) // self._most)
        if pieces > 1:
            later = runs[-(-len(runs) // pieces) :]
            runs = runs[: -len(later)]
            self._waiting[key] = {run: asking[run] for run in later}
        together = key[0] < 0
        failures = self._rounds.make(runs, None if together else [asking[run] for run in runs])
        for run in runs:
            if run not in failures:
                self._enter(run)
        return runs, failures

    def drop(self, run: int) -> None:
        """Make no further round of a run."""
        for asking in self._waiting.values():
            asking.pop(run, None)
        self._waiting = {key: asking for key, asking in self._waiting.items() if asking}

    def _enter(self, run: int) -> None:
        member = self._members[run]
        due = member.due() if member.going else None
        if due is None:
            return
        kind = -1 if due.client is None else self._kind[due.client]
        self._waiting.setdefault((kind, due.batch), {})[run] = due.client or 0


def _halves(method: Method, stacks: Layers) -> ClientHalves:
    if isinstance(method, Dpzv):
        return ZerothOrderHalves(stacks, method.num_directions, forward=False)
    if isinstance(method, ForwardDifference):
        return ZerothOrderHalves(stacks, 1, forward=True)
    return FirstOrderHalves(stacks)


def _server(method: Method) -> Answering:
    if isinstance(method, Dpzv):
        return DpzvAnswers(method.num_directions, jointly=method.clipping == "jointly")
    if isinstance(method, ForwardDifference):
        return ForwardDifferenceAnswers(losses=method.reply == "losses")
    return FirstOrderAnswers()


def _most(member: Member, stacks: Sequence[Layers]) -> int:
    """Runs of one round: arrays beyond what the C library keeps would be paged in every time."""
    clients = len(member.models) if member.is_synchronous else 1
    batch = member.config.batch_size
    points = 1 + clients * member.config.method.points
    numbers = [clients * max(own.size, batch * own.inputs) for own in stacks]
    numbers += [points * batch * layer.outputs for own in stacks for layer in own.layers]
    return max(1, BLOCK // (4 * max(numbers)))
