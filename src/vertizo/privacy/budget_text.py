"""A planned budget as people read it."""

from __future__ import annotations

import math

from vertizo.privacy.accounting import epsilon_of
from vertizo.privacy.budget import Budget, Federation


def noises(federation: Federation, found: Budget) -> list[list[str]]:
    """What noise is added where."""
    releases = found.releases
    reply, step, secret = releases.reply, releases.step, releases.secret
    lines = [
        ["σ on the sum of a reply", f"{reply.noise_std:.6g}"],
        ["  as a multiple of its clip C", f"{reply.noise_std / reply.clip_norm:.6g}"],
        ["  on the mean over a batch", f"{reply.noise_std / federation.batch:.6g}"],
    ]
    if step is not None:
        lines.append(["σ on the sum of a server's update", f"{step.noise_std:.6g}"])
    if secret is not None:
        lines += [
            ["secret steps of the server", f"{secret.count:,}"],
            ["  sampling rate q", f"{secret.sampling:.6g}"],
            ["  noise multiplier z", f"{secret.noise_multiplier:.6g}"],
        ]
    named = releases.clients * releases.queries
    return [*lines, ["replies that may name one record", f"{named:,}"]]


def epsilons(found: Budget) -> list[list[str]]:
    """A heading, then who learns what at most: by this plan, and with the published noise."""
    published, views = found.published, found.views
    everything = _figure(views.all_clients)
    replies = _figure(epsilon_of(found.releases.replies_alone_mu, found.delta))
    own, published_own = _figure(views.own_replies), _figure(published.own_replies)
    return [
        ["who, from what", "this plan", "published noise"],
        ["all clients together, whatever they do", everything, "no bound"],
        ["  from the replies alone", replies, _figure(published.all_replies)],
        ["a single client, from its own replies alone", own, published_own],
        ["  with what the others' models carry", everything, "no bound"],
        ["an outsider who is given the models", f"at most {everything}", "no bound"],
        ["an outsider on an encrypted line", "sizes, times", "sizes, times"],
    ]


def notes(federation: Federation, found: Budget, wanted: float) -> list[str]:
    """What the published formula claims, and what the plan protects."""
    factor, published = math.sqrt(federation.records / federation.batch), found.published
    return [
        f"The published formula would have set σ = {published.noise_std:.6g} on the sum and called "
        f"it ε = {wanted:g}. Its replies alone give ε = {_figure(published.all_replies)}: its μ is "
        f"√(D/B) = {factor:.4g} times too small, because clients know their batches. Its server "
        "trains on raw labels, for which no bound holds at all.",
        "Protected: one training record against its replacement; its label where classes and "
        "the scale of labels are public, features where `vertizo privacy explain` says so. Tuning "
        "is not counted.",
    ]


def _figure(epsilon: float) -> str:
    return f"{epsilon:.4g}"
