"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENT = 1800.0
"""Seconds that nothing takes, however loaded a machine is: what takes longer hangs."""


def until(there: Callable[[], bool], seconds: float = PATIENT, pause: float = 0.01) -> bool:
    """Wait for something; whether it came."""
    last = time.monotonic() + seconds
    while not there():
        if time.monotonic() > last:
            return False
        time.sleep(pause)
    return True
