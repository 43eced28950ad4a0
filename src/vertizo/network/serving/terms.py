"""Terms of a job: checks of what a label holder proposes, and of what members say of themselves.

Terms come from another party's machine. They may name methods, models and sizes that this version
knows, but nothing that would load code or files here. They must agree with what a member's own
configuration requires, and stay the same once a job has begun.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vertizo.config.architectures import CLIENT_MODELS, SERVER_MODELS
from vertizo.config.former_names import today
from vertizo.config.schema import ExperimentConfig, parse
from vertizo.config.sections.optimizer import REGULARIZERS
from vertizo.core.errors import ConfigError, MalformedError, RefusedError
from vertizo.data.datasets.catalog import CATALOG
from vertizo.methods.choice import METHODS
from vertizo.network.serving.frames import Terms
from vertizo.network.serving.options import JoinConfig
from vertizo.privacy.options import MECHANISMS
from vertizo.protocol.codecs.catalog import CODECS

if TYPE_CHECKING:
    from vertizo.data.record_split import ChosenRows

LARGEST_DIM = 2**16
"""Most numbers of a member's embedding."""
TOLD = {"noised_replies", "digest", "rows"}
"""Sections of terms that are no keys of a configuration: see `told` and `chosen_rows`."""
SECTIONS = TOLD | {
    *("epochs", "rounds", "batch_size", "method", "client", "codecs", "control", "server"),
    *("simulation", "data", "privacy"),
}
LOADING: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("path", "test_path", "root", "ledger"), (None,)),
    "checkpoint": ("minilm", "random"),
    "tokenizer": ("hash", "minilm", None),
    "encoder": ("minilm", None),
}
"""Keys that may name files or code → their values that name none."""
NAMING = ("name", "mechanism")
"""Keys whose value is the name of a method, codec, model, data set or mechanism."""
KINDS = (
    *(METHODS, CODECS, CLIENT_MODELS, SERVER_MODELS, CATALOG, MECHANISMS),
    *(REGULARIZERS, ("frame",)),
)
OWN_WORD = "a label holder may not name code or files; set it in this party's own configuration"


def check_size(member: str, dim: int, others: int, records: int) -> None:
    """Raise RefusedError for embeddings too large to be meant, or for this machine's memory.

    ``dim`` is the size of the member's embedding, ``others`` the sum of all other members', and
    ``records`` the number of records of all partitions.
    """
    if not 1 <= dim <= LARGEST_DIM:
        raise RefusedError(
            f"{member} has embeddings of {dim} numbers; 1 to {LARGEST_DIM:,} are accepted"
        )
    wanted = 4 * (others + dim) * records
    if 2 * wanted > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise RefusedError(
            f"with the {dim:,} numbers of {member} for each record, embeddings would take "
            f"{wanted / 2**30:.1f} GiB, more than half of the label holder's memory"
        )


def accepted(terms: Terms, config: JoinConfig) -> ExperimentConfig:
    """Check terms; return the experiment to take part in, with the member's own model if any.

    WireError if they are no configuration; ConfigError names the key that the member refuses.
    """
    try:
        proposed = json.loads(terms.settings)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"the terms are no configuration: {error}") from None
    if not isinstance(proposed, dict) or not proposed.keys() <= SECTIONS:
        raise MalformedError("the terms have sections that are none of a member's business")
    if terms.trial != config.federation.trial:
        wanted = "a trial, in which all secrets follow from a public seed"
        raise ConfigError(
            f"federation.trial is {str(config.federation.trial).lower()} but the label holder runs "
            f"{wanted if terms.trial else 'no trial'}"
        )
    require = config.federation.require
    for key, value in require.items():
        found = _at(proposed, key)
        if today(key, found) != today(key, value):
            raise ConfigError(
                f"federation.require.{key} is {value!r} but the label holder wants {found!r}"
            )
    own = config.client
    theirs = proposed.get("client", {})
    if not isinstance(theirs, dict):
        raise MalformedError("the terms' section client is no mapping")
    theirs = {key: value for key, value in theirs.items() if key != "device"}  # of this machine
    theirs_alone = {key: value for key, value in theirs.items() if key not in own}
    _check_harmless({**proposed, "client": theirs_alone}, required=require)
    tree = {key: value for key, value in proposed.items() if key not in TOLD}
    tree["client"] = {**theirs, **own}
    if terms.trial:
        tree["seed"] = terms.choice
    return parse(tree, "the label holder's terms")


def chosen_rows(terms: Terms) -> ChosenRows | None:
    """The choice of records that train, validate and test; None if the terms leave it out."""
    from vertizo.data.record_split import ChosenRows  # late: agents read terms without PyTorch

    text = json.loads(terms.settings).get("rows")
    return ChosenRows(text) if isinstance(text, str) else None


def told(terms: Terms) -> tuple[bool, str | None]:
    """Whether replies carry noise, and the digest of the label holder's configuration.

    The kind of noise is not told. The digest is told in a trial only, where members' noise depends
    on it; else it is None, and their noise is a secret of their own.
    """
    settings = json.loads(terms.settings)
    digest = settings.get("digest")
    known = terms.trial and isinstance(digest, str)
    return settings.get("noised_replies") is True, digest if known else None


def _check_harmless(tree: Any, place: str = "", *, required: Mapping[str, Any]) -> None:
    """Raise ConfigError for settings that load code or files here, unless required here too."""
    if isinstance(tree, list):
        for number, part in enumerate(tree):
            _check_harmless(part, f"{place}.{number}", required=required)
    if not isinstance(tree, Mapping):
        return
    for key, value in tree.items():
        here = f"{place}.{key}" if place else str(key)
        if key in NAMING and not _is_ours(value) and value != required.get(here):
            raise ConfigError(
                f"the label holder proposes {here} {value!r}, which is no part of vertizo; "
                f"if you have that code and trust it, set federation.require.{here} to its name"
            )
        if key in LOADING and not isinstance(value, Mapping) and value not in LOADING[key]:
            raise ConfigError(f"the label holder proposes {here} {value!r}; {OWN_WORD}")
        _check_harmless(value, here, required=required)


def _is_ours(name: Any) -> bool:
    """Whether a name is of this package; what is no text is refused later, so it counts."""
    return not isinstance(name, str) or any(name in kind for kind in KINDS)


def _at(tree: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key; None if there is none."""
    found: Any = tree
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
