"""One label statistic: each client asks once, and fits its own logits to what it is told.

docs/mathematics.md, One label statistic; ``J_i``, ``S`` and ``U_i`` are as in
`vertizo.methods.directional_queries`. With softmax, or one log-odds, all that a likelihood has of
the labels is ``Σ_i U_iᵀ y_i``.

1. The client sends ``h_i`` and ``c_i U_i`` of every record. ``c_i > 0`` shortens long rows, so
   that no label's row passes the clip C = 1/2.
2. The server takes ``s_i = c_i U_iᵀ (1/k − onehot(y_i))``, the slope at logits of zero, clips it
   and releases the noised mean ``a``. It sends ``a`` and σ, the noise of its numbers.
3. The client finds the v that minimises ``mean_i c_i A(h_i + U_i v) + a·v + Σ_k λ_k v_k² / 2``,
   the negative log-likelihood weighted by ``c_i``, with A the log-partition less the mean logit.
   ``λ_k = (1/n + σ²/(h m_k))/τ²``, with ``m_k = mean_i c_i ‖U_i,k‖²``, is public but for its own
   features: the normal prior of variance τ² beside records and noise.
4. It steps ``w_m ← w_m + S v``.

Nothing of other parties, of the server's model or of the label holder's columns is in a reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from vertizo.core.errors import ConfigError
from vertizo.core.names import Join, UpdateName
from vertizo.core.plugins.lazy_import import torch
from vertizo.methods.base import Answered, ClientSide, Features, Outcome
from vertizo.methods.directional_queries import AlongDirections
from vertizo.models.base import gathered
from vertizo.models.optimizers import Dense

if TYPE_CHECKING:
    from torch import Tensor

    from vertizo.protocol.messages import Query

CURVATURE = 0.15
"""h, a record's curvature by a logit: at most 1/4, less where labels are unequal."""
NEWTON_STEPS, HALVINGS = 20, 12
CLOSE = 1e-6
"""Rise of the objective below which a step is the last."""


class LabelStatistic(AlongDirections):
    """Asks once for ``Σ_i U_iᵀ y_i``, one release, to which the client fits its logits."""

    paper: ClassVar[str] = "one label statistic (docs/mathematics.md)"

    server_updates: ClassVar[tuple[UpdateName, ...]] = ("sgd", "none")  # in no reply either way
    server_join: ClassVar[Join] = "mean"  # each client's fit has the whole bias
    whole_queries: ClassVar[int] = 1
    mixes_features: ClassVar[bool] = False  # no message depends on another client's embeddings
    fits_features: ClassVar[bool] = True  # at all of the client's records, to the released sum

    name: Literal["label-statistic"] = "label-statistic"
    spread: float = Field(default=1.0, gt=0)
    """How large a logit of the fit is expected to be: the standard deviation of its prior."""

    def reply_shape(self, batch: int, embedding_dim: int) -> tuple[int, ...]:
        """A number for each direction, and the noise of each."""
        return (self.num_directions + 1,)

    def check_outputs(self, outputs: int, dims: Sequence[int]) -> None:
        """Raises ConfigError unless labels are classes and clients' embeddings are logits."""
        if outputs == 1:
            raise ConfigError(
                f"method {self.name!r} is for classes, but the labels are numbers; use 'tangent'"
            )
        fit = {1, 2} if outputs == 2 else {outputs}
        for client, dim in enumerate(dims):
            if dim not in fit:
                raise ConfigError(
                    f"client.model gives embeddings of {dim} numbers at client {client}, but "
                    f"method {self.name!r} fits logits: {' or '.join(map(str, sorted(fit)))}"
                )

    def ask(self, side: ClientSide, number: int, features: Features) -> Tensor:
        """``h`` and ``c U``, [1 + K, batch, d_h]."""
        sent = super().ask(side, number, features)
        sent[1:] *= _weights(sent[1:]).unsqueeze(1)
        return sent

    def told(self, outcome: Outcome) -> Tensor:
        """``s_i``, [batch, K]."""
        along, slopes = outcome.query.embeddings[1:], outcome.resting()
        if along.shape[2] < slopes.shape[1]:  # a log-odds, of which each logit has a half
            slopes = (slopes[:, 1:] - slopes[:, :1]) / 2
        return torch.einsum("knd,nd->nk", along, slopes)

    def answered(self, query: Query, released: Tensor, noise_std: float) -> Answered:
        """``a``, and σ."""
        return Answered(torch.cat([released, released.new_full((1,), noise_std)]))

    def tell(self, side: ClientSide, number: int, features: Features, values: Tensor) -> None:
        """``w_m ← w_m + S v``."""
        chosen, rows = self.asked_along(side, number, features), gathered(features)
        along = side.model.tangents(chosen, rows)
        weights = _weights(along)
        length = weights * along.square().sum(0).mean(1)  # τ² makes logits as spread as expected
        variance = self.spread**2 / max(float(length.mean() / weights.mean()), 1e-30)
        found = fitted(side.model(rows), along, weights, values[:-1], values[-1], variance)
        side.step(Dense(-found @ chosen))


def _weights(along: Tensor) -> Tensor:
    """``c_i`` of tangents [K, n, d_h], [n]: then no label's row is longer than 1/2."""
    rows = along if along.shape[2] == 1 else 2 * (along - along.mean(2, keepdim=True))
    lengths = rows.norm(dim=0).amax(1)  # twice the row of the label for which it is longest
    usual = lengths.square().mean().sqrt()  # longer rows are shortened to it
    return 1 / torch.maximum(lengths, usual).clamp(min=1e-30)


def fitted(
    start: Tensor, along: Tensor, weights: Tensor, told: Tensor, noise: Tensor, variance: float
) -> Tensor:
    """The v [K] that fits logits ``start + U v`` to a label statistic, by Newton's method.

    Args:
        start: logits before, or log-odds, [n, d_h].
        along: U, [K, n, d_h].
        weights: c, [n].
        told: a, [K].
        noise: σ of its numbers.
        variance: τ².
    """
    records = len(start)
    size = (along.square().sum(2) @ weights).double() / records
    used = size > 0
    ridge = 1 / records + noise.double().square() / (CURVATURE * size.clamp(min=1e-30))
    ridge, told = ridge / variance, told.double()

    def value(v: Tensor) -> Tensor:
        found = _log_partition(start + torch.einsum("knd,k->nd", along, v.float()))
        return found.double() @ weights.double() / records + told @ v + ridge @ v.square() / 2

    along, told, ridge = along[used], told[used], ridge[used]
    at = torch.zeros_like(told)
    here = value(at)
    for _ in range(NEWTON_STEPS):
        slopes, curved = _derivatives(start + torch.einsum("knd,k->nd", along, at.float()))
        # Two factors at a time: where opt_einsum is installed, PyTorch orders three otherwise.
        by_record = torch.einsum("knd,nd->kn", along, slopes)
        gradient = torch.einsum("kn,n->k", by_record, weights).double() / records
        gradient += told + ridge * at
        weighted = torch.einsum("knd,nde->kne", along, curved * weights[:, None, None])
        hessian = (weighted.flatten(1) @ along.flatten(1).t()).double() / records
        step = torch.linalg.solve(hessian + ridge.diag(), gradient)
        length = 1.0
        while value(at - length * step) > here and length > 2.0**-HALVINGS:
            length /= 2
        there = value(at - length * step)
        if not there < here:
            break
        at, fell = at - length * step, here - there
        here = there
        if fell < CLOSE:
            break
    whole = torch.zeros_like(used, dtype=torch.float64)
    whole[used] = at
    return whole.float()


def _log_partition(logits: Tensor) -> Tensor:
    """A: the logarithm of the sum of exponentials less the mean logit, [n]; of log-odds alike."""
    if logits.shape[1] == 1:
        logits = torch.cat([-logits / 2, logits / 2], 1)
    return logits.logsumexp(1) - logits.mean(1)


def _derivatives(logits: Tensor) -> tuple[Tensor, Tensor]:
    """A's first and second derivatives, [n, d_h] and [n, d_h, d_h]."""
    if logits.shape[1] == 1:
        slopes = torch.tanh(logits / 2) / 2
        return slopes, (0.25 - slopes.square()).unsqueeze(2)
    shares = logits.softmax(1)
    return shares - 1 / logits.shape[1], shares.diag_embed() - shares[:, :, None] * shares[:, None]
