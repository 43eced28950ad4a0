"""Explanations: what a run protects and what not, in plain words, from its privacy statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vertizo.config.architectures import TableConfig
from vertizo.config.schema import ExperimentConfig
from vertizo.core.names import FITTED, PRIVATE
from vertizo.privacy.accounting import label_advantage
from vertizo.privacy.epsilon_text import bound_text, is_bounded
from vertizo.privacy.options import ON_LABELS
from vertizo.run.build.coverage import STRATIFIED, by_time
from vertizo.run.build.label_free import controlled

WEAK = 0.8
"""Label advantage above which a promise is called weak: a guess is right nine times of ten."""


@dataclass(frozen=True)
class Explanation:
    """Sentences under headings; each holds for the run as it was configured."""

    guarantee: str
    """``exact``, ``simulated``, ``published`` or ``none``."""
    promise: str
    """The promise that somebody signs, as a success rate of guessing."""
    summary: str
    protected: tuple[str, ...]
    not_protected: tuple[str, ...]
    how: tuple[str, ...]


def explain(config: ExperimentConfig, privacy: Mapping[str, Any]) -> Explanation:
    """Put a run's statement, the section ``privacy`` of its summary, into words."""
    config = controlled(config)
    return Explanation(
        guarantee=privacy["guarantee"],
        promise=_promise(privacy),
        summary=privacy["words"],
        protected=tuple(_protected(config, privacy)),
        not_protected=tuple(_not_protected(config, privacy)),
        how=tuple(_how(config, privacy)),
    )


def _promise(privacy: Mapping[str, Any]) -> str:
    advantage = label_advantage.of(privacy)
    if advantage is None:
        return "No promise: nothing limits what clients learn about the labels."
    weak = " That is a weak promise." if advantage > WEAK else ""
    seed = "" if privacy["guarantee"] == "exact" else ", and does not know the seed of this run,"
    return (
        "Somebody who sees everything that all clients see, knows all other training records"
        f"{seed} and must choose between two equally likely values of one record's label is right "
        f"at most {label_advantage.success_text(advantage)} of the time. "
        "Guessing is right 50 % of the time: the label advantage is at most "
        f"{label_advantage.text(advantage)}.{weak}"
    )


def _protected(config: ExperimentConfig, privacy: Mapping[str, Any]) -> Iterator[str]:
    if not is_bounded(privacy):
        if (noise := privacy.get("embedding_noise")) is not None:
            seeded = "simulated " if noise.get("simulated") else ""
            yield (
                "What one client sends of a record, by itself, against the server: "
                f"{seeded}ε = {bound_text(noise['epsilon'])} at δ = {noise['delta']:g}. The "
                "client's model may carry more of that record into the embeddings of others."
            )
        return
    simulated, covers = privacy["guarantee"] == "simulated", privacy["covers"]
    epsilon = f"{'simulated ' if simulated else ''}ε = {bound_text(privacy['epsilon'])}"
    for thing in covers:
        what = thing[0].upper() + thing[1:]
        yield f"{what}, of each training record: {epsilon} at δ = {privacy['delta']:g}."
    if (most := privacy.get("records_per_person") or 1) > 1:
        bound, advantage = privacy["epsilon_per_person"], privacy["label_advantage_per_person"]
        yield (
            f"A person with up to {most:,} training records, all of them together: "
            f"{'simulated ' if simulated else ''}ε = {bound_text(bound)} at "
            f"δ = {privacy['delta']:g}. Who guesses between two ways all their labels may be is "
            f"right at most {label_advantage.success_text(advantage)} of the time."
        )
    if simulated:
        yield (
            "All of this would hold if the noise were secret. This run made its noise from its "
            "seed: against whoever knows the seed, nothing is protected. privacy.noise 'secure' "
            "makes it exact."
        )
    against = "labels against all clients together"
    if _features(covers):
        against += ", a client's features against all others together"
    yield (
        "It holds even if clients break the protocol, and for anything computed from what they "
        f"saw: {against}."
    )
    released = not config.method.first_order_client or config.privacy.mechanism in ON_LABELS
    if released and not config.is_label_free:  # whose only model is the raw head
        yield (
            "Passing on the finished models costs training records' labels nothing more: the "
            "models are made from protected releases."
        )


def _features(covers: Sequence[str]) -> bool:
    return any("features" in thing for thing in covers)


def _not_protected(config: ExperimentConfig, privacy: Mapping[str, Any]) -> Iterator[str]:
    covers = privacy.get("covers") or ()
    if privacy["guarantee"] == "none":
        yield "Labels of training records: no bound holds against the clients."
    if privacy["guarantee"] == "published":
        yield (
            "Labels of training records: the published formula states an ε that does not hold. "
            f"The replies alone give ε = {privacy['replies_alone_epsilon']:.4g}."
        )
    update = config.server.update
    if config.privacy.mechanism == "gaussian" and update not in (*PRIVATE, "none"):
        yield (
            f"The server model (server.update {update}) learns from raw labels, and every later "
            "reply depends on it."
        )
    if config.privacy.mechanism == "embedding-noise":
        yield "Labels, against anybody: noise on embeddings does not protect them."
    else:
        yield "A client's features against the server: it is trusted and reads all embeddings."
    if config.server.reads_own and "the label holder's columns" not in covers:
        if config.data.label_holder is not None:
            fitted = ": statistics of the training records prepared them, or data.time names one"
            yield f"The label holder's own columns{fitted if is_bounded(privacy) else ''}."
        elif config.data.name == "table":  # over a network it need not be named to have some
            yield "The label holder's own columns, if it has some."
    if config.server.final_head != "private":
        yield (
            f"The raw head (server.final_head {config.server.final_head}) and what it predicts: it "
            "learns from raw labels after the last reply. Keep both at the label holder."
        )
    if not _features(covers):
        yield f"Clients' features against other clients{_why(config, privacy)}."
    if config.data.stratify:
        yield f"Who is of which class: {STRATIFIED}"
    if config.data.time is not None:
        yield by_time(config.data.time)
    if config.data.validation > 0 and not config.is_label_free:
        yield "Labels of validation records: they choose the kept model without noise."
    yield from (
        "Test records, and every other record that was not trained on.",
        "Which records exist and which are in whose batches; sizes and times of messages.",
        "Later predictions that use a record's own columns.",
        _several(privacy),
        "The server's own figures in the run folder (training loss and accuracy, clip fraction): "
        "they carry no noise; keep them as safe as the labels.",
    )


def _several(privacy: Mapping[str, Any]) -> str:
    """A sentence on persons with more records than the figures are for."""
    most = privacy.get("records_per_person")
    if most is None:
        return (
            "A person with several records: the bound is for one record and weakens with each "
            "more; data.person or data.records_per_person has it stated for a person."
        )
    return f"A person with more than {most:,} training record{'s' if most > 1 else ''}."


def _why(config: ExperimentConfig, privacy: Mapping[str, Any]) -> str:
    """The reason why features are not covered though labels are, as an ending; or empty."""
    if not is_bounded(privacy):
        return ""
    if config.privacy.mechanism in ON_LABELS:
        return ": replies carry no noise, only the labels that they are made of are private"
    if config.method.first_order_client:
        return f": clients of method {config.method.name!r} train on gradients of their own"
    if config.method.mixes_features:
        return f": directions of method {config.method.name!r} are of all records together"
    if config.client.pretrain in FITTED:
        return (
            f": client.pretrain {config.client.pretrain!r} is fitted on all of a client's records"
        )
    if TableConfig in map(type, config.client.every_model):
        return ": client.model 'table' places its bins by all of a client's records"
    if config.codecs.up.mixes_records:
        return f": codec {config.codecs.up.name!r} scales records together"
    if config.data.parties == 1:
        return ": there is one client alone"
    if any(config.data.time in own for own in (config.data.columns or {}).values()):
        return (
            f": data.time chooses records by {config.data.time!r}, or statistics prepared columns"
        )
    why = [
        "statistics of the training records prepared columns (data.ranges and data.categories "
        "give public bounds instead)"
    ]
    if any(model.name in ("module", "function") for model in config.client.every_model):
        why.append("the client's model takes records together")
    if config.method.name == "tangent":
        why.append("tangent replies fit a client's model of several layers to all of its records")
    if config.method.fits_features:
        why.append("validation records choose among models that clients fitted to their features")
    return f": {', or '.join(why)}"


def _how_labels(config: ExperimentConfig, privacy: Mapping[str, Any]) -> Iterator[str]:
    if config.privacy.mechanism == "teacher":
        teacher = config.privacy.teacher
        yield (
            f"Each client uploaded {teacher.components} numbers of each training record once, made "
            f"without labels ({teacher.features}). Each class's sum of them gets Gaussian noise; a "
            "softmax regression is fitted on these sums, and what it predicts are the labels."
        )
    else:
        yield (
            "Each training label was kept or exchanged for another one at random. The loss of "
            "training knows how likely each was."
        )
    yield "Training reads these labels alone. They are made once, and never again."
    yield f"Randomness: {privacy['noise_source']}. Counted: {privacy['counted']}."


def _how(config: ExperimentConfig, privacy: Mapping[str, Any]) -> Iterator[str]:
    if config.privacy.mechanism in ON_LABELS:
        yield from _how_labels(config, privacy)
    if privacy["noise_std"] is None:
        return
    per_record = len(config.method.reply_shape(2, 3)) > 1
    noised = "each number of it gets" if per_record else "the sum over a batch gets"
    yield (
        f"Each record's part of a reply is clipped to {privacy['clip']:g}; {noised} Gaussian noise "
        f"of σ = {privacy['noise_std']:.6g} and is divided by {config.batch_size}, whatever the "
        "batch's size."
    )
    yield (
        f"A record is in at most {privacy['max_participations']} queries of all clients "
        f"({privacy['max_releases']} noised releases); the ledger refuses more."
    )
    if privacy["server_noise_std"] is not None:
        yield (
            f"The server's update on each batch is clipped to {privacy['server_clip']:g} a record "
            f"and gets noise of σ = {privacy['server_noise_std']:.6g} on the sum."
        )
    if (secret := privacy["secret_steps"]) is not None:
        yield (
            f"The server makes {secret['count']:,} steps on samples that nobody else knows, each "
            f"record in each with probability {secret['sampling']:g}, noise multiplier "
            f"{secret['noise_multiplier']:.4g}."
        )
    yield f"Noise: {privacy['noise_source']}."
    if config.privacy.noise == "seeded":
        yield (
            "Whoever knows the seed knows the noise: this run is a simulation, and its figures say "
            "what a federation with secret noise would guarantee."
        )
    if privacy["epsilon_published"] is not None:
        yield (
            f"The published formula would call this ε = {privacy['epsilon_published']:.4g}; "
            "it does not hold."
        )
    yield f"Counted: {privacy['counted']}."
