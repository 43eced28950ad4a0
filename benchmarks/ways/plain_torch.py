"""The loop that one would write by hand in PyTorch, for each method.

Clients in turn, a table of embeddings, autograd where a method differentiates and nowhere else, and
nothing between the parties: no messages, no checks, no accounting.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from report import Rounds
from torch import Tensor, nn

from ways.setting import Records, Setting

Directions = Sequence[Tensor]


def mlp(layers: Sequence[tuple[int, int]]) -> nn.Sequential:
    """Linear layers with ReLU between."""
    parts: list[nn.Module] = []
    for before, after in layers:
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


class Loop:
    """What the loops of all methods hold."""

    def __init__(self, setting: Setting, data: Records) -> None:
        self.setting = setting
        self.features, self.labels = data.features, data.labels
        shape = setting.shape
        self.clients = [mlp(shape.client_layers) for _ in data.features]
        self.server = mlp(shape.server_layers)
        self.weights = [list(client.parameters()) for client in self.clients]
        self.server_weights = list(self.server.parameters())
        self.optimizer = torch.optim.SGD(self.server_weights, lr=setting.server_rate)
        self.table = torch.zeros(shape.clients, len(data.labels), shape.outputs)

    def some(self) -> int:
        """A round of every client."""
        for m in range(len(self.clients)):
            ids = torch.randint(0, len(self.labels), (self.setting.batch,))
            self.round(m, ids, self.draw(m, ids))
        return len(self.clients)

    def draw(self, m: int, ids: Tensor) -> Directions:
        """The directions of one round: like the client's weights."""
        return self.like(self.weights[m])

    def like(self, weights: Sequence[Tensor]) -> Directions:
        """Normal numbers or signs."""
        if self.setting.variant.law == "rademacher":
            return [torch.randint_like(w, 2).mul_(2).sub_(1) for w in weights]
        return [torch.randn_like(w) for w in weights]

    def round(self, m: int, ids: Tensor, directions: Directions) -> float:
        """One round of client m on those records; the loss that the server trains on."""
        raise NotImplementedError

    def joined(self, m: int, ids: Tensor, own: Tensor) -> Tensor:
        """The server's input: one client's embeddings, and what is known of the others'."""
        parts = [own if k == m else self.table[k, ids] for k in range(len(self.clients))]
        return torch.cat(parts, 1)


def shift(weights: Sequence[Tensor], directions: Directions, by: float) -> None:
    """``w ← w + by · u``."""
    for w, u in zip(weights, directions, strict=True):
        w.add_(u, alpha=by)


class Cascaded(Loop):
    """Forward differences at clients, gradients at the server."""

    def round(self, m: int, ids: Tensor, directions: Directions) -> float:
        setting, client, weights = self.setting, self.clients[m], self.weights[m]
        x, y = self.features[m][ids], self.labels[ids]
        with torch.no_grad():
            plain = client(x)
            shift(weights, directions, setting.smoothing)
            shifted = client(x)
            shift(weights, directions, -setting.smoothing)
            self.table[m, ids] = plain
            shifted_loss = F.cross_entropy(self.server(self.joined(m, ids, shifted)), y)
        loss = F.cross_entropy(self.server(self.joined(m, ids, plain)), y)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        slope = (shifted_loss.item() - loss.item()) / setting.smoothing
        with torch.no_grad():
            shift(weights, directions, -setting.client_rate * slope)
        return loss.item()


class Dpzv(Loop):
    """Differences between both sides at clients; the server's gradient at their middle."""

    def round(self, m: int, ids: Tensor, directions: Directions) -> float:
        setting, client, weights = self.setting, self.clients[m], self.weights[m]
        x, y = self.features[m][ids], self.labels[ids]
        with torch.no_grad():
            shift(weights, directions, setting.smoothing)
            plus = client(x)
            shift(weights, directions, -2 * setting.smoothing)
            minus = client(x)
            shift(weights, directions, setting.smoothing)
            loss_plus = F.cross_entropy(self.server(self.joined(m, ids, plus)), y)
            loss_minus = F.cross_entropy(self.server(self.joined(m, ids, minus)), y)
            middle = (plus + minus) / 2
            self.table[m, ids] = middle
        loss = F.cross_entropy(self.server(self.joined(m, ids, middle)), y)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        slope = (loss_plus.item() - loss_minus.item()) / (2 * setting.smoothing)
        with torch.no_grad():
            shift(weights, directions, -setting.client_rate * slope)
        return loss.item()


class ZooVfl(Loop):
    """Forward differences at clients and server; no graph anywhere."""

    def draw(self, m: int, ids: Tensor) -> Directions:
        return self.like([*self.weights[m], *self.server_weights])

    @torch.no_grad()
    def round(self, m: int, ids: Tensor, directions: Directions) -> float:
        setting, client, weights = self.setting, self.clients[m], self.weights[m]
        own, servers = directions[: len(weights)], directions[len(weights) :]
        x, y = self.features[m][ids], self.labels[ids]
        plain = client(x)
        shift(weights, own, setting.smoothing)
        shifted = client(x)
        shift(weights, own, -setting.smoothing)
        self.table[m, ids] = plain
        joined = self.joined(m, ids, plain)
        loss = F.cross_entropy(self.server(joined), y).item()
        client_loss = F.cross_entropy(self.server(self.joined(m, ids, shifted)), y).item()
        shift(self.server_weights, servers, setting.smoothing)
        server_loss = F.cross_entropy(self.server(joined), y).item()
        slope = (server_loss - loss) / setting.smoothing
        shift(self.server_weights, servers, -setting.smoothing - setting.server_rate * slope)
        shift(weights, own, -setting.client_rate * (client_loss - loss) / setting.smoothing)
        return loss


class Czofo(Loop):
    """Zeroth order at the embeddings, gradients on either side of them."""

    def draw(self, m: int, ids: Tensor) -> Directions:
        u = torch.randn(self.setting.directions, len(ids), self.setting.shape.outputs)
        return [u.div_(torch.linalg.vector_norm(u, dim=2, keepdim=True))]

    def round(self, m: int, ids: Tensor, directions: Directions) -> float:
        setting, client = self.setting, self.clients[m]
        (u,) = directions
        count, batch, dimension = u.shape
        x, y = self.features[m][ids], self.labels[ids]
        embeddings = client(x)
        plain = embeddings.detach()
        self.table[m, ids] = plain
        joined = self.joined(m, ids, plain)
        with torch.no_grad():
            moved = joined.repeat(count, 1, 1)  # [q, batch, width]
            first = m * dimension
            moved[:, :, first : first + dimension].add_(u, alpha=setting.smoothing)
            logits = self.server(moved.flatten(0, 1))
            each = F.cross_entropy(logits, y.repeat(count), reduction="none")
            losses = each.view(count, batch).mean(1)
        loss = F.cross_entropy(self.server(joined), y)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        with torch.no_grad():
            slopes = (losses - loss) / setting.smoothing
            gradient = (slopes @ u.flatten(1)).view(batch, dimension) * (dimension / count)
        steps = torch.autograd.grad(embeddings, self.weights[m], gradient)
        with torch.no_grad():
            shift(self.weights[m], steps, -setting.client_rate)
        return loss.item()


class Vafl(Loop):
    """Gradients everywhere: one backward pass through server and client."""

    def __init__(self, setting: Setting, data: Records) -> None:
        super().__init__(setting, data)
        self.client_optimizers = [torch.optim.SGD(w, lr=setting.client_rate) for w in self.weights]

    def draw(self, m: int, ids: Tensor) -> Directions:
        return []

    def round(self, m: int, ids: Tensor, directions: Directions) -> float:
        x, y = self.features[m][ids], self.labels[ids]
        embeddings = self.clients[m](x)
        self.table[m, ids] = embeddings.detach()
        loss = F.cross_entropy(self.server(self.joined(m, ids, embeddings)), y)
        self.optimizer.zero_grad()
        self.client_optimizers[m].zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.client_optimizers[m].step()
        return loss.item()


LOOPS: dict[str, type[Loop]] = {
    "cascaded": Cascaded,
    "dpzv": Dpzv,
    "zoo-vfl": ZooVfl,
    "czofo": Czofo,
    "vafl": Vafl,
}


def loop(setting: Setting, data: Records) -> Loop:
    """The loop of the setting's method."""
    return LOOPS[setting.variant.method](setting, data)


def rounds(setting: Setting, data: Records) -> Rounds:
    """Its rounds."""
    return loop(setting, data).some
