"""Zeroth-order training of a client takes the memory of inference, and no graph."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import report
import torch
from torch import Tensor

from vertizo.core.randomness import Stream
from vertizo.methods.base import ClientSide
from vertizo.methods.dpzv import Dpzv
from vertizo.methods.first_order import Vafl
from vertizo.methods.forward_difference import Cascaded
from vertizo.models.networks import cnn
from vertizo.models.optimizers import Sgd
from vertizo.models.torch import wrap

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "memory.py"
LARGE = SCRIPT.with_name("large.py")
LIMIT = 1.1
LARGE_LIMIT = 1.05


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vertizo_memory_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux keeps the peak")
@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        pytest.param("embeddings", marks=pytest.mark.slow),
        pytest.param("transformer", marks=pytest.mark.slow),
    ],
)
def test_dpzv_takes_the_memory_of_inference(benchmark: ModuleType, name: str) -> None:
    if name != "mlp":
        pytest.importorskip("transformers")
    figures = {v: report.of_its_own(str(SCRIPT), name, v) for v in benchmark.VARIANTS}
    peaks = {variant: found["mebibytes"] for variant, found in figures.items()}
    assert figures["dpzv"]["parameters"] >= 20_000_000
    assert peaks["inference"] >= figures["dpzv"]["parameters"] * 4 / 2**20
    assert peaks["dpzv"] <= LIMIT * peaks["inference"], peaks
    assert peaks["vafl"] >= 1.8 * peaks["inference"], peaks


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux keeps the peak")
@pytest.mark.parametrize("name", ["mlp-1e8", "transformer-1e8"])
def test_so_does_a_client_of_a_hundred_million(name: str) -> None:
    if name != "mlp-1e8":
        pytest.importorskip("transformers")

    def peak(law: str) -> float:
        found: float = report.of_its_own(str(LARGE), "peak", name, law)["peak"]
        return found

    inference = peak("")
    assert inference >= 4e8 / 2**20
    assert peak("scaled-sphere") <= LARGE_LIMIT * inference


def test_no_tensor_is_kept_for_a_graph() -> None:
    torch.manual_seed(0)
    features = torch.randn(5, 1, 4, 4)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    def train(method: Dpzv | Cascaded | Vafl) -> int:
        model = wrap(cnn((1, 4, 4), [2], 3))
        root = Stream.from_seed(0)
        side = ClientSide(model, Sgd(0.1), root.child("directions"), root.child("shared"), 0)
        client, before = method.client(side), model.parameters.clone()
        kept.clear()
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, keep):
            answer = client.ask(0, features)
            shape = method.reply_shape(5, 3)
            client.tell(0, features, torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape))
        assert not answer.requires_grad
        assert not torch.equal(model.parameters, before)
        return len(kept)

    assert train(Dpzv()) == 0
    assert train(Cascaded()) == 0
    assert train(Vafl()) > 0
