"""``vertizo privacy``: budgets before a run, and what a run protects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Vertizo

MNIST = (
    *("--records", "60000", "--clients", "7", "--epochs", "100", "--batch", "64"),
    *("--epsilon", "1", "--delta", "1e-3", "--clip", "10"),
)


class TestPlan:
    def test_figures_of_mnist(self, vertizo: Vertizo) -> None:
        """DPZV's σ gives 106.6 by the replies of all clients and 23.23 by one's own."""
        outcome = vertizo("privacy", "plan", *MNIST, "--server", "none")
        assert outcome.code == 0
        for figure in ("106.6", "23.23", "44.495", "30.62", "no bound"):
            assert figure in outcome.out
        assert "Traceback" not in outcome.err

    def test_as_json(self, vertizo: Vertizo) -> None:
        outcome = vertizo("privacy", "plan", *MNIST, "--server", "private-sgd", "--json")
        found = json.loads(outcome.out)
        assert 0.995 <= found["epsilon"] <= 1
        assert found["published"]["noise_std"] / 64 == pytest.approx(0.69524, abs=5e-6)
        assert found["published"]["all_replies"] == pytest.approx(106.58, abs=5e-3)
        assert found["published"]["own_replies"] == pytest.approx(23.23, abs=5e-3)
        assert found["releases"]["step"] is not None

    def test_secret_steps(self, vertizo: Vertizo) -> None:
        more = ("--steps", "50", "--sampling", "0.02", "--json")
        found = json.loads(vertizo("privacy", "plan", *MNIST, *more).out)
        assert 0.995 <= found["epsilon"] <= 1
        assert found["releases"]["secret"]["count"] == 50
        assert found["releases"]["secret"]["sampling"] == 0.02

    @pytest.mark.parametrize(
        ("more", "word"),
        [
            (("--epsilon", "0"), "epsilon is 0"),
            (("--delta", "1"), "delta is 1"),
            (("--records", "0"), "records is 0"),
            (("--batch", "60001"), "batch is 60001"),
            (("--clip", "-1"), "clip is -1"),
            (("--server-share", "1"), "server_share is 1"),
            (("--steps", "5"), "--steps"),
            (("--sampling", "0.1"), "--sampling"),
        ],
    )
    def test_wrong_numbers_are_one_line(
        self, vertizo: Vertizo, more: tuple[str, str], word: str
    ) -> None:
        outcome = vertizo("privacy", "plan", *MNIST, "--server", "private-sgd", *more)
        assert outcome.code == 2
        assert word in outcome.line


NOISED = (
    *("--set", "privacy={mechanism: gaussian, clip: 1, epsilon: 2}"),
    *("--set", "server.update=private-sgd"),
)


class TestExplain:
    def test_a_run(self, vertizo: Vertizo, tiny: tuple[str, ...]) -> None:
        assert vertizo("train", *tiny, *NOISED, "--out", "run").code == 0
        outcome = vertizo("privacy", "explain", "run")
        assert outcome.code == 0
        for word in ("Guarantee: exact", "Protected", "Not protected", "δ = 1e-05", "validation"):
            assert word in outcome.out
        words = json.loads(vertizo("privacy", "explain", "run", "--json").out)
        assert words["guarantee"] == "exact"
        assert set(words) >= {"guarantee", "summary", "protected", "not_protected", "how"}

    def test_a_configuration(self, vertizo: Vertizo, here: Path) -> None:
        (here / "mine.yaml").write_text("data: {limit: 60}\nbatch_size: 9\nepochs: 2\n")
        outcome = vertizo("privacy", "explain", "mine.yaml", "--json")
        words = json.loads(outcome.out)
        assert words["guarantee"] == "none"
        assert words["protected"] == []

    def test_an_unfinished_run(self, vertizo: Vertizo, tiny: tuple[str, ...], here: Path) -> None:
        assert vertizo("train", *tiny, "--out", "run").code == 0
        (here / "run" / "summary.json").unlink()
        outcome = vertizo("privacy", "explain", "run")
        assert outcome.code == 2
        assert "unfinished" in outcome.line

    @pytest.mark.parametrize("path", ["empty", "absent"])
    def test_what_is_no_run(self, vertizo: Vertizo, here: Path, path: str) -> None:
        (here / "empty").mkdir()
        outcome = vertizo("privacy", "explain", path)
        assert outcome.code == 2
        assert path in outcome.line
