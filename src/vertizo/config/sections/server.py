"""The ``server`` section of a configuration: the server's model and how it is trained."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from vertizo.config import architectures as kinds
from vertizo.config.sections.optimizer import OptimizerConfig
from vertizo.core.names import HeadName, Join, LawName, Precision, UpdateName
from vertizo.core.options import Options, within
from vertizo.privacy.options import MAGNITUDES, RATES


class SecretConfig(Options):
    """When a server trains on secret samples (server.update poisson-dp-sgd)."""

    every: PositiveInt = 1
    """Rounds between two steps."""
    warm_up: int = Field(default=0, ge=0)
    """Steps on the uploaded embedding table before the first round."""
    sampling: Annotated[float, Field(gt=0, lt=1), within(RATES)] = 0.05
    """q, the probability that a record is in a sample."""


class ServerConfig(Options):
    """The server's model, and how it is trained."""

    model: kinds.ServerModelConfig = kinds.ServerMlpConfig()
    encoder: kinds.EncoderConfig = kinds.EncoderMlpConfig()
    """Model of the label holder's own features (data.label_holder); it is trained with the
    server's."""
    optimizer: OptimizerConfig = OptimizerConfig()
    update: UpdateName = "sgd"
    """How the model is trained. Default: the method's own way.

    sgd, zeroth-order (two-point) and forward-difference use the raw labels. private-sgd and
    private-zeroth-order use clipped, noised sums over each query's batch. poisson-dp-sgd uses such
    sums over secret samples of the embedding table, between queries. none leaves the model as it
    was initialised.
    """
    clip: Annotated[float, Field(gt=0), within(MAGNITUDES)] = 1.0
    """C of a private update: the largest norm of one record's gradient or slope."""
    secret: SecretConfig = SecretConfig()
    """When and on how many records poisson-dp-sgd trains."""
    smoothing: float = Field(default=1e-3, gt=0)
    """λ or μ of a zeroth-order update: the length of a perturbation."""
    directions: LawName = "scaled-sphere"
    """The law that directions of a zeroth-order update are drawn from."""
    join: Join = "concat"
    """How the clients' embeddings are combined into the server model's input."""
    final_head: HeadName = "private"
    """A second model, fitted on the raw labels after the last reply, from one last upload of the
    embeddings and the label holder's own columns. It costs no privacy against clients, and must
    stay with the label holder, as its predictions must. private: none. logistic: ridge for a
    regression. boosting: of trees. refit: the server's model, trained again from its first
    parameters. auto: all of these, the server's model too; the one that predicts validation
    records best is what the run predicts by."""
    embedding_bound: float = Field(default=1e6, gt=0)
    """Largest absolute value accepted in an embedding."""
    device: kinds.Device = "cpu"
    """Where the label holder is. cuda: its model, labels, the table of embeddings, losses, clips
    and sums are on the graphics card; noise is drawn on the CPU."""
    precision: Precision = "tf32"
    """What the model computes with on a card, as `client.precision`."""

    @property
    def reads_own(self) -> bool:
        """Whether the model reads the label holder's own columns: every model but a sum does."""
        return not isinstance(self.model, kinds.SumConfig)
