"""Gradient matching: find the label and the other clients' embeddings that explain a reply.

Zhao, Mopuri and Bilen (iDLG, 2020), after Zhu, Liu and Han (2019), for vertical federations. The
attacker is a client that was also told the server model w_0 (the published Compressed-VFL does so).
It knows its own embedding h and the gradient ``g_i = ∂f_i/∂h``; unknown are the label y and the
others' embeddings a. For every class it minimises ``‖∂f(h, a; y)/∂h − g_i‖²`` over a; the class
with the least mismatch is the label, and its a the reconstruction. Where the server adds up, the
label is the one negative sign, as iDLG has it, and log(g + one-hot) gives the others' sum up to a
constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from vertizo.config.architectures import SumConfig
from vertizo.config.schema import ExperimentConfig
from vertizo.data.vertical import VerticalData
from vertizo.lab.attacks import arena
from vertizo.lab.attacks.adversaries import InformedClient
from vertizo.lab.attacks.base import Attack, why_no_classes
from vertizo.lab.attacks.estimates import kind, record_gradients
from vertizo.lab.attacks.scores import Guesses, Measurement, relative_error
from vertizo.lab.attacks.transcript import Exchange
from vertizo.methods.czofo import Czofo
from vertizo.models.parts import flatten, trained
from vertizo.run.build.models import server_module

SMALLEST = 1e-7
"""Smallest probability that float32 still tells apart once it is subtracted from 1."""


def match(informed: InformedClient, exchange: Exchange, steps: int) -> tuple[Guesses, Tensor]:
    """Guess labels of one exchange's records, and the others' embeddings [batch, Σ other d_h].

    For a server that sums, the reconstruction is of the others' sum, centred: [batch, outputs].
    """
    client = informed.client
    gradients = record_gradients(exchange, client.public, client.shared)
    if not isinstance(client.public.server_model, SumConfig):
        return _from_search(informed, exchange, gradients, steps)
    labels = gradients.argmin(1)
    ones = F.one_hot(labels, gradients.shape[1])
    least = min(1.0, client.public.noise_std or SMALLEST)  # that the replies can tell from 0
    others = (gradients + ones).clamp(min=least).log() - exchange.embeddings[0]
    return Guesses(exchange.ids, labels), others - others.mean(1, keepdim=True)


def _from_search(
    informed: InformedClient, exchange: Exchange, gradients: Tensor, steps: int
) -> tuple[Guesses, Tensor]:
    """Search all classes and records at once: the classes are rows of one large batch."""
    public, index = informed.client.public, informed.client.index
    module = server_module(public.server_model, sum(public.dims), public.outputs)
    flatten(trained(module).values()).copy_(informed.server_parameters[exchange.number])
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    own, classes = exchange.embeddings[0], public.outputs
    batch = len(own)
    before, after = sum(public.dims[:index]), sum(public.dims[index + 1 :])
    h = own.repeat(classes, 1).requires_grad_(True)
    wanted = gradients.repeat(classes, 1)
    labels = torch.arange(classes).repeat_interleave(batch)
    others = torch.zeros(classes * batch, before + after, requires_grad=True)
    scale = wanted.square().sum(1).clamp(min=1e-20)
    optimizer = torch.optim.Adam([others], lr=0.1)

    def mismatch() -> Tensor:
        joined = torch.cat([others[:, :before], h, others[:, before:]], 1)
        outputs = functional_call(module, weights, (joined,))
        loss = F.cross_entropy(outputs, labels, reduction="sum")
        (found,) = torch.autograd.grad(loss, [h], create_graph=True)
        return (found - wanted).square().sum(1) / scale

    for _ in range(steps):
        optimizer.zero_grad()
        mismatch().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    left = mismatch().detach().view(classes, batch)
    best = left.argmin(0)
    chosen = others.detach().view(classes, batch, -1)[best, torch.arange(batch)]
    return Guesses(exchange.ids, best), chosen


class GradientMatching(Attack):
    """A client that knows the server model finds labels and embeddings that explain its replies."""

    name: ClassVar[str] = "gradient-matching"
    paper: ClassVar[str] = "iDLG (Zhao et al. 2020)"
    adversary: ClassVar[str] = "one client that was told the server model"
    figures: ClassVar[Mapping[str, str]] = {
        "accuracy": "share of labels that it finds",
        "others": "relative squared error of the others' embeddings (1: the mean; 0: found)",
    }
    setting: ClassVar[str] = "sum"

    steps: int = Field(default=200, gt=0)
    """Of the search, where the server is no sum."""
    exchanges: int = Field(default=4, gt=0)
    """The last so many queries are attacked."""

    def unfit(self, config: ExperimentConfig, data: VerticalData) -> str | None:
        """Require classes, embeddings side by side, and replies with each record's gradient."""
        if (reason := why_no_classes(data)) is not None:
            return reason
        if config.server.join != "concat" or data.own is not None:
            return "the attack is for embeddings side by side (server.join concat, no label holder)"
        if config.server.model.name not in ("sum", "mlp"):
            return f"server.model is {config.server.model.name!r}; the attack knows 'sum' and 'mlp'"
        if len(data.parties) < 2:
            return "there is one client, and no other's embedding to find"
        method = config.method
        if kind(method) == "gradient" or (isinstance(method, Czofo) and method.scalars == "record"):
            return None
        return (
            f"replies of method {method.name!r} are scalars of a whole batch; there is no gradient "
            "of a record to match"
        )

    def trial(self, config: ExperimentConfig, data: VerticalData) -> dict[str, Measurement]:
        """Train an honest run, and attack its last batches."""
        ground = arena.train(config, data, latest=self.exchanges, watch_server=True)
        client = ground.client()
        informed = InformedClient(client, ground.watched.parameters)
        tried = client.exchanges[-self.exchanges :]
        labels, others = zip(*(match(informed, each, self.steps) for each in tried), strict=True)
        truth = _true_others(torch.cat([ground.watched.rows[e.number] for e in tried]), ground)
        error = relative_error(torch.cat(others), truth, truth.mean(0))
        score = Guesses.joined(labels).score(data.labels["train"], ground.promise)
        return {"accuracy": score, "others": Measurement(error, 1.0, len(truth))}


def _true_others(rows: Tensor, ground: arena.Arena) -> Tensor:
    """Extract the true embeddings of the others from rows of the server's table, for scoring."""
    dims = ground.federation.server.side.table.dims
    start = sum(dims[: arena.CURIOUS])
    others = torch.cat([rows[:, :start], rows[:, start + dims[arena.CURIOUS] :]], 1)
    if isinstance(ground.config.server.model, SumConfig):
        total = others.reshape(len(others), -1, ground.data.task.outputs).sum(1)
        return total - total.mean(1, keepdim=True)
    return others
