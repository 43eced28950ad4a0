"""The scorer: answers requests for scores, over whatever protocol they come.

It checks the key and the rates, scores, logs and counts. Every request of a caller is in the log
before it is answered; if the log cannot be written, nothing is answered.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import TextIOWrapper
from ipaddress import ip_address, ip_network
from logging.handlers import WatchedFileHandler
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Literal

import torch
from cachetools import TTLCache
from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from vertizo.core.errors import ConfigError, DataError, RunError
from vertizo.core.text.messages import Alarm
from vertizo.data.alignment import known_keys
from vertizo.network.serving.options import ScoringOptions
from vertizo.ops.scoring.callers import Caller, KnownCallers
from vertizo.ops.scoring.service import ScoringService, SilentError
from vertizo.run.trained.prediction import frame_of

if TYPE_CHECKING:
    import polars as pl

ID = "id"
"""The column of keys in answers."""
LOG = "queries.jsonl"
LONGEST_ID = 200
Reason = Literal["unknown", "limited", "invalid", "unavailable"]


class NotScoredError(Exception):
    """The error of a request that gets no scores, with its reason."""

    def __init__(self, reason: Reason, words: str) -> None:
        super().__init__(words)
        self.reason = reason


@dataclass(frozen=True)
class Scores:
    """The answer to a request."""

    job: str
    """The job that trained."""
    frame: pl.DataFrame
    """``id``, and columns as `vertizo predict` writes them; records in the order of the request."""
    missing: dict[str, list[str]]
    """Key → the parties that lack it, for records that are not scored."""


@dataclass
class Counts:
    """Counts of one caller since the start; "" stands for callers without a key."""

    outcomes: dict[str, int]
    """Outcome ("scored", or why not) → number of requests."""
    records: int = 0
    """Number of records that were scored."""
    seconds: float = 0.0
    """Seconds spent on requests."""


class Scorer:
    """Answers requests of callers; its methods are called from any thread.

    Raises:
        ConfigError: the file of callers cannot be read, or the log cannot be written.
    """

    def __init__(
        self,
        service: ScoringService,
        options: ScoringOptions,
        folder: Path,
        notice: Callable[[str], None] = lambda line: None,
    ) -> None:
        assert options.callers is not None, "checked before"
        self._service, self._options, self._notice = service, options, notice
        self._callers = KnownCallers(options.callers)
        self._log = _Log(options.log or folder / LOG)
        self.wrong_keys = WrongKeys()
        """Delays for servers to keep before they answer wrong keys."""
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._lock = threading.Lock()
        self.counts: dict[str, Counts] = {}
        model = service.model  # what is slow the first time is done once now
        frame_of(model.task, model.class_names, torch.zeros(1, model.task.outputs), None)

    def close(self) -> None:
        """Close the log."""
        with suppress(OSError):  # of a disk that is full, which people were told
            self._log.close()

    @property
    def is_ready(self) -> bool:
        """Whether all members are connected, so that records can be scored."""
        return self._service.is_ready

    def check(self, key: str | None) -> None:
        """Raise NotScoredError, and count it, unless somebody has this key."""
        try:
            self._known(key)
        except NotScoredError as error:
            self._count("", error.reason, 0, 0.0)
            raise

    def score(
        self,
        key: str | None,
        ids: Sequence[str],
        via: Literal["http", "grpc"],
        wrong: NotScoredError | None = None,
    ) -> Scores:
        """Score records, log and count the request; NotScoredError if it gets no scores.

        ``wrong`` is why a request is refused that a server could not read or take; it counts, and
        is logged, as any other.
        """
        began, name, outcome, scored = time.monotonic(), "", "failed", 0
        try:
            name, caller = self._known(key)
            keys = self._accepted(name, caller, ids, wrong)
            scores = self._scored(keys)
            outcome, scored = "scored", scores.frame.height
            return scores
        except NotScoredError as error:
            outcome = error.reason
            raise
        finally:
            took = time.monotonic() - began
            try:
                if name:
                    row: dict[str, Any] = {"caller": name, "via": via, "outcome": outcome}
                    row |= {"records": len(ids), "scored": scored, "seconds": round(took, 6)}
                    if self._options.log_ids and outcome not in ("invalid", "limited"):
                        row["ids"] = list(ids)
                    self._write(row)
            except NotScoredError:
                outcome, scored = "unavailable", 0
                raise
            finally:
                self._count(name, outcome, scored, took)

    def _known(self, key: str | None) -> tuple[str, Caller]:
        try:
            found = None if key is None else self._callers.find(key)
        except ConfigError as error:
            self._notice(Alarm(f"{error}; nobody is served until it is mended"))
            raise NotScoredError("unavailable", "the list of callers cannot be read") from None
        if found is None:
            raise NotScoredError("unknown", "a key is needed, as in 'Authorization: Bearer KEY'")
        return found

    def _accepted(
        self, name: str, caller: Caller, ids: Sequence[str], wrong: NotScoredError | None
    ) -> list[str]:
        """The canonical keys of a request, each once; NotScoredError if it is refused."""
        import polars as pl

        most = self._options.most
        self._take(name, "requests", caller.requests, 1)
        if wrong is not None:
            raise wrong
        if not 0 < len(ids) <= most:
            raise NotScoredError("invalid", f"{len(ids)} ids; 1 to {most} are answered at a time")
        if len(ids) > caller.records:
            words = f"{len(ids)} records; {name} may ask for {caller.records} a second"
            raise NotScoredError("invalid", words)
        found = known_keys(pl.DataFrame({ID: pl.Series(ids, dtype=pl.String)}), ID, "the request")
        keys = [key for key in found if key and len(key) <= LONGEST_ID]
        if len(keys) < len(found):
            raise NotScoredError(
                "invalid", f"an id is empty or longer than {LONGEST_ID} characters"
            )
        self._take(name, "records", caller.records, len(ids))
        return list(dict.fromkeys(keys))

    def _take(self, name: str, kind: str, limit: int, cost: int) -> None:
        """Take ``cost`` from a caller's rate; NotScoredError if it is used up."""
        if not self._limiter.hit(RateLimitItemPerSecond(limit), name, kind, cost=cost):
            raise NotScoredError("limited", f"{name} may ask for {limit:,} {kind} a second")

    def _scored(self, keys: list[str]) -> Scores:
        import polars as pl

        service = self._service
        try:
            there, logits, missing = service.logits(keys, self._options.deadline)
        except SilentError as error:
            raise NotScoredError("unavailable", str(error)) from None
        except DataError:
            raise NotScoredError("unavailable", "the label holder's table cannot be read") from None
        model = service.model
        carried = pl.Series(ID, there, dtype=pl.String)
        try:
            frame = frame_of(model.task, model.class_names, logits, carried)
        except RunError as error:
            self._notice(Alarm(str(error)))
            raise NotScoredError("unavailable", "a score is not a finite number") from None
        return Scores(model.job, frame, missing)

    def _count(self, name: str, outcome: str, records: int, seconds: float) -> None:
        with self._lock:
            counts = self.counts.setdefault(name, Counts({}))
            counts.outcomes[outcome] = counts.outcomes.get(outcome, 0) + 1
            counts.records += records
            counts.seconds += seconds

    def _write(self, row: dict[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            self._log.write(json.dumps({"time": now, **row}, ensure_ascii=False))
        except OSError as error:
            self._notice(Alarm(f"{self._log.path} cannot be written: {error}; nothing is scored"))
            raise NotScoredError("unavailable", "the log of queries cannot be written") from None


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


class _Log(WatchedFileHandler):
    """Writes lines to a file that only this user can read; follows log rotation."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            super().__init__(path, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"scoring.log {path} cannot be written: {error.strerror}") from None

    def _open(self) -> TextIOWrapper:
        """Open the file for this user alone, at the start and after each rotation."""

        def private(path: str, flags: int) -> int:
            handle = os.open(path, flags, 0o600)
            try:
                status = os.fstat(handle)
                if S_ISREG(status.st_mode) and status.st_mode & 0o077:
                    os.fchmod(handle, 0o600)
            except OSError:
                os.close(handle)
                raise
            return handle

        return open(self.baseFilename, "a", encoding="utf-8", opener=private)

    def write(self, line: str) -> None:
        """Write a line, or raise OSError."""
        self.handle(logging.LogRecord("", logging.INFO, "", 0, line, None, None))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Raise the error of a line that cannot be written."""
        raise
