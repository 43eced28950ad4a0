"""The ``client`` section of a configuration: the clients' models and their optimiser."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt, PositiveInt

from vertizo.config import architectures as kinds
from vertizo.config.sections.optimizer import OptimizerConfig
from vertizo.core.names import Precision, PretrainName
from vertizo.core.options import Options


class ClientConfig(Options):
    """Every client's model and optimiser."""

    model: kinds.ClientModelConfig = kinds.MlpConfig()
    models: dict[str, kinds.ClientModelConfig] = Field(default_factory=dict)
    """party name → its model, in place of `client.model`; for simulations."""
    pretrain: PretrainName = "none"
    """What a client makes of its own features without labels, in front of its model: principal
    components, the same with variance 1 (whiten), those of numbers that are cut at their medians
    (splines), or closeness to centroids; of images also the mean responses of oriented filters,
    which are fixed beforehand and fitted to nothing."""
    components: PositiveInt = 64
    """Numbers that client.pretrain makes, at most."""
    crop: NonNegativeInt = 0
    """Of images: pixels of zeros on each side, out of which each query cuts an image of the old
    size at random. Every client by itself, training records only."""
    flip: bool = False
    """Of images: whether each query mirrors half of them, left and right exchanged, in the same
    way."""
    optimizer: OptimizerConfig = OptimizerConfig()
    device: kinds.Device = "cpu"
    """Where the client is. cuda: its model and directions are on the graphics card, and its
    features where they fit; messages are copied once each way."""
    precision: Precision = "tf32"
    """What the model computes with on a card: tf32 and bfloat16 round the factors of products to 11
    and 8 bits, sums are float32. A processor computes in float32."""

    @property
    def every_model(self) -> tuple[kinds.ClientModelConfig, ...]:
        """All models that some client may have."""
        return self.model, *self.models.values()
