"""No step on a secret sample comes between a query and its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import deployments as dep
from tests.network.by_hand import begin, leave, live, query, upload_all

from vertizo.network.serving.serving import FederationService
from vertizo.party.server import ServerParty
from vertizo.privacy.ledger.durable import DurableLedger

EVERY, WARM_UP = 3, 4


def served(folder: Path, events: list[str], calls: bool, asks: int = 7) -> Any:
    """Queries of two members in turn; parameters, and how many steps were charged.

    ``calls`` says whether somebody calls what an ask leaves to do, as transports do.
    """
    config = dep.serve_config(folder, **dep.PRIVATE)
    with FederationService(config) as service:
        begin(service)
        upload_all(service)
        events.clear()
        for number in range(asks):
            client = number % 2
            frame = query(client, number // 2, first=32 * (number // 2))
            rest = service.ask(dep.MEMBERS[client], frame, lambda answer: events.append("answer"))
            if calls and rest is not None:
                rest()
        service.tick()
        party = live(service).job.party
        return party.side.model.parameters.tolist(), party._secret_steps


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    trained = ServerParty.train_between_queries

    def train(self: ServerParty) -> None:
        before = self._secret_steps
        trained(self)
        found.extend(["step"] * (self._secret_steps - before))

    monkeypatch.setattr(ServerParty, "train_between_queries", train)
    return found


def test_an_answer_leaves_before_the_step_that_it_makes_due(
    tmp_path: Path, events: list[str]
) -> None:
    ended = []
    for calls in (True, False):
        ended.append(served(tmp_path / str(calls), events, calls))
        assert events == [*["answer"] * 3, "step", *["answer"] * 3, "step", "answer"]
    assert ended[0] == ended[1]


def test_a_death_between_an_answer_and_its_step_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is made when the job goes on, and charged once."""
    config = dep.serve_config(tmp_path, federation={"trial": False}, **dep.PRIVATE)
    service = FederationService(config)
    service.__enter__()
    begin(service)
    upload_all(service)
    answers: list[bytes] = []
    for number in range(EVERY):
        service.ask("north", query(0, number, first=32 * number), answers.append)
    assert len(answers) == EVERY
    assert live(service).job.party._secret_steps == WARM_UP
    leave(service)
    with FederationService(config) as again:
        assert live(again).job.party.round == EVERY
        assert live(again).job.party._secret_steps == WARM_UP + 1
    summary = DurableLedger.inspect(tmp_path / "server" / "ledger.sqlite")
    assert (summary.replies, summary.steps) == (EVERY, WARM_UP + 1)
    with FederationService(config) as again:
        again.tick()
    assert str(DurableLedger.inspect(tmp_path / "server" / "ledger.sqlite")) == str(summary)
