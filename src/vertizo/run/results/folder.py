"""The folder that a run leaves behind.

=======================  ============================================================
run_name                 what the run is called in a ledger that outlives it
config.yaml              complete; ``vertizo train DIR/config.yaml`` reruns the run
preparation.json         for tables: how new records become numbers, and what outputs stand for
provenance.json          when it was begun, by which versions, and digests of its own files
metrics.jsonl            one line for each evaluation
summary.json             the figures at the end; there is none while a run is unfinished
checkpoints/last         everything needed to go on
checkpoints/best         the parameters that were best on the validation records
checkpoints/raw_head     what was fitted on raw labels at the end, where that was wanted
checkpoints/test_scores  logits and labels of the test records: what ROC curves are drawn from
digests                  SHA-256 of the files beside it; ``checkpoints`` has one of its own
=======================  ============================================================
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from vertizo.config import schema as config
from vertizo.config.schema import ExperimentConfig
from vertizo.core import digests, system
from vertizo.core.errors import DataError, RunError
from vertizo.core.text import strict_json
from vertizo.data.prepared import Preparation
from vertizo.run.results import checkpoint, provenance

FILES = ("preparation.json", "metrics.jsonl", "summary.json", "checkpoints/last.safetensors")
"""Files that a run writes beside its configuration."""
CLOSING = ("method", "dataset", "model", "seconds", "privacy")
"""Keys that every summary has."""
EDITED = "put it back as it was; if you edited it, begin a run of it: vertizo train {} --out FOLDER"
STUDIES = ("comparison.json", "worth.json", "tune.json")
"""Files by which folders of studies are known."""


class RunFolder:
    """Reads and writes one run's files; nothing is created before `create`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics_file = path / "metrics.jsonl"
        self.summary_file = path / "summary.json"
        self.rows = 0
        """Lines of the metrics, as last read and added to."""

    def check_is_new(self) -> None:
        """Raise RunError if the folder holds a run already, or cannot become one."""
        with checkpoint.telling(f"--out {self.path} cannot be used"):
            if self.path.exists() and not self.path.is_dir():
                raise RunError(f"--out {self.path} is a file; name a folder")
            taken = (self.path / "config.yaml").exists()
            others = [name for name in (*FILES, *STUDIES) if (self.path / name).exists()]
            begun = (self.path / "run_name").exists()
        if taken and not begun:
            raise RunError(
                f"--out {self.path} has a config.yaml, and is no run; name another folder"
            )
        if taken:
            raise RunError(
                f"--out {self.path} already holds a run; continue it with "
                f"--resume {shlex.quote(str(self.path))}, or name another folder"
            )
        if begun and others == ["preparation.json"]:
            return  # of a start that was killed before the configuration was there
        if others:
            raise RunError(
                f"--out {self.path} holds {others[0]} but no config.yaml; name another folder"
            )

    def check_is_for(self, study: str) -> None:
        """Raise RunError if the folder holds a run, or another study than the one of that file."""
        with checkpoint.telling(f"--out {self.path} cannot be used"):
            if (self.path / "config.yaml").exists():
                raise RunError(f"--out {self.path} holds a run; name another folder")
            for other in STUDIES:
                if other != study and (self.path / other).exists():
                    raise RunError(f"--out {self.path} holds {other}; name another folder")

    def make(self) -> None:
        """Make the folder and its subfolder of checkpoints, or raise RunError."""
        with checkpoint.writing(self.path):
            (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)

    def create(
        self,
        settings: ExperimentConfig,
        name: str | None = None,
        preparation: Preparation | None = None,
    ) -> None:
        """Make the folder, and write what is known at the start, or raise RunError.

        Without a name the run gets a new one.
        """
        self.make()
        files = {
            "run_name": name or uuid4().hex,
            provenance.NAME: strict_json.text(provenance.begun(settings.data.files)),
        }
        if preparation is not None:
            files["preparation.json"] = preparation.to_json()
        files["config.yaml"] = settings.to_yaml()  # last: with it, the folder holds a run
        try:
            for each, text in files.items():
                checkpoint.keep(self.path / each, text.encode())
        except RunError:
            with suppress(OSError):
                for each in reversed(files):
                    (self.path / each).unlink(missing_ok=True)
                digests.forget(self.path)
            raise

    def run_name(self) -> str:
        """The run's name in a ledger that outlives it; RunError if there is no run."""
        return checkpoint.kept_text(self.path / "run_name")

    def config(self) -> ExperimentConfig:
        """The configuration that was written; RunError where there is no run."""
        path = self.path / "config.yaml"
        with checkpoint.reading(self.path):
            exists = path.is_file()
        if not exists:
            raise RunError(f"{self.path} holds no run: there is no config.yaml in it")
        if not (self.path / "run_name").exists():
            raise RunError(
                f"{self.path} holds no run: there is a config.yaml in it, and no run_name; begin "
                f"one with vertizo train {shlex.quote(str(path))}"
            )
        anew = EDITED.format(shlex.quote(str(path)))
        is_served = (self.path / "federation.json").exists()
        checkpoint.kept(path, digests.ADVICE if is_served else anew)
        return config.load(path)

    def preparation(self) -> Preparation | None:
        """The preparation of the run's table; None without a table, RunError if damaged."""
        path = self.path / "preparation.json"
        if not path.exists():
            return None
        try:
            return Preparation.from_json(checkpoint.kept_text(path))
        except DataError as error:
            raise RunError(f"{path} cannot be used: {error}") from None

    def is_of(self, settings: ExperimentConfig) -> bool:
        """Whether its run has these settings, apart from those that change no number."""
        plain = {"checkpoint_seconds": 0.0, "threads": 1}
        return settings.model_copy(update=plain) == self.config().model_copy(update=plain)

    def changed_files(self, settings: ExperimentConfig) -> list[str]:
        """Names of the settings' tables whose content has changed since the run began."""
        known = (self.provenance() or {}).get("files")
        if not known:
            return []
        now = provenance.digests(settings.data.files)
        return [name for name, digest in now.items() if known.get(name, digest) != digest]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder, until the process ends at the latest; RunError if another has it."""
        with checkpoint.telling(f"{self.path} cannot be used"):
            handle = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR, 0o666)
        with os.fdopen(handle):
            try:
                system.lock(handle, wait=False)
            except BlockingIOError:
                raise RunError(f"{self.path} is in use by another process") from None
            yield

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Append one evaluation's figures after the last whole line, or raise RunError."""
        line = _line(row).encode()
        with checkpoint.writing(self.metrics_file), self.metrics_file.open("ab+") as file:
            end = file.tell()
            file.seek(max(0, end - 1))
            if file.read() not in (b"", b"\n"):  # torn by a kill, or by a disk that was full
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
            file.write(line)
        self.rows += 1

    def metrics(self, at_least: int = 0) -> list[dict[str, Any]]:
        """All evaluations' figures; RunError where some are damaged, or fewer than ``at_least``.

        A last line without its end is left out: it is still being written, or a crash cut it.
        """
        lines: list[bytes] = []
        if self.metrics_file.exists():
            with checkpoint.reading(self.metrics_file):
                over = self.summary_file.is_file() and digests.is_listed(self.metrics_file)
                read = digests.content if over else Path.read_bytes
                lines = read(self.metrics_file).split(b"\n")[:-1]
        found = [self._row(number, line) for number, line in enumerate(lines, 1) if line]
        if len(found) < at_least:
            raise RunError(
                f"{self.metrics_file} is damaged: it has {len(found)} whole lines, and had "
                f"{at_least}; put a copy of it back"
            )
        self.rows = len(found)
        return found

    def _row(self, number: int, line: bytes) -> Any:
        """Parse one line of the metrics; RunError if it is not what was written."""
        try:
            return digests.without_digest(json.loads(line))
        except ValueError:
            raise RunError(
                f"{self.metrics_file} is damaged: its line {number} is not what was written; put a "
                "copy of it back"
            ) from None

    def sync_metrics(self) -> None:
        """Flush the metrics to the disk, before a checkpoint counts on them."""
        with checkpoint.writing(self.metrics_file), self.metrics_file.open("ab") as file:
            os.fsync(file.fileno())

    def rewind_metrics(self, round_: int) -> None:
        """Drop evaluations after ``round_``, which a resumed run makes again."""
        kept = [row for row in self.metrics() if row["round"] <= round_]
        text = "".join(map(_line, kept))
        checkpoint.write_atomically(self.metrics_file, text.encode())

    def save(self, name: str, state: Mapping[str, Any]) -> Path:
        """Write a checkpoint; return its path."""
        checkpoint.save(self._checkpoint(name), state)
        return self._checkpoint(name)

    def load(self, name: str, *fields: str) -> Any:
        """Read a checkpoint that has these fields, or raise RunError."""
        state = checkpoint.load(self._checkpoint(name))
        with self.going_on_from(name):
            return {**state, **{field: state[field] for field in fields}}

    def going_on_from(self, name: str) -> AbstractContextManager[None]:
        """Turn errors of restoring a checkpoint into a RunError (`checkpoint.going_on_from`)."""
        return checkpoint.going_on_from(self._checkpoint(name))

    def has(self, name: str) -> bool:
        """Whether a checkpoint of that name was written."""
        return self._checkpoint(name).is_file()

    def _checkpoint(self, name: str) -> Path:
        return self.path / "checkpoints" / f"{name}.safetensors"

    def provenance(self) -> dict[str, Any] | None:
        """The provenance that was recorded as the run began; None if an old version began it."""
        return self._read_json(self.path / provenance.NAME)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """List the digest of the metrics, then write the closing figures."""
        with checkpoint.writing(self.metrics_file):
            if self.metrics_file.exists():
                digests.add(self.metrics_file)
        checkpoint.keep(self.summary_file, f"{strict_json.text(summary, indent=2)}\n".encode())

    def summary(self) -> dict[str, Any] | None:
        """The closing figures; None if the run is unfinished, RunError if some are missing."""
        found = self._read_json(self.summary_file)
        if found is None or isinstance(found.get("queries"), int):  # of a member, who knows little
            return found
        missing = [key for key in CLOSING if key not in found]
        if missing:
            raise RunError(f"{self.summary_file}: not a summary: it has no {missing[0]!r}")
        return found

    def _read_json(self, path: Path) -> dict[str, Any] | None:
        if not path.is_file():
            return None
        try:
            result = json.loads(checkpoint.kept(path))
        except ValueError as error:
            raise RunError(f"{path}: not a {path.stem}: {error}") from None
        if not isinstance(result, dict):
            raise RunError(f"{path}: not a {path.stem}: it holds no names and values")
        return result


def _line(row: Mapping[str, Any]) -> str:
    return strict_json.text(digests.with_digest(row)) + "\n"


@contextmanager
def new_folder(name: str) -> Iterator[Path]:
    """Make a new folder below ``runs``, so that no other run takes it; remove it if unused.

    Raises RunError if it cannot be made.
    """
    base = Path("runs") / name
    folder, number, begun = base, 1, base.parent.exists()
    with checkpoint.telling(f"{base} cannot be made", "; name a folder with --out"):
        base.parent.mkdir(exist_ok=True)
        while True:
            with suppress(FileExistsError):
                folder.mkdir()
                break
            number += 1
            folder = base.with_name(f"{base.name}-{number}")
    try:
        yield folder
    finally:
        with suppress(OSError):  # there is something in it
            folder.rmdir()
            if not begun:
                base.parent.rmdir()
