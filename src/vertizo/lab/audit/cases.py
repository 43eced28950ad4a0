"""The games of ``vertizo privacy audit``: pairs of a server and an adversary that plays it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from vertizo.config.schema import ExperimentConfig
from vertizo.core.names import PRIVATE
from vertizo.lab.audit import small
from vertizo.lab.audit.adversaries import (
    Adversary,
    CraftedTangents,
    FinalModel,
    Honest,
    Malicious,
    Measuring,
    SeesRelease,
)
from vertizo.lab.audit.setting import Setting
from vertizo.methods.directional_queries import AlongDirections
from vertizo.privacy.options import ON_LABELS
from vertizo.run.experiment import Experiment

ALONG = ("tangent", "label-statistic")
"""Methods that ask along directions."""
Player = Callable[[Setting], Adversary]


@dataclass(frozen=True)
class Case:
    """One game, which is one line of the audit's table."""

    title: str
    setting: Setting
    adversary: Player
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
    servers: list[tuple[str, ExperimentConfig, tuple[Player, ...]]] = [
        ("published noise", small.config("published"), (Malicious, Honest)),
        ("exact plan", small.config("exact"), (Malicious, Honest)),
        ("raw-label server", small.config("exact", update="sgd"), (Malicious, measuring)),
        *(
            (f"{update} server", small.config("exact", update=update), (measuring, FinalModel))
            for update in PRIVATE
        ),
        *((name, small.along(name), (CraftedTangents,)) for name in ALONG),
        *((mechanism, small.on_labels(mechanism), (SeesRelease,)) for mechanism in ON_LABELS),
    ]
    found = []
    for title, config, players in servers:
        found += _cases(title, Setting(config, data, record), players, trials, honest_trials)
    return found


def _cases(
    title: str, setting: Setting, players: Sequence[Player], trials: int, honest_trials: int
) -> list[Case]:
    amounts = ((player, honest_trials if player is Honest else trials) for player in players)
    return [Case(title, setting, player, amount) for player, amount in amounts if amount]


def configured_cases(
    config: ExperimentConfig, trials: int, honest_trials: int, probes: int, record: int
) -> list[Case]:
    """List the games on one configuration; arguments as of `small_cases`, errors of `Setting`."""
    torch.set_num_threads(config.threads)
    setting = Setting(config, Experiment(config).data(), record)
    update, is_trained = config.server.update, config.server.update != "none"
    title = f"{update if is_trained else 'frozen'} server"
    players: list[Player] = [FinalModel] if is_trained else []
    if config.privacy.mechanism in ON_LABELS:
        title, players = config.privacy.mechanism, [SeesRelease]
    elif isinstance(setting.config.method, AlongDirections):
        players = [CraftedTangents, *players]
    elif is_trained and probes:
        players = [Malicious, partial(Measuring, probes=probes), *players, Honest]
    else:
        players = [Malicious, Honest]
    return _cases(title, setting, players, trials, honest_trials)
