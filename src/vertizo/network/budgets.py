"""Whose budget a label holder's jobs are charged to: before the first of them begins."""

from __future__ import annotations

from dataclasses import replace

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.core.names import PRIVATE
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.network.job import choice_seed, records_of
from vertizo.network.options import ServeConfig
from vertizo.privacy.durable_ledger import SLACK
from vertizo.privacy.events import LedgerBudget
from vertizo.privacy.ledger_witness import Register
from vertizo.run.build_parties import make_server
from vertizo.run.build_privacy import choice_of
from vertizo.run.coverage import statement_of
from vertizo.run.data_defaults import complete
from vertizo.run.ledger_session import budget_of, check_exact, names_of

USUAL_DIM = 16
"""Numbers of an embedding, where the configuration leaves them to the members."""


def check_free(config: ExperimentConfig, data: VerticalData, *, trial: bool) -> None:
    """Refuse a new job that would get a ledger of its own for records that another one is for.

    So early that it leaves no folder behind. Once the members are ready, making the ledger checks
    it again.

    Raises:
        RunError: names the ledger, and says what to do.
    """
    privacy = config.privacy
    exact = privacy.mechanism == "gaussian" and privacy.accounting != "published"
    charged = exact and config.server.update in (*PRIVATE, "none") and not data.fitted_labels
    names = None if trial or not charged or privacy.ledger is not None else names_of(data)
    if names is None:
        return
    register = Register()
    with register.locked():
        register.forget_unused()
        register.check_free(names)


def budget_for_jobs(config: ServeConfig, runs: int) -> tuple[LedgerBudget, VerticalData]:
    """The budget that so many jobs of a label holder need, and its records.

    How long members' embeddings are is not known before they come. It shows in the ninth digit of
    the noise on secret steps, for which a millionth is set aside.

    Raises:
        ConfigError, DataError: the job could not be served, or has no exact guarantee.
    """
    served = config.federation
    if served.trial:
        raise ConfigError(
            "federation.trial makes all noise from a public seed; no ledger is for that"
        )
    plain = config.experiment()
    plain = plain.model_copy(update={"privacy": plain.privacy.model_copy(update={"ledger": None})})
    records = records_of(plain, served)
    data, plain = records.data, complete(plain, records.data)
    dims = [getattr(plain.client.model, "outputs", None) or USUAL_DIM] * len(served.members)
    root = Stream.from_seed(0)
    party = make_server(
        plain,
        data,
        dims,
        root.child("server"),
        [root.child("shared", index) for index in range(len(dims))],
        choice_of(choice_seed(plain, trial=False)),
    )
    check_exact(statement_of(plain, data, party, None, models_mix=False))
    releases = party.side.plan.releases
    assert releases is not None, "what is exact has noise"
    if releases.secret is not None:
        least = releases.secret.noise_multiplier * (1 - SLACK / 2)
        secret = replace(releases.secret, noise_multiplier=least)
        releases = replace(releases, secret=secret)
    return budget_of(releases, plain, data, runs), data
