"""Callbacks: trackers (`vertizo.run.loop.tracking`) and your own code, told of a run's events.

A callback is any object with some of the methods of `Callback`; one that derives from it has all.
No number of a run depends on a callback, which gets copies of figures and may change them. One that
raises ends the run, which can be continued from its last checkpoint.

    >>> from vertizo.config.schema import parse
    >>> from vertizo.run.experiment import Experiment
    >>> class Printed:
    ...     def on_evaluation(self, row):
    ...         print(row["round"], "validation_accuracy" in row)
    >>> small = parse({"epochs": 1, "batch_size": 90, "data": {"limit": 100}})
    >>> result = Experiment(small).run(callbacks=[Printed()])
    0 True
    4 True
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.plugins.registry import short
from vertizo.core.text.suggestions import nearest


@dataclass(frozen=True)
class Tracked:
    """The run that callbacks are told of; its unique name stays the same when it resumes."""

    name: str
    config: ExperimentConfig

    @property
    def title(self) -> str:
        """A title for people: data, method, seed and control."""
        config = self.config
        control = "" if config.control == "none" else f"-{config.control}"
        return f"{config.data.title}-{short(config.method.name)}-seed{config.seed}{control}"


class Callback:
    """Base of callbacks; each method does nothing until a derived class overrides it."""

    def on_start(self, run: Tracked, round_: int | None) -> None:
        """Training begins (``round_`` is None), or goes on from a checkpoint of that round.

        -1 stands for a resumed run without a checkpoint. Events of later rounds are told again.
        """

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """An evaluation during training was scored; ``row`` is its line of ``metrics.jsonl``."""

    def on_checkpoint(self, round_: int, path: Path) -> None:
        """A checkpoint was written: ``last``, ``best`` or ``raw_head`` of a run folder."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """The run is over; ``summary`` has its closing figures, as in ``summary.json``."""

    def on_close(self, *, finished: bool) -> None:
        """No further event follows; ``finished`` is false if the run was broken off."""


EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


@dataclass(frozen=True)
class Listeners:
    """All trackers and callbacks of one run, in the order in which they were given."""

    trackers: Mapping[str, Any]
    """Value of ``--track`` → the tracker that it asked for."""
    callbacks: Sequence[Any] = ()

    def tell(self, event: str, *told: Any, **more: Any) -> None:
        """Call the method ``event`` of each listener that has it.

        RunError if a tracker fails; what a callback raises is passed on.
        """
        for spec, tracker in self.trackers.items():
            with named(spec):
                _call(tracker, event, told, more)
        for callback in self.callbacks:
            _call(callback, event, told, more)


NOBODY = Listeners({})


def _call(one: Any, event: str, told: Sequence[Any], more: Mapping[str, Any]) -> None:
    method = getattr(one, event, None)
    if method is not None:  # with figures of its own, which it may change
        method(*(dict(each) if isinstance(each, Mapping) else each for each in told), **more)


def check(callback: Any) -> None:
    """Raise ConfigError for a callback without a known method, or with an unknown ``on_…``."""
    what = callback.__name__ if isinstance(callback, type) else type(callback).__name__
    if isinstance(callback, type):
        raise ConfigError(f"callback {what} is a class; give one that is made: {what}()")
    mine = [name for name in dir(callback) if name.startswith("on_")]
    for name in mine:
        if name not in EVENTS:
            raise ConfigError(
                f"callback {what} has {name!r}, which nothing calls"
                f"{nearest(name, EVENTS) or ';'} there are {', '.join(EVENTS)}"
            )
    if not mine:
        raise ConfigError(f"callback {what} has none of {', '.join(EVENTS)}")


@contextmanager
def named(spec: str) -> Iterator[None]:
    """Turn any error of a tracker into a RunError of one line that names its ``--track``."""
    try:
        yield
    except (ConfigError, RunError):
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(f"--track {spec} failed: {reason}") from None
