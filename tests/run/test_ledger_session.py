"""Runs that are charged to a ledger that outlives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests import federations as fed
from tests.rows import each

from vertizo.config import schema
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError
from vertizo.privacy.accounting.events import LedgerBudget
from vertizo.privacy.accounting.guarantee import joined_epsilon
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.privacy.ledger.register import Names
from vertizo.run.build.record_identity import names_of
from vertizo.run.experiment import Experiment
from vertizo.run.loop.ledger_session import budget_for, charged_data

LENGTH = ("batch_size=9", "epochs=2")
SMALL = ("seed=0", "data.limit=40", "data.parties=2", *LENGTH)
NOISE = "privacy={mechanism: gaussian, clip: 0.5, epsilon: 3}"
SECRET = ("server.update=poisson-dp-sgd", "server.secret.every=2", "server.secret.sampling=0.2")
SAME_BATCH = ("server.update=private-sgd",)


class Crash(Exception):  # noqa: N818
    """The process ends."""


def tiny(*overrides: str) -> ExperimentConfig:
    return schema.load(None, (*SMALL, NOISE, *overrides))


def ledger(folder: Path, *overrides: str, runs: int = 2) -> Path:
    path = folder / "ledger.sqlite"
    plain = tiny(*overrides)
    DurableLedger.create(path, budget_for(plain, Experiment(plain).data(), runs))
    return path


def run(path: Path, *overrides: str, out: Path | None = None, **more: Any) -> dict[str, Any]:
    settings = tiny(*overrides, f"privacy.ledger={path}")
    return Experiment(settings).run(out, **more).summary


@pytest.mark.parametrize("update", [SECRET, SAME_BATCH])
def test_runs_and_seeds_draw_on_one_budget(update: tuple[str, ...], tmp_path: Path) -> None:
    path = ledger(tmp_path, *update)
    budget = DurableLedger.inspect(path).budget
    assert budget.epsilon == pytest.approx(joined_epsilon(budget.mu, budget.secret, 1e-5))
    first = run(path, *update)
    assert DurableLedger.inspect(path).spent == budget.clients * budget.share // 2
    second = run(path, *update, "seed=1")
    assert DurableLedger.inspect(path).spent == budget.clients * budget.share
    for summary in (first, second):
        assert summary["privacy"]["epsilon"] == pytest.approx(3, rel=5e-3)
        assert f"together have ε = {bound_text(budget.epsilon)}" in summary["privacy"]["words"]
    with pytest.raises((RunError, ConfigError), match=r"left|pays for 0 more"):
        run(path, *update, "seed=2")
    assert DurableLedger.inspect(path).spent == budget.clients * budget.share


@pytest.mark.parametrize("update", [SECRET, SAME_BATCH])
def test_a_resumed_simulation_is_charged_once(update: tuple[str, ...], tmp_path: Path) -> None:
    """What it repeats since its checkpoint is the same, byte for byte, and free."""
    path = ledger(tmp_path, *update, runs=1)
    left = iter(range(20))

    def crash(*_: Any) -> None:
        if next(left, None) is None:
            raise Crash

    keep = "checkpoint_seconds=1000"  # no checkpoint but the first: much is repeated
    with pytest.raises(Crash):
        run(path, *update, keep, out=tmp_path / "run", observer=crash)
    begun = DurableLedger.inspect(path)
    assert 0 < begun.spent < begun.budget.clients * begun.budget.share
    run(path, *update, keep, out=tmp_path / "run", resume=True)
    ended = DurableLedger.inspect(path)
    assert ended.spent == ended.budget.clients * ended.budget.share
    assert len(ended.runs) == 1
    assert ended.replies == 16  # 2 clients, 2 epochs of 4 batches


def test_a_ledger_of_other_records_is_refused(tmp_path: Path) -> None:
    path = ledger(tmp_path, "server.update=none")
    with pytest.raises(ConfigError, match=r"is for 36 records .* 2 clients; this run has 27 of"):
        run(path, "server.update=none", "data.limit=30")
    with pytest.raises(ConfigError, match=r"2 clients; this run has 36 of .* and 3"):
        run(path, "server.update=none", "data.parties=3")


def test_a_ledger_counts_at_one_delta(tmp_path: Path) -> None:
    path = ledger(tmp_path, *SAME_BATCH)
    with pytest.raises(ConfigError, match=r"privacy.delta is 1e-07 but .* at δ = 1e-05; set"):
        run(path, *SAME_BATCH, "privacy.delta=1e-7")


def test_runs_of_one_seed_share_no_noise(tmp_path: Path) -> None:
    """Charged as independent, they must be: their difference would be free of noise otherwise."""
    path = ledger(tmp_path, "server.update=none")
    tapes = [fed.Tape(), fed.Tape()]
    for tape in tapes:
        run(path, "server.update=none", observer=tape)
    one, two = ([frame for _, way, _, frame in t.seen if way == "down"] for t in tapes)
    assert len(one) == len(two) == 16
    assert not set(one) & set(two)


def test_ids_are_the_same_records_in_every_run(tmp_path: Path) -> None:
    path = ledger(tmp_path, "server.update=none")
    own = ("server.update=none", f"privacy.ledger={path}")
    one, two = (Experiment(tiny(*own, f"seed={seed}")).data() for seed in (0, 1))
    assert torch.equal(one.features[0]["train"], two.features[0]["train"])
    assert torch.equal(one.labels["train"], two.labels["train"])
    free = Experiment(tiny("server.update=none", "seed=1")).data()
    assert not torch.equal(one.features[0]["train"], free.features[0]["train"])


@each(
    "settings",
    [
        ("server.update=sgd", "privacy.epsilon=null", "privacy.noise_std=500"),
        ("server.update=none", "privacy.accounting=published"),
    ],
)
def test_runs_without_a_guarantee_are_refused(settings: tuple[str, ...], tmp_path: Path) -> None:
    path = ledger(tmp_path, "server.update=none")
    with pytest.raises(ConfigError, match="a ledger needs a configuration with an exact guarantee"):
        run(path, *settings)
    assert DurableLedger.inspect(path).replies == 0


def test_secure_noise_cannot_be_resumed(tmp_path: Path) -> None:
    """What was released since the checkpoint would be released anew."""
    secure = tiny("server.update=none", "privacy.noise=secure")
    Experiment(secure).run(tmp_path / "run")
    with pytest.raises(RunError, match="which cannot be repeated"):
        Experiment(secure).run(tmp_path / "run", resume=True)


@pytest.mark.full
@each("mechanism", ["randomised-response", "teacher"])
def test_a_run_on_secret_private_labels_goes_on(
    mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in its file or its checkpoint, and never drawn again."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / mechanism))

    def broken_off(file: Path | None, name: str, frames: int, often: str) -> Any:
        private = f"privacy={{mechanism: {mechanism}, epsilon: 1}}"
        on = schema.load(None, (*SMALL, private, often))
        privacy = on.privacy.model_copy(update={"ledger": file, "noise": "secure"})
        config, left = on.model_copy(update={"privacy": privacy}), iter(range(frames))

        def crash_later(*_: Any) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Experiment(config).run(tmp_path / name, observer=crash_later)
        return Experiment(config).run(tmp_path / name, resume=True)

    labels = tmp_path / mechanism / "labels"
    seldom, at_once = "checkpoint_seconds=1000", "checkpoint_seconds=0"
    one = broken_off(labels, f"{mechanism} one", 20, seldom)
    other = broken_off(labels, f"{mechanism} other", 5, at_once)
    assert one.summary["privacy"]["guarantee"] == "exact"
    assert one.summary["test_loss"] == other.summary["test_loss"]
    broken_off(None, f"{mechanism} in its checkpoint", 20, at_once)
    with pytest.raises(RunError, match="which cannot be repeated"):
        broken_off(None, f"{mechanism} nowhere", 20, seldom)


def test_a_trace_too_little_for_seeded_noise_is_explained(tmp_path: Path) -> None:
    """Secure noise for the same ε is slightly larger, so that its ledger falls short by a trace."""
    path = ledger(tmp_path, "server.update=none", "privacy.noise=secure", runs=1)
    words = r"pays for 1 more replies .* the run needs 2; it was not begun"
    with pytest.raises(RunError, match=f"{words}: .* seeded noise is smaller"):
        run(path, "server.update=none", "privacy.noise=seeded")
    run(path, "server.update=none", "privacy.noise=secure")


def test_another_column_of_identifiers_gives_no_second_budget(tmp_path: Path) -> None:
    """Nor does none at all; the same rows are found however they are written."""
    people = [(f"p{n:02}", 900 + n, n % 7, f"{n / 4:.2f}", "ny"[n % 2]) for n in range(40)]

    def names(file: str, head: str, rows: list[tuple[Any, ...]], **data: Any) -> Names:
        (tmp_path / file).write_text("\n".join([head, *(",".join(map(str, r)) for r in rows)]))
        settings = {"path": tmp_path / file, "label": "ill", "classes": "[n, y]", **data}
        given = (f"data.{key}={value}" for key, value in settings.items())
        config = schema.load(None, ("data.name=table", *given, "data.parties=2"))
        found = names_of(charged_data(config))
        assert found is not None
        return found

    head = "who,number,week,dose,ill"
    first = names("first.csv", head, people, id="who")
    rewritten = [(*(r[i] for i in (4, 3, 2, 1)), f" {r[0]}") for r in people]
    others = [(f"q{n:02}", 300 + n, *people[n][2:]) for n in range(40)]
    budget = LedgerBudget("people", len(first.keys), 2, share=9, epsilon=1.0, delta=1e-5)
    DurableLedger.create(tmp_path / "ledger", budget, names=first)
    for again in (
        names("first.csv", head, people, id="number"),
        names("first.csv", head, people),
        names("second.csv", "ill,dose,week,number,who", rewritten, id="number"),
    ):
        with pytest.raises(RunError, match=r"(\d+) of \1 rows have, in every column"):
            DurableLedger.create(tmp_path / "other", budget, names=again)
    strangers = names("others.csv", head, others, id="who")
    DurableLedger.create(tmp_path / "other", budget, names=strangers)


def test_a_missing_ledger_leaves_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nowhere\.sqlite"):
        run(tmp_path / "nowhere.sqlite", "server.update=none", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_budget_needs_an_exact_guarantee_and_noised_replies() -> None:
    plain = schema.load(None, ("data.limit=100",))
    with pytest.raises(ConfigError, match="exact guarantee; this one has 'none'"):
        budget_for(plain, Experiment(plain).data(), 1)
    with pytest.raises(ConfigError, match=r"privacy\.ledger is set but privacy\.mechanism"):
        schema.load(None, ("privacy.ledger=x.sqlite",))


@pytest.mark.full
@each("update", [SECRET, SAME_BATCH, ()])
def test_other_records_are_named_and_leave_no_trace(
    update: tuple[str, ...], tmp_path: Path
) -> None:
    """Where they are more or fewer, the share of a secret sample differs too: that is no cause."""
    path = ledger(tmp_path, *update)
    before = DurableLedger.inspect(path)
    with pytest.raises(ConfigError, match=r"is for 36 records of .*; this run has 35 of"):
        run(path, *update, "data.limit=39")
    assert DurableLedger.inspect(path).runs == before.runs


@pytest.mark.full
def test_as_many_other_rows_leave_no_trace(tmp_path: Path) -> None:
    """Their number is the same; what they are known by is not."""
    rows = [f"{i % 7}.5,{i % 5},{'yes' if i % 7 > 3 else 'no'}" for i in range(60)]
    table, path = tmp_path / "t.csv", tmp_path / "ledger.sqlite"
    table.write_text("\n".join(["a,b,y", *rows]))
    columns = f"path: {table}, label: y, classes: ['no', 'yes'], parties: 2"
    own = (f"data={{name: table, {columns}}}", *LENGTH, NOISE)
    config = schema.load(None, own)
    data = Experiment(config).data()
    DurableLedger.create(path, budget_for(config, data, 2), names=names_of(data))
    before = path.read_bytes()
    table.write_text("\n".join(["a,b,y", *(f"1{row}" for row in rows)]))
    charged = schema.load(None, (*own, f"privacy.ledger={path}"))
    with pytest.raises(RunError, match="of other keys"):
        Experiment(charged).run()
    assert path.read_bytes() == before
