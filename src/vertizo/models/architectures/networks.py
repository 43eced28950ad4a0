"""Networks as plain PyTorch modules: those of the papers, and those for tables and noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise, product

import numpy as np
import torch
from torch import Tensor, nn

from vertizo.core.errors import ConfigError


def mlp(inputs: int, hidden: Sequence[int], outputs: int, *, final_relu: bool) -> nn.Sequential:
    """Linear layers with ReLU between; inputs are flattened behind the batch.

    VFL-Cascaded's client is ``mlp(n, [], 128, final_relu=True)``, VFL-CZOFO's
    ``mlp(n, [], 64, final_relu=True)``; their servers are ``mlp(n, [128], classes)``.
    """
    widths = [inputs, *hidden, outputs]
    parts: list[nn.Module] = [nn.Flatten()]
    for index, (before, after) in enumerate(pairwise(widths)):
        parts.append(nn.Linear(before, after))
        if index < len(hidden) or final_relu:
            parts.append(nn.ReLU())
    return nn.Sequential(*parts)


def cnn(shape: Sequence[int], channels: Sequence[int], outputs: int) -> nn.Sequential:
    """Convolutions 3×3 with ReLU, each pooling sides of 4 and more by 2, then one linear layer.

    Images of ``shape`` (channels, height, width) to ``outputs`` numbers; ``channels`` are those of
    each convolution. DPZV's client for MNIST is the two-layer form, for CIFAR-10
    the four-layer form. The paper states neither widths nor the embedding's size; ours are 8 and 16
    channels for two layers, and 16, 32, 64 and 64 in the examples for four. A side shorter than 4
    is pooled no further, so that any number of layers fits a patch of any size: 16×16 goes to 8, 4,
    2 and stays at 2.
    """
    depth, height, width = shape
    parts: list[nn.Module] = []
    for before, after in zip([depth, *channels], channels, strict=False):
        parts += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        pool = (2 if height >= 4 else 1, 2 if width >= 4 else 1)
        if pool != (1, 1):
            parts.append(MaxPool(pool))
            height, width = height // pool[0], width // pool[1]
    return nn.Sequential(
        *parts, nn.Flatten(), nn.Linear(math.prod((channels[-1], height, width)), outputs)
    )


class MaxPool(nn.MaxPool2d):
    """``nn.MaxPool2d``, but several times as fast where no gradient is asked for.

    PyTorch's own also finds the place of each maximum, which only a gradient needs.
    """

    def __init__(self, block: tuple[int, int]) -> None:
        """``block`` is the height and width of blocks, which do not overlap."""
        super().__init__(block)
        self._block = block

    def forward(self, input: Tensor) -> Tensor:
        """The maximum of each block, from [records, channels, height, width]."""
        if torch.is_grad_enabled():
            found: Tensor = super().forward(input)
            return found
        height, width = self._block
        rows, columns = input.shape[2] // height * height, input.shape[3] // width * width
        if not input.is_cpu:  # in one operation, and not in one less than a block has pixels
            shape = *input.shape[:2], rows // height, height, columns // width, width
            return input[:, :, :rows, :columns].reshape(shape).amax((3, 5))
        corners = product(range(height), range(width))
        return reduce(
            torch.maximum, [input[:, :, i:rows:height, j:columns:width] for i, j in corners]
        )


class TableNet(nn.Module):
    """An MLP behind embeddings of categories: for tables whose first columns hold codes.

    A category of k values becomes ``min(16, ⌈√k⌉)`` numbers; they and the other columns are the
    inputs of the `mlp`. ``cardinalities`` are k of each of the first columns, of ``inputs`` in all.
    Codes come as floats, 0 to k − 1; one outside becomes the nearest code, NaN becomes 0.
    """

    def __init__(
        self,
        inputs: int,
        cardinalities: Sequence[int],
        hidden: Sequence[int],
        outputs: int,
        *,
        final_relu: bool,
    ) -> None:
        super().__init__()
        sizes = [category_size(k) for k in cardinalities]
        self.categories = nn.ModuleList(map(nn.Embedding, cardinalities, sizes))
        self.layers = mlp(sum(sizes) + inputs - len(sizes), hidden, outputs, final_relu=final_relu)
        self.register_buffer("_last", torch.tensor(cardinalities) - 1, persistent=False)

    def forward(self, columns: Tensor) -> Tensor:
        """[batch, columns] to [batch, outputs]."""
        parts, numbers = embedded(self.categories, self.get_buffer("_last"), columns)
        result: Tensor = self.layers(torch.cat([*parts, numbers], 1))
        return result


def embedded(
    categories: nn.ModuleList, last: Tensor, columns: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Embeddings of the first columns, which hold codes from 0 to ``last``, and the other columns.

    A code outside becomes the nearest one, NaN becomes 0.
    """
    count = len(categories)
    codes = columns[:, :count].detach().nan_to_num(0).clamp(min=0).minimum(last).long()
    return [embed(codes[:, i]) for i, embed in enumerate(categories)], columns[:, count:]


def category_size(cardinality: int) -> int:
    """Embedding size of a category of so many values."""
    return min(16, math.isqrt(cardinality - 1) + 1)


class PiecewiseLinear(nn.Module):
    """Piecewise linear encoding of numbers by the bins of their column (Gorishniy et al. 2022).

    A bin below the number is 1, one above it 0, and the one that it lies in is the share of it
    that lies below the number. A linear layer over bins is a function that bends at their edges.
    Edges are quantiles of a column's values in training (`fit`), and before that those of the
    standard normal law. A bin without width, as many equal values make it, is always 0.
    """

    def __init__(self, columns: int, bins: int) -> None:
        super().__init__()
        quantiles = torch.special.ndtri(self._shares(bins))
        edges = quantiles.clamp(-4.0, 4.0).expand(columns, -1)
        self.register_buffer("edges", edges.contiguous())

    @staticmethod
    def _shares(bins: int) -> Tensor:
        return torch.linspace(0.0, 1.0, bins + 1)

    def fit(self, numbers: Tensor) -> None:
        """Place the edges at quantiles of training numbers [records, columns]."""
        edges = self.get_buffer("edges")
        shares = self._shares(edges.shape[1] - 1).numpy()
        for column, values in zip(edges, numbers.double().numpy().T, strict=True):
            found = np.unique(np.quantile(values, shares))
            spare = len(column) - len(found)  # where many values are equal
            if spare:
                different = np.quantile(np.unique(values), np.linspace(0, 1, spare + 2)[1:-1])
                found = np.sort(np.concatenate([found, different]))
            column.copy_(torch.from_numpy(found))

    def forward(self, numbers: Tensor) -> Tensor:
        """[batch, columns] to [batch, columns, bins]."""
        edges = self.get_buffer("edges")
        low, width = edges[:, :-1], edges.diff(dim=1)
        passed = (numbers.unsqueeze(2) - low) / torch.where(width > 0, width, torch.inf)
        return passed.clamp(0, 1)


class TabularNet(nn.Module):
    """A network for tables: numbers in bins, categories as embeddings, then an MLP.

    Each number becomes ``width`` learned combinations of its `PiecewiseLinear` bins, a category of
    k values min(32, 2 + √k) numbers. ``cardinalities`` are k of each of the first columns, which
    hold codes, of ``inputs`` in all. ``dropout`` is the share of the hidden numbers that a training
    pass leaves out.
    """

    def __init__(
        self,
        inputs: int,
        cardinalities: Sequence[int],
        hidden: Sequence[int],
        outputs: int,
        *,
        bins: int = 32,
        width: int = 16,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        sizes = [min(32, 2 + math.isqrt(k)) for k in cardinalities]
        self.categories = nn.ModuleList(map(nn.Embedding, cardinalities, sizes))
        self.register_buffer("_last", torch.tensor(cardinalities) - 1, persistent=False)
        numbers = inputs - len(sizes)
        self.bins = PiecewiseLinear(numbers, bins)
        self.combined = nn.Parameter(torch.empty(numbers, bins, width))
        nn.init.normal_(self.combined, std=bins**-0.5)
        layers = mlp(sum(sizes) + numbers * width, hidden, outputs, final_relu=False)
        self.layers = nn.Sequential()
        for part in layers:
            self.layers.append(part)
            if isinstance(part, nn.ReLU):
                self.layers.append(nn.Dropout(dropout))

    def fit(self, features: Tensor) -> None:
        """Fit the bins of the numbers to training records [records, columns]."""
        self.bins.fit(features[:, len(self.categories) :])

    def forward(self, columns: Tensor) -> Tensor:
        """[batch, columns] to [batch, outputs]."""
        parts, numbers = embedded(self.categories, self.get_buffer("_last"), columns)
        combined = torch.einsum("bcn,cnw->bcw", self.bins(numbers), self.combined)
        result: Tensor = self.layers(torch.cat([*parts, combined.flatten(1)], 1))
        return result


class Filters(nn.Module):
    """One layer of small filters, ReLU, and the mean over cells; centred across filters.

    A model for zeroth-order clients under noise: it has so few parameters that a random direction
    says something about each of them. Its outputs spread in all directions, while those of a usual
    layer lie mostly along one (the mean), on which clipped gradients are then spent. Centring is
    within each record and cell: nothing is fitted to data, no records are mixed.

    Args:
        shape: of an image, [channels, height, width]; ConfigError if it is smaller than a cell.
        count: number of filters.
        size: of a filter, odd.
        cell: height and width of the cells; what is left over at the edges is dropped.
        centring: share of the mean over filters that is subtracted, in each cell.
        scale: factor of the outputs.
        background: value of background pixels, which padding then equals.
        oriented: whether filters begin as derivatives in evenly spaced directions, or random with
            mean 0. A filter's absolute values sum to 1.
    """

    def __init__(
        self,
        shape: Sequence[int],
        count: int,
        *,
        size: int = 3,
        cell: tuple[int, int] = (4, 4),
        centring: float = 0.8,
        scale: float = 5.0,
        background: float = 0.0,
        oriented: bool = False,
    ) -> None:
        super().__init__()
        channels, height, width = shape
        if height < cell[0] or width < cell[1]:
            raise ConfigError(
                f"cells of {cell[0]}×{cell[1]} pixels do not fit images of {height}×{width}"
            )
        self.layer = nn.Conv2d(channels, count, size, padding=size // 2)
        self._cell, self._centring, self._scale = cell, centring, scale
        self._background = background
        with torch.no_grad():
            weight = torch.randn(count, channels, size, size)
            weight -= weight.mean((2, 3), keepdim=True)
            if oriented:
                weight = derivatives(count, size).expand_as(weight)
            self.layer.weight.copy_(weight / weight.abs().sum((1, 2, 3), keepdim=True))
            assert self.layer.bias is not None
            self.layer.bias.zero_()

    def forward(self, images: Tensor) -> Tensor:
        """[batch, channels, height, width] to [batch, filters · cells]."""
        found = torch.relu(self.layer(images - self._background))
        cells = nn.functional.avg_pool2d(found, self._cell)
        centred = cells - self._centring * cells.mean(1, keepdim=True)
        return centred.flatten(1) * self._scale


def derivatives(count: int, size: int, width: float = 1.0) -> Tensor:
    """Derivatives of a Gaussian in ``count`` evenly spaced directions, [count, 1, size, size].

    ``width`` is its standard deviation, in pixels.
    """
    steps = torch.arange(size) - (size - 1) / 2
    down, right = torch.meshgrid(steps, steps, indexing="ij")
    bell = torch.exp(-(right**2 + down**2) / (2 * width**2))
    angles = torch.arange(count) * (2 * math.pi / count)
    return torch.stack([(a.cos() * right + a.sin() * down) * bell for a in angles])[:, None]


class Sum(nn.Module):
    """The sum of the clients' embeddings, which are predictions already, and one bias per output.

    VFL-CZOFO's server for CIFAR-10 is the plain sum and has nothing to train. The bias, zero at
    first, is the least that can be trained; with ``server.update: none`` this is the plain sum.
    ``width`` is that of the joined embeddings: the outputs, or a multiple if they are concatenated,
    else ConfigError. For two classes each of the ``parts`` that are concatenated may also be one
    number, the log-odds of the second.
    """

    def __init__(self, width: int, outputs: int, parts: int | None = None) -> None:
        super().__init__()
        self._each = 1 if outputs == 2 and width == parts else outputs
        if width % self._each:
            raise ConfigError(
                f"sum adds up embeddings of {outputs} numbers each, as many as the task needs; "
                f"the joined embeddings have {width}"
            )
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, rows: Tensor) -> Tensor:
        """[batch, clients · outputs] to [batch, outputs]."""
        total = rows.reshape(len(rows), -1, self._each).sum(1)
        if self._each < self.bias.numel():
            total = torch.cat([-total / 2, total / 2], 1)
        return total + self.bias


class Bag(nn.Module):
    """The mean of the words' vectors, then an MLP: texts without any order of words.

    Token 0 is padding and is left out of the mean; a text without words is the zero vector. Tokens
    beyond the vocabulary, which counts padding, are taken modulo its size, as one more collision
    of hashed words. A word's vector has ``width`` numbers; what follows is an `mlp`.
    """

    def __init__(self, vocabulary: int, width: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(vocabulary, width, mode="mean", padding_idx=0)
        self.layers = mlp(width, hidden, outputs, final_relu=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Integers [batch, length] to [batch, outputs]."""
        size = self.words.num_embeddings - 1
        folded = torch.where(tokens > 0, (tokens - 1) % size + 1, 0).to(tokens.dtype)
        result: Tensor = self.layers(self.words(folded))
        return result
