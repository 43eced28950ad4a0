"""Captures by the rules of CUDA and PyTorch that a stand-in for graphs does not know.

A stand-in for ``torch.cuda`` keeps them: a memory ends with the last graph in it and then takes no
other; what waits for the card breaks a capture; and one that is broken cannot end, which leaves its
stream behind, its memory closed, and its graph in use.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from vertizo.core.arrays import graphs


class Cuda:
    """Streams, memories and captures of one card."""

    def __init__(self) -> None:
        self.stream, self.mode, self.capturing = "main", 0, False
        self.broken = False
        self.memories: dict[int, weakref.WeakSet[Any]] = {}
        cuda = self

        class Graph:
            def replay(self) -> None:
                pass

        class Capture:
            def __init__(
                self, graph: Graph, pool: int | None, stream: str, *, capture_error_mode: str
            ) -> None:
                self.graph, self.pool, self.own = graph, pool, stream
                self.before = cuda.stream

            def __enter__(self) -> None:
                cuda.stream = self.own
                if self.pool is not None:
                    inside = cuda.memories.setdefault(self.pool, weakref.WeakSet())
                    assert inside or self.pool not in cuda.given_up, "use_count > 0"
                    inside.add(self.graph)
                    weakref.finalize(self.graph, cuda.ended, self.pool)
                asked = [graph() for _, graph in cuda.recording]
                assert None not in asked, "memory is asked for of a graph that is gone"
                pools = [pool for pool, _ in cuda.recording if pool is not None]
                assert self.pool not in pools, "already recording to mempool_id"
                cuda.recording.append((self.pool, weakref.ref(self.graph)))
                cuda.capturing, cuda.broken = True, False

            def __exit__(self, *_: object) -> None:
                if cuda.broken:
                    cuda.capturing = False
                    raise RuntimeError("capture was invalidated")
                cuda.recording.pop()
                cuda.capturing, cuda.stream = False, self.before

        self.given_up: set[int] = set()
        self.recording: list[tuple[int | None, weakref.ref[Any]]] = []
        self.CUDAGraph, self.graph = Graph, Capture

    def ended(self, pool: int) -> None:
        if not self.memories[pool]:
            self.given_up.add(pool)

    def wait(self) -> None:
        """What a look at a value does."""
        if self.mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        self.broken = self.capturing

    def patches(self) -> dict[str, Any]:
        handles = iter(range(100))
        return {
            "CUDAGraph": self.CUDAGraph,
            "graph": self.graph,
            "graph_pool_handle": lambda: next(handles),
            "Stream": lambda card: f"of card {card}",
            "current_device": lambda: 0,
            "current_stream": lambda: self.stream,
            "set_stream": lambda stream: setattr(self, "stream", stream),
            "get_sync_debug_mode": lambda: self.mode,
            "set_sync_debug_mode": lambda mode: setattr(self, "mode", mode),
        }


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    """The stand-in, in place of ``torch.cuda``."""
    made = Cuda()
    for name, value in made.patches().items():
        monkeypatch.setattr(torch.cuda, name, value)
    graphs._of_card.cache_clear()
    yield made
    graphs._of_card.cache_clear()


@pytest.mark.parametrize("apart", [True, False])
def test_a_memory_outlives_its_graphs(apart: bool, cuda: Cuda) -> None:
    for _ in range(3):
        result, replay = graphs.capture(lambda: cuda.stream, apart=apart)
        assert result == "of card 0"
        del replay
        gc.collect()
    assert (cuda.stream, cuda.mode, cuda.capturing) == ("main", 0, False)


def test_a_look_at_a_value_breaks_no_capture(cuda: Cuda) -> None:
    with pytest.raises(RuntimeError, match="synchronizing"):
        graphs.capture(cuda.wait, apart=False)
    assert (cuda.stream, cuda.mode, cuda.capturing) == ("main", 0, False)
    assert graphs.capture(lambda: 1, apart=False)[0] == 1
    cuda.wait()
    assert not cuda.broken


@pytest.mark.parametrize("apart", [True, False])
def test_after_what_cannot_end_there_are_other_captures(apart: bool, cuda: Cuda) -> None:
    """With the stream and the mode of before, and in another memory."""

    def break_() -> None:
        cuda.broken = True

    for _ in range(2):
        with pytest.raises(RuntimeError, match="invalidated"):
            graphs.capture(break_, apart=apart)
        assert (cuda.stream, cuda.mode) == ("main", 0)
        gc.collect()
        for other in (True, False):
            assert graphs.capture(lambda: 1, apart=other)[0] == 1
