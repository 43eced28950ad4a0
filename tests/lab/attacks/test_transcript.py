"""A transcript holds what was on the wire, and nothing that was not."""

from __future__ import annotations

from functools import cache

import torch
from tests.lab.attacks.trials import LABORATORY

from vertizo.config.schema import ExperimentConfig
from vertizo.lab.attacks import arena
from vertizo.lab.attacks.settings import setting
from vertizo.lab.attacks.transcript import Exchange, Transcript
from vertizo.lab.attacks.transcript import exchanges as decoded

SMALL = ("data.limit=60", "batch_size=16")


@cache
def trained(
    method: str, *overrides: str, latest: int | None = None, watch_server: bool = False
) -> arena.Arena:
    config = setting("sum", method, overrides=(*SMALL, *overrides))
    data = LABORATORY.data(config)
    return arena.train(config, data, latest=latest, watch_server=watch_server)


def exchanges(ground: arena.Arena, client: int | None = None) -> list[Exchange]:
    return decoded(ground.transcript, ground.config, ground.data.records, client)


def test_every_answered_query_is_an_exchange() -> None:
    assert decoded(Transcript(), setting("sum", "vafl"), 5) == []
    for method in ("dpzv", "vafl", "split", "czofo", "syn-zoo-vfl"):
        ground = trained(method, "epochs=2")
        found = exchanges(ground)
        assert [(e.client, e.number) for e in found] == [
            (client, number) for client in (0, 1) for number in range(2 * -(-60 // 16))
        ], method
        for each in found:
            batch = each.ids.numel()
            assert each.embeddings.shape == (ground.config.method.points, batch, 10), method
            assert each.values.shape == ground.config.method.reply_shape(batch, 10), method


def test_embeddings_are_those_that_reached_the_server() -> None:
    """Differences of error feedback are added up."""
    ground = trained("vafl")
    table = ground.federation.server.side.table.values
    for each in exchanges(ground, 1):
        assert torch.equal(table[each.ids, 10:], each.embeddings[0])
    overrides = ("epochs=3", "codecs.up.name=uniform", "codecs.up.bits=8", "codecs.feedback=up")
    ground = trained("vafl", *overrides, latest=1)  # all are needed: none may be forgotten
    found = exchanges(ground, 0)
    assert len(found) == 3 * 4
    table = ground.federation.server.side.table.values
    for each in found[-4:]:
        assert torch.allclose(table[each.ids, :10], each.embeddings[0], atol=1e-6)


def test_a_frame_that_was_sent_again_is_one_exchange() -> None:
    ground = trained("cascaded", "epochs=3", "simulation.drop=0.3", "simulation.timeout=1")
    assert ground.federation.simulator.traffic.lost > 0
    assert [e.number for e in exchanges(ground, 0)] == list(range(12))


def test_only_the_latest_are_kept_if_that_is_asked() -> None:
    ground = trained("split", "epochs=4", latest=3)
    assert [e.number for e in exchanges(ground, 1)] == [13, 14, 15]
    assert [len(frames) for frames in ground.transcript.frames.values()] == [3 * 3, 3 * 3]


def test_a_client_has_its_own_exchanges_only() -> None:
    ground = trained("dpzv")
    client = ground.client(1)
    assert {e.client for e in client.exchanges} == {1}
    assert torch.equal(client.features, ground.data.features[1]["train"])
    assert {e.client for e in ground.eavesdropper().exchanges} == {0, 1}


def test_watching_notes_what_a_query_was_answered_with() -> None:
    """The reply of VAFL is the gradient at the noted weights and rows."""
    ground = trained("vafl", watch_server=True)
    truth, head = ground.data.labels["train"], ground.federation.server.side.model
    for each in ground.client().exchanges:
        bias = ground.watched.parameters[each.number]
        rows = ground.watched.rows[each.number]
        logits = rows[:, :10] + rows[:, 10:] + bias
        expected = torch.softmax(logits, 1) - torch.nn.functional.one_hot(truth[each.ids], 10)
        assert torch.allclose(each.values * 16, expected, atol=1e-5)
    assert not torch.equal(ground.watched.parameters[0], head.parameters)


def test_nobody_is_given_the_seed() -> None:
    """The seed of a simulation would give away every secret stream."""
    ground = trained("dpzv", "seed=12345")
    for adversary in (ground.eavesdropper(), ground.client(), ground.server({})):
        assert not any(isinstance(v, ExperimentConfig) for v in vars(adversary).values())
        assert "12345" not in repr(adversary.public)
