"""The check of mechanisms: what every `vertizo.privacy.own_mechanism.OwnMechanism` must do."""

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
    """Check that a mechanism does what every mechanism must; else raise AssertionError.

    For replies that are sums and for replies of each record: releases have the shape that the
    method declares, nothing is drawn from global generators, and a run that was stopped goes on bit
    for bit. The check proves no guarantee, and the mechanism's runs state none.

    Args:
        mechanism: its name or import path, or a class, found in its module by its name.
        changes: changes of the configuration, by dotted keys, as ``{"privacy.clip": 2.0}``.
    """
    for method in ("dpzv", "vafl"):
        subject = Subject(
            method, "asynchronous", {**(changes or {}), "privacy.mechanism": path_of(mechanism)}
        )
        shapes_are_as_declared(subject)
        nothing_draws_from_global_generators(subject)
        stopped_runs_go_on(subject)
