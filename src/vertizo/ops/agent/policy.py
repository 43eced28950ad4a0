"""Policies: checks of a job's offer against what a party's own file allows.

Each party is held to its own policy: the label holder when a job is submitted, a member when it is
offered. A member also reads the settings as `vertizo join` would, so that what that would refuse is
refused before anything runs; the process that joins is then held to the same settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vertizo.core.errors import ConfigError, RefusedError, WireError
from vertizo.network.serving import frames
from vertizo.ops.agent.jobs.messages import Offer
from vertizo.ops.agent.jobs.store import Store
from vertizo.ops.agent.options import LabelHolderAgent, MemberAgent, Policy


def check(
    offer: Offer,
    policy: Policy,
    tables: Mapping[str, Any],
    store: Store,
    is_prepared: bool = True,
) -> None:
    """Raise RefusedError, which names the key, unless a party's own file allows a job.

    The other side gets the error's line, so it has only what that side said, and the key. An offer
    that is not prepared has no settings yet, and no guarantee.
    """
    if offer.kind not in policy.kinds:
        raise RefusedError(f"job.kind is {offer.kind!r}, which policy.kinds does not allow")
    if offer.table not in tables:
        raise RefusedError(f"job.table is {offer.table!r}; there is no such table")
    if policy.tables is not None and offer.table not in policy.tables:
        raise RefusedError(f"job.table is {offer.table!r}, which policy.tables does not allow")
    _check_earlier(store, offer, "alignment", "align")
    _check_earlier(store, offer, "model", "train")
    if offer.kind == "align" and offer.method == "hashed" and not policy.hashed:
        raise RefusedError("job.method is 'hashed', which policy.hashed does not allow")
    if offer.kind == "train" and is_prepared:
        _check_training(offer, policy)


def _check_earlier(store: Store, offer: Offer, key: str, kind: str) -> None:
    """Raise RefusedError unless the job that an offer builds on is here and can finish."""
    name = getattr(offer, key)
    if not name:
        return
    job = store.job(name)
    if job is None or job.offer.kind != kind:
        raise RefusedError(f"job.{key} is {name!r}; no job {name!r} of kind {kind} is here")
    if job.is_over and job.state != "finished":
        raise RefusedError(f"job.{key} is {name!r}, which is {job.state}; it must have finished")
    if key == "alignment" and job.offer.table != offer.table:
        raise RefusedError(
            f"job.alignment is {name!r}, which aligned {job.offer.table!r} and not {offer.table!r}"
        )
    if key == "model" and job.offer.members != offer.members:
        raise RefusedError(
            f"job.model is {name!r}, which trained with {', '.join(job.offer.members)}; "
            "the same members predict"
        )


def _check_training(offer: Offer, policy: Policy) -> None:
    settings = settings_of(offer)
    method = settings.get("method")
    name = method.get("name") if isinstance(method, dict) else None
    if policy.methods is not None and name not in policy.methods:
        raise RefusedError(f"method.name is {name!r}, which policy.methods does not allow")
    missing = [each for each in policy.covers if each not in offer.covers]
    if missing:
        covered = " and ".join(offer.covers) or "nothing"
        raise RefusedError(
            f"the job's guarantee covers {covered}; policy.covers wants {' and '.join(missing)}"
        )
    if policy.epsilon is None:
        return
    if offer.epsilon is None:
        raise RefusedError(f"the job states no ε; policy.epsilon allows {policy.epsilon:g} at most")
    if not 0 <= offer.epsilon <= policy.epsilon:  # nor what is no number
        raise RefusedError(
            f"the job's ε is {offer.epsilon:g}; policy.epsilon allows {policy.epsilon:g} at most"
        )
    if offer.delta is not None and not 0 <= offer.delta <= policy.delta:
        raise RefusedError(
            f"the job's ε is at δ = {offer.delta:g}; policy.delta allows {policy.delta:g} at most"
        )


def settings_of(offer: Offer) -> dict[str, Any]:
    """Parse the settings that all parties share; RefusedError if they are none."""
    try:
        found = json.loads(offer.settings)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RefusedError("the job's settings are no configuration")
    return found


def check_member(offer: Offer, config: MemberAgent, store: Store, member: str) -> None:
    """Check an offer, as `check` does, at the member of that name."""
    policy = config.policy
    if member not in offer.members:
        raise RefusedError(f"job.members are {', '.join(offer.members)}, without {member!r}")
    others = [name for name in offer.members if name != member]
    strange = next((n for n in others if policy.peers is not None and n not in policy.peers), None)
    if strange is not None:
        raise RefusedError(f"job.members has {strange!r}, which policy.peers does not allow")
    check(offer, policy, config.tables, store)
    if offer.kind == "train":
        _check_terms(offer, config, member)


def _check_terms(offer: Offer, config: MemberAgent, member: str) -> None:
    """Check the settings as the process that joins will; RefusedError if it would refuse."""
    from vertizo.network.serving.options import JoinConfig
    from vertizo.network.serving.terms import accepted

    terms = frames.Terms(
        job=offer.job,
        index=offer.members.index(member),
        members=offer.members,
        settings=offer.settings,
        own_tables=True,
        choice=0,
        shared=bytes(32),
        trial=False,
    )
    join = {
        "name": config.agent.name,
        "server": config.agent.server,
        "certificates": config.agent.certificates,
        "folder": Path(),
        "require": config.policy.require,
    }
    try:
        settings = accepted(
            terms, JoinConfig.model_validate({"federation": join, "client": config.client})
        )
    except (ConfigError, WireError) as error:
        words = str(error).replace("federation.require.", "policy.require.")
        raise RefusedError(words.removeprefix("the label holder's terms: ")) from None
    if "features" not in config.policy.covers:
        return
    # This party makes that noise by itself, from these keys: it need not believe what is stated.
    privacy, most = settings.privacy, config.policy.epsilon
    if privacy.mechanism != "embedding-noise" or privacy.accounting == "published":
        raise RefusedError(
            "policy.covers wants features, which privacy.mechanism embedding-noise with exact "
            "accounting protects"
        )
    if most is not None and (privacy.epsilon is None or privacy.epsilon > most):
        raise RefusedError(
            f"privacy.epsilon is {privacy.epsilon}; policy.epsilon allows {most:g} at most"
        )
    if privacy.delta > config.policy.delta:
        raise RefusedError(
            f"privacy.delta is {privacy.delta:g}; policy.delta allows {config.policy.delta:g} at "
            "most"
        )


def check_label_holder(
    offer: Offer, config: LabelHolderAgent, store: Store, is_prepared: bool = True
) -> None:
    """Check an offer, as `check` does, at the label holder."""
    strange = next((name for name in offer.members if name not in config.policy.peers), None)
    if strange is not None:
        raise RefusedError(f"job.members has {strange!r}, which policy.peers does not name")
    check(offer, config.policy, config.tables, store, is_prepared)
