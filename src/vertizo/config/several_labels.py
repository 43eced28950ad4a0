"""What a configuration with several labels of a record cannot have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vertizo.core.errors import ConfigError
from vertizo.privacy.options import ON_LABELS

if TYPE_CHECKING:
    from vertizo.config.schema import ExperimentConfig


def check_several_labels(config: ExperimentConfig) -> None:
    """Raise ValueError for what is about classes, of which a record has one."""
    if not config.data.has_several_labels:
        return
    head, mechanism = config.server.final_head, config.privacy.mechanism
    if head not in ("private", "refit", "auto"):
        raise ValueError(
            f"server.final_head is {head!r} but data.label is a list; a head for several labels is "
            "'refit'"
        )
    if mechanism in ON_LABELS:
        raise ValueError(
            f"privacy.mechanism is {mechanism!r}, which exchanges one class for another, but "
            "data.label is a list; use 'gaussian'"
        )
    if config.method.name == "label-statistic":
        raise ValueError(
            "method is 'label-statistic', which is for classes, but data.label is a list; use "
            "'tangent'"
        )


def check_sums(config: ExperimentConfig, labels: int, dims: Sequence[int]) -> None:
    """Raise ConfigError for embeddings that are no logits of the labels, where a server sums."""
    if config.server.reads_own or not config.data.has_several_labels:
        return
    for client, dim in enumerate(dims):
        if dim != labels:
            raise ConfigError(
                f"server.model is 'sum', which adds up logits of {labels} labels, but client.model "
                f"gives embeddings of {dim} numbers at client {client}; set client.model.outputs "
                f"to {labels}, or server.model to 'mlp'"
            )
