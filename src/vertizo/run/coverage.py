"""What a guarantee covers, and what it rests on that was tried and not proved."""

from __future__ import annotations

from collections.abc import Sequence

from vertizo.config.architectures import ClientModelConfig, EncoderConfig, ServerModelConfig
from vertizo.config.schema import ExperimentConfig
from vertizo.data.vertical import VerticalData
from vertizo.run.build_models import is_foreign

FEATURES = "each client's features against the other clients"
"""What `covers` calls them."""


def covers(config: ExperimentConfig, data: VerticalData, *, models_mix: bool) -> tuple[str, ...]:
    """What of a training record reaches clients through the server's noise alone.

    Defined in docs/mathematics.md, What is guaranteed.

    The label always does. What holds for features is as strong as the preparation of each column
    and the way each client trains: statistics of the training records, gradients, and codes whose
    scale spans several records carry one record's features into the messages about others.

    Args:
        config: of the run.
        data: its records.
        models_mix: whether some client's model computes a record's embedding from others as well.
    """
    things = ["labels"]
    if data.own is not None and data.own.name not in data.fitted:
        things.append("the label holder's columns")
    mixes = models_mix or config.method.mixes_features or config.codecs.up.mixes_records
    if not mixes and not set(data.parties) & set(data.fitted) and len(data.parties) > 1:
        things.append(FEATURES)
    return tuple(things)


MEMBERS_OWN = (
    "each member's client.model, where it is code of the member's own, treats each record by itself"
)
"""Over a network a member may choose its model, and does not say which it is."""


def assumptions(
    config: ExperimentConfig, data: VerticalData, covered: Sequence[str], *, served: bool = False
) -> tuple[str, ...]:
    """What a guarantee rests on that was tried and not proved: that the user's models mix nothing.

    The server's models decide about all that is covered, a client's about features alone.

    Args:
        config: of the run.
        data: its records.
        covered: see `covers`.
        served: whether clients are others, who may choose their models.
    """
    models: dict[str, ClientModelConfig | EncoderConfig | ServerModelConfig] = {
        "server.model": config.server.model
    }
    if FEATURES in covered and not served:
        models["client.model"] = config.client.model
    if data.own is not None:
        models["server.encoder"] = config.server.encoder
    things = tuple(
        f"{key} ({getattr(model, 'path', '')}) treats each record by itself"
        for key, model in sorted(models.items())
        if is_foreign(model)
    )
    return (*things, MEMBERS_OWN) if FEATURES in covered and served else things
