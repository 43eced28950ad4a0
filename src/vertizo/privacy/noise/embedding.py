"""Noise on the embedding: the private variant that the papers compare with.

The client clips each record's embedding to norm C and adds ``N(0, σ² I)`` before it is sent. This
says nothing about labels, which the server's answers still carry. Nor does it bound what the
server learns of a record's features: the client trains on them, and its parameters carry them into
the embeddings of other records. The figures below are those of the record's own embeddings alone,
for ideal Gaussian noise: this noise is on no grid, and its seeds could be searched in principle, so
that nothing here is called exact.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from vertizo.core import arrays
from vertizo.core.randomness import Stream
from vertizo.privacy.accounting.gaussian import compose, epsilon_of, published_mu
from vertizo.privacy.clipping import clip, moved
from vertizo.privacy.epsilon_text import bound_text

FROM_SEED = "; the noise follows from the run's seed, and protects from nobody who knows that"
IDEAL = (
    "; the figure is that of ideal Gaussian noise, of which this is an approximation in "
    "floating-point numbers, made from a secret seed of 64 bits for each query"
)


@dataclass(frozen=True)
class EmbeddingNoise:
    """Clips one client's embeddings and adds noise; back-propagated gradients are unchanged.

    The stream is the noise's own, shared with nothing else.
    """

    clip_norm: float
    noise_std: float
    stream: Stream

    def clipped(self, embeddings: Tensor) -> Tensor:
        """Embeddings [..., d_h], each brought to norm at most C."""
        rows = embeddings.reshape(-1, embeddings.shape[-1])
        return clip(rows, self.clip_norm).to(embeddings.dtype).view(embeddings.shape)

    def release(self, number: int, embeddings: Tensor) -> Tensor:
        """The noised embeddings that are sent as query ``number``, [points, batch, d_h]."""
        return self._noised(self.stream.child("query"), number, embeddings)

    def release_upload(self, start: int, embeddings: Tensor) -> Tensor:
        """The noised embeddings that fill the table from row ``start`` on, [rows, d_h]."""
        return self._noised(self.stream.child("table"), start, embeddings)

    def _noised(self, stream: Stream, number: int, embeddings: Tensor) -> Tensor:
        drawn = torch.from_numpy(stream.generator(number).standard_normal(tuple(embeddings.shape)))
        noisy = self.clipped(embeddings).to(torch.float64)
        noise = arrays.here(drawn, noisy.device)
        return noisy.add_(noise, alpha=self.noise_std).to(embeddings.dtype)


@dataclass(frozen=True)
class EmbeddingStatement:
    """The ε of the noise on one client's embeddings, exactly and by the published formula.

    ``releases`` is k, embeddings of one record that one client sends; μ is 2C√k/σ.
    ``epsilon_published`` has DPZV's sampling factor, which does not hold: the server sees who is in
    the batch.
    """

    clip: float
    noise_std: float
    delta: float
    releases: int
    mu: float
    epsilon: float
    epsilon_published: float
    simulated: bool = False
    """Whether the noise follows from a seed, so that whoever knows that knows the noise."""

    def as_dict(self) -> dict[str, Any]:
        """The statement for ``summary.json``."""
        return asdict(self)

    def words(self) -> str:
        """The statement in words."""
        plural, seeded = "s" if self.releases > 1 else "", "simulated " if self.simulated else ""
        return (
            "No privacy guarantee: the labels are not protected at all. "
            f"The noise gives what one client sends of a record, {self.releases} embedding{plural} "
            f"in all, {seeded}ε = {bound_text(self.epsilon)} at δ = {self.delta:g} against the "
            f"server (by the published formula, which does not hold: {self.epsilon_published:.4g})"
            f"{FROM_SEED if self.simulated else IDEAL}; what the "
            "client's model carries of a record into other records' embeddings is not covered, "
            "nor are embeddings for validation and test, which carry no noise."
        )


def account(
    clip_norm: float, noise_std: float, delta: float, *, releases: int, sampling: float
) -> EmbeddingStatement:
    """Count one client's releases: k embeddings of one record, at the sampling rate B/D."""
    mu = compose([moved(clip_norm) / noise_std] * releases)
    published = published_mu(noise_std, clip_norm, releases / sampling, sampling)  # T = k·D/B
    epsilons = epsilon_of(mu, delta), epsilon_of(published, delta)
    return EmbeddingStatement(clip_norm, noise_std, delta, releases, mu, *epsilons)


def noise_std_for_embeddings(
    clip_norm: float, mu: float, *, releases: int, sampling: float, published: bool
) -> float:
    """σ at which `account` finds μ: exactly, ``2C√k/μ``, or with the published sampling factor."""
    factor = math.sqrt(releases) * (math.sqrt(sampling) if published else 1.0)
    return moved(clip_norm) * factor / mu
