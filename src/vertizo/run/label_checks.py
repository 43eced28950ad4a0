"""Labels that nothing can be learned from are refused, unless they are protected."""

from __future__ import annotations

from dataclasses import replace

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import DataError
from vertizo.data.vertical import VerticalData
from vertizo.models.losses import Classification


def are_protected(config: ExperimentConfig) -> bool:
    """Whether something is guaranteed of labels, or would be but for the server's training."""
    mechanism = config.privacy.mechanism
    return mechanism not in ("none", "embedding-noise") or config.is_label_free


def noted(config: ExperimentConfig, data: VerticalData) -> VerticalData:
    """The data, with a note for its owner where nothing can be learned from these labels.

    Whether training starts would tell of protected ones: with the classes public, a single label
    decides whether all are of one. No guarantee covers labels where there is no such mechanism.

    Raises:
        DataError: the same, where labels are not protected.
    """
    found = []
    if isinstance(data.task, Classification) and data.records:
        names = data.class_names or tuple(map(str, range(data.task.outputs)))
        first, *others = sorted(set(data.labels["train"].tolist()))
        few = "" if config.data.limit is None else f"; data.limit is {config.data.limit}"
        if not others:
            found.append(
                f"{data.name}: all {data.records} training records are of class {names[first]!r}; "
                f"training takes records of two classes at least{few}"
            )
    if data.weights is not None and not data.weights.any():
        found.append(
            f"{data.name}: the weight {config.data.weight!r} is 0 in every row; there must be at "
            "least one non-zero number"
        )
    if found and not are_protected(config):
        raise DataError(found[0])
    return replace(data, notes=(*data.notes, *found)) if found else data
