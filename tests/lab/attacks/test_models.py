"""Attacks on what training leaves behind: client models, embeddings, the released model."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
import torch
from tests.lab.attacks.trials import LABORATORY, tried

from vertizo.core.randomness import Stream
from vertizo.lab.attacks import arena
from vertizo.lab.attacks.kinds.completion import ModelCompletion, complete, few_of_each
from vertizo.lab.attacks.kinds.inversion import FeatureInversion, decode, last_embeddings
from vertizo.lab.attacks.kinds.membership import MembershipInference, confidence
from vertizo.lab.attacks.settings import setting
from vertizo.lab.attacks.transcript import Exchange


class TestCompletion:
    @pytest.mark.long
    @pytest.mark.full
    def test_what_gradients_taught_a_client_is_worth_labels(self) -> None:
        """Over two seeds better than the same labels from scratch, by 3 points at the least.

        An untrained client is worth nothing, fresh parameters against fresh parameters: the mean
        gain of three, whose spread over first parameters is about 2 points, is near zero.
        """
        scores = [tried(ModelCompletion(), "vafl", seed=seed)["accuracy"] for seed in (0, 1)]
        assert statistics.fmean(s.value - s.control for s in scores) > 0.03
        assert min(score.value for score in scores) > 0.3
        fresh = [tried(ModelCompletion(), "vafl", "rounds=1", seed=seed) for seed in (0, 1, 2)]
        gains = [each["accuracy"].value - each["accuracy"].control for each in fresh]
        assert abs(statistics.fmean(gains)) < 0.08

    @pytest.mark.full
    def test_one_trained_client(self) -> None:
        score = tried(ModelCompletion(steps=60), "vafl", "epochs=12")["accuracy"]
        assert score.value > score.control + 0.03
        assert score.count == 1438 - 20

    def test_a_few_of_each_class(self) -> None:
        labels = torch.tensor([0, 1, 0, 1, 2, 0])
        chosen = few_of_each(labels, 2, Stream.from_seed(0))
        assert sorted(labels[chosen].tolist()) == [0, 0, 1, 1, 2]

    @pytest.mark.full
    def test_the_clients_model_is_left_as_it_was(self) -> None:
        config = setting("trained", "vafl", overrides=["rounds=4"])
        ground = arena.train(config, LABORATORY.data(config))
        client = ground.client()
        before = client.model.parameters.clone()
        ids = torch.arange(30)
        complete(client, ids, ground.data.labels["train"][ids], Stream.from_seed(0), 5)
        assert torch.equal(client.model.parameters, before)


class TestInversion:
    @pytest.mark.full
    def test_embeddings_give_features_away_whatever_trains_them(self) -> None:
        for method in ("vafl", "dpzv"):
            found = tried(FeatureInversion(), method, "epochs=4")
            decoder, coalition = found["decoder"], found["coalition"]
            # The mean is 1, class means are the control.
            assert decoder.value < 0.5 < decoder.control < 1, method
            assert coalition.value < 0.7 * coalition.control, method

    @pytest.mark.full
    def test_noise_on_embeddings_takes_some_back_and_on_replies_none(self) -> None:
        def decoder(mechanism: str, clip: str, noise_std: str) -> float:
            noise = f"mechanism={mechanism}", f"clip={clip}", f"noise_std={noise_std}"
            overrides = ["epochs=2", *(f"privacy.{each}" for each in noise)]
            return tried(FeatureInversion(), "dpzv", *overrides)["decoder"].value

        plain = tried(FeatureInversion(), "dpzv", "epochs=2")["decoder"].value
        assert decoder("embedding-noise", "1.0", "2.0") > plain + 0.3
        assert decoder("gaussian", "4.0", "8.0") < 0.5

    def test_a_linear_map_of_full_rank_is_undone(self) -> None:
        rng = torch.Generator().manual_seed(0)
        features = torch.randn(200, 6, generator=rng)
        embeddings = features @ torch.randn(6, 8, generator=rng)
        known = torch.arange(50)
        assert torch.allclose(decode(embeddings, known, features[known]), features, atol=1e-2)

    def test_the_last_embedding_of_a_record_is_used(self) -> None:
        ids = torch.tensor([2, 0])
        old = Exchange(0, 0, ids, torch.zeros(1, 2, 3), torch.zeros(1))
        ones = torch.ones(2, 3)
        new = replace(old, number=1, embeddings=torch.stack([ones, 3 * ones]))
        found = last_embeddings([old, new, replace(new, client=1)], 0, 3)
        assert torch.equal(found[ids], torch.full((2, 3), 2.0))
        assert bool(found[1].isnan().all())


class TestMembership:
    @pytest.mark.full
    def test_an_overfitted_model_betrays_its_records(self) -> None:
        """150 members, 180 others: the AUC's standard deviation under no leak is 0.032."""
        found = tried(MembershipInference(), "split")
        assert found["auc"].value > 0.5 + 3 * 0.032
        assert found["calibrated"].value > 0.5 + 3 * 0.032

    def test_a_model_that_was_not_trained_betrays_none(self) -> None:
        found = tried(MembershipInference(), "split", "rounds=1")
        assert abs(found["auc"].value - 0.5) < 4 * 0.032
        assert found["tpr"].value < 0.08

    def test_confidence_is_the_log_odds_of_the_label(self) -> None:
        logits = torch.tensor([[1.0, 2.0, 0.5]])
        p = float(torch.softmax(logits, 1)[0, 1])
        expected = torch.tensor(p / (1 - p)).log()
        assert float(confidence(logits, torch.tensor([1]))) == pytest.approx(float(expected), 1e-5)
