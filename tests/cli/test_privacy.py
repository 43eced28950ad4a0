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


class TestLedger:
    NOISED = "{mechanism: gaussian, clip: 1, epsilon: 2}"

    def test_made_used_and_shown(
        self, vertizo: Vertizo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        settings, path = tmp_path / "c.yaml", tmp_path / "records.sqlite"
        settings.write_text(
            "{epochs: 1, batch_size: 20, data: {limit: 60}, server: {update: none}, "
            f"privacy: {self.NOISED}}}"
        )
        made = vertizo("privacy", "ledger", "create", str(path), str(settings), "--runs", "2")
        assert made.code == 0
        assert "0.0 % of μ²" in made.out
        again = vertizo("privacy", "ledger", "create", str(path), str(settings))
        assert again.code == 2
        assert len(again.err.strip().splitlines()) == 1
        out = str(tmp_path / "run")
        charged = vertizo("train", str(settings), "--set", f"privacy.ledger={path}", "--out", out)
        assert charged.code == 0
        shown = vertizo("privacy", "ledger", "show", str(path))
        assert "50.0 % of μ²" in shown.out
        accepted = vertizo("privacy", "ledger", "accept", str(path))
        assert accepted.code == 0
        explained = vertizo("privacy", "explain", out)
        assert "all runs on the ledger" in " ".join(explained.out.split())

    def test_a_second_one_for_the_same_records(self, vertizo: Vertizo, tmp_path: Path) -> None:
        settings = tmp_path / "c.yaml"
        settings.write_text(
            "{seed: 3, epochs: 1, batch_size: 20, data: {limit: 60}, server: {update: none}, "
            f"privacy: {self.NOISED}}}"
        )
        first, second = str(tmp_path / "first.sqlite"), str(tmp_path / "second.sqlite")
        assert vertizo("privacy", "ledger", "create", first, str(settings)).code == 0
        for more in ((), ("--set", "seed=4"), ("--set", "data.limit=40")):
            again = vertizo("privacy", "ledger", "create", second, str(settings), *more)
            assert again.code == 2
            assert "records are charged to the ledger" in again.line
            assert first in again.line
        made = vertizo("privacy", "ledger", "create", second, str(settings), "--further")
        assert made.code == 0
        out = str(tmp_path / "run")
        own = ("--set", f"privacy.ledger={second}", "--set", "seed=4")
        assert vertizo("train", str(settings), *own, "--out", out).code == 0
        shown = vertizo("privacy", "ledger", "show", second).out
        assert f"charged to {first} as well: ε = 2 at δ = 1e-05 more" in shown
        explained = " ".join(vertizo("privacy", "explain", out).out.split())
        assert "ledgers of some of the same records ('first.sqlite') ε = 4" in explained

    @pytest.mark.parametrize("identifier", ["data.id=who", "data.drop=[who]"])
    def test_records_of_a_table(self, vertizo: Vertizo, tmp_path: Path, identifier: str) -> None:
        """Known by their identifiers, or else by all that is said of them."""
        lines = [f"p{row},{row / 7},{row * row % 11},{'ab'[row % 2]}" for row in range(80)]
        one, two = tmp_path / "one.csv", tmp_path / "two.csv"
        one.write_text("\n".join(["who,x,y,z", *lines[:60]]) + "\n")
        two.write_text("\n".join(["who,x,y,z", *lines[40:]]) + "\n")
        settings = tmp_path / "c.yaml"
        settings.write_text(
            "{epochs: 1, batch_size: 9, server: {update: none}, "
            f"privacy: {self.NOISED}, data: {{name: table, path: {one}, label: z, "
            "classes: [a, b], columns: {left: [x], right: [y]}}}"
        )
        create = ("privacy", "ledger", "create")
        more = ("--set", identifier)
        first = vertizo(*create, str(tmp_path / "a"), str(settings), *more)
        assert first.code == 0, first.err
        outcome = vertizo(
            *create, str(tmp_path / "b"), str(settings), *more, "--set", f"data.path={two}"
        )
        assert outcome.code == 2
        assert "records are charged to the ledger" in outcome.line

    def test_of_a_label_holder(self, vertizo: Vertizo, tmp_path: Path) -> None:
        """One that pays for several of its jobs."""
        settings, ledger = tmp_path / "bank.yaml", tmp_path / "people.sqlite"
        settings.write_text(
            "{epochs: 1, batch_size: 20, data: {name: digits, limit: 60}, server: {update: none}, "
            f"privacy: {self.NOISED}, federation: {{name: f, members: [a, b], certificates: c, "
            "folder: run}}"
        )
        made = vertizo("privacy", "ledger", "create", str(ledger), str(settings), "--runs", "3")
        assert made.code == 0, made.err
        assert "54 records, 2 clients" in made.out
        assert not (tmp_path / "run").exists()

    def test_of_nothing(self, vertizo: Vertizo, tmp_path: Path) -> None:
        for word in ("show", "accept"):
            outcome = vertizo("privacy", "ledger", word, str(tmp_path / "no.sqlite"))
            assert outcome.code == 2
            assert "no.sqlite" in outcome.err
            assert len(outcome.err.strip().splitlines()) == 1


class TestIntrinsic:
    def test_of_a_run(self, vertizo: Vertizo, tmp_path: Path) -> None:
        tiny = ("--set", "epochs=1", "--set", "data.limit=100")
        out = str(tmp_path / "run")
        vertizo("train", "--set", "method.name=czofo", *tiny, "--out", out)
        words = vertizo("privacy", "intrinsic", out, "--repeats", "5")
        assert words.code == 0
        assert words.out.startswith("No privacy guarantee")
        figures = json.loads(vertizo("privacy", "intrinsic", out, "--repeats", "5", "--json").out)
        assert figures["variance"] > 0
        assert figures["repeats"] == 5
        assert figures["records"] == 90

    def test_of_another_method(self, vertizo: Vertizo, tmp_path: Path) -> None:
        out = str(tmp_path / "run")
        vertizo("train", "--set", "epochs=1", "--set", "data.limit=100", "--out", out)
        outcome = vertizo("privacy", "intrinsic", out)
        assert outcome.code == 2
        assert "'dpzv'" in outcome.err


class TestAudit:
    def test_of_a_configuration(self, vertizo: Vertizo, tmp_path: Path) -> None:
        settings = tmp_path / "c.yaml"
        settings.write_text(
            "{epochs: 1, batch_size: 8, data: {limit: 40, parties: 2}, server: {update: none}, "
            "privacy: {mechanism: gaussian, clip: 1, epsilon: 1}}"
        )
        outcome = vertizo("privacy", "audit", str(settings), "--trials", "20", "--json")
        assert outcome.code == 0
        found = json.loads(outcome.out)
        rows = found if isinstance(found, list) else found["audits"]
        assert rows
        assert all(row["bound"]["epsilon"] <= 1 for row in rows)

    def test_of_another_method(self, vertizo: Vertizo, tmp_path: Path) -> None:
        settings = tmp_path / "c.yaml"
        settings.write_text("{method: {name: vafl}}")
        outcome = vertizo("privacy", "audit", str(settings))
        assert outcome.code == 2
        assert len(outcome.err.strip().splitlines()) == 1


def test_a_members_folder_is_explained_by_what_it_knows(vertizo: Vertizo, here: Path) -> None:
    folder = here / "lab"
    folder.mkdir()
    (folder / "job").write_text("job 0")
    unfinished = vertizo("privacy", "explain", folder)
    assert unfinished.code == 2
    assert "the job is not over; `vertizo join` goes on with it" in unfinished.line
    told = {"words": "ε is 1.", "own_words": "Nothing protects them.", "queries": 3}
    (folder / "summary.json").write_text(json.dumps(told))
    outcome = vertizo("privacy", "explain", folder)
    assert outcome.code == 0
    assert "what this party sent: Nothing protects them." in outcome.out
    assert "as the label holder says, which nobody here can check: ε is 1." in outcome.out
    found = json.loads(vertizo("privacy", "explain", folder, "--json").out)
    assert found == {"own_words": "Nothing protects them.", "words": "ε is 1."}
