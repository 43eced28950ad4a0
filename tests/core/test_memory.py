"""Tests of `vertizo.core.memory`."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from vertizo.core import memory

AGAIN = """
import resource
from ctypes import CDLL, c_size_t, c_void_p

from vertizo.core import memory

libc = CDLL(None)
libc.malloc.restype = c_void_p
libc.malloc.argtypes, libc.free.argtypes = [c_size_t], [c_void_p]
libc.memset.argtypes = [c_void_p, c_size_t, c_size_t]


def made(size):
    array = libc.malloc(size)
    libc.memset(array, 1, size)
    libc.free(array)


memory.keep_freed_memory(memory.{kept})
faults = []
for size in (2 * 2**20, 16 * 2**20, 32 * 2**20 - 2**13):
    made(size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        made(size)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*faults)
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="glibc is asked")
@pytest.mark.parametrize(("kept", "large"), [("FRUGAL", False), ("LARGE", True)])
def test_the_same_pages_come_back(kept: str, large: bool) -> None:
    """An array as large as is kept is freed and made again without new pages, a larger is not."""
    code = AGAIN.replace("{kept}", kept)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    small, middle, most = map(int, out.stdout.split())
    assert small < 100
    for faults, size in ((middle, 16 * 2**20), (most, 32 * 2**20 - 2**13)):
        if large:
            assert faults < 100
        else:
            assert faults >= 10 * size / 2**21  # a fault a page at least, were pages huge


def test_the_line_says_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the processor, and on a card, whose memory it names."""
    assert memory.advice().startswith("memory ran out; use a smaller model")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 75 * 2**30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 80 * 2**30))
    assert memory.of_card() == (75, 80)
    assert memory.advice().startswith("the card's memory ran out: this run had 75.0 of 80.0 GiB")
    assert memory.ran_out(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
