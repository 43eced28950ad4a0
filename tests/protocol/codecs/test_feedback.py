"""Error feedback: what a codec loses of a record is late, and not lost."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import federations as fed
from tests.autograd import normal
from tests.refusals import refused
from torch import Tensor

from vertizo.core.errors import RefusedError
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.feedback import MOST, Feedback, Received, loss_of
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.sign import Sign
from vertizo.protocol.codecs.top_k import TopK
from vertizo.protocol.codecs.uniform import Uniform
from vertizo.run.results import checkpoint

LOSSY: dict[str, Codec] = {
    "top-k": TopK(fraction=0.25),
    "uniform 1 bit": Uniform(bits=1),
    "uniform 1 bit a record": Uniform(bits=1, scale="record"),
    "sign": Sign(),
}
IDS = torch.tensor([4, 0, 7])


def sent(feedback: Feedback, codec: Codec, ids: Tensor, array: Tensor) -> Tensor:
    """What arrives of an array that is sent with feedback."""
    wanted = feedback.corrected(ids, array)
    arrived = fed.back(codec, wanted)
    feedback.absorb(ids, wanted, arrived)
    return arrived


@pytest.mark.full
def test_the_sum_of_what_arrives_approaches_the_sum_of_what_was_wanted() -> None:
    """The mean error falls like one over the rounds; without feedback it stays."""
    rounds, base = 400, normal(0, 3, 8)
    for (name, codec), changing in product(LOSSY.items(), (False, True)):
        feedback, case = Feedback(9), (name, changing)
        noise = normal(1, rounds, 3, 8) if changing else torch.zeros(rounds, 3, 8)
        wanted, arrived, forgetful = (torch.zeros(3, 8) for _ in range(3))
        errors = {}
        for n in range(1, rounds + 1):
            array = base + noise[n - 1]
            wanted += array
            arrived += sent(feedback, codec, IDS, array)
            forgetful += fed.back(codec, array)
            errors[n] = float((arrived - wanted).norm() / n)
            if n <= 20:  # owed is what is missing, exactly: nothing else is ever added
                missing = wanted - arrived
                assert torch.allclose(feedback.state()["owed"][IDS], missing, atol=1e-4), case
        assert errors[rounds] < 0.05 * float(base.norm()), case
        assert errors[rounds] < 0.25 * errors[rounds // 20], case
        assert float((forgetful - wanted).norm() / rounds) > 4 * errors[rounds], case


def test_it_is_owed_to_the_record_and_not_to_its_place_in_a_batch_and_paid_once() -> None:
    codec, feedback, both = TopK(fraction=0.5), Feedback(5), torch.tensor([3, 1])
    first = torch.tensor([[4.0, 1.0], [2.0, 8.0]])
    assert sent(feedback, codec, both, first).tolist() == [[4, 0], [0, 8]]
    nothing = torch.zeros(3, 2)
    other = feedback.corrected(torch.tensor([0, 2, 4]), nothing)
    assert torch.equal(other, nothing)
    swapped = feedback.corrected(torch.tensor([1, 0, 3]), nothing)
    assert swapped.tolist() == [[2, 0], [0, 0], [0, 1]]
    assert sent(feedback, codec, both, nothing[:2]).tolist() == [[0, 1], [2, 0]]
    assert sent(feedback, codec, both, nothing[:2]).tolist() == [[0, 0], [0, 0]]


def test_asking_what_to_send_changes_nothing() -> None:
    feedback, array = Feedback(9), torch.ones(3, 8)
    sent(feedback, Sign(), IDS, torch.linspace(0, 1, 24).view(3, 8))
    before = feedback.state()["owed"].clone()
    assert torch.equal(feedback.corrected(IDS, array), feedback.corrected(IDS, array))
    assert torch.equal(feedback.state()["owed"], before)
    assert torch.equal(array, torch.ones(3, 8))


def test_what_cannot_be_coded_leaves_no_lasting_damage() -> None:
    """The receiver refuses such an array; the next one is finite again."""
    feedback, array = Feedback(9), normal(0, 3, 8)
    assert torch.equal(sent(feedback, NoCompression(), IDS, array), array)  # loses nothing
    assert not feedback.state()["owed"].any()
    for value in (math.nan, math.inf, -math.inf, 3e38):
        feedback, broken = Feedback(9), torch.ones(3, 8)
        broken[1, 2] = value
        sent(feedback, NoCompression(dtype="float16"), IDS, broken)
        assert feedback.state()["owed"].isfinite().all(), value
        assert torch.equal(feedback.corrected(IDS, torch.ones(3, 8)), torch.ones(3, 8)), value


def test_its_state_is_a_copy_from_then_on() -> None:
    one, two, third = Feedback(9), Feedback(9), Feedback(9)
    assert one.state() == {"owed": None}
    two.load({"owed": None})
    array = normal(0, 3, 8)
    sent(one, Sign(), IDS, array)
    sent(third, Sign(), IDS, array)
    two.load(one.state())
    expected = sent(third, Sign(), IDS, array)
    for feedback in (one, two):
        assert torch.equal(sent(feedback, Sign(), IDS, array), expected)
    two.load({"owed": None})
    assert two.state() == {"owed": None}


ROUGH: dict[str, dict[str, Any]] = {
    "up": {"codecs.up": {"name": "top-k", "fraction": 0.4}},
    "down": {"codecs.down": {"name": "sign"}},
    "both": {"codecs.up": {"name": "sign"}, "codecs.down": {"name": "top-k", "fraction": 0.4}},
}


@pytest.mark.parametrize("way", ROUGH)
def test_a_run_with_feedback_goes_on_bit_by_bit(tmp_path: Path, way: str) -> None:
    """Through a checkpoint file, with messages that get lost and are sent again."""
    more = {**ROUGH[way], "epochs": 3, "simulation.drop": 0.2}
    changes = {**more, "codecs.feedback": way}
    for method in ("vafl", "split", "fedbcd"):
        whole, tape = fed.ran(method, changes=changes)
        assert whole.simulator.traffic.lost > 0
        for rounds in (0, 5):
            first, beginning = fed.ran(method, changes=changes, rounds=rounds)
            checkpoint.save(tmp_path / "state", first.state())
            end = fed.Tape()
            second = fed.build(method, changes=changes, observer=end)
            second.load(checkpoint.load(tmp_path / "state"))
            fed.go_on(second)
            assert beginning.seen + end.seen == tape.seen, (method, rounds)
            assert not fed.differences(whole.state(), second.state()), (method, rounds)

        owed = whole.state()
        clients = [bool(client["received"]) for client in owed["clients"]]
        assert clients == [way != "down"] * 3, method
        assert len(owed["server"]["received"]) == (0 if way == "down" else 3), method
        for client, known in zip(owed["clients"], owed["server"]["received"], strict=False):
            assert torch.equal(client["received"]["rows"], known["rows"]), method
        lost = [lost["owed"] is not None for lost in owed["server"]["feedback"]]
        assert lost == ([True] * 3 if way != "up" else []), method
        forgetful, _ = fed.ran(method, changes=more)
        assert fed.differences(whole.parameters, forgetful.parameters), method


def error_of_the_table(feedback: str, method: str, up: dict[str, Any]) -> float:
    """How far the server's table is from what frozen clients' models say, after 30 epochs."""
    changes = {"codecs.up": up, "codecs.feedback": feedback, "control": "frozen", "epochs": 30}
    if method == "dpzv":
        changes["method.smoothing"] = 1e-4
    federation, _ = fed.ran(method, changes=changes)
    pairs = zip(federation.models, federation.data.features, strict=True)
    wanted = torch.cat([model(own["train"]) for model, own in pairs], 1)
    return float((federation.server.side.table.values - wanted).norm() / wanted.norm())


def test_the_server_has_in_the_end_what_the_client_meant() -> None:
    """Embeddings are states: the error of each goes to nothing, and does not add up."""
    cases: list[tuple[str, dict[str, Any]]] = [
        ("vafl", {"name": "top-k", "fraction": 0.4}),
        ("split", {"name": "sign"}),
        ("vafl", {"name": "uniform", "bits": 2}),
        ("dpzv", {"name": "paired", "midpoint": {"name": "sign"}}),
    ]
    for method, up in cases:
        assert error_of_the_table("up", method, up) < 0.03, (method, up)
        assert error_of_the_table("none", method, up) > 0.1, (method, up)


def test_both_sides_have_the_same_of_each_record() -> None:
    ids, received = torch.tensor([4, 0]), Received(5, 2)
    assert not received.known(ids).any()
    received.learn(ids, torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[3.0, 2.0], [5.0, 4.0]]]))
    assert received.known(torch.tensor([0, 1, 4])).tolist() == [[4, 4], [0, 0], [2, 2]]
    other = Received(5, 2)
    other.load({key: value.clone() for key, value in received.state().items()})
    assert torch.equal(other.known(ids), received.known(ids))


def test_which_codecs_settle() -> None:
    """Told from a sample, and seen in use: the error of a constant falls, or does not."""
    array = normal(1, 1, 64, 64)
    settling = [NoCompression(), Uniform(bits=8), Uniform(bits=2), TopK(fraction=0.01), Sign()]
    settling.append(Sign(gain="one"))
    for codec in (*settling, Uniform(bits=1)):
        assert (loss_of(codec, 64) <= MOST) == (codec in settling), codec
        known = torch.zeros_like(array)
        for _ in range(200):
            known = known + fed.back(codec, array - known)
        error = float((known - array).norm() / array.norm())
        assert (error < 0.5) == (codec in settling), codec


def test_messages_sent_again_are_absorbed_once() -> None:
    """Nor is a query counted twice that a client was asked for after a restart."""
    changes = {**ROUGH["up"], "codecs.feedback": "up"}
    federation, fresh = (fed.build("vafl", changes=changes) for _ in range(2))
    frame = fed.ask(federation, 0)
    held = fed.client_holds(federation, 0)
    fed.restore_client(fresh, 0, held)
    for one in (federation, fresh):
        assert fed.ask(one, 0) == frame
        assert not fed.differences(held, fed.client_holds(one, 0))

    federation = fed.build("vafl", changes={**ROUGH["down"], "codecs.feedback": "down"})
    frame = fed.ask(federation, 0)
    ((_, answer),) = federation.server.receive(frame)
    held = fed.server_holds(federation)
    assert held["party"]["feedback"][0]["owed"].any()
    assert held["party"]["feedback"][1]["owed"] is None
    for _ in range(3):
        assert federation.server.receive(frame) == [(0, answer)]
    assert not fed.differences(held, fed.server_holds(federation))


def test_a_refused_query_leaves_what_the_server_remembers_alone() -> None:
    for way, codec in (("up", TopK(fraction=0.4)), ("down", NoCompression())):
        federation = fed.build("vafl", changes={**ROUGH[way], "codecs.feedback": way})
        fed.converse(federation, [0, 1])
        held = fed.server_holds(federation)
        query = fed.query(fed.ask(federation, 0), codec)
        query.embeddings[0, 0, 0] = math.inf
        refused(way, RefusedError, federation.server.receive, fed.encoded(query, codec))
        assert not fed.differences(held, fed.server_holds(federation)), way


def test_noise_is_added_before_anything_is_coded() -> None:
    """So that what is owed is made of released numbers only, and costs no privacy."""
    changes = {**fed.EMBEDDING_NOISE, **ROUGH["up"], "codecs.feedback": "up"}
    federation = fed.build("vafl", changes=changes)
    client = federation.clients[0]
    frame = fed.ask(federation, 0)
    codec = fed.config("vafl", changes=changes).codecs.up
    query = fed.query(frame, codec)
    plain = federation.models[0](federation.data.features[0]["train"][query.ids])
    released = client.noise.release(0, plain.unsqueeze(0))
    assert torch.equal(query.embeddings, fed.back(codec, released))
    known = client.state()["received"]["rows"][query.ids]
    assert torch.equal(known, query.embeddings[0])
