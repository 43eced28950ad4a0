"""What a server that puts clients' maps together needs of how their images are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vertizo.config.architectures import ResnetRestConfig

if TYPE_CHECKING:
    from vertizo.config.schema import ExperimentConfig

SIDES = {"halves": "height", "rows": "height", "sides": "width"}
"""Along which side of an image the parts of a split follow each other."""


def check_image_parts(config: ExperimentConfig) -> None:
    """Refuse a `resnet18-rest` that would put an image together otherwise than it was cut.

    Maps of other strips have as many numbers, so that nothing but the accuracy would show it.
    """
    model, data = config.server.model, config.data
    if not isinstance(model, ResnetRestConfig):
        return
    if data.sizes:
        raise ValueError(
            f"data.sizes is {data.sizes} but server.model 'resnet18-rest' puts equal parts "
            "together; leave data.sizes out"
        )
    side = SIDES.get(data.split or "", model.assemble)
    if model.assemble not in (side, "channels"):
        raise ValueError(
            f"server.model.assemble is {model.assemble!r} but data.split {data.split!r} cuts the "
            f"{side}; set server.model.assemble to {side!r}"
        )
