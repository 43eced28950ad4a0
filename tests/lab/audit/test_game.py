"""The game against the real server: it finds what is there, and not more.

Bounds hold with 95 % confidence each, in theory; seeds are fixed, so that a test passes always or
never. What malicious clients can show is μ = 1.942 under published noise at 'ε = 1' (ε = 7.294).
"""

import json
from functools import partial

import numpy as np
import pytest
import torch
from tests.words import says

from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError
from vertizo.lab.audit import small
from vertizo.lab.audit.adversaries import FinalModel, Honest, Malicious, Measuring, SeesRelease
from vertizo.lab.audit.game import audit
from vertizo.lab.audit.setting import Setting
from vertizo.lab.commands.privacy import audit as command
from vertizo.party import private_updates
from vertizo.privacy import clipping
from vertizo.privacy.labels.private_labels import RandomisedResponse, Teacher
from vertizo.privacy.noise.mechanisms import SeededNoise
from vertizo.privacy.options import ON_LABELS
from vertizo.protocol import wire

CLIP, BATCH = small.CLIP, small.BATCH


def _setting(noise="exact", update="none", record=0, **privacy):
    config = small.config(noise, update=update)
    if privacy:
        changed = config.privacy.model_copy(update=privacy)
        config = config.model_copy(update={"privacy": changed})
    return Setting(config, small.data(), record)


def _quiet(update="none"):
    """Next to no noise."""
    return _setting(
        update=update, epsilon=None, accounting="exact", noise_std=1e-4, server_noise_std=None
    )


def _audited(setting, player, trials):
    return audit(setting, player(setting), trials=trials)


def test_a_malicious_query_moves_delta_from_minus_to_plus_the_clip():
    setting = _quiet()
    replies = small.CLIENTS * small.EPOCHS
    sums = [float(Malicious(setting).observe(world, 3)[0]) for world in (0, 1)]
    # Noise of 1e-4 on each of four replies, and rounding of float32.
    assert sums == pytest.approx([-CLIP * replies, CLIP * replies], abs=2e-3)


def test_records_with_equal_embeddings_add_exactly_nothing():
    setting = _setting()
    frame = Malicious(setting)._moves[0].frame
    query = wire.decode(frame, setting.config.codecs.up)
    assert query.ids.numel() == BATCH
    for world in (0, 1):
        slopes = setting.slopes(setting.side, 0, query.ids, query.embeddings, world)
        assert slopes[0, 1:].tolist() == [0.0] * (BATCH - 1)
        assert abs(float(slopes[0, 0])) > CLIP


def test_trials_differ_in_noise_and_in_nothing_else_that_matters():
    setting = _setting()
    first, second = setting.federation(0, 1).server, setting.federation(0, 2).server
    assert torch.equal(first.side.model.parameters, second.side.model.parameters)
    player = Malicious(setting)
    seen = {float(player.observe(0, seed)[0]) for seed in range(5)}
    assert len(seen) == 5
    assert float(player.observe(0, 4)[0]) in seen


@pytest.mark.full
def test_published_noise_gives_away_more_than_it_claims_and_exact_noise_does_not():
    found = _audited(_setting("published"), Malicious, 400)
    assert found.epsilon_claimed == pytest.approx(1.0)
    assert found.epsilon_exact == pytest.approx(7.294, abs=5e-4)
    assert found.epsilon_claimed < found.bound.epsilon < found.epsilon_exact
    assert found.refutes_claim
    assert not found.refutes_accountant
    found = _audited(_setting("exact"), Malicious, 400)
    assert found.epsilon_claimed == found.epsilon_exact == pytest.approx(1.0)
    assert found.bound.epsilon < 1.0
    assert not found.refutes_claim


@pytest.mark.full
def test_a_server_with_too_little_noise_or_one_sided_clipping_is_caught(monkeypatch):
    def onto(self, release, total):
        noise = self._stream.generator(release).standard_normal(tuple(total.shape))
        return total + 0.1 * self.noise_std * torch.from_numpy(noise)

    def one_sided(values, clip_norm):
        return values.to(torch.float64).clamp(max=clip_norm)

    for place, name, wrong in ((SeededNoise, "onto", onto), (clipping, "clip", one_sided)):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, wrong)
            found = _audited(_setting("exact"), Malicious, 100)
        assert found.guarantee == "simulated", name
        assert found.epsilon_exact == pytest.approx(1.0), name
        assert found.refutes_accountant, name


@pytest.mark.full
def test_a_raw_label_server_gives_away_more_than_its_replies_alone():
    setting = _setting(update="sgd")
    found = _audited(setting, partial(Measuring, probes=30), 100)
    assert found.guarantee == "none"
    assert found.epsilon_exact is None
    assert found.epsilon_replies == pytest.approx(1.0)
    assert found.bound.epsilon > 1.5
    assert _audited(setting, FinalModel, 60).bound.epsilon > 1.5


def test_other_records_tell_nothing_where_the_server_model_does_not_move():
    setting = _quiet()
    sums = np.array([Measuring(setting, probes=8).observe(world, 3) for world in (0, 1)])
    assert sums[:, 1] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert sums[1, 0] - sums[0, 0] == pytest.approx(2 * CLIP * 4, abs=2e-3)


@pytest.mark.full
def test_measuring_keeps_to_the_number_of_probes():
    for probes in (0, 5, 10_000):
        player = Measuring(_setting(update="sgd"), probes=probes)
        about_others = sum(not move.about_target for move in player._moves)
        spare = small.CLIENTS * small.EPOCHS * (small.RECORDS // BATCH - 1)
        assert about_others == min(probes, spare)


@pytest.mark.full
def test_clients_that_follow_the_protocol_know_the_likelihood_of_what_they_see():
    setting = _quiet()
    player = Honest(setting)
    # Noise of 1e-4 on sums that the label moves by about 1e-2 and more: every trial is decided.
    evidence = [[float(player.observe(world, seed)[0]) for seed in (1, 2)] for world in (0, 1)]
    assert max(evidence[0]) < 0 < min(evidence[1])


@pytest.mark.long
@pytest.mark.full
def test_clients_that_follow_the_protocol_show_less_than_malicious_ones():
    for noise in ("published", "exact"):
        setting = _setting(noise)
        honest, malicious = (_audited(setting, player, 300) for player in (Honest, Malicious))
        assert honest.bound.epsilon <= malicious.bound.epsilon, noise
        assert not honest.refutes_accountant, noise


def _keeps_its_promise(player, trials):
    """For each way of updating privately: against what sees the replies, or the final model."""
    for update in ("private-sgd", "private-zeroth-order", "poisson-dp-sgd"):
        found = _audited(_setting(update=update), player, trials)
        assert found.guarantee == "simulated", update
        assert found.epsilon_exact == pytest.approx(1.0, abs=1e-3), update
        assert found.bound.epsilon < found.epsilon_exact, update


@pytest.mark.long
@pytest.mark.full
def test_private_servers_keep_their_promise():
    _keeps_its_promise(Measuring, 400)


@pytest.mark.full
def test_who_is_given_the_final_model_learns_no_more_than_is_promised():
    _keeps_its_promise(FinalModel, 150)


@pytest.mark.full
def test_private_labels_tell_no_more_than_is_promised_and_the_game_sees_them(monkeypatch):
    """Randomised response at ε = 1 is told apart; a teacher's labels hardly are."""
    measured = {}
    for mechanism in ON_LABELS:
        found = _audited(Setting(small.on_labels(mechanism), small.data()), SeesRelease, 300)
        assert found.epsilon_exact == pytest.approx(1.0, abs=1e-3)
        assert not found.refutes_accountant
        measured[mechanism] = found.bound.epsilon
    assert 0.3 < measured["randomised-response"] < 1.0, measured
    monkeypatch.setattr(RandomisedResponse, "exchanged", 2**64 // 20)
    monkeypatch.setattr(Teacher, "released", _without_noise)
    for mechanism in ON_LABELS:
        setting = Setting(small.on_labels(mechanism), small.data())
        assert _audited(setting, SeesRelease, 100).refutes_accountant, mechanism


def _without_noise(self, labels, inputs):
    sums = [inputs[labels == label].sum(0) for label in range(self.classes)]
    return torch.stack(sums, 1)


@pytest.mark.full
def test_a_server_whose_gradients_escape_the_clip_is_caught(monkeypatch):
    """By its final model: the replies are what they should be."""

    def unclipped(evaluation, clip_norm, count=None):
        sums = []
        for records, gradients in evaluation.record_gradients():
            weights = gradients.squares().isfinite().double()
            weights[max(0, (count or weights.numel()) - records.start) :] = 0
            sums.append(gradients.total(weights))
        return torch.stack(sums).sum(0)

    monkeypatch.setattr(private_updates, "clipped_gradient", unclipped)
    for update in ("private-sgd", "poisson-dp-sgd"):
        found = _audited(_setting(update=update), FinalModel, 60)
        assert found.epsilon_exact == pytest.approx(1.0, abs=1e-3), update
        assert found.refutes_accountant, update


def test_what_the_game_is_not_for_is_refused():
    with pytest.raises(ConfigError, match="'none'; there is no trained model to be given"):
        FinalModel(_setting())
    with pytest.raises(ConfigError, match="record is 100; there are 100 training records, from 0"):
        _setting(record=100)
    protected = {"mechanism": "embedding-noise", "clip": 1.0, "noise_std": 1.0}
    for change, message in (
        ({"method": {"name": "vafl"}}, "'vafl'; the audit's game is about replies of 'dpzv'"),
        ({"simulation": {"timing": "synchronous"}}, "which takes 'asynchronous'"),
        ({"privacy": protected}, "protects no label"),
    ):
        with pytest.raises(ConfigError, match=message):
            Setting(parse(change), small.data())


_command = partial(command, None, trials=20, honest_trials=0, probes=4)


@pytest.mark.full
def test_the_command_prints_figures_for_programs(capsys):
    small_run = ["data.limit=64", "batch_size=16", "epochs=1", "server.update=none"]
    _command([*small_run, "data.parties=2"], confidence=0.9, record=1, as_json=True)
    [found] = json.loads(capsys.readouterr().out)
    assert found["adversary"] == "malicious"
    assert found["guarantee"] == "none"
    assert found["bound"]["confidence"] == 0.9
    assert found["bound"]["hits"] == 10  # without noise every trial is decided


@pytest.mark.full
def test_the_command_prints_a_table_for_people(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _command([], confidence=0.95, record=0, as_json=False)
    said = capsys.readouterr().out
    assert said.index("refuted" if "refuted" in said else "more was measured") < said.index("┏")
    says(said, "published", "exact plan", "raw-label server", "poisson-dp-sgd", "label-statistic")
    assert said.count("published noise") <= 2, "one row for each server"
    assert max(len(line) for line in said.splitlines() if line[:1] == "│") <= 80
    monkeypatch.setenv("COLUMNS", "160")
    _command([], confidence=0.95, record=0, as_json=False, details=True)
    said = capsys.readouterr().out
    says(said, "published noise", "exact plan", "raw-label server", "7.294", "no bound")
    assert "replies ≤" in said
