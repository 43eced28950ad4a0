"""What is computed, whichever way: shapes of models, methods, rates, and the records."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

from vertizo.core.errors import DataError
from vertizo.data.datasets import catalog
from vertizo.data.vertical import VerticalData
from vertizo.models.losses import Classification

RECORDS = 60_000


@dataclass(frozen=True)
class Shape:
    """Models of all parties: linear layers with ReLU between, the embeddings side by side."""

    name: str
    clients: int
    columns: int
    """Of each client."""
    hidden: tuple[int, ...]
    """Widths of a client's layers before the last."""
    outputs: int
    """d_h, of each client."""
    server_hidden: tuple[int, ...]
    classes: int

    @property
    def client_layers(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of every layer of a client."""
        return list(pairwise((self.columns, *self.hidden, self.outputs)))

    @property
    def server_layers(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of every layer of the server."""
        width = self.clients * self.outputs
        return list(pairwise((width, *self.server_hidden, self.classes)))

    @property
    def words(self) -> str:
        """In a line."""
        client = "→".join(map(str, (self.columns, *self.hidden, self.outputs)))
        server = (self.clients * self.outputs, *self.server_hidden, self.classes)
        return f"{self.clients} clients {client}, server {'→'.join(map(str, server))}"


REFERENCE = Shape("mnist", 2, 392, (), 64, (128,), 10)
SHAPES = {
    shape.name: shape
    for shape in (
        REFERENCE,
        Shape("two-layer", 2, 392, (128,), 64, (128,), 10),
        Shape("table", 3, 10, (), 4, (), 2),
    )
}
"""The reference; clients of two layers; logistic regression over linear clients, a small table."""


@dataclass(frozen=True)
class Variant:
    """A method and the law of its directions."""

    method: str
    law: str = ""
    """Empty where nothing is drawn."""

    @property
    def name(self) -> str:
        """As in the table."""
        return f"{self.method} {self.law}".strip()


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("cascaded", "gaussian"),
        Variant("cascaded", "rademacher"),
        Variant("dpzv", "gaussian"),
        Variant("dpzv", "rademacher"),
        Variant("zoo-vfl", "gaussian"),
        Variant("czofo", "sphere"),
        Variant("vafl"),
    )
}
REFERENCE_VARIANT = VARIANTS["cascaded gaussian"]


@dataclass(frozen=True)
class Setting:
    """One thing to compute. The rates are small enough for training without end."""

    variant: Variant
    shape: Shape
    batch: int
    smoothing: float = 1e-3
    client_rate: float = 1e-4
    server_rate: float = 1e-3
    directions: int = 10
    """q of VFL-CZOFO; the others have one."""


@dataclass(frozen=True)
class Records:
    """What is trained on: a table of features for each client, [records, columns], and labels."""

    features: tuple[Tensor, ...]
    labels: Tensor
    words: str


def records(shape: Shape) -> Records:
    """MNIST cut into strips where that fits, the upper and lower halves for two clients; noise of
    its shape where MNIST is not to be had, and for the table."""
    width = shape.clients * shape.columns
    if width <= 784 < 2 * width:
        images, labels, words = _mnist()
    else:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(RECORDS, width, generator=generator)
        labels, words = torch.arange(RECORDS) % shape.classes, "noise"
    size = shape.columns
    strips = (images[:, m * size : (m + 1) * size] for m in range(shape.clients))
    return Records(tuple(strip.contiguous() for strip in strips), labels, words)


@cache
def _mnist() -> tuple[Tensor, Tensor, str]:
    try:
        pooled = catalog.load("mnist")
    except DataError:
        images = torch.randn(RECORDS, 784, generator=torch.Generator().manual_seed(0))
        return images, torch.arange(RECORDS) % 10, "noise of MNIST's shape"
    return pooled.train.flatten(1), pooled.train_labels, "MNIST"


def as_vertical(data: Records, classes: int) -> VerticalData:
    """The same records as Vertizo takes them; the first ten stand for the others."""
    return VerticalData(
        name="benchmark",
        task=Classification(classes),
        parties=tuple(f"client{m}" for m in range(len(data.features))),
        features=tuple(
            {"train": each, "validation": each[:10], "test": each[:10]} for each in data.features
        ),
        labels={
            "train": data.labels,
            "validation": data.labels[:10],
            "test": data.labels[:10],
        },
        fitted_scaling=False,
    )
