from __future__ import annotations

import torch

from vertizo.protocol.codecs.chain import Chain
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.top_k import TopK
from vertizo.protocol.codecs.uniform import Uniform


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
