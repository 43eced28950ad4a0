"""Building a served job: the label holder's records, its party, and what is guaranteed.

Before the first of several jobs begins, `budget_for_jobs` says what budget they need.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RefusedError
from vertizo.core.names import PRIVATE
from vertizo.core.options import Options
from vertizo.core.randomness import Stream
from vertizo.data.own_tables import party_table
from vertizo.data.prepare import prepare
from vertizo.data.record_split import ChosenRows
from vertizo.data.vertical import VerticalData
from vertizo.network.serving.frames import Ready
from vertizo.network.serving.options import NO_LEDGER, ServeConfig, ServeOptions
from vertizo.party.server import ServerParty
from vertizo.privacy.accounting.events import LedgerBudget, Releases
from vertizo.privacy.ledger.durable import SLACK, DurableLedger
from vertizo.privacy.noise.discrete_gaussian import RandomBytes
from vertizo.privacy.noise.embedding import EmbeddingStatement
from vertizo.privacy.options import ON_LABELS
from vertizo.privacy.statement import Statement
from vertizo.run.build import labels as label_checks
from vertizo.run.build.client import embedding_noise
from vertizo.run.build.coverage import statement_of
from vertizo.run.build.data_defaults import complete
from vertizo.run.build.privacy import Charge, choice_of
from vertizo.run.build.record_identity import names_of
from vertizo.run.build.schedule import check_sizes
from vertizo.run.build.server import make_server
from vertizo.run.loop.job_state import Job
from vertizo.run.loop.ledger_session import budget_of, charged_to, check_exact, check_records_free

CHARGED = ("gaussian", *ON_LABELS)
"""Mechanisms that charge what may depend on a record."""
USUAL_DIM = 16
"""Numbers of an embedding, assumed if the configuration leaves them to the members."""
TRIAL = "No privacy guarantee: this is a trial, in which all noise follows from a public seed."


@dataclass(frozen=True)
class Records:
    """The label holder's records."""

    data: VerticalData
    fingerprint: bytes
    """Fingerprint of their keys; empty for a named data set, which has none."""
    told: ChosenRows | None = None
    """Which of them train, validate and test; None if members can work it out."""

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of training, validation and test records."""
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
    """The public seed of the choice of validation records.

    It is 0 for jobs that may be charged to a ledger, which must give the same IDs to the same
    records in every job.
    """
    charged = config.privacy.ledger is not None or config.privacy.mechanism in CHARGED
    return 0 if charged and not trial else config.seed


def records_of(config: ExperimentConfig, served: ServeOptions) -> Records:
    """Load the label holder's records; ConfigError or DataError names key, file or column."""
    stream = choice_of(choice_seed(config, trial=served.trial))
    given, members = config.data, served.members
    if given.name == "table":
        choice = party_table.Choice(stream, given.validation, given.test, given.limit)
        data, fingerprint, told = party_table.labels(given, choice, members, served.name)
    else:
        whole = prepare(given, stream)
        if len(whole.parties) != len(members):
            raise ConfigError(
                f"data.name {given.name!r} is cut between {len(whole.parties)} clients but "
                f"federation.members names {len(members)}"
            )
        data, fingerprint, told = party_table.without_features(whole, members), b"", None
    data = label_checks.noted(config, data)
    check_sizes(complete(config, data), data.records)
    config.method.check(len(members))
    return Records(data, fingerprint, told)


def settings_of(config: ExperimentConfig, *, trial: bool, told: ChosenRows | None = None) -> str:
    """The settings that all parties share, as JSON, without the label holder's own ones.

    In a trial members make their noise as the simulator does, from a public seed and the whole
    configuration's digest. ``told`` says which records train, validate and test.
    """
    whole = ("epochs", "rounds", "batch_size", "method", "client", "codecs", "control")
    server = {"embedding_bound", "final_head"}
    include: dict[str, Any] = {"server": server, "simulation": {"timing", "table"}}
    chosen = config.model_dump(mode="json", include=dict.fromkeys(whole, True) | include)
    data = {"validation", "limit", "test", "test_limit"}
    if config.data.name != "table":
        data = set(type(config.data).model_fields) - {"root", "exclude_parties"}
    chosen["data"] = config.data.model_dump(mode="json", include=data, exclude_none=True)
    if config.privacy.mechanism == "embedding-noise":
        keys = {"mechanism", "clip", "noise_std", "epsilon", "delta", "accounting"}
        chosen["privacy"] = config.privacy.model_dump(mode="json", include=keys, exclude_none=True)
        if trial:
            chosen["digest"] = config.digest
    if config.privacy.mechanism == "teacher":
        keys = {"mechanism", "epsilon", "teacher"}
        chosen["privacy"] = config.privacy.model_dump(mode="json", include=keys)
    if config.privacy.mechanism == "gaussian":
        chosen["noised_replies"] = True
    if told is not None:
        chosen["rows"] = told.text
    return json.dumps(chosen)


@contextmanager
def open_job(
    config: ExperimentConfig,
    records: Records,
    ready: Sequence[Ready],
    root: Stream,
    secret_bytes: RandomBytes,
    *,
    folder: Path,
    is_new: bool,
    run: str,
    trial: bool,
) -> Iterator[Job]:
    """Make a job, with the label holder's party, charged to a ledger if a guarantee holds.

    The ledger is in the run's folder unless privacy.ledger names another file; so are private
    labels. A ledger of its own is made only while the job ``is_new``. ``run`` is the job's name in
    the ledger. ConfigError or RunError if the job cannot be served.
    """
    fitted = [n for n, one in zip(records.data.parties, ready, strict=True) if one.fitted]
    data = replace(
        records.data,
        fitted=(*fitted, *records.data.fitted),
        fitted_scaling=bool(fitted) or records.data.fitted_scaling,
    )
    mix = any(one.mixes_records for one in ready)
    noise, path = embedding_noise(config, data.records), config.privacy.ledger
    on_labels = config.privacy.mechanism in ON_LABELS

    def made(charge: Charge | None) -> Job:
        dims = [one.embedding_dim for one in ready]
        party = _make_party(
            config,
            data,
            dims,
            root,
            trial=trial,
            charge=charge,
            secret_bytes=secret_bytes,
            label_file=(path or folder / "labels") if on_labels and not trial else None,
        )
        statement = statement_of(config, data, party, noise, models_mix=mix, served=True)
        if trial and (on_labels or statement.noise_std is not None or noise is not None):
            statement = statement.without_guarantee(TRIAL)
        return Job(config, data, party, statement, charge is not None)

    plain = made(None)
    if on_labels:
        yield plain
        return
    if path is None and plain.statement.guarantee == "exact" and not config.is_label_free:
        path = folder / "ledger.sqlite"
        if is_new and not path.exists():
            budget = budget_of(_releases(plain.party), config, data, 1)
            DurableLedger.create(path, budget, names=names_of(data))
    if path is None:
        yield plain
        return
    check_exact(config, plain.statement)
    with charged_to(path, config, data, run, replays=True) as charge:
        yield made(charge)


def _make_party(
    config: ExperimentConfig,
    data: VerticalData,
    dims: Sequence[int],
    root: Stream,
    *,
    trial: bool,
    charge: Charge | None = None,
    secret_bytes: RandomBytes = os.urandom,
    label_file: Path | None = None,
) -> ServerParty:
    party = make_server(
        config,
        data,
        list(dims),
        root.child("server"),
        [root.child("shared", index) for index in range(len(dims))],
        choice_of(choice_seed(config, trial=trial)),
        charge=charge,
        random_bytes=secret_bytes,
        label_file=label_file,
    )
    party.side.notes = (*data.notes, *party.side.notes)  # a simulation tells them by themselves
    return party


def _releases(party: ServerParty) -> Releases:
    assert party.side.plan.releases is not None, "what is exact has noise"
    return party.side.plan.releases


def check_free(config: ExperimentConfig, data: VerticalData, *, trial: bool) -> None:
    """Raise RunError for a new job whose records another ledger or label file is for already.

    This check is early, so that no folder is left behind. The ledger checks once more when it is
    made, which is after all members are ready. The error names the other file.
    """
    privacy = config.privacy
    exact = privacy.mechanism == "gaussian" and privacy.accounting != "published"
    charged = exact and config.server.update in (*PRIVATE, "none") and privacy.ledger is None
    if privacy.mechanism in ON_LABELS:
        charged = privacy.ledger is None or not privacy.ledger.exists()
    if charged and not trial and not data.fitted_labels:
        check_records_free(config, data)


def charged_data(config: ServeConfig) -> VerticalData:
    """The records of jobs that are charged to a file; ConfigError for a trial, which has none."""
    if config.federation.trial:
        raise ConfigError(NO_LEDGER)
    return records_of(config.experiment(), config.federation).data


def _foreseen(config: ExperimentConfig, data: VerticalData) -> ServerParty:
    """The party of a job before members come, with a guess at the sizes of their embeddings."""
    dims = [getattr(config.client.model, "outputs", None) or USUAL_DIM] * len(data.parties)
    return _make_party(config, data, dims, Stream.from_seed(0), trial=False)


@dataclass(frozen=True)
class JobPreview:
    """Facts of a job that are known before its members come."""

    settings: str
    """The shared settings (`settings_of`), without the choice of records."""
    statement: Statement
    """The privacy statement, unless members fit their preparation to records, or mix records."""
    noise: EmbeddingStatement | None
    """The guarantee of noise that each member puts on its embeddings; None without."""


def foresee(config: ServeConfig, *, aligned: bool = True) -> JobPreview:
    """Preview a job before it is begun, without writing anything.

    Records that are not ``aligned`` yet will become fewer: then settings that follow from their
    number are left out, and charges elsewhere are looked for when the job begins. ConfigError,
    DataError or RunError if the job could not be served.
    """
    plain, served = config.experiment(), config.federation
    data = records_of(plain, served).data
    given, plain = plain, complete(plain, data)
    if aligned:
        check_free(plain, data, trial=served.trial)
    noise, party = embedding_noise(plain, data.records), _foreseen(plain, data)
    statement = statement_of(plain, data, party, noise, models_mix=False, served=True)
    settings = settings_of(plain, trial=served.trial)
    if not aligned:
        settings = json.dumps(_without(json.loads(settings), given, plain))
    return JobPreview(settings, statement, noise)


def _without(tree: dict[str, Any], given: Options, completed: Options) -> dict[str, Any]:
    """Settings without those that were filled in from the data."""
    kept = {}
    for key, value in tree.items():
        before, after = getattr(given, key, None), getattr(completed, key, None)
        if isinstance(before, Options) and isinstance(after, Options):
            kept[key] = _without(value, before, after)
        elif before == after and key not in completed.model_fields_set - given.model_fields_set:
            kept[key] = value
    return kept


def budget_for_jobs(config: ServeConfig, data: VerticalData, runs: int) -> LedgerBudget:
    """The budget that so many jobs of a label holder need, for its records (`charged_data`).

    The sizes of members' embeddings are not known yet. They change the noise on secret steps in its
    ninth digit, for which a millionth is set aside. ConfigError or DataError if the job could not
    be served, or has no exact guarantee.
    """
    plain = config.experiment()
    plain = plain.model_copy(update={"privacy": plain.privacy.model_copy(update={"ledger": None})})
    plain = complete(plain, data)
    party = _foreseen(plain, data)
    check_exact(plain, statement_of(plain, data, party, None, models_mix=False))
    releases = _releases(party)
    if releases.secret is not None:
        least = releases.secret.noise_multiplier * (1 - SLACK / 2)
        secret = replace(releases.secret, noise_multiplier=least)
        releases = replace(releases, secret=secret)
    return budget_of(releases, plain, data, runs)
