"""The privacy statement of a run: what is covered, what that assumes, or why nothing is."""

from __future__ import annotations

from dataclasses import replace

from vertizo.config.architectures import TableConfig
from vertizo.config.schema import ExperimentConfig
from vertizo.config.sections.optimizer import GivenConfig
from vertizo.data.datasets.catalog import CATALOG
from vertizo.data.vertical import VerticalData
from vertizo.methods.choice import METHODS
from vertizo.party.server import ServerParty
from vertizo.privacy.accounting.persons import of_person
from vertizo.privacy.noise.embedding import EmbeddingStatement
from vertizo.privacy.options import ON_LABELS
from vertizo.privacy.statement import Statement, of_large_delta
from vertizo.protocol.codecs.catalog import CODECS
from vertizo.run.build import label_free
from vertizo.run.build.models import Foreign
from vertizo.run.build.record_identity import persons_of, uncounted
from vertizo.run.build.schedule import chooses_best

FEATURES = "each client's features against the other clients"
FITTED_LABELS = (
    "No privacy guarantee: what the task is, its classes, or the mean and spread that labels are "
    "scaled by were read off the labels, and every reply depends on it; data.classes, or "
    "data.task and data.label_range, give public knowledge instead."
)
STRATIFIED = (
    "data.stratify read the labels to choose who trains, and every client sees who does: nothing "
    "that is said here covers that."
)
UNDECLARED = (
    "No privacy guarantee: the method does not declare what it releases of a record "
    "(Method.releases_per_query)."
)
METHOD_HOLDS = (
    "makes what it releases of a record from that record alone, as often as it declares "
    "(releases_per_query, mixes_features, fits)"
)
CODEC_HOLDS = "codes each record by itself, as it declares (mixes_records)"
DATA_HOLD = (
    "takes classes, the scale of labels and the preparation of features from public knowledge, as "
    "it declares (fitted_labels, fitted_scaling)"
)
MODEL_HOLDS = "keeps nothing outside itself: it is evaluated on one record at a time"
"""See `vertizo.models.recordwise`."""
REGULARIZER_HOLDS = "reads nothing but the parameters that it is given"
MEMBERS_OWN = (
    "each member's client.model, where it is code of the member's own, treats each record by "
    "itself, and its client.optimizer.regularizer reads nothing but parameters"
)
"""Over a network a member chooses both by itself, and does not say what they are."""


def statement_of(
    config: ExperimentConfig,
    data: VerticalData,
    server: ServerParty,
    noise: EmbeddingStatement | None,
    *,
    models_mix: bool,
    served: bool = False,
) -> Statement:
    """The privacy statement of a run, for a record, and for a person if records say whose they are.

    ``noise`` is the guarantee of noise on the clients' embeddings. ``models_mix``: some client's
    model computes a record's embedding from other records too. ``served``: clients are other
    parties, who choose their models.
    """
    side, covers = server.side, _covers(config, data, models_mix)
    if config.is_label_free:
        statement = label_free.statement(data.records, covers).assuming(_of_data(config))
        if data.fitted_labels:
            statement = statement.without_guarantee(label_free.FITTED)
    elif config.privacy.mechanism in ON_LABELS:  # made of each label alone, whatever models do
        statement = side.plan.statement(server_is_private=False, records=data.records)
        statement = statement.assuming(_of_data(config))
    else:
        statement = side.plan.statement(
            server_is_private=side.update.is_private, covers=covers, records=data.records
        )
        if data.fitted_labels and side.plan.releases is not None:
            statement = statement.without_guarantee(FITTED_LABELS)
        if side.method.releases_per_query is None and side.plan.releases is not None:
            statement = statement.without_guarantee(UNDECLARED)
        if noise is not None:
            statement = replace(statement, words=noise.words())
        statement = statement.assuming(assumptions(config, data, covers, served=served))
    if statement.is_bounded and not config.is_label_free:
        if words := uncounted(config, data):
            statement = replace(statement, words=f"{statement.words} {words}")
        if (persons := persons_of(config, data)) is not None:
            statement = of_person(statement, side.plan.releases, persons)
    if config.data.stratify:
        statement = statement.without_guarantee(f"No privacy guarantee for labels: {STRATIFIED}")
        if noise is not None:
            statement = replace(statement, words=f"{noise.words()} {STRATIFIED}")
    if config.data.time is not None:
        statement = replace(statement, words=f"{statement.words} {by_time(config.data.time)}")
    if statement.is_bounded and (words := of_large_delta(statement.delta or 0.0, data.records)):
        statement = replace(statement, words=f"{statement.words} {words}")
    return statement


def by_time(column: str) -> str:
    """A sentence on what a choice of records by time reveals."""
    return (
        f"Which records test, validate and train follows from the column {column!r} (data.time): "
        "every party learns which are the newest, and that is not covered."
    )


def _covers(config: ExperimentConfig, data: VerticalData, models_mix: bool) -> tuple[str, ...]:
    """The parts of a training record that reach clients through the server's noise alone.

    Defined in docs/mathematics.md, What is guaranteed. The label always does. Features do unless
    something carries them into the messages about other records: statistics of the training records
    that prepare columns, gradients, codes whose scale spans several records, a column that chooses
    records, or the number of the best model where clients fit theirs to their own features. Where
    clients are sent nothing, only a column that chooses records does so.
    """
    things, silent = ["labels"], config.is_label_free
    chooses = {p for p, own in (config.data.columns or {}).items() if config.data.time in own}
    told = chooses if silent else chooses | set(data.fitted)
    reads_own = config.server.reads_own  # else nothing that is computed from it leaves
    if data.own is not None and isinstance(config.server.encoder, TableConfig) and not silent:
        told.add(data.own.name)  # its bins lie between quantiles of all training records
    if data.own is not None and data.own.name not in (told if reads_own else chooses):
        things.append("the label holder's columns")
    mixes = models_mix or config.method.mixes_features or config.codecs.up.mixes_records
    mixes |= config.method.fits_features and chooses_best(config, data)
    if (silent or not mixes) and not set(data.parties) & told and len(data.parties) > 1:
        things.append(FEATURES)
    return tuple(things)


def _of_data(config: ExperimentConfig) -> tuple[str, ...]:
    """Assumptions on how a user's own data set uses labels; empty for the known data sets.

    Features that were prepared by labels would carry these past any noise.
    """
    name = config.data.name
    return () if name in (*CATALOG, "frame") else (f"data.name ({name}) {DATA_HOLD}",)


def assumptions(
    config: ExperimentConfig, data: VerticalData, covers: tuple[str, ...], *, served: bool
) -> tuple[str, ...]:
    """Assumptions of a guarantee on the user's own code, which nobody can prove.

    Methods, data sets and the server's models decide about everything that is covered; a client's
    model and codec decide about features alone.
    """
    client, server, method, up = config.client, config.server, config.method.name, config.codecs.up
    features = FEATURES in covers
    of_client = features and not served
    models = (
        *(("client.model", model, of_client) for model in client.every_model),
        ("server.encoder", server.encoder, data.own is not None and server.reads_own),
        ("server.model", server.model, True),
    )
    regularizers = (
        ("client.optimizer.regularizer", client.optimizer.regularizer, of_client),
        ("server.optimizer.regularizer", server.optimizer.regularizer, server.update != "none"),
    )
    things = [] if method in METHODS else [f"method ({method}) {METHOD_HOLDS}"]
    if features and up.name not in CODECS:
        things.append(f"codecs.up ({up.name}) {CODEC_HOLDS}")
    things += _of_data(config)
    for key, model, decides in models:
        if decides and isinstance(model, Foreign):
            things.append(f"{key} ({getattr(model, 'path', model.name)}) {MODEL_HOLDS}")
    for key, given, decides in regularizers:
        if decides and isinstance(given, GivenConfig):
            things.append(f"{key} ({given.path}) {REGULARIZER_HOLDS}")
    if features and served:
        things.append(MEMBERS_OWN)
    return tuple(dict.fromkeys(things))
