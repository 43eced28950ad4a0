"""``vertizo privacy audit``: the distinguishing game, and what the accountant says beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from vertizo.cli.console import Show, grid, live_bar, say
from vertizo.cli.options import AsJson, Settings

if TYPE_CHECKING:
    from vertizo.attacks.audit.cases import Case
    from vertizo.attacks.audit.game import Audit


def audit(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="YAML configuration. Default: a small federation with several kinds of noise."
        ),
    ] = None,
    settings: Settings = None,
    trials: Annotated[int, typer.Option(min=20, help="Trials of either label.")] = 1000,
    honest_trials: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Trials with clients that follow the protocol (slow). Default: 200, or 0 with "
            "CONFIG.",
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.9999, help="Confidence of each lower bound.")
    ] = 0.95,
    probes: Annotated[
        int, typer.Option(min=1, help="Queries about other records that measure the server.")
    ] = 12,
    record: Annotated[int, typer.Option(min=0, help="Record whose label is guessed.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure what clients can learn about a label, beside the accountant's bound."""
    if honest_trials is None:
        honest_trials = 200 if config is None else 0
    is_small = config is None and not settings
    chosen = None
    if not is_small:
        from vertizo.config import schema

        chosen = schema.load(config, settings or [])
    from vertizo.attacks.audit.cases import configured_cases, small_cases

    cases = (
        small_cases(trials, honest_trials, probes, record)
        if chosen is None
        else configured_cases(chosen, trials, honest_trials, probes, record)
    )
    found = [_played(case, confidence) for case in cases]
    if as_json:
        print(json.dumps([one.as_dict() for one in found]))
    else:
        _show(found, is_small)


def _played(case: Case, confidence: float) -> Audit:
    from vertizo.attacks.audit.game import audit as play

    with live_bar(Console(stderr=True), case.title) as show:
        return play(
            case.setting,
            case.adversary(case.setting),
            trials=case.trials,
            confidence=confidence,
            title=case.title,
            progress=_reporting(show, case),
        )


def _reporting(show: Show | None, case: Case) -> Callable[[int], None] | None:
    """A game's trials on a bar, where there is one."""
    if show is None:
        return None
    return lambda played: show(played / (2 * case.trials), case.title)


def _show(found: Sequence[Audit], is_small: bool) -> None:
    from vertizo.attacks.audit.table import lines, notes, title

    headings, *rows = lines(found)
    table = grid(headings, rows, title(found, is_small))
    table.columns[1].justify = "left"
    Console().print(table)
    say(notes(found))
