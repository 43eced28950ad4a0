"""Certificate rotation: reload a party's credentials when the files in its folder change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from vertizo.core.errors import ConfigError
from vertizo.core.text.messages import Alarm
from vertizo.network.transport.certificates import Credentials, date_text, files_of

Stamp = tuple[tuple[int, int, int], ...]


class Rotation:
    """A callable that returns a party's current credentials, reloaded when its folder changed.

    Unusable files leave the previous credentials in use, and are reported once. Files are replaced
    one by one, so that an error is reported only if a second look finds the same files.

    Args:
        folder: as for `Credentials.load`.
        first: the credentials that the folder holds now; the party's name must not change.
        serving: whether the credentials are a label holder's.
        tell: called with a line that says that new credentials are in use, or why they are not.
    """

    def __init__(
        self,
        folder: Path,
        first: Credentials,
        *,
        serving: bool,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._folder, self._serving, self._tell = folder, serving, tell
        self._current = first
        self._stamp = self._looked()
        self._wrong: Stamp | None = None
        self._lock = Lock()

    def __call__(self) -> Credentials:
        """Return the newest usable credentials; may be called from any thread."""
        with self._lock:
            stamp = self._looked()
            if stamp != self._stamp:
                self._read(stamp)
            return self._current

    def _looked(self) -> Stamp:
        """Return the files' inodes, times and sizes, to detect a change; () if one is missing."""
        try:
            seen = [file.stat() for file in files_of(self._folder)]
        except (ConfigError, OSError):
            return ()
        return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in seen)

    def _read(self, stamp: Stamp) -> None:
        before = self._current
        try:
            found = Credentials.load(self._folder)
            found.check_use(serving=self._serving)
            if found.name != before.name:
                raise ConfigError(f"{self._folder} is now of {found.name!r}, not {before.name!r}")
        except ConfigError as error:
            if stamp == self._wrong:
                until = date_text(before.expires)
                self._tell(Alarm(f"{error}; the certificate until {until} stays in use"))
                self._stamp = stamp
            self._wrong = stamp
            return
        self._current, self._stamp, self._wrong = found, stamp, None
        if found != before:
            self._tell(f"a new certificate is in use, until {date_text(found.expires)}")
