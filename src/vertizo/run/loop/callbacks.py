"""What a run tells trackers (`vertizo.run.loop.tracking`) and code of one's own while it goes on.

A callback is any object with some of the methods of `Callback`; one that derives from it has all.
No number of a run depends on what they do, and what they are given is theirs to keep. One that
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
from vertizo.core.registry import short
from vertizo.core.suggestions import nearest


@dataclass(frozen=True)
class Tracked:
    """The run that is told of; its name is of it alone, and the same when it resumes."""

    name: str
    config: ExperimentConfig

    @property
    def title(self) -> str:
        """For people."""
        config = self.config
        control = "" if config.control == "none" else f"-{config.control}"
        return f"{config.data.title}-{short(config.method.name)}-seed{config.seed}{control}"


class Callback:
    """Each method does nothing unless a derived class does something."""

    def on_start(self, run: Tracked, round_: int | None) -> None:
        """Training begins, or goes on from a checkpoint of ``round_``, -1 where there was none.

        What was told of later rounds before is told again. None where the run is new.
        """

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """An evaluation on the way: what becomes a line of ``metrics.jsonl``."""

    def on_checkpoint(self, round_: int, path: Path) -> None:
        """A checkpoint was written: ``last``, ``best`` or ``raw_head`` of a run folder."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """The closing figures, as in ``summary.json``."""

    def on_close(self, *, finished: bool) -> None:
        """Nothing more is told; not ``finished`` where the run was broken off."""


EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


@dataclass(frozen=True)
class Listeners:
    """All who are told of one run: in the order in which they were given."""

    trackers: Mapping[str, Any]
    """By what each was asked for (``--track``)."""
    callbacks: Sequence[Any] = ()

    def tell(self, event: str, *told: Any, **more: Any) -> None:
        """Call a method of each that has it.

        RunError where a tracker fails, in one line; what a callback raises stays as it is.
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
    """Raise ConfigError for what is told nothing, or has a method that nothing calls."""
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
    """Whatever goes wrong in somebody else's package is one line that says where."""
    try:
        yield
    except (ConfigError, RunError):
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(f"--track {spec} failed: {reason}") from None
