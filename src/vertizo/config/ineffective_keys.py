"""Checks that refuse keys which others leave without effect: who sets one expects an effect.

A key at its default is never refused: every file that a run leaves has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

from vertizo.core.names import PRIVATE, HeadName
from vertizo.data.datasets.catalog import CATALOG

HEADS: dict[str, tuple[HeadName, ...]] = {
    "squared": ("private", "logistic", "boosting", "refit", "auto"),
    "huber": ("private", "refit", "auto"),
    "quantile": ("private", "boosting", "refit", "auto"),
}
"""Loss → the heads that can be fitted to it."""


def heads_of(config: Any) -> tuple[HeadName, ...]:
    """The heads that `server.final_head` auto chooses from; first the server's model, ``private``.

    Where clients use no label the server's model is not trained, and is left out.
    """
    out = {"auto"} | ({"private"} if config.is_label_free else set())
    if config.data.has_several_labels:
        out |= {"logistic", "boosting"}
    return tuple(head for head in HEADS[config.data.loss] if head not in out)


def check_all_used(config: Any) -> None:
    """Refuse a key that something else in an `ExperimentConfig` leaves without effect.

    ValueError names the key, its value, and what would give it an effect.
    """
    update, mechanism, name = config.server.update, config.privacy.mechanism, config.data.name
    directed = ("zeroth-order", "forward-difference", "private-zeroth-order")
    known, clips = CATALOG.get(name), mechanism == "none" and config.privacy.clip is not None
    no_noise = f"server.update {update!r} carries no noise; it is for {any_of(PRIVATE)}"
    no_direction = f"server.update {update!r} estimates nothing; it is for {any_of(directed)}"
    not_forward = f"server.update is {update!r}; it is for 'forward-difference'"
    not_secret = f"server.update is {update!r}; it is for 'poisson-dp-sgd'"
    no_clip = f"privacy.mechanism is {mechanism!r}, which clips no replies; it is for 'gaussian'"
    no_mechanism = "privacy.mechanism is 'none'; give privacy.epsilon as well"
    pure = "privacy.mechanism 'randomised-response' has none: its ε holds at δ = 0"
    no_teacher = f"privacy.mechanism is {mechanism!r}; it is for 'teacher'"
    no_loss = "simulation.drop is 0, so that no message is lost"
    no_columns = "server.model is 'sum', which has no place for the label holder's columns"
    no_texts = f"data.name {name!r} has no texts"
    loss = config.data.loss
    other_loss = f"data.loss is {loss!r}"
    for key, is_used, why in (
        ("data.huber_delta", loss == "huber", f"{other_loss}; it is for 'huber'"),
        ("data.quantile", loss == "quantile", f"{other_loss}; it is for 'quantile'"),
        ("server.clip", update in PRIVATE, no_noise),
        ("server.secret", update == "poisson-dp-sgd", not_secret),
        ("server.smoothing", update in directed, no_direction),
        ("server.directions", update in directed, no_direction),
        ("server.encoder", config.server.reads_own, no_columns),
        ("method.server_embeddings", update == "forward-difference", not_forward),
        ("method.clipping", mechanism == "gaussian" or clips, no_clip),
        ("privacy.delta", mechanism != "none", no_mechanism),
        ("privacy.delta", mechanism != "randomised-response", pure),
        ("privacy.teacher", mechanism == "teacher", no_teacher),
        *_of_optimizers(config),
        ("client.components", config.client.pretrain != "none", "client.pretrain is 'none'"),
        ("simulation.timeout", config.simulation.drop > 0, no_loss),
        *(
            (f"data.{key}", name == "table", f"data.name is {name!r}; it is for 'table'")
            for key in ("delimiter", "encoding")
        ),
        *(
            (f"data.{key}", known is None or known.tokens, no_texts)
            for key in ("tokenizer", "length", "vocabulary", "encoder")
        ),
    ):
        if not is_used:
            _check_default(config, key, why)
    if config.data.stratify and mechanism not in ("none", "embedding-noise"):
        raise ValueError(
            f"data.stratify is true but privacy.mechanism is {mechanism!r}: who trains then "
            "depends on labels, clients see who does, and no ε covers that; leave data.stratify out"
        )
    if config.server.final_head not in HEADS[loss]:
        raise ValueError(
            f"server.final_head is {config.server.final_head!r}, which fits squares, but data.loss "
            f"is {loss!r}; it is for {any_of(HEADS[loss])}"
        )
    if config.server.final_head == "auto" and config.data.validation == 0:
        raise ValueError(
            "server.final_head is 'auto', which chooses by validation records, but "
            "data.validation is 0; give a share, such as 0.1, or name a head"
        )


def _of_optimizers(config: Any) -> Iterator[tuple[str, bool, str]]:
    for key in ("client.optimizer", "server.optimizer"):
        options = _at(config, key.split("."))
        no_adam = f"{key}.algorithm is {options.algorithm!r}; it is for 'adam'"
        no_strength = f"{key}.weight_decay is {options.weight_decay}, its λ; give that as well"
        yield f"{key}.regularizer", options.weight_decay > 0, no_strength
        yield f"{key}.beta2", options.algorithm == "adam", no_adam
        for last in ("milestones", "factor"):
            no_step = f"{key}.decay is {options.schedule!r}; it is for 'step'"
            yield f"{key}.{last}", options.schedule == "step", no_step


def _at(config: Any, names: Sequence[str]) -> Any:
    return reduce(getattr, names, config)


def _check_default(config: Any, key: str, why: str) -> None:
    *section, last = key.split(".")
    options = _at(config, section)
    field = type(options).model_fields.get(last)
    if field is None:  # of another method
        return
    value, usual = getattr(options, last), field.get_default(call_default_factory=True)
    if value == usual:
        return
    if hasattr(value, "model_fields_set"):  # a section: its first key that says something
        for inner in type(value).model_fields:
            if getattr(value, inner) != getattr(usual, inner, None):
                key, value = f"{key}.{inner}", getattr(value, inner)
                break
    shown = list(value) if isinstance(value, tuple) else value
    raise ValueError(f"{key} is {shown!r} but {why}")


def any_of(names: Sequence[str]) -> str:
    """Join names to a choice in words: 'a', 'b' or 'c'."""
    *first, last = map(repr, names)
    return f"{', '.join(first)} or {last}"
