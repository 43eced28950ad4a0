"""Messages that are handed over within a process do what their bytes would."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.federations import go_on
from tests.rows import each
from tests.same import same

from vertizo.config.schema import load
from vertizo.protocol import wire
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.messages import Batch, Query, Reply
from vertizo.run.experiment import Experiment
from vertizo.run.loop.federation import Federation, build

SETTINGS = [
    *((f"method.name={n}",) for n in ("cascaded", "zoo-vfl", "syn-zoo-vfl", "vafl", "split")),
    ("method={name: czofo, num_directions: 5}", "codecs.up.name=none"),
    ("method={name: fedbcd, local_steps: 3}", "codecs.up.name=none"),
    ("method.name=dpzv",),
    ("method.name=dpzv", "privacy={mechanism: gaussian, clip: 1, noise_std: 0.3}"),
    ("method.name=dpzv", "simulation.drop=0.2"),
    ("method.name=dpzv", "codecs.ids=implicit"),
]
NUMBERS = st.sampled_from([0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**62])


def ran(overrides: tuple[str, ...], observer: Any) -> Federation:
    config = load(None, ("seed=0", "data.limit=100", "batch_size=16", "epochs=2", *overrides))
    federation = build(config, Experiment(config).data(), observer=observer)
    federation.start(upload_table=False)
    go_on(federation)
    return federation


@pytest.mark.full
@each("overrides", SETTINGS)
def test_a_run_is_the_same_bit_for_bit(overrides: tuple[str, ...]) -> None:
    handed, encoded = ran(overrides, None), ran(overrides, lambda *seen: None)
    assert handed.server.round == encoded.server.round > 6
    assert handed.simulator.traffic == encoded.simulator.traffic
    assert handed.simulator.now == encoded.simulator.now
    assert same(handed.parameters, encoded.parameters)
    assert torch.equal(handed.server.side.table.values, encoded.server.side.table.values)
    assert handed.server.state()["peers"] == encoded.server.state()["peers"]


@given(
    client=NUMBERS.filter(lambda n: n < 2**31),
    number=NUMBERS,
    most=NUMBERS,
    rows=st.sampled_from([0, 1, 7, 200, 300]),
    batch=st.none() | NUMBERS,
)
def test_the_size_of_a_frame_is_its_length(
    client: int, number: int, most: int, rows: int, batch: int | None
) -> None:
    codec, ids = NoCompression(), torch.full((rows,), most)
    messages: list[Any] = [
        Query(client, number, ids, torch.zeros(2, rows, 33), batch),
        Reply(client, number, torch.zeros(rows)),
        Batch(number, ids, batch),
    ]
    for message in messages:
        assert wire.size(message) == len(wire.encode(message, codec))
    handed = wire.InProcessFrame(messages[0], codec)
    assert len(handed) == len(bytes(handed))
    assert handed == bytes(handed) == wire.encode(messages[0], codec)
    assert wire.decode(handed, codec) is messages[0]
