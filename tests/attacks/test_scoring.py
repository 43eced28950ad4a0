"""Norm and direction scoring of replies, with controls; gradient matching."""

from __future__ import annotations

import pytest
import torch

from vertizo.attacks.matching import GradientMatching
from vertizo.attacks.runner import Laboratory
from vertizo.attacks.scores import Measurement
from vertizo.attacks.scoring import ReplyScoring, dealt_anew, direction_scores, norm_scores
from vertizo.attacks.settings import setting
from vertizo.attacks.transcript import Exchange
from vertizo.core.randomness import Stream

LABORATORY = Laboratory()


def tried(
    method: str, *overrides: str, noise: bool = False, seed: int = 0
) -> dict[str, Measurement]:
    config = setting("binary", method, noise=noise, overrides=overrides, seed=seed)
    data = LABORATORY.data(config)
    assert ReplyScoring().unfit(config, data) is None
    return ReplyScoring().trial(config, data)


class TestScoring:
    def test_the_direction_of_a_gradient_is_the_label(self) -> None:
        found = tried("vafl")
        assert found["direction"].value > 0.99
        assert abs(found["direction"].control - 0.5) < 0.15

    def test_noise_lowers_it(self) -> None:
        plain, noised = tried("vafl"), tried("vafl", noise=True)
        assert noised["direction"].value < plain["direction"].value - 0.2

    def test_a_scalar_of_a_batch_has_no_direction_of_a_record(self) -> None:
        """Nothing near the first-order attack; what is left is held against dealt replies."""
        values = [tried("dpzv", seed=seed)["direction"].value for seed in (0, 1, 2)]
        assert sum(values) / 3 < 0.75

    def test_many_slopes_have(self) -> None:
        assert tried("czofo")["direction"].value > 0.7

    def test_means_over_exchanges(self) -> None:
        ids = torch.tensor([1, 0])
        found = [
            (ids, torch.tensor([[3.0, 4.0], [0.0, 1.0]])),
            (ids[:1], torch.tensor([[1.0, 0.0]])),
        ]
        assert norm_scores(found, 3).tolist() == [1, 3, 0]
        cosines = direction_scores(found, 3, known=0)
        assert cosines[0] == pytest.approx(1)
        assert cosines[1] == pytest.approx((0.8 + 0.0) / 2)

    def test_dealing_keeps_the_replies_and_moves_them(self) -> None:
        exchanges = [
            Exchange(0, n, torch.arange(4), torch.zeros(1, 4, 2), n + torch.arange(8.0).view(4, 2))
            for n in range(6)
        ]
        dealt = dealt_anew(exchanges, 4, Stream.from_seed(3))
        rows = [sorted(e.values.flatten().tolist()) for e in dealt]
        assert sorted(rows) == sorted(sorted(e.values.flatten().tolist()) for e in exchanges)
        pairs = list(zip(dealt, exchanges, strict=True))
        assert any(not torch.equal(a.values, b.values) for a, b in pairs)
        assert all(torch.equal(a.embeddings, b.embeddings) for a, b in pairs)

    def test_ten_classes_are_refused(self) -> None:
        config = setting("sum", "vafl")
        assert "two" in str(ReplyScoring().unfit(config, LABORATORY.data(config)))


class TestMatching:
    def of(
        self, place: str, method: str, *overrides: str, noise: bool = False
    ) -> dict[str, Measurement]:
        config = setting(place, method, noise=noise, overrides=overrides)
        data = LABORATORY.data(config)
        attack = GradientMatching(exchanges=1, steps=60)
        assert attack.unfit(config, data) is None
        return attack.trial(config, data)

    @pytest.mark.parametrize("method", ["vafl", "split", "compressed-vfl"])
    def test_a_sum_gives_label_and_embedding_away(self, method: str) -> None:
        found = self.of("sum", method)
        assert found["accuracy"].value >= 0.99
        assert found["others"].value < 0.1

    def test_a_hidden_layer_is_searched_through(self) -> None:
        """32 equations for each record and one of 10 labels: most are found, by far not by luck."""
        found = self.of("trained", "vafl", "epochs=1")
        assert found["accuracy"].value > found["accuracy"].control + 0.4

    def test_slopes_of_each_record_can_be_matched(self) -> None:
        found = self.of("sum", "czofo", "method.scalars=record")
        assert found["accuracy"].value >= 0.99

    def test_noise_lowers_it(self) -> None:
        assert self.of("sum", "vafl", noise=True)["accuracy"].value < 0.5

    @pytest.mark.parametrize("method", ["dpzv", "cascaded", "zoo-vfl", "syn-zoo-vfl", "czofo"])
    def test_scalars_of_a_batch_cannot_be_matched(self, method: str) -> None:
        config = setting("sum", method)
        assert "scalars" in str(GradientMatching().unfit(config, LABORATORY.data(config)))
