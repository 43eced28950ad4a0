from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from vertizo.protocol.codecs.chain import Chain
from vertizo.protocol.codecs.choice import CodecChoice
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.paired import Paired
from vertizo.protocol.codecs.sign import Sign
from vertizo.protocol.codecs.top_k import TopK
from vertizo.protocol.codecs.uniform import Uniform

choice: TypeAdapter[Any] = TypeAdapter(CodecChoice)


def test_the_selected_values_are_what_the_last_codec_makes_of_them() -> None:
    array = torch.randn(2, 5, 40)
    first, last = TopK(fraction=0.2), Uniform(bits=4)
    chain = Chain(codecs=(first, last))
    places, values = first.split(array)
    assert values.shape == (2, 5, 8)
    assert bytes(chain.encode(array)) == places + bytes(last.encode(values))
    found = chain.decode(chain.encode(array), (2, 5, 40))
    kept = first.decode(first.encode(array), (2, 5, 40)) != 0
    assert not found[~kept].any()
    assert torch.equal(
        found[kept].view(2, 5, 8), last.decode(last.encode(values), tuple(values.shape))
    )


def test_without_loss_in_the_last_a_chain_is_its_selection() -> None:
    array = torch.randn(6, 50)
    chain = Chain(codecs=(TopK(fraction=0.5), TopK(fraction=0.2), NoCompression()))
    selection = TopK(fraction=0.1)
    assert torch.equal(
        chain.decode(chain.encode(array), (6, 50)),
        selection.decode(selection.encode(array), (6, 50)),
    )


def test_size_of_the_usual_chain() -> None:
    """64 rows: 6 columns of 6 bits each, one low and high, 6 levels of a byte."""
    chain = Chain()
    expected = 64 * 36 // 8 + 8 + 64 * 6
    assert chain.size((64, 64)) == expected == len(chain.encode(torch.randn(64, 64)))


@pytest.mark.parametrize(
    ("codecs", "message"),
    [
        ((), "0 codecs; it needs at least two"),
        ((TopK(),), "1 codecs; it needs at least two"),
        ((Uniform(), TopK()), "'uniform' selects nothing"),
        ((TopK(), Sign(), Uniform()), "'sign' selects nothing"),
    ],
)
def test_chains_that_compose_nothing_are_refused(codecs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Chain(codecs=codecs)


@pytest.mark.parametrize(
    ("tree", "codec"),
    [
        ({}, NoCompression()),
        ({"dtype": "float16"}, NoCompression(dtype="float16")),
        ({"name": "uniform", "bits": 4}, Uniform(bits=4)),
        ({"name": "sign"}, Sign()),
        ({"name": "paired"}, Paired()),
        (
            {
                "name": "paired",
                "midpoint": {"name": "none", "dtype": "bfloat16"},
                "difference": {"name": "sign"},
            },
            Paired(midpoint=NoCompression(dtype="bfloat16"), difference=Sign()),
        ),
        (
            {"name": "chain", "codecs": [{"name": "top-k", "fraction": 0.5}, {"name": "sign"}]},
            Chain(codecs=(TopK(fraction=0.5), Sign())),
        ),
    ],
)
def test_a_configuration_chooses(tree: dict[str, Any], codec: Any) -> None:
    assert choice.validate_python(tree) == codec
    assert choice.validate_python(codec.model_dump(mode="json")) == codec
    assert hash(codec) == hash(choice.validate_python(tree))


@pytest.mark.parametrize(
    "tree",
    [
        {"name": "zip"},
        {"name": "sign", "bits": 8},
        {"name": "paired", "difference": {"name": "paired"}},
        {"name": "paired", "midpoint": {"name": "chain"}},
        {"name": "chain", "codecs": [{"name": "top-k"}, {"name": "chain"}]},
    ],
)
def test_other_trees_are_refused(tree: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        choice.validate_python(tree)
