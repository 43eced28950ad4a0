"""Delays of answers to wrong keys, so that nobody tries many."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address, ip_network

from cachetools import TTLCache


class WrongKeys:
    """The delays of answers to wrong keys, by the addresses that they come from.

    After a few without delay, each wrong key within a minute waits longer than the one before. At
    most 10,000 addresses are remembered, for a minute; of IPv6, the first 64 bits, since whoever
    has one address has those of a network. ``timer`` gives seconds.
    """

    FREE, EACH, LONGEST = 3, 0.1, 5.0
    """Wrong keys without delay; seconds that each further one adds; the longest delay."""

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._seen: TTLCache[str, int] = TTLCache(10_000, 60.0, timer)
        self._lock = threading.Lock()

    def wait(self, host: str) -> float:
        """Note a wrong key from ``host``; return the seconds until it may be answered."""
        with suppress(ValueError):  # it is no address, but a name of a proxy's
            if (found := ip_address(host)).version == 6:
                host = str(ip_network((int(found) >> 64 << 64, 64)))
        with self._lock:
            count = self._seen[host] = self._seen.get(host, 0) + 1
        return min(max(0, count - self.FREE) * self.EACH, self.LONGEST)
