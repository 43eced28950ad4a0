"""The games of ``vertizo privacy audit``: pairs of a server and an adversary that plays it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from vertizo.config.schema import ExperimentConfig
from vertizo.core.names import PRIVATE
from vertizo.lab.audit import small
from vertizo.lab.audit.adversaries import Adversary, Honest, Malicious, Measuring, SeesRelease
from vertizo.lab.audit.along import CraftedTangents
from vertizo.lab.audit.final_model import FinalModel
from vertizo.lab.audit.setting import Setting
from vertizo.methods.directional_queries import AlongDirections
from vertizo.privacy.options import ON_LABELS
from vertizo.run.experiment import Experiment

ALONG = ("tangent", "label-statistic")
"""Methods that ask along directions."""


@dataclass(frozen=True)
class Case:
    """One game, which is one line of the audit's table."""

    title: str
    setting: Setting
    adversary: Callable[[Setting], Adversary]
    trials: int
    """Number of trials of either label."""


def small_cases(trials: int, honest_trials: int, probes: int, record: int) -> list[Case]:
    """List the games on the small federation: with each kind of noise, server and mechanism.

    Args:
        trials: trials of either label by malicious clients.
        honest_trials: trials of either label by clients that follow the protocol; 0 for none.
        probes: largest number of queries about other records that measure the server model.
        record: ID of the record whose label is guessed.
    """
    torch.set_num_threads(1)
    data, measuring = small.data(), partial(Measuring, probes=probes)
    servers: list[tuple[str, ExperimentConfig, list[Callable[[Setting], Adversary]]]] = [
        ("published noise", small.config("published"), [Malicious, Honest]),
        ("exact plan", small.config("exact"), [Malicious, Honest]),
        ("raw-label server", small.config("exact", update="sgd"), [Malicious, measuring]),
    ]
    for update in PRIVATE:
        config = small.config("exact", update=update)
        servers.append((f"{update} server", config, [measuring, FinalModel]))
    for name in ALONG:
        servers.append((name, small.along(name), [CraftedTangents]))
    for mechanism in ON_LABELS:
        servers.append((mechanism, small.on_labels(mechanism), [SeesRelease]))
    found = []
    for title, config, players in servers:
        setting = Setting(config, data, record)
        for player in players:
            found.append(
                Case(title, setting, player, honest_trials if player is Honest else trials)
            )
    return [case for case in found if case.trials]


def configured_cases(
    config: ExperimentConfig, trials: int, honest_trials: int, probes: int, record: int
) -> list[Case]:
    """List the games on one configuration; arguments as of `small_cases`.

    Raises:
        UserError: the configuration cannot be audited.
    """
    torch.set_num_threads(config.threads)
    setting = Setting(config, Experiment(config).data(), record)
    if config.privacy.mechanism in ON_LABELS:
        return [Case(config.privacy.mechanism, setting, SeesRelease, trials)]
    update = config.server.update
    title = f"{update if update != 'none' else 'frozen'} server"
    if isinstance(setting.config.method, AlongDirections):
        players = [CraftedTangents, *([FinalModel] if update != "none" else [])]
        return [Case(title, setting, player, trials) for player in players]
    cases = [Case(title, setting, Malicious, trials)]
    if update != "none" and probes:
        cases += [
            Case(title, setting, partial(Measuring, probes=probes), trials),
            Case(title, setting, FinalModel, trials),
        ]
    cases.append(Case(title, setting, Honest, honest_trials))
    return [case for case in cases if case.trials]
