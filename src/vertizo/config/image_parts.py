"""What a server that puts clients' maps together needs of how their images are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vertizo.config.architectures import ResnetRestConfig

if TYPE_CHECKING:
    from vertizo.config.schema import ExperimentConfig

CUTS = {"width": ("sides",), "height": ("halves", "rows")}
"""The splits whose parts follow each other along a side of an image."""


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
    fitting = CUTS.get(model.assemble)
    if fitting is not None and data.split not in fitting:
        given = "not set" if data.split is None else repr(data.split)
        raise ValueError(
            f"data.split is {given} but server.model.assemble {model.assemble!r} puts parts "
            f"together along the {model.assemble}; set data.split to "
            f"{' or '.join(map(repr, fitting))}, or assemble to what the split cuts"
        )
