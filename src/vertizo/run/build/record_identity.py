"""Identities of records: their names beyond a run, and the most records that one person has.

The most records of a person are public knowledge, or counted. A count reads which
records there are, which all parties know, and never a label; of records without an identifier,
those with the same features count as one person's.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import torch

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import DataError
from vertizo.data.vertical import VerticalData
from vertizo.privacy.accounting.persons import Persons
from vertizo.privacy.ledger.register import Names

UNCOUNTED = (
    "data.records_per_person is {}, but no column of identifiers says whose records they are "
    "(data.id or data.person): they were not counted, so nothing is stated for a person of so many."
)
OWN = ("table", "frame")
"""Data sets of users' own, in which a person may have several records."""


def names_of(data: VerticalData) -> Names | None:
    """The names that identify the records; None if nothing identifies them."""
    if data.keys is None:
        return None
    return Names(
        data.keys(),
        () if data.contents is None else data.contents(),
        () if data.likeness is None else data.likeness(),
    )


def records_name(config: ExperimentConfig, data: VerticalData) -> str:
    """A name of a run's records: their data set, and a digest of how they were chosen.

    Runs with the same name give the same IDs to the same records.
    """
    apart = {"root", "parties", "split", "sizes", "columns", "label_holder", "exclude_parties"}
    apart |= {"positive", "loss", "huber_delta", "quantile", "encoding"}  # who, what and how
    # Further keys count where they are set: ledgers have outlived versions without them.
    later = {"stratify", "time", "class_weights", "class_shares"}
    later |= {"weight", "person", "records_per_person"}
    unset = {key for key in later if not getattr(config.data, key)}
    chosen = config.data.model_dump_json(exclude=apart | unset).encode()
    return f"{data.name} {blake2b(chosen, digest_size=6).hexdigest()}"


def check_persons(config: ExperimentConfig, data: VerticalData) -> None:
    """Refuse a person with more records than configured, and an identifier that repeats.

    Raises:
        DataError: names the key, the count and what would be right.
    """
    options, most = config.data, _most(data)
    if most is None:
        return
    column = f"data.person {options.person!r}" if options.person else f"data.id {options.id!r}"
    bound = options.records_per_person
    if bound is not None and most > bound:
        raise DataError(
            f"{column} names one person in {most} training records but data.records_per_person "
            f"is {bound}; raise it, or leave records out"
        )
    if most > 1 and bound is None and options.person is None and config.privacy.epsilon is not None:
        raise DataError(
            f"{column} names one record in {most} training rows, for which ε would be {most} "
            f"times one record's or more; leave copies out (data.class_weights makes a class count "
            f"more), or set data.person to {options.id!r} to have ε stated for a person"
        )


def persons_of(config: ExperimentConfig, data: VerticalData) -> Persons | None:
    """The most records of one person, and how that is known; None if nothing tells."""
    options, most = config.data, _most(data)
    if most is not None and options.records_per_person is not None:  # `check_persons` has counted
        return Persons(options.records_per_person, "data.records_per_person")
    if most is not None:
        named = f"data.id {options.id!r}"
        if options.person is not None:
            named = f"data.person {options.person!r}"
        return Persons(most, f"counted by {named}")
    if options.name not in OWN or not data.features:
        return None
    most = _alike(data)
    return Persons(most, "they have the same features") if most > 1 else None


def uncounted(config: ExperimentConfig, data: VerticalData) -> str | None:
    """A sentence if data.records_per_person is set and records cannot be counted; else None."""
    bound = config.data.records_per_person
    return None if bound is None or data.persons is not None else UNCOUNTED.format(bound)


def _most(data: VerticalData) -> int | None:
    """The most training records of one person; None if no column names persons."""
    if data.persons is None or not len(data.persons):
        return None
    return int(torch.unique(data.persons, return_counts=True)[1].max())


def _alike(data: VerticalData) -> int:
    """The most training records that have the same features at every party.

    They are compared by a hash of 64 bits: two records that share one by chance count as alike.
    """
    drawn = np.random.default_rng(0)
    hashes = np.zeros(data.records, np.uint64)
    for own in (*data.features, *([] if data.own is None else [data.own.values])):
        rows = own["train"].flatten(1).numpy()
        for column in range(rows.shape[1]):
            values = np.ascontiguousarray(rows[:, column], np.float32) + np.float32(0)  # no −0
            odd = np.uint64(drawn.integers(2**64, dtype=np.uint64)) | np.uint64(1)
            hashes += (values.view(np.uint32).astype(np.uint64) + np.uint64(1)) * odd
    return int(np.unique(hashes, return_counts=True)[1].max())
