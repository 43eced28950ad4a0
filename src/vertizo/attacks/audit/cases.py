"""The games of ``vertizo privacy audit``: which adversaries play against which servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vertizo.attacks.audit import small
from vertizo.attacks.audit.adversaries import Adversary, Honest, Malicious, Measuring
from vertizo.attacks.audit.final_model import FinalModel
from vertizo.attacks.audit.setting import Setting
from vertizo.config.schema import ExperimentConfig
from vertizo.core.names import PRIVATE
from vertizo.run.experiment import Experiment


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    title: str
    setting: Setting
    adversary: Callable[[Setting], Adversary]
    trials: int
    """Of either label."""


def small_cases(trials: int, honest_trials: int, probes: int, record: int) -> list[Case]:
    """Noise by the published formula, exact noise, a server on raw labels, and private ones.

    Args:
        trials: of either label, by malicious clients.
        honest_trials: of either label, by clients that follow the protocol; 0 for none.
        probes: queries about other records that measure the server model, at most.
        record: whose label is guessed.
    """
    torch.set_num_threads(1)
    data = small.data()
    published, exact, raw = (
        Setting(small.config("published"), data, record),
        Setting(small.config("exact"), data, record),
        Setting(small.config("exact", update="sgd"), data, record),
    )

    def measuring(setting: Setting) -> Adversary:
        return Measuring(setting, probes)

    cases = [
        Case("published noise", published, Malicious, trials),
        Case("published noise", published, Honest, honest_trials),
        Case("exact plan", exact, Malicious, trials),
        Case("exact plan", exact, Honest, honest_trials),
        Case("raw-label server", raw, Malicious, trials),
        Case("raw-label server", raw, measuring, trials),
    ]
    for update in PRIVATE:
        trained = Setting(small.config("exact", update=update), data, record)
        cases += [
            Case(f"{update} server", trained, measuring, trials),
            Case(f"{update} server", trained, FinalModel, trials),
        ]
    return [case for case in cases if case.trials]


def configured_cases(
    config: ExperimentConfig, trials: int, honest_trials: int, probes: int, record: int
) -> list[Case]:
    """The games on one configuration; arguments as of `small_cases`.

    Raises:
        UserError: the configuration cannot be audited.
    """
    torch.set_num_threads(config.threads)
    setting = Setting(config, Experiment(config).data(), record)
    update = config.server.update
    title = f"{update if update != 'none' else 'frozen'} server"
    cases = [Case(title, setting, Malicious, trials)]
    if update != "none" and probes:
        cases += [
            Case(title, setting, lambda setting: Measuring(setting, probes), trials),
            Case(title, setting, FinalModel, trials),
        ]
    cases.append(Case(title, setting, Honest, honest_trials))
    return [case for case in cases if case.trials]
