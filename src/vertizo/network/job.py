"""What a label holder needs to serve one job: its data, its party, and what is guaranteed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RefusedError
from vertizo.core.randomness import Stream
from vertizo.data import party_table
from vertizo.data.prepare import prepare
from vertizo.data.vertical import VerticalData
from vertizo.network.frames import Ready
from vertizo.network.options import ServeOptions
from vertizo.network.secrets import KeyedBytes
from vertizo.privacy.durable_ledger import DurableLedger
from vertizo.run.build_parties import check_sizes, embedding_noise, make_server
from vertizo.run.build_privacy import Charge, choice_of
from vertizo.run.coverage import statement_of
from vertizo.run.data_defaults import complete
from vertizo.run.job_state import Job
from vertizo.run.ledger_session import budget_of, charged_to, check_exact, names_of

TRIAL = "No privacy guarantee: this is a trial, in which all noise follows from a public seed."


@dataclass(frozen=True)
class Records:
    """The label holder's records."""

    data: VerticalData
    fingerprint: bytes
    """Of their keys; empty for a named data set, which has none."""

    @property
    def counts(self) -> tuple[int, int, int]:
        """For training, validation and test."""
        labels = self.data.labels
        return len(labels["train"]), len(labels["validation"]), len(labels["test"])

    def check_same(self, member: str, ready: Ready) -> None:
        """Raise RefusedError unless a member has these records, in this order."""
        theirs, ours = sum(ready.records), sum(self.counts)
        if ready.records != self.counts:
            raise RefusedError(
                f"{member} has {theirs:,} records and the label holder {ours:,}; "
                "run `vertizo align` first"
            )
        if ready.fingerprint != self.fingerprint:
            raise RefusedError(
                f"{member} has {theirs:,} records as the label holder has, but with other keys; "
                "run `vertizo align` first"
            )


def choice_seed(config: ExperimentConfig, *, trial: bool) -> int:
    """Public seed of which records validate.

    What may be charged to a ledger must give the same IDs to the same records in every job.
    """
    charged = config.privacy.ledger is not None or config.privacy.mechanism == "gaussian"
    return 0 if charged and not trial else config.seed


def records_of(config: ExperimentConfig, served: ServeOptions) -> Records:
    """The label holder's records.

    Raises:
        ConfigError, DataError: names the key, the file or the column.
    """
    stream = choice_of(choice_seed(config, trial=served.trial))
    if config.data.name == "table":
        choice = party_table.Choice(
            stream, config.data.validation, config.data.test, config.data.limit
        )
        data, fingerprint = party_table.labels(config.data, choice, served.members, served.name)
    else:
        whole = prepare(config.data, stream)
        if len(whole.parties) != len(served.members):
            raise ConfigError(
                f"data.name {config.data.name!r} is cut between {len(whole.parties)} clients but "
                f"federation.members names {len(served.members)}"
            )
        data, fingerprint = party_table.without_features(whole, served.members), b""
    check_sizes(complete(config, data), data.records)
    config.method.check(len(served.members))
    return Records(data, fingerprint)


def settings_of(config: ExperimentConfig, *, trial: bool) -> str:
    """What of a configuration all parties share, JSON; nothing that is the label holder's own.

    Args:
        config: of the run.
        trial: whether members make their noise as the simulator does, from a public seed and the
            whole configuration's digest.
    """
    chosen: dict[str, Any] = config.model_dump(
        mode="json",
        include={
            "epochs": True,
            "rounds": True,
            "batch_size": True,
            "method": True,
            "client": True,
            "codecs": True,
            "control": True,
            "server": {"embedding_bound"},
            "simulation": {"timing", "table"},
        },
    )
    data = {"validation", "limit", "test", "test_limit"}
    if config.data.name != "table":
        data = set(type(config.data).model_fields) - {"root"}
    chosen["data"] = config.data.model_dump(mode="json", include=data, exclude_none=True)
    if config.privacy.mechanism == "embedding-noise":
        keys = {"mechanism", "clip", "noise_std", "epsilon", "delta", "accounting"}
        chosen["privacy"] = config.privacy.model_dump(mode="json", include=keys, exclude_none=True)
        if trial:
            chosen["digest"] = config.digest
    if config.privacy.mechanism == "gaussian":
        chosen["noised_replies"] = True
    return json.dumps(chosen)


@contextmanager
def open_job(
    config: ExperimentConfig,
    records: Records,
    ready: Sequence[Ready],
    root: Stream,
    secret_bytes: KeyedBytes,
    *,
    folder: Path,
    is_new: bool,
    run: str,
    trial: bool,
) -> Iterator[Job]:
    """The label holder's party, charged to a ledger where a guarantee holds.

    Args:
        config: of the run.
        records: the label holder's.
        ready: what each client said of its party.
        root: of the randomness.
        secret_bytes: where noise comes from.
        folder: of the run; its ledger is there unless privacy.ledger names another.
        is_new: whether the job begins now; a ledger of its own is made then, and not later.
        run: its name in the ledger.
        trial: whether everything random follows from a public seed.

    Raises:
        ConfigError, RunError: the job cannot be served.
    """
    parties = records.data.parties
    fitted = [name for name, one in zip(parties, ready, strict=True) if one.fitted]
    data = replace(
        records.data,
        fitted=(*fitted, *records.data.fitted),
        fitted_scaling=bool(fitted) or records.data.fitted_scaling,
    )
    shared = [root.child("shared", index) for index in range(len(parties))]
    mix = any(one.mixes_records for one in ready)
    noise = embedding_noise(config, data.records)

    def made(charge: Charge | None) -> Job:
        party = make_server(
            config,
            data,
            [one.embedding_dim for one in ready],
            root.child("server"),
            shared,
            choice_of(choice_seed(config, trial=trial)),
            charge=charge,
            random_bytes=secret_bytes,
        )
        statement = statement_of(config, data, party, noise, models_mix=mix, served=True)
        if trial and (statement.noise_std is not None or noise is not None):
            statement = statement.without_guarantee(TRIAL)
        return Job(config, data, party, statement, charge is not None)

    plain = made(None)
    path = config.privacy.ledger
    if path is None and plain.statement.guarantee == "exact":
        path = folder / "ledger.sqlite"
        releases = plain.party.side.plan.releases
        assert releases is not None, "what is exact has noise"
        if is_new and not path.exists():
            DurableLedger.create(path, budget_of(releases, config, data, 1), names=names_of(data))
    if path is None:
        yield plain
        return
    check_exact(plain.statement)
    with charged_to(path, config, data, run, replays=True) as charge:
        yield made(charge)
