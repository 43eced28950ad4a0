"""The folder of a feature holder's job, and its files.

=======================  ============================================================
job                      which job the folder belongs to, and which client of it
settings.yaml            what all parties agreed on, and this party's own model
preparation.json         for tables: how new records become numbers
provenance.json          when it was begun, by which versions, and digests of its own files
secret.key               the root of this party's randomness; nobody else's business
checkpoints/terms        as the label holder sent them; they may not change
checkpoints/last         everything that a restart needs, with journals of what came after
query                    the one that is open
checkpoints/candidate    the parameters of the last evaluation
checkpoints/best         those of the best evaluation
model.safetensors        the parameters at the end
summary.json             figures at the end
digests                  SHA-256 of the files beside it; ``checkpoints`` has one of its own
=======================  ============================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from vertizo.config import schema
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import DataError, RunError, WireError
from vertizo.data.tabular.preprocessing import Preprocessing, alike
from vertizo.models.base import State
from vertizo.network.serving import frames
from vertizo.network.serving.frames import Terms
from vertizo.run.results import checkpoint, provenance
from vertizo.run.results.folder import RunFolder


class ClientFolder:
    """Reads and writes one member's files."""

    def __init__(self, path: Path) -> None:
        self.path, self._terms = path, path / "checkpoints" / "terms"
        self._files = RunFolder(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make and lock the folder; RunError if another process has it."""
        if (self.path / "run_name").exists():
            raise RunError(f"federation.folder {self.path} holds a run of `vertizo train`")
        self._files.make()
        with checkpoint.writing(self.path):
            self.path.chmod(0o700)
        with self._files.locked():
            yield

    def run_name(self) -> str:
        """The name of the job that the folder belongs to; empty if it belongs to none."""
        return (self._read("job") or "").partition(" ")[0]

    def check_job(self, job: str, client: int) -> None:
        """Raise RunError if the folder belongs to another job, or to another member."""
        known = self._read("job")
        if known is None or known == f"{job} {client}":
            return
        if known.split(" ")[0] == job:
            raise RunError(f"federation.folder {self.path} is another member's; name one's own")
        raise RunError(
            f"federation.folder {self.path} belongs to another job than the label holder "
            "serves; name a new folder"
        )

    def create(
        self,
        terms: Terms,
        settings: ExperimentConfig,
        preparation: Preprocessing | None,
        files: Iterable[Path | None] = (),
    ) -> None:
        """Write what is known at the start; RunError if the folder has something else already."""
        if self._read("job") is not None:
            if self.settings() != settings or checkpoint.kept(self._terms) != frames.encode(terms):
                raise RunError(
                    f"{self.path}: the label holder's terms, or this party's own model, are not "
                    "those that the job began with"
                )
            if changed := preparation and self.preparation().changed(preparation):
                raise self._other_table(changed)
            return
        checkpoint.keep(self.path / "settings.yaml", settings.to_yaml().encode())
        self._prepare(preparation)
        begun = json.dumps(provenance.begun(files))
        checkpoint.keep(self.path / provenance.NAME, begun.encode())
        checkpoint.keep(self._terms, frames.encode(terms))
        checkpoint.keep(self.path / "job", f"{terms.job} {terms.index}".encode())

    def _prepare(self, preparation: Preprocessing | None) -> None:
        if preparation is not None:
            content = json.dumps(preparation.state(), indent=1, ensure_ascii=False)
            checkpoint.keep(self.path / "preparation.json", content.encode())

    def go_on_with(self, preparation: Preprocessing | None, *, begun: bool) -> None:
        """Raise RunError if the table changed after training began; before that, take it over."""
        if preparation is None or alike(self.preparation().state(), preparation.state()):
            return
        if begun:
            raise self._other_table("the columns have other values")
        self._prepare(preparation)

    def _other_table(self, changed: str) -> RunError:
        return RunError(
            f"{self.path}: this party's table is not the one that the job began with: {changed}; "
            "bring it back, or begin a new job in new folders"
        )

    def _read(self, name: str) -> str | None:
        path = self.path / name
        return checkpoint.kept_text(path) if path.exists() else None

    def terms(self) -> Terms:
        """The terms as the label holder sent them; RunError if missing or damaged."""
        content = checkpoint.kept(self._terms)
        try:
            terms: Terms = frames.expect(content, Terms)
        except WireError as error:
            raise RunError(f"{self._terms} is damaged: {error}") from None
        return terms

    def settings(self) -> ExperimentConfig:
        """The configuration that was agreed on; RunError if the folder holds no job."""
        if self._read("job") is None:
            raise RunError(f"{self.path} holds no job; `vertizo join` makes one")
        path = self.path / "settings.yaml"
        checkpoint.kept(path)
        return schema.load(path)

    def preparation(self) -> Preprocessing:
        """The preparation that makes new records features; RunError if missing or damaged."""
        text = self._read("preparation.json")
        if text is None:
            raise RunError(f"{self.path} holds no table's job; new records cannot be prepared")
        try:
            return Preprocessing.from_state(json.loads(text))
        except (ValueError, DataError) as error:
            raise RunError(f"{self.path / 'preparation.json'} is damaged: {error}") from None

    def consider(self, number: int, parameters: State) -> None:
        """Keep the model of an evaluation as the candidate, before its embeddings are sent."""
        self._files.save("candidate", {"number": number, "parameters": parameters})

    def keep(self, number: int) -> None:
        """Make the candidate of that evaluation the best; RunError if it is not there."""
        if self._is("best", number):
            return
        if not self._is("candidate", number):
            raise RunError(f"{self.path} does not have the parameters of evaluation {number}")
        self._files.save("best", self._files.load("candidate", "parameters"))

    def _is(self, name: str, number: int) -> bool:
        """Whether the checkpoint ``name`` is of evaluation ``number``."""
        return self._files.has(name) and bool(self._files.load(name, "number")["number"] == number)

    def best(self) -> State:
        """The model's state of the best evaluation."""
        return cast(State, self._files.load("best", "parameters")["parameters"])

    def finish(self, figures: Mapping[str, Any], parameters: State) -> None:
        """Write the model and the closing figures."""
        checkpoint.save(self.path / "model.safetensors", {"parameters": parameters})
        self._files.write_summary(dict(figures))

    def finished(self) -> dict[str, Any] | None:
        """The closing figures; None if there are none yet."""
        return self._files.summary()

    def model(self) -> State:
        """The model's state at the end; RunError if the job is not over."""
        path = self.path / "model.safetensors"
        if not path.is_file():
            raise RunError(f"{self.path}: the job is not over; `vertizo join` continues it")
        state = checkpoint.load(path)
        with checkpoint.going_on_from(path):
            return cast(State, state["parameters"])


def is_of_real_parties(run: Path) -> bool:
    """Whether a folder is one party's part of a job over a network."""
    if any((run / name).is_file() for name in ("job", "secret.key")):
        return True
    return "queries" in (RunFolder(run).summary() or {})  # of a trial, which has no secret
