"""The file of private labels at the command line."""

from __future__ import annotations

from tests.commands import Vertizo

LABELS = ("privacy.mechanism=randomised-response", "privacy.epsilon=1", "privacy.ledger=labels")
RUN = ("data.name=digits", "data.limit=60", "epochs=1", "seed=0", "method.name=vafl")


def settings(*more: str) -> list[str]:
    return [part for key in (*RUN, *LABELS, *more) for part in ("--set", key)]


def test_it_is_made_shown_and_used_again(vertizo: Vertizo) -> None:
    assert vertizo("train", *settings(), "--out", "first").code == 0
    shown = vertizo("privacy", "ledger", "show", "labels").out
    assert "ε = 1 at δ = 0, once; all runs on them are free" in shown
    assert "label advantage: at most 0.147" in shown  # of ten classes: (e − 1)/(e + 9)
    out = vertizo("train", *settings("seed=1", "method.name=dpzv"), "--out", "second").well()
    assert "all runs on the private labels in 'labels' together" in " ".join(out.split())


def test_what_it_is_not_for_is_refused_in_a_line(vertizo: Vertizo) -> None:
    vertizo("train", *settings(), "--out", "first")
    for command, words in (
        (("train", *settings("privacy.epsilon=2"), "--out", "other"), "made with 1.0"),
        (("privacy", "ledger", "accept", "labels"), "is no ledger of this package"),
    ):
        found = vertizo(*command)
        assert (found.code, words in found.err, found.err.count("\n")) == (2, True, 1), found.err
