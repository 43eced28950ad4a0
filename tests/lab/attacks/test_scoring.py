"""Norm and direction scoring of replies, with controls; gradient matching."""

from __future__ import annotations

import pytest
import torch
from tests.lab.attacks.trials import LABORATORY, tried

from vertizo.core.randomness import Stream
from vertizo.lab.attacks.kinds.matching import GradientMatching
from vertizo.lab.attacks.kinds.scoring import (
    ReplyScoring,
    dealt_anew,
    direction_scores,
    norm_scores,
)
from vertizo.lab.attacks.settings import setting
from vertizo.lab.attacks.transcript import Exchange

SCORING = ReplyScoring()
MATCHING = GradientMatching(exchanges=1, steps=60)


class TestScoring:
    @pytest.mark.full
    def test_the_direction_of_a_gradient_is_the_label_unless_there_is_noise(self) -> None:
        plain = tried(SCORING, "vafl")["direction"]
        assert plain.value > 0.99
        assert abs(plain.control - 0.5) < 0.15
        assert tried(SCORING, "vafl", noise=True)["direction"].value < plain.value - 0.2

    @pytest.mark.full
    def test_a_scalar_of_a_batch_has_no_direction_of_a_record(self) -> None:
        """Nothing near the first-order attack; what is left is held against dealt replies."""
        values = [tried(SCORING, "dpzv", seed=seed)["direction"].value for seed in (0, 1, 2)]
        assert sum(values) / 3 < 0.75
        assert tried(SCORING, "czofo")["direction"].value > 0.7  # many slopes have

    def test_means_over_exchanges(self) -> None:
        ids = torch.tensor([1, 0])
        gradients = torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
        found = list(zip((ids, ids[:1]), gradients, strict=True))
        assert norm_scores(found, 3).tolist() == [1, 3, 0]
        cosines = direction_scores(found, 3, known=0)
        assert cosines[0] == pytest.approx(1)
        assert cosines[1] == pytest.approx((0.8 + 0.0) / 2)

    def test_dealing_keeps_the_replies_and_moves_them(self) -> None:
        exchanges = [
            Exchange(0, n, torch.arange(4), torch.zeros(1, 4, 2), n + torch.arange(8.0).view(4, 2))
            for n in range(6)
        ]
        dealt = dealt_anew(exchanges, Stream.from_seed(3))
        rows = [sorted(e.values.flatten().tolist()) for e in dealt]
        assert sorted(rows) == sorted(sorted(e.values.flatten().tolist()) for e in exchanges)
        pairs = list(zip(dealt, exchanges, strict=True))
        assert any(not torch.equal(a.values, b.values) for a, b in pairs)
        assert all(torch.equal(a.embeddings, b.embeddings) for a, b in pairs)

    def test_ten_classes_are_refused(self) -> None:
        config = setting("sum", "vafl")
        assert "two" in str(SCORING.unfit(config, LABORATORY.data(config)))


class TestMatching:
    def test_a_sum_gives_label_and_embedding_away(self) -> None:
        for method in ("vafl", "split", "compressed-vfl"):
            found = tried(MATCHING, method)
            assert found["accuracy"].value >= 0.99, method
            assert found["others"].value < 0.1, method
        assert tried(MATCHING, "vafl", noise=True)["accuracy"].value < 0.5

    @pytest.mark.full
    def test_a_hidden_layer_is_searched_through(self) -> None:
        """32 equations for each record and one of 10 labels: most are found, by far not by luck."""
        score = tried(MATCHING, "vafl", "epochs=1", place="trained")["accuracy"]
        assert score.value > score.control + 0.4

    def test_slopes_of_each_record_can_be_matched_and_scalars_of_a_batch_cannot(self) -> None:
        assert tried(MATCHING, "czofo", "method.scalars=record")["accuracy"].value >= 0.99
        for method in ("dpzv", "cascaded", "zoo-vfl", "syn-zoo-vfl", "czofo"):
            config = setting("sum", method)
            assert "scalars" in str(MATCHING.unfit(config, LABORATORY.data(config))), method
