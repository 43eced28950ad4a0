"""Runs take turns on graphics cards: what a pool of processes does with their places."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from tests import federations

from vertizo.core.errors import ConfigError
from vertizo.lab import cards
from vertizo.lab.processes import Pool, _make
from vertizo.lab.ray import _room


class AtOnce:
    """An executor whose calls end when they are told to."""

    def __init__(self) -> None:
        self.going: dict[Future[Any], int | None] = {}

    def submit(self, make: Any, card: int | None, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.going[future] = card
        return future

    def end(self) -> None:
        if self.going:
            future = next(iter(self.going))
            del self.going[future]
            future.set_result(None)


@pytest.fixture
def _two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def on_card(**keys: str) -> Any:
    return federations.config("dpzv", None, {key.replace("_", "."): v for key, v in keys.items()})


@pytest.mark.usefixtures("_two_cards")
def test_runs_on_cards_have_places() -> None:
    assert cards.places([on_card(), 3]) == ()
    for key in ("device", "client_device", "server_device"):
        assert cards.places([on_card(), on_card(**{key: "cuda"})]) == (0, 1)
    assert cards.places([on_card(device="cuda")], 3) == (0, 1, 0, 1, 0, 1)


def test_without_a_card_nothing_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run says that there is none."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert cards.places([on_card(device="cuda")]) == ()


@pytest.mark.parametrize(
    ("jobs", "places", "most"), [(8, (0, 1), 2), (3, (0, 1, 0, 1), 3), (2, (), 2)]
)
def test_no_card_has_more_than_its_share(jobs: int, places: tuple[int, ...], most: int) -> None:
    executor = AtOnce()
    pool = Pool[int](executor, jobs, places)  # type: ignore[arg-type]
    seen, ended = [], []
    for done in pool.make((n, time.sleep, (0,)) for n in range(7)):
        if done is not None:
            ended.append(done[0])
            continue
        seen.append([*executor.going.values()])
        executor.end()
    assert sorted(ended) == [*range(7)]
    assert max(map(len, seen)) == most
    for going in seen:
        taken = Counter(going)
        assert all(card is None or taken[card] <= places.count(card) for card in taken)
        assert all((card is None) == (not places) for card in going)


def test_a_call_works_on_its_card_and_leaves_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    for name in ("set_device", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *given, name=name: done.append((name, *given)))
    assert _make(None, int, "3") == 3
    assert not done
    with pytest.raises(ValueError, match="invalid literal"):
        _make(1, int, "three")
    assert done == [("set_device", 1), ("empty_cache",), ("reset_peak_memory_stats",)]


class Cluster:
    def __init__(self, *machines: dict[str, float]) -> None:
        self._machines = machines

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": machine} for machine in self._machines]


def test_a_cluster_has_room_for_as_many_as_its_cards_take() -> None:
    cluster = Cluster({"CPU": 16, "GPU": 2}, {"CPU": 8}, {"CPU": 2, "GPU": 8})
    assert _room(cluster, 2, None) == 8 + 4 + 1
    assert _room(cluster, 2, 1) == 2 + 0 + 1
    assert _room(cluster, 2, 3) == 6 + 0 + 1
    with pytest.raises(ConfigError, match="no machine of the cluster has a graphics card"):
        _room(Cluster({"CPU": 4}), 1, 1)
    with pytest.raises(ConfigError, match="threads is 8 but no machine"):
        _room(Cluster({"CPU": 4, "GPU": 1}), 8, 1)
