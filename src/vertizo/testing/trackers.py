"""The check of trackers: what every `vertizo.run.loop.callbacks.Callback` must do."""

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
    """Raised by `_Breaking` to break a run off."""


class _Breaking:
    """A callback that breaks a run off after some evaluations."""

    def __init__(self, after: int) -> None:
        self._left = after

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self._left -= 1
        if not self._left:
            raise Broken


def check_tracker(tracker: str | type, read: Callable[[Path], Sequence[int]] | None = None) -> None:
    """Check that a tracker does what every tracker must; else raise AssertionError, in one line.

    It is made as ``tracker(place, tracked)``; no number of a run depends on it; it works for a run
    that is broken off, one that is resumed, and one that ends before it began; and, where ``read``
    is given, every evaluation is at its place once, also after a run was broken off and resumed.

    Args:
        tracker: its name or import path, or a class, found in its module by its name.
        read: reads the rounds of the evaluations that are at the place, in their order.
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
    """The figures of a run, without times."""
    rows = [{**row, "seconds": 0} for row in result.metrics]
    return [rows, {key: value for key, value in result.summary.items() if key.startswith("test")}]


def _changes_nothing_that_it_is_given(name: str, place: Path) -> None:
    """Check a tracker whose run never starts; it must not change the configuration."""
    demand(not place.exists(), f"{place} is there already")
    config = parse(SMALL)
    before = config.model_dump()
    with opened([f"{name}={place}"], Tracked("never started", config)):
        pass
    same(config.model_dump(), before, f"{name}: the configuration that it was given")
