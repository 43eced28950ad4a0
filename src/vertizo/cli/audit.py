"""``vertizo privacy audit``: the distinguishing game, and what the accountant says beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from vertizo.attacks.audit import small
from vertizo.attacks.audit.adversaries import Adversary, Honest, Malicious, Measuring
from vertizo.attacks.audit.final_model import FinalModel
from vertizo.attacks.audit.game import Audit
from vertizo.attacks.audit.game import audit as play
from vertizo.attacks.audit.setting import Setting
from vertizo.cli.bar import Show, live_bar
from vertizo.config import schema as configuration
from vertizo.core.names import PRIVATE
from vertizo.run.experiment import Experiment


@dataclass(frozen=True)
class _Case:
    """One line of the table."""

    title: str
    setting: Setting
    adversary: Callable[[Setting], Adversary]
    trials: int


def audit(
    path: Path | None,
    settings: Sequence[str],
    *,
    trials: int,
    honest_trials: int,
    confidence: float,
    probes: int,
    record: int,
    as_json: bool,
) -> None:
    """Play the game on one configuration, or on a small federation with several kinds of noise.

    Args:
        path: of a configuration; None for the small federation.
        settings: ``key=value`` overrides.
        trials: of either label, by malicious clients.
        honest_trials: of either label, by clients that follow the protocol; 0 to leave them out.
        confidence: of each bound.
        probes: queries about other records that measure the server model, at most.
        record: whose label is told apart.
        as_json: print figures as JSON.

    Raises:
        UserError: one line that says what is wrong.
    """
    if path is None and not settings:
        torch.set_num_threads(1)
        cases = _small(trials, honest_trials, probes, record)
    else:
        cases = _configured(path, settings, trials, honest_trials, probes, record)
    found = [_played(case, confidence, Console(stderr=True)) for case in cases]
    if as_json:
        print(json.dumps([one.as_dict() for one in found]))
        return
    _show(found, path is None and not settings)


def _small(trials: int, honest_trials: int, probes: int, record: int) -> list[_Case]:
    """Noise by the published formula, exact noise, a server on raw labels, and private ones."""
    data = small.data()
    published, exact, raw = (
        Setting(small.config("published"), data, record),
        Setting(small.config("exact"), data, record),
        Setting(small.config("exact", update="sgd"), data, record),
    )
    cases = [
        _Case("published noise", published, Malicious, trials),
        _Case("published noise", published, Honest, honest_trials),
        _Case("exact plan", exact, Malicious, trials),
        _Case("exact plan", exact, Honest, honest_trials),
        _Case("raw-label server", raw, Malicious, trials),
        _Case("raw-label server", raw, lambda setting: Measuring(setting, probes), trials),
    ]
    for update in PRIVATE:
        trained = Setting(small.config("exact", update=update), data, record)
        cases += [
            _Case(f"{update} server", trained, lambda s: Measuring(s, probes), trials),
            _Case(f"{update} server", trained, FinalModel, trials),
        ]
    return [case for case in cases if case.trials]


def _configured(
    path: Path | None,
    settings: Sequence[str],
    trials: int,
    honest_trials: int,
    probes: int,
    record: int,
) -> list[_Case]:
    config = configuration.load(path, settings)
    torch.set_num_threads(config.threads)
    setting = Setting(config, Experiment(config).data(), record)
    title = config.server.update if config.server.update != "none" else "frozen"
    cases = [_Case(f"{title} server", setting, Malicious, trials)]
    if config.server.update != "none" and probes:
        measuring = _Case(
            f"{title} server", setting, lambda setting: Measuring(setting, probes), trials
        )
        cases += [measuring, _Case(f"{title} server", setting, FinalModel, trials)]
    cases.append(_Case(f"{title} server", setting, Honest, honest_trials))
    return [case for case in cases if case.trials]


def _played(case: _Case, confidence: float, console: Console) -> Audit:
    with live_bar(console, case.title) as show:
        return play(
            case.setting,
            case.adversary(case.setting),
            trials=case.trials,
            confidence=confidence,
            title=case.title,
            progress=_reporting(show, case),
        )


def _reporting(show: Show | None, case: _Case) -> Callable[[int], None] | None:
    """A game's trials on a bar, where there is one."""
    if show is None:
        return None
    return lambda played: show(played / (2 * case.trials), case.title)


def _show(found: Sequence[Audit], is_small: bool) -> None:
    console = Console()
    delta = found[0].bound.delta
    where = ""
    if is_small:
        where = f"{small.RECORDS} records, batches of {small.BATCH}, {small.CLIENTS} clients, "
        where += f"{small.EPOCHS} epochs, "
    table = Table(title=f"ε at δ = {delta:g}: {where}one label flipped", title_style="bold")
    table.add_column("server")
    table.add_column("clients")
    headings = ("trials", "claimed", "measured ≥", "exact ≤", "replies ≤")
    for heading in headings:
        table.add_column(heading, justify="right")
    for one in found:
        table.add_row(
            one.title,
            one.adversary,
            f"{one.bound.trials:,}",
            _figure(one.epsilon_claimed),
            f"{one.bound.epsilon:.3g}",
            _figure(one.epsilon_exact, "no bound"),
            _figure(one.epsilon_replies, "no bound"),
        )
    console.print(table)
    for line in _notes(found):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _notes(found: Sequence[Audit]) -> Iterator[str]:
    confidence = found[0].bound.confidence
    yield (
        f"trials: of either label. measured ≥: each figure holds with {100 * confidence:g} % "
        "confidence. The clients collude, "
        "know everything but this label, and know the server model's first parameters."
    )
    yield (
        "A figure near 0 shows nothing: a bound from so many trials misses what is small, and what "
        "other clients might do."
    )
    for one in found:
        if one.refutes_accountant:
            yield (
                f"{one.title}, {one.adversary}: more was measured than the accountant allows. The "
                "server or its accounting is wrong, unless this is one of the "
                f"{100 * (1 - confidence):g} % of audits that err."
            )
        elif one.refutes_claim:
            yield f"{one.title}, {one.adversary}: more was measured than is claimed."


def _figure(epsilon: float | None, otherwise: str = "-") -> str:
    return otherwise if epsilon is None else f"{epsilon:.4g}"
