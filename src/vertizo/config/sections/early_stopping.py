"""The ``early_stopping`` section of a configuration: when training ends before its epochs do."""

from __future__ import annotations

from typing import Any

from pydantic import Field, PositiveInt

from vertizo.core.options import Options

UNPROTECTED = ("none", "embedding-noise")
"""Mechanisms that protect no labels, so that early stopping may be used beside them."""


class EarlyStopping(Options):
    """An end by validation figures. That training ends is seen by every client, and it follows from
    raw labels, so that it is refused beside whatever protects labels."""

    patience: PositiveInt | None = None
    """Evaluations without a better figure on validation records, the one that the best model is
    chosen by, after which training ends. Default: it never ends early."""
    min_delta: float = Field(default=0.0, ge=0)
    """By how much a figure must be better to count."""
    accuracy: float | None = Field(default=None, gt=0, le=1)
    """Accuracy on validation records at which training ends; not for regressions. Default: it goes
    on."""

    @property
    def is_wanted(self) -> bool:
        """Whether training may end before its epochs are over."""
        return self.patience is not None or self.accuracy is not None


def check_early_stopping(config: Any) -> None:
    """Refuse early stopping that would reveal private labels, or could never happen.

    ValueError names the key, its value and what would be right.
    """
    options, mechanism = config.early_stopping, config.privacy.mechanism
    if options.patience is None and options.min_delta:
        raise ValueError(
            f"early_stopping.min_delta is {options.min_delta} but early_stopping.patience is "
            "not set; give the number of evaluations to wait"
        )
    if not options.is_wanted:
        return
    name = "accuracy" if options.patience is None else "patience"
    key = f"early_stopping.{name} is {getattr(options, name)}"
    if mechanism not in UNPROTECTED:
        raise ValueError(
            f"{key} but privacy.mechanism is {mechanism!r}: every client sees when training ends, "
            "which would follow from raw validation labels; leave early_stopping out and choose "
            "epochs"
        )
    if not config.data.validation:
        raise ValueError(
            f"{key} but data.validation is 0, so that there is nothing to stop by; set aside a "
            "share of the records, such as 0.1"
        )
