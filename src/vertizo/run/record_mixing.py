"""Whether a model computes a record's outputs from other records: found by trying."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vertizo.models.base import Model


def mixes_records(
    model: Model, inputs: Tensor, sizes: Sequence[int] = (), scale: float = 1000.0
) -> bool:
    """Whether a model was seen to compute a record's outputs from other records as well.

    Found by trying, which proves nothing: in batches of each size the first, the middle and the
    last record are exchanged for another, for zeros and for ``scale`` times themselves in turn, and
    what the rest yield must stay, bit for bit.

    Args:
        model: of a client or the server.
        inputs: of some records that are not all alike, [3 or more, ...]; a first batch, and what
            larger ones are made of.
        sizes: of further batches, 2 or more each.
        scale: 1 where some columns are tokens; integers are all taken for some.
    """
    scale = scale if inputs.is_floating_point() else 1.0
    for size in sorted({len(inputs), *sizes}):
        batch = inputs[torch.arange(size) % len(inputs)]
        before = model(batch)
        tolerance = 0.0 if torch.equal(before, model(batch.clone())) else 1e-4
        for place in {0, size // 2, size - 1}:
            others = torch.arange(size) != place
            for value in (
                inputs[(place + 1) % len(inputs)],
                0,
                (scale * batch[place]).to(inputs.dtype),
            ):
                changed = batch.clone()
                changed[place] = value
                after = model(changed)
                if not torch.allclose(
                    before[others], after[others], tolerance, tolerance, equal_nan=True
                ):
                    return True
    return False
