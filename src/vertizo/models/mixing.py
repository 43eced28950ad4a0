"""A trial whether a model mixes the records of a batch, so that users hear of it early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from vertizo.core.errors import ConfigError
from vertizo.models.array import ArrayModel
from vertizo.models.base import DifferentiableModel, Model, Points
from vertizo.models.encoded import EncodedModel
from vertizo.models.parts import ChangedBufferError
from vertizo.models.pretrained import Pretrained
from vertizo.models.recordwise import RecordwiseModel

Tell = Callable[[Tensor], list[Tensor]]


def mixes_records(
    model: Model,
    inputs: Tensor,
    sizes: Sequence[int] = (),
    scale: float = 1000.0,
    *,
    slopes: bool = True,
) -> bool:
    """Whether a model was seen to compute a record's outputs or slopes from other records as well.

    Found by trying, which proves nothing, and which no guarantee rests on
    (`vertizo.models.recordwise`): it tells people early. At the model's parameters and at random
    ones, in batches of each size, the first, the middle and the last record are exchanged for
    another, for zeros and for ``scale`` times themselves in turn, and the results of the rest must
    stay, bit for bit. The inputs [3 or more, ...] are not all alike; they are a first batch, and
    larger ones are made of them. Where some columns are tokens pass a scale of 1; integers are
    always scaled by 1. Inputs for which the model fails show nothing. Turn ``slopes`` off for
    models in training, which may mix records there. ChangedBufferError where the model carries
    records into later evaluations.
    """
    tried, is_real = as_written(model), inputs.is_floating_point()
    tell, scale = partial(_outputs, tried), scale if is_real else 1.0
    if slopes and is_real and isinstance(tried, DifferentiableModel):
        tell = partial(_slopes, tried)
    saved, chance = tried.parameters.clone(), torch.Generator().manual_seed(0)
    for moved in (0.0, 0.3):
        steps = torch.randn(saved.shape, generator=chance).to(saved)
        try:
            tried.parameters.add_(steps, alpha=moved)
            for size in sorted({len(inputs), *sizes}):
                if _mixes(tell, inputs[torch.arange(size) % len(inputs)], inputs, scale):
                    return True
        except ChangedBufferError:
            raise
        except ConfigError:
            continue
        finally:
            tried.parameters.copy_(saved)
    return False


def _mixes(tell: Tell, batch: Tensor, inputs: Tensor, scale: float) -> bool:
    size = len(batch)
    before = tell(batch)
    again = tell(batch.clone())
    is_exact = all(map(torch.equal, before, again))
    tolerance = 0.0 if is_exact else 1e-4
    for place in {0, size // 2, size - 1}:
        others = torch.arange(size) != place
        scaled = (scale * batch[place]).to(inputs.dtype)
        for value in (inputs[(place + 1) % len(inputs)], 0, scaled):
            changed = batch.clone()
            changed[place] = value
            try:
                after = tell(changed)
            except ConfigError:
                continue
            for one, other in zip(before, after, strict=True):
                near = (tolerance, tolerance)
                if not torch.allclose(one[others], other[others], *near, equal_nan=True):
                    return True
    return False


def _outputs(model: Model, batch: Tensor) -> list[Tensor]:
    return [model(batch)]


def _slopes(model: DifferentiableModel, batch: Tensor) -> list[Tensor]:
    """Outputs, and gradients with respect to the inputs."""
    outputs, pullback = model.forward(Points(batch))
    of_record = batch.flatten(1).sum(1, keepdim=True).cos()  # which goes with the record
    return [outputs, pullback.inputs(of_record * torch.linspace(1, 2, outputs.shape[1]))]


def as_written(model: Model) -> Model:
    """The model as its author wrote it, on whole batches, without the wrappers of a guarantee."""
    if isinstance(model, RecordwiseModel | ArrayModel):
        return model.together()
    if isinstance(model, EncodedModel):
        top, encoder = map(as_written, model.parts)
        assert isinstance(top, DifferentiableModel)
        assert isinstance(encoder, DifferentiableModel)
        return model.with_parts(top, encoder)
    if isinstance(model, Pretrained):
        behind = as_written(model.parts[1])
        assert isinstance(behind, DifferentiableModel)
        return model.with_model(behind)
    return model
