"""An experiment: one configuration, its data, and the run that they make, kept or in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from vertizo.config import choosing
from vertizo.config.choosing import Open, Source
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError
from vertizo.core.memory import LARGE, keep_freed_memory
from vertizo.data.datasets.catalog import CATALOG
from vertizo.data.prepare import prepare
from vertizo.data.vertical import VerticalData
from vertizo.privacy.options import ON_LABELS
from vertizo.run import auto
from vertizo.run.build import labels as label_checks
from vertizo.run.build.data_defaults import complete
from vertizo.run.build.label_free import controlled
from vertizo.run.build.models import check_reads_tokens
from vertizo.run.build.privacy import record_choice
from vertizo.run.loop import tracking
from vertizo.run.loop.callbacks import Tracked
from vertizo.run.loop.federation import build
from vertizo.run.loop.ledger_session import can_go_on, charging
from vertizo.run.loop.simulator import Observer
from vertizo.run.loop.training import Progress, Result, Training
from vertizo.run.results.folder import RunFolder

__all__ = ["Experiment", "Progress", "Result"]
Given = tuple[Source, Sequence[str]] | None


class Experiment:
    """A configured run.

    >>> from vertizo.config.schema import parse
    >>> result = Experiment(parse({"epochs": 1, "data": {"limit": 200}})).run()
    >>> result.summary["method"], result.summary["privacy"]["guarantee"]
    ('dpzv', 'none')

    Without ``data``, already cut, what the configuration names is loaded. Of one whose method is
    open (``method: auto``), ``config`` is the one that was chosen once there are data.
    """

    def __init__(
        self, config: ExperimentConfig | Open | None = None, data: VerticalData | None = None
    ) -> None:
        self._open = config if isinstance(config, Open) else None
        self.config = config.first() if isinstance(config, Open) else config or ExperimentConfig()
        self._choice: dict[str, Any] | None = None
        self._tell: auto.Tell = auto.silent
        self._data = data
        self._is_checked = False
        self._given: Given = (config, ()) if data is None else None

    @classmethod
    def from_yaml(cls, path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
        """From a file, with ``key=value`` overrides.

        Raises:
            ConfigError: names the key, its value and what would be right.
        """
        made = cls(choosing.load(Path(path), overrides))
        made._given = Path(path), tuple(overrides)
        return made

    def given(self) -> tuple[Source, Sequence[str]]:
        """The configuration as it was given, and its overrides; ConfigError if data were given."""
        if self._given is None:
            raise ConfigError(
                "this experiment was given its data; name a file in data.path, which other runs "
                "can read as well"
            )
        return self._given

    def data(self) -> VerticalData:
        """The data, loaded and cut once; ConfigError or DataError where it cannot be had."""
        if self._data is None:
            options = self.config.data
            known = CATALOG.get(options.name)
            if known is not None and known.tokens and options.encoder is None:
                # before they are made, which takes a while
                client = self.config.client
                for model in client.models.values() or (client.model,):
                    check_reads_tokens("client.model", model)
            self._data = prepare(options, record_choice(self.config))
            if self._open is not None:
                validating = len(self._data.labels["validation"])
                self.config = self._open.first(self._data.records + validating)
                if validating and not self.config.data.validation:  # too few records to choose by
                    self._data = prepare(self.config.data, record_choice(self.config))
        if self._open is not None:
            torch.set_num_threads(self.config.threads)
            choice = auto.chosen(self._open, self._data, self._tell)
            self.config, self._choice, self._open = choice.config, choice.section(), None
        if not self._is_checked:
            self._data = label_checks.noted(self.config, self._data)
            self._is_checked = True
        self.config = complete(self.config, self._data)
        return self._data

    def settle(self, tell: auto.Tell = auto.silent) -> None:
        """Choose an open method, if it is; ``tell`` is given a line for each trial.

        Errors as of `data` and `vertizo.run.auto.chosen`.
        """
        self._tell = tell
        self.data()

    def check(self) -> None:
        """Make all parties and throw them away.

        Raises:
            ConfigError, DataError: parts of the configuration do not fit each other or the data.
        """
        data = self.data()
        build(self.config, data)

    def privacy(self) -> dict[str, Any]:
        """The section ``privacy`` of the run's summary, beforehand; errors as `check`."""
        data = self.data()
        privacy = build(self.config, data).privacy()
        charged = controlled(self.config).privacy
        if charged.ledger is not None and charged.mechanism not in ON_LABELS:
            privacy["counted"] = f"this run, which draws on the ledger {charged.ledger}"
        return privacy

    def run(
        self,
        out: str | Path | None = None,
        *,
        resume: bool = False,
        progress: Callable[[Progress], None] | None = None,
        observer: Observer | None = None,
        track: Sequence[str] = (),
        callbacks: Sequence[Any] = (),
    ) -> Result:
        """Train to the end.

        Args:
            out: run folder; None keeps everything in memory.
            resume: go on in ``out`` from its last checkpoint.
            progress: called a few times a second.
            observer: sees every frame on the wire.
            track: where evaluations go as well, e.g. ``tensorboard=DIR``
                (`vertizo.run.loop.tracking`).
            callbacks: objects that are told of the start, evaluations, checkpoints and the end, as
                a `vertizo.run.loop.callbacks.Callback` is.

        Raises:
            ConfigError: a package that ``track`` needs is missing, or one is no callback.
            RunError: the folder cannot be used, or training diverged.
            Interrupted: stopped by SIGINT after a checkpoint was written.
        """
        with self.opened(
            out,
            resume=resume,
            progress=progress,
            observer=observer,
            track=track,
            callbacks=callbacks,
        ) as training:
            return training.run(resume=resume)

    @contextmanager
    def opened(
        self,
        out: str | Path | None = None,
        *,
        resume: bool = False,
        progress: Callable[[Progress], None] | None = None,
        observer: Observer | None = None,
        track: Sequence[str] = (),
        callbacks: Sequence[Any] = (),
    ) -> Iterator[Training]:
        """The training that `run` makes, its folder and ledger held open; all else as of `run`."""
        torch.set_num_threads(self.config.threads)
        keep_freed_memory(LARGE)
        if self._open is not None:
            self.data()
        folder = None if out is None else RunFolder(Path(out))
        if folder is not None and resume:
            self.check_same(folder)
            kept = folder.preparation()
            if kept is not None and not kept.agrees_with(self.data().preparation):
                raise RunError(
                    f"{folder.path} holds a run on other records than {self.data().name} has now: "
                    "columns or what they are scaled by have changed; start another run"
                )
            if not can_go_on(controlled(self.config), begun=folder.has("last")):
                raise RunError(
                    f"{folder.path} holds a run with privacy.noise 'secure', which cannot be "
                    "repeated: what it released since its checkpoint would be released anew; "
                    "start another run"
                )
        elif folder is not None:
            folder.check_is_new()
        name = folder.run_name() if folder is not None and resume else uuid4().hex
        over = folder is not None and resume and folder.summary() is not None
        with (
            charging(controlled(self.config), self.data(), name) as charge,
            tracking.opened(
                () if over else track, Tracked(name, self.config), () if over else callbacks
            ) as listeners,
        ):
            federation = build(self.config, self.data(), observer=observer, charge=charge)
            training = Training(federation, folder, progress, listeners, name, self._choice)
            if folder is None:
                yield training
                return
            folder.make()
            with folder.locked():
                if not resume:
                    folder.check_is_new()
                    folder.create(self.config, name, self.data().preparation)
                yield training

    def check_same(self, folder: RunFolder, instead: str = "start another run") -> None:
        """Raise RunError if the folder holds a run of another configuration, or on other tables.

        ``instead`` is what people may do to have a run of this one.
        """
        if not folder.is_of(self.config):
            self.data()  # which completes what the configuration leaves to the records
        if not folder.is_of(self.config):
            raise RunError(
                f"{folder.path} holds a run of another configuration; resume it with the "
                f"config.yaml that is in it, or {instead}"
            )
        if changed := folder.changed_files(self.config):
            raise RunError(
                f"{folder.path} holds a run on another {changed[0]} than there is now (its SHA-256 "
                f"is another one); bring that table back, or {instead}"
            )


def settled(config: ExperimentConfig | Open, tell: auto.Tell = auto.silent) -> ExperimentConfig:
    """A configuration with a method: the one that is chosen where it is open.

    ``tell`` and errors are as of `Experiment.settle`.
    """
    if isinstance(config, ExperimentConfig):
        return config
    experiment = Experiment(config)
    experiment.settle(tell)
    return experiment.config
