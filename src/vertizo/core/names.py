"""Names that a configuration chooses among, apart from what they stand for.

The schema needs the names alone; what stands behind them imports PyTorch.
"""

from __future__ import annotations

from typing import Literal

AUTO = "auto"
"""In place of a method's name: one is chosen (`vertizo.config.auto`)."""

Timing = Literal["asynchronous", "synchronous"]
"""Whether each client goes its own pace, or all in step."""

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
"""Those whose steps carry noise (`vertizo.party.private_updates`)."""

Precision = Literal["float32", "tf32", "bfloat16"]
"""What a model computes with on a card: factors of products of 24, 11 or 8 bits."""

Join = Literal["concat", "sum", "mean"]
"""How the clients' embeddings become the server model's input."""

HeadName = Literal["private", "logistic", "boosting", "refit", "auto"]
"""What predicts at the end: the server's model, one fitted on raw labels after the last reply
(`vertizo.party.final_head`), or the one of all these that predicts validation records best."""
Head = Literal["private", "raw"]
"""Which of the two predicts."""

PretrainName = Literal["none", "pca", "whiten", "splines", "kmeans", "filters"]
"""What a client makes of its features before training, without labels
(`vertizo.models.pretrained`)."""
FITTED: tuple[PretrainName, ...] = ("pca", "whiten", "splines", "kmeans")
"""Those that are fitted on all of its records, so that what is made of one depends on others."""

ControlName = Literal["none", "frozen", "random", "label-free"]
CONTROLS: dict[str, str] = {
    "frozen": "frozen clients",
    "random": "random updates",
    "label-free": "frozen, label-free, raw head, ε = 0",
}
"""The runs that a figure is held against, and what tables call them."""

Naming = Literal["sent", "implicit"]
"""How a query says which records it is about: by their IDs, or, where both sides know the order of
records, by the number of a batch."""

Encoding = Literal["utf-8", "gb18030", "cp1252"]
"""Of a CSV file: what most programs write, and what Chinese and older Western ones do."""

Side = Literal["width", "height", "channels"]
"""Along what the clients' maps of an image are put together (`vertizo.models.resnet`)."""

Family = Literal["bert", "distilbert"]
Pooling = Literal["mean", "cls"]
"""How a text's vectors become one: the mean over its tokens, or the first token's."""
Trainable = Literal["all", "head", "bias", "lora"]
"""What is trained of a pre-trained encoder (`vertizo.models.tuning`)."""

SplitName = Literal["rows", "patches", "halves", "sides", "even", "columns", "segments", "views"]
"""Ways to cut a record between parties (`vertizo.data.splits`)."""
NormName = Literal["group", "batch"]
"""What normalises in ResNet-18 (`vertizo.models.resnet`)."""
