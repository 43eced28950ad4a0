"""Adversary of the audit that sees the release behind private labels.

Training reveals nothing beyond that release. Under randomised response it is the target's own
private label. Under a teacher it is each class's noised sum; all clients upload the embeddings that
reveal the target's label best, which put the target far from all others.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from vertizo.core.errors import ConfigError
from vertizo.lab.audit.setting import Setting, World
from vertizo.privacy.labels.private_labels import Teacher
from vertizo.run.build.labels import PrivateLabels

FAR = 1e5
"""Value of the target in the uploads, where other records are at 0."""


class SeesRelease:
    """An adversary whose statistic is how far the release favours one label over the other."""

    name = "sees the release"
    statistic = "what speaks for one label, less what speaks for the other"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        if setting.reference.server.private_labels is None:
            raise ConfigError("privacy.mechanism makes no labels private; the audit takes one")

    def observe(self, world: World, seed: int) -> NDArray[np.float64]:
        """Make the private labels in that world; return the statistic of their release, [1]."""
        setting, first_and_second = self._setting, [int(label) for label in self._setting.labels]
        server = setting.federation(world, seed).server
        source, labels = server.private_labels, server.labels["train"]
        assert isinstance(source, PrivateLabels), "of a run"
        if isinstance(source.maker, Teacher):
            rows = torch.zeros(len(labels), source.maker.width * len(setting.data.parties))
            rows[setting.record, 0] = FAR
            inputs = source.maker.inputs(rows)
            released = source.maker.released(labels, inputs)[:, first_and_second]
            spoken = inputs[setting.record] @ released
        else:
            own = int(source.make(labels, None)[setting.record])
            spoken = torch.tensor([float(own == label) for label in first_and_second])
        return np.array([float(spoken[1] - spoken[0])])
