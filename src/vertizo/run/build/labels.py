"""Building the private labels that a run trains on, if its mechanism is on labels."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torch import Tensor

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, DataError
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData, of_classes
from vertizo.models.losses import Classification, NoisyLabelClassification, Regression, Task
from vertizo.privacy.accounting import guarantee, label_advantage
from vertizo.privacy.accounting.events import GaussianRelease, Releases
from vertizo.privacy.clipping import relabelled
from vertizo.privacy.labels.label_file import LabelFile
from vertizo.privacy.labels.private_labels import (
    LONGEST,
    LabelMaker,
    Paid,
    RandomisedResponse,
    Teacher,
)
from vertizo.privacy.noise.discrete_gaussian import RandomBytes
from vertizo.privacy.noise.mechanisms import NoiseSource, SeededNoise
from vertizo.privacy.noise.secure import SecureNoise
from vertizo.run.build.record_identity import names_of, records_name

MARGIN = 1e-6
"""Share of ε kept free for the rounding of draws, and for noise on a grid."""


@dataclass
class PrivateLabels(LabelMaker):
    """The labels of one run's training records, made private; ConfigError where they cannot be."""

    config: ExperimentConfig
    data: VerticalData
    secrets: Stream
    random_bytes: RandomBytes
    kept: Path | None
    """The file that keeps them; None for a run of its own."""

    def __post_init__(self) -> None:
        self._weights = of_classes(self.config.data, self.data)
        config, data, privacy = self.config, self.data, self.config.privacy
        assert privacy.epsilon is not None, "a complete configuration has one"
        if not isinstance(data.task, Classification):
            raise ConfigError(
                f"privacy.mechanism {privacy.mechanism!r} is for classes but {data.name} is a "
                "regression; use 'gaussian'"
            )
        check_public(privacy.epsilon, data)
        self._seeded = privacy.noise == "seeded"
        self._epsilon = privacy.epsilon * (1 - MARGIN)
        self._file: LabelFile | None = None
        if self.kept is not None:
            about = records_name(config, data), data.records, len(data.parties)
            self._file = LabelFile(self.kept, *about, names=lambda: names_of(data))

    @cached_property
    def maker(self) -> LabelMaker:
        """The mechanism that makes private labels from raw ones."""
        privacy, classes = self.config.privacy, self.data.task.outputs
        if privacy.mechanism == "randomised-response":
            made = self.secrets.child("labels").generator(0).bytes if self._seeded else None
            return RandomisedResponse(self._epsilon, classes, made or self.random_bytes)
        options = privacy.teacher
        source = self._noise
        assert options.kept is not None, "a complete configuration has it"
        about = options.components, options.kept, options.whitening, options.spread
        return Teacher(source, classes, *about, self._weights)

    @cached_property
    def _noise(self) -> NoiseSource:
        """The noise on a teacher's statistic: with rows of norm R, one label moves it by √2 R."""
        delta, clip_norm = self.config.privacy.delta, relabelled(LONGEST)
        found = guarantee.calibrate(self._epsilon, delta, clients=1, queries=1)
        noise_std = found.reply * clip_norm
        if self._seeded:
            stream = self.secrets.child("teacher")
            return SeededNoise(stream, clip_norm=LONGEST, noise_std=noise_std)
        bits = self.random_bytes
        return SecureNoise(clip_norm=LONGEST, noise_std=noise_std, random_bytes=bits)

    @cached_property
    def _releases(self) -> Releases:
        """The releases that a teacher makes of one label."""
        noise, privacy, teacher = self._noise, self.config.privacy, self.config.privacy.teacher
        assert teacher.kept is not None, "a complete configuration has it"
        inputs = min(len(self.data.parties) * teacher.components, teacher.kept) + 1
        numbers = inputs * self.data.task.outputs
        releases = Releases(
            clients=1,
            queries=1,
            reply=GaussianRelease(relabelled(LONGEST), noise.noise_std),
            grid=noise.correction(numbers) if isinstance(noise, SecureNoise) else None,
        )
        epsilon = guarantee.epsilon(releases, privacy.delta)
        assert epsilon <= (privacy.epsilon or 0.0), "room was kept for the grid"
        return releases

    @property
    def paid(self) -> Paid:
        """The guarantee that they cost; ConfigError if their file was made with another."""
        privacy = self.config.privacy
        assert privacy.epsilon is not None, "checked"
        source = "seeded (simulation only)" if self._seeded else "operating system"
        maker, mu = self.maker, None
        if isinstance(maker, RandomisedResponse):
            whole = replace(maker, epsilon=privacy.epsilon)
            delta, advantage = 0.0, whole.keep - whole.other
        else:
            releases, delta, source = self._releases, privacy.delta, self._noise.name
            advantage, mu = label_advantage.of_releases(releases), releases.known_mu
        wanted = Paid(
            mechanism=privacy.mechanism,
            epsilon=privacy.epsilon,
            delta=delta,
            label_advantage=advantage,
            mu=mu,
            source=source,
            is_secret=not self._seeded,
            counted="this run alone",
        )
        return wanted if self._file is None else self._file.paid(wanted)

    @property
    def task(self) -> Task:
        """The task on private labels, which knows how likely each was kept."""
        task, maker = self.data.task, self.maker
        if not isinstance(maker, RandomisedResponse):
            return task
        assert isinstance(task, Classification), "it was looked at"
        return NoisyLabelClassification(
            task.outputs, maker.keep, maker.other, task.positive, self._weights
        )

    @property
    def width(self) -> int:
        """Numbers that each client uploads of each record, before they can be made; 0 for none."""
        return 0 if self._file is not None and self._file.is_made else self.maker.width

    def set_apart(self, *, further: bool) -> None:
        """Make the empty file that will keep them; errors as of a `LabelFile`."""
        assert self._file is not None, "it is named"
        self._file.set_apart(self.paid, further=further)

    def make(self, labels: Tensor, rows: Tensor | None) -> Tensor:
        """Make the private labels, or read them from their file; errors as of a `LabelFile`."""
        if self._file is None:
            return self.maker.make(labels, rows)
        return self._file.labels(lambda: self.maker.make(labels, rows), self.paid)


def check_public(epsilon: float, data: VerticalData) -> None:
    """Raise ConfigError if the classes or the scale of the labels are read off the labels."""
    if not data.fitted_labels:
        return
    what, give = "classes", "data.classes"
    if isinstance(data.task, Regression):
        what, give = "scale of the labels", "data.label_range: [lowest, highest]"
    elif data.class_names is not None:
        give += f" (these are {json.dumps(data.class_names, ensure_ascii=False)})"
    raise ConfigError(
        f"privacy.epsilon is {epsilon} but the {what} of {data.name} are read off its labels, so "
        f"that no ε would hold; give {give}, provided that everybody knows them without this file"
    )


def are_protected(config: ExperimentConfig) -> bool:
    """Whether labels are protected, or would be but for the server's own training."""
    mechanism = config.privacy.mechanism
    return mechanism not in ("none", "embedding-noise") or config.is_label_free


def noted(config: ExperimentConfig, data: VerticalData) -> VerticalData:
    """Add a note to the data if nothing can be learned from its labels: one class, or no weight.

    For protected labels this is no error, since whether training starts would reveal something:
    with public classes, a single label may decide whether all are of one.

    Raises:
        DataError: nothing can be learned, and labels are not protected.
    """
    found = []
    if isinstance(data.task, Classification) and data.records:
        names = data.class_names or tuple(map(str, range(data.task.outputs)))
        first, *others = sorted(set(data.labels["train"].tolist()))
        few = "" if config.data.limit is None else f"; data.limit is {config.data.limit}"
        if not others:
            found.append(
                f"{data.name}: all {data.records} training records are of class {names[first]!r}; "
                f"training takes records of two classes at least{few}"
            )
    if data.weights is not None and not data.weights.any():
        found.append(
            f"{data.name}: the weight {config.data.weight!r} is 0 in every row; there must be at "
            "least one non-zero number"
        )
    if found and not are_protected(config):
        raise DataError(found[0])
    return replace(data, notes=(*data.notes, *found)) if found else data
