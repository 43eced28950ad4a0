"""What runs that are made together leave behind: checkpoints, and how they are gone on with."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from vertizo.batched import together as module
from vertizo.batched.asking import Failures
from vertizo.batched.lockstep import Lockstep
from vertizo.batched.together import Outcome, Wanted, train_together
from vertizo.config import ExperimentConfig
from vertizo.errors import Interrupted, RunError
from vertizo.experiment import Experiment, Result
from vertizo.run_folder import RunFolder

Configs = Callable[..., list[ExperimentConfig]]
TIMINGS = {
    "asynchronous": ("method.name=cascaded",),
    "synchronous": ("method.name=syn-zoo-vfl", "server.smoothing=0.01"),
    "noise": ("privacy.mechanism=gaussian", "privacy.clip=0.5", "privacy.noise_std=0.3"),
}


def wanted_in(folder: Path, configs: Sequence[ExperimentConfig]) -> list[Wanted]:
    return [Wanted(each, folder / str(place)) for place, each in enumerate(configs)]


def last(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = RunFolder(folder).load("last")
    return state


def close(one: Any, two: Any) -> bool:
    """Parameters of two checkpoints, up to rounding."""
    pairs = zip([*one["clients"], one["server"]], [*two["clients"], two["server"]], strict=True)
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Somebody presses Ctrl-C after so many rounds of the group."""
    made, real = [0], Lockstep.step

    def counting(self: Lockstep) -> tuple[Sequence[int], Failures]:
        made[0] += 1
        if made[0] == step:
            signal.raise_signal(signal.SIGINT)
        return real(self)

    monkeypatch.setattr(Lockstep, "step", counting)


@pytest.mark.parametrize("setting", TIMINGS.values(), ids=TIMINGS)
def test_the_checkpoint_is_the_ordinary_one(
    tmp_path: Path, configs: Configs, setting: tuple[str, ...]
) -> None:
    wanted = configs(*setting, seeds=2)
    train_together(wanted_in(tmp_path / "together", wanted))
    for place, each in enumerate(wanted):
        Experiment(each).run(tmp_path / "alone" / str(place))
        folders = [tmp_path / way / str(place) for way in ("together", "alone")]
        names = [{str(p.relative_to(f)) for p in f.rglob("*")} for f in folders]
        assert names[0] == names[1]
        ours, theirs = map(last, folders)
        assert ours.keys() == theirs.keys()
        assert ours["simulator"] == theirs["simulator"]
        assert ours["server"]["staleness"] == theirs["server"]["staleness"]
        tables = [state["server"]["table"] for state in (ours, theirs)]
        assert torch.equal(tables[0]["refreshed"], tables[1]["refreshed"])
        assert torch.allclose(tables[0]["values"], tables[1]["values"], rtol=1e-3, atol=1e-4)
        spent = [state["server"]["plan"].get("spent", torch.zeros(0)) for state in (ours, theirs)]
        assert torch.equal(*spent)
        assert close(ours["parameters"], theirs["parameters"])


@pytest.mark.parametrize("setting", TIMINGS.values(), ids=TIMINGS)
def test_stopped_runs_go_on_together_or_alone(
    tmp_path: Path, configs: Configs, setting: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = configs(*setting)
    whole = train_together(wanted_in(tmp_path / "whole", wanted))
    stopped = wanted_in(tmp_path / "stopped", wanted)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 12)
        with pytest.raises(Interrupted, match="stopped in round"):
            train_together(stopped)
    rounds = [last(each.folder)["server"]["round"] for each in stopped]
    assert all(0 < made <= 12 for made in rounds)
    assert all(RunFolder(each.folder).summary() is None for each in stopped)
    outcomes: list[Outcome] = [
        Experiment(stopped[0].config).run(stopped[0].folder, resume=True),
        *train_together(stopped[1:]),
    ]
    for one, other in zip(outcomes, whole, strict=True):
        assert isinstance(one, Result)
        assert isinstance(other, Result)
        assert [row["round"] for row in one.metrics] == [row["round"] for row in other.metrics]
        assert one.summary["bytes_up"] == other.summary["bytes_up"]
        assert one.summary["staleness"] == other.summary["staleness"]
        assert one.summary["at_once"] == other.summary["at_once"] == 3, "it was, to begin with"
        assert one.federation is not None
        assert other.federation is not None
        assert close(one.federation.parameters(), other.federation.parameters())


def test_runs_that_were_begun_alone_go_on_together(tmp_path: Path, configs: Configs) -> None:
    """One is half done, one is finished, one has not begun."""
    wanted = configs("method.name=split")
    whole = train_together(wanted_in(tmp_path / "whole", wanted))
    half = wanted_in(tmp_path / "half", wanted)
    Experiment(half[1].config).run(half[1].folder)

    def stop(_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        Experiment(half[0].config.model_copy(update={"checkpoint_seconds": 0.0})).run(
            half[0].folder, progress=stop
        )
    for one, other in zip(train_together(half), whole, strict=True):
        assert isinstance(one, Result)
        assert isinstance(other, Result)
        assert one.summary["bytes_down"] == other.summary["bytes_down"]
        assert [row["round"] for row in one.metrics] == [row["round"] for row in other.metrics]


def test_checkpoints_are_written_on_the_way(
    tmp_path: Path, configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed loses what came after the last one alone."""
    wanted = wanted_in(tmp_path, configs("checkpoint_seconds=0", seeds=2))
    real = Lockstep.step
    left = iter(range(30))

    def dying(self: Lockstep) -> tuple[Sequence[int], Failures]:
        if next(left, None) is None:
            raise MemoryError
        return real(self)

    monkeypatch.setattr(Lockstep, "step", dying)
    with pytest.raises(MemoryError):
        train_together(wanted)
    assert all(last(each.folder)["server"]["round"] > 10 for each in wanted)
    monkeypatch.undo()
    outcomes = train_together(wanted)
    assert all(isinstance(outcome, Result) for outcome in outcomes)


class TestFailures:
    @pytest.mark.parametrize("method", ["cascaded", "vafl", "split"])
    def test_one_that_diverges_fails_as_alone_and_spoils_no_other(
        self, tmp_path: Path, configs: Configs, method: str
    ) -> None:
        plain = configs(f"method.name={method}", "epochs=6")
        wild = configs(
            f"method.name={method}", "epochs=6", "client.optimizer.learning_rate=1e30", seeds=1
        )[0]
        mixed = [plain[0], wild, *plain[1:]]
        outcomes = train_together(wanted_in(tmp_path / "mixed", mixed))
        failed = outcomes.pop(1)
        assert isinstance(failed, RunError)
        with pytest.raises(RunError, match="training diverged in round") as error:
            Experiment(wild).run()
        # Of several clients that fail in one round, alone the first to arrive is named.
        assert re.sub(r"client \d", "client m", str(failed)) == re.sub(
            r"client \d", "client m", str(error.value)
        )
        assert RunFolder(tmp_path / "mixed" / "1").summary() is None
        others = train_together(wanted_in(tmp_path / "others", plain))
        for one, other in zip(outcomes, others, strict=True):
            assert isinstance(one, Result)
            assert isinstance(other, Result)
            assert one.federation is not None
            assert other.federation is not None
            assert close(one.federation.parameters(), other.federation.parameters())
            assert one.summary["bytes_up"] == other.summary["bytes_up"]

    def test_a_folder_in_use_is_one_runs_problem(self, tmp_path: Path, configs: Configs) -> None:
        wanted = wanted_in(tmp_path, configs())
        busy = RunFolder(wanted[1].folder)
        busy.make()
        with busy.locked():
            outcomes = train_together(wanted)
        assert [type(outcome) for outcome in outcomes] == [Result, RunError, Result]
        assert "in use by another process" in str(outcomes[1])

    def test_a_folder_of_another_run(self, tmp_path: Path, configs: Configs) -> None:
        wanted = wanted_in(tmp_path, configs())
        Experiment(configs("epochs=1", seeds=1)[0]).run(wanted[2].folder)
        outcomes = train_together(wanted)
        assert [type(outcome) for outcome in outcomes] == [Result, Result, RunError]
        assert "another configuration" in str(outcomes[2])


def test_more_than_fit_the_memory_are_made_in_turns(
    tmp_path: Path, configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left over alone is not begun: it has a process of its own."""
    wanted = wanted_in(tmp_path, configs(seeds=5))
    monkeypatch.setattr(module, "MEMORY", 2.5 * 100_000)
    monkeypatch.setattr(module, "_bytes", lambda *_: 100_000.0)
    outcomes = train_together(wanted)
    assert [type(outcome) for outcome in outcomes] == [Result] * 4 + [type(None)]
    made = [outcome.summary["at_once"] for outcome in outcomes if isinstance(outcome, Result)]
    assert made == [2, 2, 2, 2]
    assert not wanted[4].folder.exists()
