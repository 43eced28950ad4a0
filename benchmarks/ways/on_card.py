"""Loops that one would write by hand for a card: everything there, no party, no check, no clock.

For the cases of `devices.py`. A round is a function of tensors that stay where they are, so that it
can be captured as a CUDA graph and played again (`graphed`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

RECORDS, CLASSES = 1024, 10
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def flat(module: nn.Module) -> Tensor:
    """The module's parameters as one vector, of which they are views from now on."""
    parts = list(module.parameters())
    whole = torch.cat([part.detach().reshape(-1) for part in parts])
    sizes = [part.numel() for part in parts]
    for part, values in zip(parts, torch.split(whole, sizes), strict=True):
        part.data = values.view_as(part)
    return whole


class Loop(ABC):
    """One method's rounds, one client after the other, on random records and labels."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], batch: int, width: int) -> None:
        """``width`` numbers are an embedding."""
        self.features = [torch.randn(RECORDS, *shape, device=DEVICE) for shape in shapes]
        self.labels = torch.randint(CLASSES, (RECORDS,), device=DEVICE)
        self.table = torch.zeros(RECORDS, len(shapes), width, device=DEVICE)
        self.ids = torch.zeros(batch, dtype=torch.int64, device=DEVICE)

    @abstractmethod
    def round(self, client: int) -> None:
        """One round of a client on the records of ``ids``."""

    def draw(self) -> None:
        """The records of the next round."""
        self.ids.copy_(torch.randint(RECORDS, self.ids.shape, device=DEVICE))

    def eager(self) -> int:
        """A round of each client."""
        for client in range(len(self.features)):
            self.draw()
            self.round(client)
        return len(self.features)

    def graphed(self) -> Callable[[], int]:
        """The same, each client's round as one CUDA graph."""
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):
                self.eager()
        torch.cuda.current_stream().wait_stream(beside)
        graphs = []
        for client in range(len(self.features)):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.draw()
                self.round(client)
            graphs.append(graph)

        def replayed() -> int:
            for graph in graphs:
                graph.replay()
            return len(graphs)

        return replayed


def descend(loss: Tensor, parameters: Sequence[Tensor], rate: float) -> None:
    """One step of gradient descent."""
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        torch._foreach_add_(list(parameters), gradients, alpha=-rate)


class TwoPoint(Loop):
    """DPZV: both sides of a direction, one clipped slope, a server by gradients."""

    smoothing, clip, rate, server_rate = 1e-3, 5.0, 1e-4, 5e-3

    def __init__(
        self,
        clients: Sequence[nn.Module],
        server: nn.Module,
        shapes: Sequence[tuple[int, ...]],
        batch: int,
        width: int,
    ) -> None:
        super().__init__(shapes, batch, width)
        self.clients, self.server = [one.to(DEVICE).eval() for one in clients], server.to(DEVICE)
        self.weights = [flat(one) for one in self.clients]
        self.steps = tuple(self.server.parameters())

    def round(self, client: int) -> None:
        """As algorithm 1 has it, without noise."""
        weights, model, ids, by = (
            self.weights[client],
            self.clients[client],
            self.ids,
            self.smoothing,
        )
        features, labels = self.features[client][ids], self.labels[ids]
        direction = torch.randn_like(weights)
        with torch.no_grad():
            weights.add_(direction, alpha=by)
            plus = model(features)
            weights.add_(direction, alpha=-2 * by)
            minus = model(features)
            weights.add_(direction, alpha=by)
            rows = self.table[ids]
            both = torch.stack([rows, rows])
            both[0, :, client], both[1, :, client] = plus, minus
            logits = self.server(both.view(2 * len(ids), -1))
            losses = cross_entropy(logits, labels.repeat(2), reduction="none").view(2, -1)
            slope = ((losses[0] - losses[1]) / (2 * by)).clamp(-self.clip, self.clip).mean()
            rows[:, client] = (plus + minus) / 2
            self.table[ids] = rows
        loss = cross_entropy(self.server(rows.flatten(1)), labels)
        descend(loss, self.steps, self.server_rate)
        with torch.no_grad():
            weights.addcmul_(direction, slope, value=-self.rate)


class AtEmbeddings(Loop):
    """VFL-CZOFO: q directions of the embeddings, which are added up; clients by gradients."""

    smoothing, rate, directions = 1e-3, 1e-2, 10

    def __init__(
        self, clients: Sequence[nn.Module], shapes: Sequence[tuple[int, ...]], batch: int
    ) -> None:
        super().__init__(shapes, batch, CLASSES)
        self.clients = [one.to(DEVICE) for one in clients]
        self.steps = [tuple(one.parameters()) for one in self.clients]

    def round(self, client: int) -> None:
        """One slope of the batch along each direction, carried back through the client's model."""
        ids, q = self.ids, self.directions
        labels, embeddings = self.labels[ids], self.clients[client](self.features[client][ids])
        with torch.no_grad():
            rows = self.table[ids]
            rows[:, client] = embeddings.detach()
            self.table[ids] = rows
            total = rows.sum(1)
            directions = torch.randn(q, len(ids), CLASSES, device=DEVICE)
            directions /= directions.norm(dim=2, keepdim=True)
            moved = (total + self.smoothing * directions).view(-1, CLASSES)
            losses = cross_entropy(moved, labels.repeat(q), reduction="none").view(q, -1).mean(1)
            slopes = (losses - cross_entropy(total, labels)) / self.smoothing
            estimate = torch.einsum("q,qbk->bk", slopes, directions) * (CLASSES / q)
        descend((embeddings * estimate).sum(), self.steps[client], self.rate)


class Forward(TwoPoint):
    """VFL-Cascaded: a forward difference of two losses, a deep server by gradients."""

    server_rate = 1e-2

    def round(self, client: int) -> None:
        """As its algorithm has it."""
        weights, model, ids, by = (
            self.weights[client],
            self.clients[client],
            self.ids,
            self.smoothing,
        )
        features, labels = self.features[client][ids], self.labels[ids]
        direction = torch.randn_like(weights)
        with torch.no_grad():
            plain = model(features)
            weights.add_(direction, alpha=by)
            moved = model(features)
            weights.add_(direction, alpha=-by)
            rows = self.table[ids]
            other = rows.clone()
            rows[:, client], other[:, client] = plain, moved
            self.table[ids] = rows
            shifted = cross_entropy(self.server(other.flatten(1)), labels)
        loss = cross_entropy(self.server(rows.flatten(1)), labels)
        descend(loss, self.steps, self.server_rate)
        with torch.no_grad():
            weights.addcmul_(direction, (shifted - loss.detach()) / by, value=-self.rate)
