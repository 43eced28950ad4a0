"""What every tracker must do (`vertizo.run.loop.callbacks.Callback`)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vertizo.config.schema import parse
from vertizo.run.experiment import Experiment, Result
from vertizo.run.loop.callbacks import Tracked
from vertizo.run.loop.tracking import opened
from vertizo.testing.demands import demand, path_of, same

SMALL = {
    "data": {"limit": 60},
    "batch_size": 9,
    "epochs": 3,
    "seed": 0,
    "checkpoint_seconds": 0,
}


class Broken(BaseException):
    """The run ends here."""


class _Breaking:
    """Breaks a run off after some evaluations."""

    def __init__(self, after: int) -> None:
        self._left = after

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self._left -= 1
        if not self._left:
            raise Broken


def check_tracker(tracker: str | type, read: Callable[[Path], Sequence[int]] | None = None) -> None:
    """AssertionError, in one line, unless a tracker does what every tracker must.

    It is made as ``tracker(place, tracked)``; no number of a run depends on it; it bears a run that
    is broken off, one that goes on, and one that ends before it began; and, where ``read`` is
    given, every evaluation is in its place once, also of a run that was broken off and went on.

    Args:
        tracker: its name or import path, or a class that its module gives by its name.
        read: from the place, the rounds of the evaluations that are there, in their order.
    """
    name = path_of(tracker)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        plain = _ran(at / "plain")
        tracked = _ran(at / "tracked", f"{name}={at / 'one'}")
        same(_figures(tracked), _figures(plain), f"{name}: figures of a run")
        _changes_nothing_that_it_is_given(name, at / "given")
        try:
            _ran(at / "broken", f"{name}={at / 'two'}", _Breaking(2))
        except Broken:
            pass
        else:
            raise AssertionError(f"{name}: a run that is broken off ends as if it were not")
        resumed = _ran(at / "broken", f"{name}={at / 'two'}", resume=True)
        same(_figures(resumed), _figures(plain), f"{name}: figures of a run that went on")
        again = _ran(at / "broken", f"{name}={at / 'two'}", resume=True)
        same(_figures(again), _figures(plain), f"{name}: figures of a run that was over")
        for place in ("one", "two") if read is not None else ():
            rounds = [row["round"] for row in plain.metrics]
            words = f"{name}: rounds that were kept" + " of a run that went on" * (place == "two")
            same(list(read(at / place)) if read else [], rounds, words)


def _ran(folder: Path, track: str = "", *callbacks: Any, resume: bool = False) -> Result:
    targets = [track] if track else []
    return Experiment(parse(SMALL)).run(folder, track=targets, callbacks=callbacks, resume=resume)


def _figures(result: Result) -> list[Any]:
    """All that is no time."""
    rows = [{**row, "seconds": 0} for row in result.metrics]
    return [rows, {key: value for key, value in result.summary.items() if key.startswith("test")}]


def _changes_nothing_that_it_is_given(name: str, place: Path) -> None:
    """A run may end before it is told of a start."""
    demand(not place.exists(), f"{place} is there already")
    config = parse(SMALL)
    before = config.model_dump()
    with opened([f"{name}={place}"], Tracked("never started", config)):
        pass
    same(config.model_dump(), before, f"{name}: the configuration that it was given")
