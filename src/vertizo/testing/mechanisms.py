"""What every mechanism of one's own must do (`vertizo.privacy.own_mechanism`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vertizo.privacy.own_mechanism import OwnMechanism
from vertizo.testing.demands import path_of
from vertizo.testing.methods import (
    nothing_draws_from_global_generators,
    shapes_are_as_declared,
    stopped_runs_go_on,
)
from vertizo.testing.subject import Subject


def check_mechanism(
    mechanism: str | type[OwnMechanism], changes: Mapping[str, Any] | None = None
) -> None:
    """AssertionError, in one line, unless a mechanism does what every mechanism must.

    With replies that are sums and with those that are each record's own: what is released has the
    shape that the method declares, nothing is drawn from global generators, and a run that was
    stopped goes on bit by bit. It proves no guarantee, and its runs state none.

    Args:
        mechanism: its name or import path, or a class that its module gives by its name.
        changes: of the configuration, by dotted keys, such as ``{"privacy.clip": 2.0}``.
    """
    for method in ("dpzv", "vafl"):
        subject = Subject(
            method, "asynchronous", {**(changes or {}), "privacy.mechanism": path_of(mechanism)}
        )
        shapes_are_as_declared(subject)
        nothing_draws_from_global_generators(subject)
        stopped_runs_go_on(subject)
