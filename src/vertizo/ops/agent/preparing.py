"""Preparing a job: from the file that a label holder submits to a job in its store.

Everything that can be wrong at the label holder is found here, before members are asked: the file,
the policy, the table, the method, and what the job would guarantee.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from pydantic import ValidationError

from vertizo.config.error_lines import explain
from vertizo.core import system
from vertizo.core.errors import ConfigError, RefusedError, RunError
from vertizo.network.serving.options import ServeConfig
from vertizo.ops.agent import processes
from vertizo.ops.agent.jobs.messages import LARGEST_SETTINGS, Offer
from vertizo.ops.agent.jobs.store import Store
from vertizo.ops.agent.options import Cover, JobOptions, LabelHolderAgent, load_job
from vertizo.ops.agent.policy import check_label_holder
from vertizo.ops.scoring.callers import KnownCallers
from vertizo.run.results import checkpoint


def submit(
    path: Path, config: LabelHolderAgent, store: Store, overrides: Sequence[str] = ()
) -> Offer:
    """Check a job's file, write its configuration and command, and add it to the store.

    Raises:
        ConfigError, DataError, RunError: one line on what is wrong; nothing was written.
    """
    job, tree = load_job(path, overrides)
    with _one_at_a_time(store):
        name = job.name or _free_name(store, job.kind)
        if store.job(name) is not None:
            raise RunError(f"there is a job {name!r} already; name another one as job.name")
        plain = Offer(
            job=name,
            kind=job.kind,
            members=tuple(job.members),
            table=job.table,
            alignment=job.alignment or "",
            model=job.model or "",
            method=job.method,
        )
        _check_allowed(path, plain, config, store, is_prepared=False)
        _check_after(path, job, store)
        offer, ledger, begun = _made(path, job, plain, tree, config, store)
        _check_allowed(path, offer, config, store, is_prepared=True)
        folder = store.folder_of(name)
        if folder.exists():  # of a submission that was killed
            shutil.rmtree(folder)
        processes.write(folder, *begun)
        store.add(offer, "submitted", ledger, job.after or "")
    return offer


def _one_at_a_time(store: Store) -> Any:
    """Lock the store's file of submissions; the lock lasts until the file is closed."""
    with checkpoint.telling(f"{store.folder} cannot be used"):
        handle = os.open(store.folder / "submit.lock", os.O_CREAT | os.O_RDWR, 0o600)
    system.lock(handle, wait=True)
    return os.fdopen(handle)


def _free_name(store: Store, kind: str) -> str:
    taken = {job.name for job in store.jobs()}
    return next(name for n in count(1) if (name := f"{kind}-{n}") not in taken)


def _check_allowed(
    path: Path, offer: Offer, config: LabelHolderAgent, store: Store, is_prepared: bool
) -> None:
    try:
        check_label_holder(offer, config, store, is_prepared)
    except RefusedError as error:
        raise ConfigError(f"{path}: {error}") from None


def _check_after(path: Path, job: JobOptions, store: Store) -> None:
    if job.after is None:
        return
    earlier = store.job(job.after)
    if earlier is None:
        raise ConfigError(f"{path}: job.after is {job.after!r}; there is no job {job.after!r}")
    if earlier.is_over and earlier.state != "finished":
        raise ConfigError(
            f"{path}: job.after is {job.after!r}, which is {earlier.state}; it must have finished"
        )


def _made(
    path: Path,
    job: JobOptions,
    plain: Offer,
    tree: dict[str, Any],
    config: LabelHolderAgent,
    store: Store,
) -> tuple[Offer, str, tuple[dict[str, Any], list[str]]]:
    """Make the offer, the path of a shared ledger (or empty), and configuration and command."""
    begun = processes.as_label_holder(config, plain, tree, store, job.head)
    try:
        served = ServeConfig.model_validate(begun[0])
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, ServeConfig)}") from None
    if served.scoring is not None and served.scoring.callers is not None:
        KnownCallers(served.scoring.callers)
    if job.kind != "train":
        return plain, "", begun
    from vertizo.network.serving.job import foresee

    aligned = store.job(plain.alignment) if plain.alignment else None
    waits = aligned is not None and aligned.state != "finished"
    if waits:  # how many records there will be is not known: all of the table stand for them
        whole = {"data": {**begun[0]["data"], "path": config.tables[plain.table]["path"]}}
        known = foresee(ServeConfig.model_validate({**begun[0], **whole}), aligned=False)
    else:
        known = foresee(served)
    if len(known.settings) > LARGEST_SETTINGS:
        raise ConfigError(
            f"{path}: the settings have {len(known.settings):,} characters; agents offer "
            f"{LARGEST_SETTINGS:,} at most"
        )
    covers: list[Cover] = []
    epsilons: list[tuple[float, float]] = []
    statement, noise = known.statement, known.noise
    if statement.guarantee == "exact" and "labels" in statement.covers:
        covers.append("labels")
        if statement.epsilon is not None and statement.delta is not None:
            epsilons.append((statement.epsilon, statement.delta))
    if noise is not None and served.privacy.accounting != "published":
        covers.append("features")
        epsilons.append((noise.epsilon, noise.delta))
    epsilon, delta = max(epsilons, default=(None, None))
    if waits and epsilon is not None and not served.is_label_free:  # whose ε is 0 for any number
        wanted = served.privacy.epsilon  # to which noise is calibrated, however many are aligned
        if wanted is None:
            raise ConfigError(
                f"{path}: privacy.epsilon is not set, and {plain.alignment!r} has not finished: "
                "what ε the noise comes to depends on the records that it leaves; set it, or "
                "submit later"
            )
        epsilon = max(wanted, epsilon)
    offer = replace(
        plain, settings=known.settings, covers=tuple(covers), epsilon=epsilon, delta=delta
    )
    ledger = served.privacy.ledger
    if ledger is not None:
        begun[0]["privacy"]["ledger"] = str(ledger.expanduser().absolute())
    return offer, "" if ledger is None else str(ledger.expanduser().resolve()), begun
