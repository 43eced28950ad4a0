"""Zeroth-order training of a client takes the memory of inference (no graph: see `test_device`)."""

from __future__ import annotations

from pathlib import Path

import memory as benchmark
import pytest
import report

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "memory.py"
LARGE = SCRIPT.with_name("large.py")
LIMIT = 1.1
LARGE_LIMIT = 1.05
LINUX = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="Linux keeps the peak"
)


@pytest.mark.full
@LINUX
@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        pytest.param("embeddings", marks=pytest.mark.long),
        pytest.param("transformer", marks=pytest.mark.long),
    ],
)
def test_dpzv_takes_the_memory_of_inference(name: str) -> None:
    if name != "mlp":
        pytest.importorskip("transformers")
    figures = {v: report.of_its_own(str(SCRIPT), name, v) for v in benchmark.VARIANTS}
    peaks = {variant: found["mebibytes"] for variant, found in figures.items()}
    assert figures["dpzv"]["parameters"] >= 20_000_000
    assert peaks["inference"] >= figures["dpzv"]["parameters"] * 4 / 2**20
    assert peaks["dpzv"] <= LIMIT * peaks["inference"], peaks
    assert peaks["vafl"] >= 1.8 * peaks["inference"], peaks


@pytest.mark.long
@pytest.mark.full
@LINUX
@pytest.mark.parametrize("name", ["mlp-1e8", "transformer-1e8"])
def test_so_does_a_client_of_a_hundred_million(name: str) -> None:
    if name != "mlp-1e8":
        pytest.importorskip("transformers")
    inference, dpzv = (
        report.of_its_own(str(LARGE), "peak", name, law)["peak"] for law in ("", "scaled-sphere")
    )
    assert inference >= 4e8 / 2**20
    assert dpzv <= LARGE_LIMIT * inference
