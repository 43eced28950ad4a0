"""What the records of a run are called where something is kept about them beyond the run."""

from __future__ import annotations

from hashlib import blake2b

from vertizo.config.schema import ExperimentConfig
from vertizo.data.vertical import VerticalData
from vertizo.privacy.ledger_register import Names


def names_of(data: VerticalData) -> Names | None:
    """What tells the records apart; None where nothing does."""
    if data.keys is None:
        return None
    return Names(
        data.keys(),
        () if data.contents is None else data.contents(),
        () if data.likeness is None else data.likeness(),
    )


def records_name(config: ExperimentConfig, data: VerticalData) -> str:
    """Their data set, and how they were chosen.

    Runs of one name give the same IDs to the same records.
    """
    apart = {"root", "parties", "split", "sizes", "columns", "label_holder", "without"}
    apart |= {"positive", "loss", "huber_delta", "quantile", "encoding"}  # who, what and how
    # Further keys count where they are set: ledgers have outlived versions without them.
    later = {"stratify", "time", "class_weights", "class_shares"}
    later |= {"weight", "person", "records_per_person"}
    unset = {key for key in later if not getattr(config.data, key)}
    chosen = config.data.model_dump_json(exclude=apart | unset).encode()
    return f"{data.name} {blake2b(chosen, digest_size=6).hexdigest()}"
