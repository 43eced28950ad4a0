"""Clients that use no label, under a head that stays with the label holder: ε = 0.

The method ``one-shot``, and the control ``label-free`` of all others.

Each client computes as many numbers of a record as the method's clients send, from its own features
alone, and uploads them once: principal components, or what `client.pretrain` makes. Filters, which
are good features from the start, and models of texts stay untrained. No query is asked, so that no
reply and nothing else that depends on a label reaches a client. The head is fitted on the raw
labels (docs/mathematics.md, Two heads); its figures are those of the run. If the model may stay
with the label holder, a method that costs privacy has to be better than this.
"""

from __future__ import annotations

from vertizo.config import architectures as kinds
from vertizo.config.method_defaults import TABLES
from vertizo.config.schema import CodecsConfig, ExperimentConfig
from vertizo.core.names import CONTROLS, PRIVATE
from vertizo.privacy.options import ON_LABELS, PrivacyConfig
from vertizo.privacy.statement import Statement

WORDS = (
    "ε = 0: clients train on no label and get no reply, so that nothing they see depends on one. "
    "The raw head and what it predicts are not covered: both must stay with the label holder."
)

FITTED = (
    "No privacy guarantee: what the task is, its classes, or the mean and spread that labels are "
    "scaled by were read off the labels, and whether a job begins, and how large it is, depends on "
    "that; data.classes, or data.task and data.label_range, give public knowledge instead."
)


def controlled(config: ExperimentConfig) -> ExperimentConfig:
    """The configuration that parties are made from: another one only if clients use no label.

    Then a raw head that was named is kept. If none was, tables get boosting and other data a
    logistic head; with a loss other than squared, or with several labels, the head is the server's
    model. Options of training and of an ε have no effect: there is nothing to protect.
    """
    if not config.is_label_free:
        return config
    head = config.server.final_head
    if head == "private":
        head = "boosting" if config.data.name in TABLES else "logistic"
        if config.data.loss != "squared" or config.data.has_several_labels:
            head = "refit"
    model = kinds.ServerMlpConfig(hidden=())
    server = {"model": model, "update": "none", "join": "concat", "final_head": head}
    up = {} if config.method.asks else {"up": config.codecs.up}  # a control's messages are exact
    changes = {
        "server": config.server.model_copy(update=server),
        "privacy": PrivacyConfig(),
        "codecs": CodecsConfig(**up),
        "simulation": config.simulation.model_copy(update={"table": "zeros"}),
    }
    return config.model_copy(update=changes)


def controls_of(config: ExperimentConfig) -> tuple[str, ...]:
    """The names of the controls of a run; empty if its clients are not trained.

    ``label-free`` is not for whole texts of word vectors, on which no head is fitted.
    """
    if not config.method.asks:
        return ()
    whole = kinds.TextEmbeddingsConfig in map(type, config.client.every_model)
    return tuple(name for name in CONTROLS if not (whole and name == "label-free"))


def is_private(config: ExperimentConfig) -> bool:
    """Whether a run has an ε that holds, or simulates such a run."""
    privacy, update = config.privacy, config.server.update
    exact = privacy.mechanism == "gaussian" and privacy.accounting == "exact"
    return (exact and update in (*PRIVATE, "none")) or privacy.mechanism in ON_LABELS


def statement(records: int, covers: tuple[str, ...]) -> Statement:
    """The privacy statement (ε = 0) against clients that learn nothing."""
    return Statement(
        guarantee="exact",
        words=WORDS,
        epsilon=0.0,
        delta=0.0,
        label_advantage=0.0,
        mu=0.0,
        counted="this run alone",
        covers=covers,
        records=records,
    )
