"""Label-free preparation of a client's features, in front of its model.

It is fitted on the client's own training records before the first query, or fixed beforehand; no
other party hears of it. Each value of a category becomes one column. Defined in
docs/mathematics.md, Label-free preparation.

========  ==========================================================================
pca       the principal components of largest variance
whiten    the principal components, each with variance 1
splines   the components of linear splines of numbers, which bend at the median
kmeans    ``max(0, mean_k d_k − d_k)`` of the distances to centroids (Coates and Ng)
filters   rectified derivatives of images in a few directions, meaned over cells; fixed
========  ==========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vertizo.core import arrays
from vertizo.core.errors import ConfigError
from vertizo.core.names import PretrainName
from vertizo.models.architectures.networks import derivatives
from vertizo.models.base import DifferentiableModel, Points, Pullback, Selected, State

SAMPLE = 20_000
"""Records that centroids are fitted on, at most."""
FLAT = 1e-6
"""Share of the largest variance below which a component is left out."""
TIPS = (0.0, 0.5, 1.0)
"""Quantiles of a number at which its hats are 1."""
DIRECTIONS = 8
"""Number of directions of the filters."""
SCALES = ((1.0, 3), (2.0, 7))
"""Width and size in pixels of the fine and the coarse filters; coarse ones if there is room."""
CELL = 4
"""Pixels of a cell's sides, at least."""
AT_ONCE = 2048
"""Images that are filtered together."""
GAIN = 5.0
"""Factor of the means, which makes them about as large as pixels."""


def preparation(
    kind: PretrainName, features: Tensor, cardinalities: Sequence[int], components: int, seed: int
) -> Preparation | FilterMeans:
    """Make the preparation that ``client.pretrain`` names; arguments as of `Preparation`."""
    if kind == "filters":
        return FilterMeans(features.shape[1:], components, tokens=not features.is_floating_point())
    return Preparation(kind, features, cardinalities, components, seed)


class Preparation(nn.Module):
    """Features [batch, ...] to [batch, components], by a fit on the training records.

    Args:
        kind: see above.
        features: those of the training records, [records, ...]; codes of categories first.
        cardinalities: numbers of values of those categories.
        components: most numbers to make.
        seed: seed of the choice of centroids.

    Raises:
        ConfigError: there is nothing to fit, or the features are tokens.
    """

    def __init__(
        self,
        kind: PretrainName,
        features: Tensor,
        cardinalities: Sequence[int],
        components: int,
        seed: int,
    ) -> None:
        super().__init__()
        if not features.is_floating_point():
            raise ConfigError(f"{kind!r} is for numbers and categories, not for tokens; use 'none'")
        self._kind = kind
        self._cardinalities = tuple(cardinalities)
        if kind == "splines":
            numbers = features.flatten(1)[:, len(self._cardinalities) :].double().numpy()
            tips = np.quantile(numbers, TIPS, axis=0).T.reshape(-1, len(TIPS))
            self.register_buffer("tips", torch.from_numpy(tips).float())
        rows = self._numbers(features).double()
        self.register_buffer("centre", rows.mean(0).float())
        centred = rows - rows.mean(0)
        if kind == "kmeans":
            chosen = _centroids(centred[:SAMPLE].float(), components, seed)
            self.register_buffer("basis", chosen)
        else:
            values, vectors = torch.linalg.eigh(centred.t() @ centred / max(1, len(rows)))
            order = values.argsort(descending=True)[:components]
            values, vectors = values[order].clamp(min=0), vectors[:, order]
            keep = values > FLAT * values[:1].clamp(min=1e-12)
            scale = values.clamp(min=1e-12) ** -0.5 if kind == "whiten" else torch.ones_like(values)
            self.register_buffer("basis", (vectors * (scale * keep)).t().float())
        self.components = len(self.get_buffer("basis"))

    def _numbers(self, features: Tensor) -> Tensor:
        """Rows of one column for each value of the categories, then numbers or their splines."""
        if self._kind != "splines":
            return one_hot(features, self._cardinalities)
        rows, count = features.flatten(1), len(self._cardinalities)
        numbers = spline_basis(rows[:, count:], self.get_buffer("tips")).flatten(1)
        return torch.cat([one_hot(rows[:, :count], self._cardinalities), numbers], 1)

    def forward(self, features: Tensor) -> Tensor:
        """[batch, ...] to [batch, components]."""
        centred = self._numbers(features) - self.get_buffer("centre")
        basis = self.get_buffer("basis")
        if self._kind != "kmeans":
            return centred @ basis.t()
        far = torch.cdist(centred, basis)
        return (far.mean(1, keepdim=True) - far).clamp(min=0)


def one_hot(features: Tensor, cardinalities: Sequence[int]) -> Tensor:
    """Rows in which the first columns, codes, become one column for each of their values."""
    rows = features.flatten(1)
    parts = [
        F.one_hot(rows[:, place].nan_to_num(0).clamp(0, k - 1).long(), k).to(rows.dtype)
        for place, k in enumerate(cardinalities)
    ]
    return torch.cat([*parts, rows[:, len(cardinalities) :]], 1)


def spline_basis(numbers: Tensor, tips: Tensor) -> Tensor:
    """Linear splines of numbers, [rows, columns, tips]: how near each is to its column's tips.

    Each basis function (hat) is 1 at its own tip, 0 at the others and linear between them; of
    equal tips only the last counts. A number beyond all tips counts as the nearest one, so that
    its hats are always between 0 and 1 and sum to 1.

    Args:
        numbers: numbers [rows, columns].
        tips: ascending tips [columns, tips].
    """
    gaps = tips.diff(dim=1)
    passed = (numbers.unsqueeze(2) - tips[:, :-1]) / torch.where(gaps > 0, gaps, 1)
    passed = torch.where(gaps > 0, passed.clamp(0, 1), 1)  # how far into each gap
    edges = F.pad(F.pad(passed, (1, 0), value=1.0), (0, 1)).cummin(2).values
    return edges[:, :, :-1] - edges[:, :, 1:]


class FilterMeans(nn.Module):
    """Images [batch, channels, height, width] to mean responses of filters, [batch, components].

    Derivatives of a Gaussian in 8 directions, rectified, averaged over the channels and over the
    cells of a coarse grid. Edges are continued, so that a constant image yields zeros. Nothing is
    fitted, and a record's numbers depend on that record alone.

    Args:
        shape: shape of one record's features.
        components: most numbers to make; fewer than 8 are as many directions in one cell.
        tokens: whether the features are tokens.

    Raises:
        ConfigError: the features are no images.
    """

    def __init__(self, shape: Sequence[int], components: int, *, tokens: bool = False) -> None:
        super().__init__()
        if tokens or len(shape) != 3:
            are = "are tokens" if tokens else f"have shape {list(shape)}"
            instead = "'none'" if tokens else "'pca', 'whiten' or 'kmeans'"
            raise ConfigError(
                f"'filters' is for images but a party's features {are}; use {instead}"
            )
        directions = min(DIRECTIONS, components)
        down, right = max(1, shape[1] // CELL), max(1, shape[2] // CELL)
        while directions * down * right > components:
            flatter = shape[1] * right <= shape[2] * down  # than wide
            if right == 1 or (down > 1 and flatter):
                down -= 1
            else:
                right -= 1
        self._grid = down, right
        room = components // (directions * down * right)
        for place, (width, size) in enumerate(SCALES[:room]):
            bank = derivatives(directions, size, width)
            bank = bank / bank.abs().sum((1, 2, 3), keepdim=True)
            self.register_buffer(f"bank{place}", bank, persistent=False)
        self.components = directions * down * right * min(room, len(SCALES))

    def forward(self, images: Tensor) -> Tensor:
        """[batch, channels, height, width] to [batch, components]."""
        if torch.compiler.is_exporting():  # to a graph for batches of any size
            return self._means(images)
        return torch.cat([self._means(part) for part in torch.split(images, AT_ONCE)])

    def _means(self, images: Tensor) -> Tensor:
        planes, found = images.flatten(0, 1).unsqueeze(1), []
        for bank in self.buffers():
            margin = bank.shape[-1] // 2
            responses = F.conv2d(F.pad(planes, (margin,) * 4, mode="replicate"), bank).relu()
            cells = F.adaptive_avg_pool2d(responses, self._grid)
            numbers = math.prod(cells.shape[1:])
            found.append(cells.reshape(*images.shape[:2], numbers).mean(1))
        return GAIN * torch.cat(found, 1)


def _centroids(rows: Tensor, count: int, seed: int) -> Tensor:
    from sklearn.cluster import MiniBatchKMeans

    if count > len(rows):  # as of parties that only predict, whose centroids come from a checkpoint
        return rows[torch.arange(count) % len(rows)]
    fitted = MiniBatchKMeans(count, random_state=seed, n_init=3).fit(rows.numpy())
    return torch.from_numpy(fitted.cluster_centers_).float()


class Padded(nn.Module):
    """A preparation followed by zeros, so that its width is always the same; on the processor."""

    def __init__(self, front: Preparation | FilterMeans, width: int) -> None:
        super().__init__()
        self._front, self._missing = front, width - front.components

    def forward(self, features: Tensor) -> Tensor:
        """[batch, ...] to [batch, width]."""
        with torch.no_grad():
            return F.pad(self._front(features.cpu()), (0, self._missing))


class Pretrained(DifferentiableModel):
    """A model behind a `preparation`, which training does not move."""

    def __init__(self, front: Preparation | FilterMeans, model: DifferentiableModel) -> None:
        self._front, self._model = front.to(model.parameters.device), model
        self.parameters = model.parameters
        self._known: tuple[Tensor, Tensor] | None = None

    @property
    def parts(self) -> tuple[nn.Module, DifferentiableModel]:
        """The preparation, and the model behind it."""
        return self._front, self._model

    def with_model(self, model: DifferentiableModel) -> Pretrained:
        """Put the preparation in front of another model."""
        return Pretrained(self._front, model)

    def _prepared(self, inputs: Tensor | Selected) -> Tensor:
        """Prepared inputs; a table is prepared once as a whole, since all queries read it."""
        device = self.parameters.device
        with torch.no_grad():
            if not isinstance(inputs, Selected):
                return self._front.forward(inputs.to(device))
            table = inputs.table
            if self._known is None or self._known[0] is not table:
                # from the processor to a card by parts: all of it may not fit
                parts = [table] if table.device == device else torch.split(table, AT_ONCE)
                made = [self._front.forward(part.to(device)) for part in parts]
                self._known = table, made[0] if len(made) == 1 else torch.cat(made)
            return arrays.rows(self._known[1], inputs.ids)

    @property
    def is_affine(self) -> bool:
        """Whether the model is affine: the preparation does not move."""
        return self._model.is_affine

    def state(self) -> State:
        """The states of the preparation and of the model."""
        return {"front": dict(self._front.state_dict()), "model": self._model.state()}

    def load(self, state: State) -> None:
        """Go on from ``state``."""
        if isinstance(state, Tensor):
            raise TypeError("the state of a model without client.pretrain")
        own = dict(self._front.state_dict())
        if {name: part.shape for name, part in own.items()} != {
            name: part.shape for name, part in state["front"].items()
        }:
            raise ValueError("prepared from other features")
        self._front.load_state_dict(state["front"])
        self._known = None
        self._model.load(state["model"])

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs at the current parameters, [batch, outputs]."""
        return self._model(self._prepared(inputs))

    def table_of(self, features: Tensor) -> Tensor:
        """The records as they are; they are prepared once, not in every query anew."""
        return features

    def along(
        self, direction: Tensor, offsets: Sequence[float], inputs: Tensor | Selected
    ) -> Tensor:
        """Outputs at ``w + offset · direction``, [offsets, batch, outputs]."""
        return self._model.along(direction, offsets, self._prepared(inputs))

    def tangents(self, directions: Tensor, inputs: Tensor) -> Tensor:
        """Derivatives of the outputs along rows of ``directions`` [K, d], [K, batch, outputs]."""
        return self._model.tangents(directions, self._prepared(inputs))

    def forward(self, points: Points, number: int = 0) -> tuple[Tensor, Pullback]:
        """Outputs, and the pullback to the parameters."""
        assert not points.shifts, "clients have none"
        return self._model.forward(Points(self._prepared(points.rows)), number)

    def settle(self) -> None:
        """Settle the model; see `DifferentiableModel.settle`."""
        self._model.settle()
