"""Graphics cards that runs take turns on: a number of runs on each at a time."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from vertizo.config.schema import ExperimentConfig

RUNS_PER_CARD = 1
"""Default of ``--runs-per-card``: a run finds the whole of a card's memory."""


def places(of: Iterable[Any], runs_per_card: int = RUNS_PER_CARD) -> tuple[int, ...]:
    """The card of each run that may go on at a time, all cards in turn; empty for no limit.

    ``of`` are configurations, or anything else, which needs no card. There is no limit where none
    of them uses a card, nor where there is none: each run says so.
    """
    if not any(isinstance(each, ExperimentConfig) and uses_card(each) for each in of):
        return ()
    import torch

    return tuple(range(torch.cuda.device_count())) * runs_per_card


def uses_card(config: ExperimentConfig) -> bool:
    """Whether any party of a run is on a card."""
    return "cuda" in (config.device, config.client.device, config.server.device)


@contextmanager
def taken(card: int | None) -> Iterator[None]:
    """Work on a card inside the block, and leave its memory to others; None for no card."""
    if card is None:
        yield
        return
    import torch

    torch.cuda.set_device(card)
    try:
        yield
    finally:
        gc.collect()  # parties and their graphs refer to each other
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()  # the next call's is its own
