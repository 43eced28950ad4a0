"""Bytes and options of all codecs, row by row."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from tests.refusals import refused

from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.chain import Chain
from vertizo.protocol.codecs.choice import CodecChoice
from vertizo.protocol.codecs.lattice import Lattice
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.paired import Paired
from vertizo.protocol.codecs.sign import Sign
from vertizo.protocol.codecs.top_k import TopK
from vertizo.protocol.codecs.uniform import Uniform

EXACT = Paired(midpoint=NoCompression(), difference=NoCompression())
SIZES: list[tuple[Codec, tuple[int, ...], int]] = [
    *((NoCompression(), shape, 4 * n) for shape, n in (((), 1), ((0,), 0), ((2, 3, 5), 30))),
    *((NoCompression(dtype="float16"), shape, 2 * n) for shape, n in (((), 1), ((2, 3, 5), 30))),
    (NoCompression(dtype="bfloat16"), (7,), 14),
    (Uniform(bits=4), (7,), 8 + 4),
    (Uniform(bits=4), (5, 3), 8 + 8),
    (Uniform(bits=4), (2, 5, 3), 16 + 15),
    (Uniform(bits=4, scale="record"), (7,), 8 + 4),
    (Uniform(bits=4, scale="record"), (5, 3), 40 + 8),
    (Uniform(bits=4, scale="record"), (2, 5, 3), 80 + 15),
    (Uniform(bits=4), (2, 0, 3), 0),
    (Uniform(bits=4, scale="record"), (4, 0), 0),
    (Uniform(bits=4), (), 9),
    (TopK(fraction=0.1), (64, 64), 64 * 36 // 8 + 64 * 6 * 4),  # 6 columns of 6 bits a row
    (TopK(fraction=0.3), (64, 64), 64 * 64 // 8 + 64 * 19 * 4),  # bitmaps
    (TopK(fraction=0.5), (3, 3), 2 + 3 * 2 * 4),
    (TopK(fraction=1.0), (5, 3), 60),
    (TopK(fraction=0.1), (1000,), 125 + 400),
    (TopK(fraction=0.01), (1000,), 13 + 40),
    (TopK(fraction=0.1), (2, 5, 1), 40),
    (TopK(fraction=0.5), (3, 0), 0),
    (TopK(fraction=0.5), (), 4),
    (Sign(), (9,), 4 + 2),
    (Sign(), (5, 3), 20 + 2),
    (Sign(), (2, 5, 3), 40 + 4),
    (Sign(), (), 5),
    (Sign(), (3, 0), 0),
    (Sign(scale="array"), (9,), 4 + 2),
    (Sign(scale="array"), (5, 3), 4 + 2),
    (Sign(scale="array"), (2, 5, 3), 8 + 4),
    (Lattice(), (64, 64), 4 + 4096),
    (Lattice(), (5, 3), 4 + 5 * 4),  # a zero beside the third number
    (Lattice(bits=4), (2, 5, 3), 8 + 10 * 2),
    (Lattice(bits=2), (3,), 4 + 1),
    (Lattice(bits=2, scale="record"), (5, 3), 20 + 5),
    (Lattice(kind="scalar", bits=2), (5, 3), 4 + 4),
    (Lattice(), (), 6),
    (Lattice(kind="scalar", bits=4), (0, 4), 0),
    (Paired(), (2, 64, 64), (8 + 4096) + 4 + (8 + 4096)),
    (Paired(), (6, 5, 3), (8 + 15) + 3 * 4 + (3 * 8 + 45)),
    (Paired(scale="record"), (6, 5, 3), (8 + 15) + 15 * 4 + (3 * 8 + 45)),
    (Paired(difference=Sign()), (2, 5, 3), (8 + 15) + 4 + (20 + 2)),
    (EXACT, (2, 5, 3), 60 + 4 + 60),
    # 64 rows: 6 columns of 6 bits each, one low and high, 6 levels of a byte
    (Chain(), (64, 64), 64 * 36 // 8 + 8 + 64 * 6),
]
choice: TypeAdapter[Any] = TypeAdapter(CodecChoice)


def test_sizes() -> None:
    for codec, shape, size in SIZES:
        assert codec.size(shape) == size, (codec, shape)
        assert len(codec.encode(torch.randn(shape))) == size, (codec, shape)


def test_a_configuration_chooses() -> None:
    halves = {"name": "none", "dtype": "bfloat16"}
    rows: list[tuple[dict[str, Any], Any]] = [
        ({}, NoCompression()),
        ({"dtype": "float16"}, NoCompression(dtype="float16")),
        ({"name": "uniform", "bits": 4}, Uniform(bits=4)),
        ({"name": "sign"}, Sign()),
        ({"name": "paired"}, Paired()),
        (
            {"name": "paired", "midpoint": halves, "difference": {"name": "sign"}},
            Paired(midpoint=NoCompression(dtype="bfloat16"), difference=Sign()),
        ),
        (
            {"name": "chain", "codecs": [{"name": "top-k", "fraction": 0.5}, {"name": "sign"}]},
            Chain(codecs=(TopK(fraction=0.5), Sign())),
        ),
    ]
    for tree, codec in rows:
        assert choice.validate_python(tree) == codec, tree
        assert choice.validate_python(codec.model_dump(mode="json")) == codec, tree
        assert hash(codec) == hash(choice.validate_python(tree)), tree


def test_other_options_are_refused() -> None:
    few = "codecs; it needs at least two"
    rows: list[tuple[dict[str, Any], str]] = [
        ({"name": "zip"}, ""),
        ({"name": "sign", "bits": 8}, ""),
        ({"name": "uniform", "bits": 3}, ""),
        ({"name": "uniform", "bits": "few"}, ""),
        ({"name": "uniform", "scale": "column"}, ""),
        ({"name": "uniform", "bit": 8}, ""),
        *(({"name": "top-k", "fraction": x}, "") for x in (0, -0.1, 1.1, float("nan"), True)),
        ({"name": "paired", "difference": {"name": "paired"}}, ""),
        ({"name": "paired", "midpoint": {"name": "chain"}}, ""),
        ({"name": "chain", "codecs": [{"name": "top-k"}, {"name": "chain"}]}, ""),
        ({"name": "chain", "codecs": ()}, f"0 {few}"),
        ({"name": "chain", "codecs": (TopK(),)}, f"1 {few}"),
        ({"name": "chain", "codecs": (Uniform(), TopK())}, "'uniform' selects nothing"),
        ({"name": "chain", "codecs": (TopK(), Sign(), Uniform())}, "'sign' selects nothing"),
    ]
    for tree, words in rows:
        refused(tree, ValidationError, choice.validate_python, tree, match=words)
