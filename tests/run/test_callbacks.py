"""What a run tells: in which order, with what, and to whom nothing can be told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import one_line
from tests.rows import each

from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError
from vertizo.run.experiment import Experiment
from vertizo.run.loop.callbacks import Callback, Tracked
from vertizo.run.results.folder import RunFolder

SMALL: dict[str, Any] = {"seed": 0, "epochs": 2, "batch_size": 27, "data": {"limit": 60}}


class Noted(Callback):
    """Writes down what it is told; falls at an evaluation, if it is to."""

    def __init__(self, falls_at: int | None = None) -> None:
        self.told: list[tuple[str, Any]] = []
        self._falls_at = falls_at

    def on_start(self, run: Tracked, round_: int | None) -> None:
        self.told.append(("start", (run.title, round_)))

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self.told.append(("evaluation", row["round"]))
        if row["round"] == self._falls_at:
            raise LookupError("of mine\nalone")

    def on_checkpoint(self, round_: int, path: Path) -> None:
        assert path.is_file()
        self.told.append((path.stem, round_))

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.told.append(("end", summary["rounds"]))

    def on_close(self, *, finished: bool) -> None:
        self.told.append(("close", finished))


class Half:
    """Has some of the methods, and changes what it is given."""

    def on_evaluation(self, row: dict[str, Any]) -> None:
        row.clear()


def test_a_run_tells_of_itself_and_goes_on_after_a_callback_that_raised(tmp_path: Path) -> None:
    config, title = parse(SMALL), "digits-dpzv-seed0"
    noted, out = Noted(), tmp_path / "run"
    result = Experiment(config).run(out, callbacks=[Half(), noted])
    names = [name for name, _ in noted.told]
    assert noted.told[0] == ("start", (title, None))
    assert noted.told[-2:] == [("end", 16), ("close", True)]
    assert [told for name, told in noted.told if name == "evaluation"] == [0, 8, 16]
    assert set(names[1:-2]) == {"evaluation", "best", "last"}
    assert result.metrics == RunFolder(out).metrics()
    assert [row["round"] for row in result.metrics] == [0, 8, 16]

    broken, again = Noted(falls_at=8), Noted()
    with pytest.raises(LookupError, match="of mine\nalone"):
        Experiment(config).run(tmp_path / "other", callbacks=[broken])
    assert broken.told[-2:] == [("evaluation", 8), ("close", False)]
    other = Experiment(config).run(tmp_path / "other", resume=True, callbacks=[again])
    assert again.told[0] == ("start", (title, -1))
    assert other.summary["test_loss"] == result.summary["test_loss"]

    late = Noted()  # a run that is over tells nothing more
    Experiment(config).run(out, resume=True, callbacks=[late])
    assert not late.told


class Misspelt:
    def on_evalution(self, row: Any) -> None: ...


@each(
    "callback, words",
    [
        (Misspelt(), "Misspelt has 'on_evalution', which nothing calls.*'on_evaluation'"),
        (object(), "object has none of on_start, on_evaluation"),
        (print, "has none of"),
        (Noted, r"Noted is a class; give one that is made: Noted\(\)"),
    ],
)
def test_what_is_no_callback_is_refused_in_one_line(callback: Any, words: str) -> None:
    with one_line(ConfigError, match=words):
        Experiment(parse(SMALL)).run(callbacks=[callback])
