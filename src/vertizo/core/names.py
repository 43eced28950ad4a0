"""Names that a configuration chooses among, without the classes they stand for.

The schema needs the names alone; the classes import PyTorch.
"""

from __future__ import annotations

from typing import Literal

AUTO = "auto"
"""Stands in place of a method's name where one is to be chosen (`vertizo.config.auto`)."""

Timing = Literal["asynchronous", "synchronous"]
"""Whether each client goes at its own pace, or all go in step."""

LawName = Literal["sphere", "scaled-sphere", "gaussian", "rademacher", "coordinate"]
"""Laws of random directions (`vertizo.zeroth_order.directions`)."""

UpdateName = Literal[
    "sgd",
    "zeroth-order",
    "forward-difference",
    "private-sgd",
    "private-zeroth-order",
    "poisson-dp-sgd",
    "none",
]
"""Ways to train the server model (`vertizo.party.server_model` and its private siblings)."""
PRIVATE: tuple[UpdateName, ...] = ("private-sgd", "private-zeroth-order", "poisson-dp-sgd")
"""Server updates whose steps carry noise (`vertizo.party.private_updates`)."""

Precision = Literal["float32", "tf32", "bfloat16"]
"""Precision of products on a card: their factors have 24, 11 or 8 significant bits."""

Join = Literal["concat", "sum", "mean"]
"""How the clients' embeddings become the server model's input."""

HeadName = Literal["private", "logistic", "boosting", "refit", "auto"]
"""The model that predicts at the end: the server's, one fitted on raw labels after the last reply
(`vertizo.party.final_head`), or the one of all these that predicts validation records best."""
Head = Literal["private", "raw"]
"""Which head predicts: the server's own model, or one fitted on raw labels."""

PretrainName = Literal["none", "pca", "whiten", "splines", "kmeans", "filters"]
"""Preparation of a client's features, without labels (`vertizo.models.pretrained`)."""
FITTED: tuple[PretrainName, ...] = ("pca", "whiten", "splines", "kmeans")
"""Ways that are fitted on all of its records, so that one's features depend on others."""

ControlName = Literal["none", "frozen", "random", "label-free"]
CONTROLS: dict[str, str] = {
    "frozen": "frozen clients",
    "random": "random updates",
    "label-free": "frozen, label-free, raw head, ε = 0",
}
"""Control runs that a figure is compared with → their names in tables."""

Naming = Literal["sent", "implicit"]
"""How a query names records: by IDs, or by a batch's number where both sides know the order."""

Encoding = Literal["utf-8", "gb18030", "cp1252"]
"""Encodings of CSV files: that of most programs, of Chinese and of older Western ones."""

Side = Literal["width", "height", "channels"]
"""The axis along which clients' maps are joined (`vertizo.models.architectures.resnet`)."""

Family = Literal["bert", "distilbert"]
Pooling = Literal["mean", "cls"]
"""How the vectors of a text's tokens become one: their mean, or the first token's."""
Trainable = Literal["all", "head", "bias", "lora"]
"""The part of a pre-trained encoder that is trained (`vertizo.models.architectures.text`)."""

SplitName = Literal["rows", "patches", "halves", "sides", "even", "columns", "segments", "views"]
"""Ways to cut a record between parties (`vertizo.data.splits`)."""
NormName = Literal["group", "batch"]
"""Normalisation layers of ResNet-18 (`vertizo.models.architectures.resnet`)."""
