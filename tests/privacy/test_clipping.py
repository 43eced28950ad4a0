"""The clip holds for every input, and a sum moves by at most its sensitivity."""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from vertizo.core.randomness import Stream
from vertizo.privacy import clipping
from vertizo.privacy.accounting import budget, guarantee, persons
from vertizo.privacy.accounting.events import GaussianRelease, Releases, SecretSteps
from vertizo.privacy.accounting.gaussian import mu_of
from vertizo.privacy.clipping import Clip, clip
from vertizo.privacy.noise import embedding
from vertizo.privacy.noise.mechanisms import SeededNoise
from vertizo.privacy.noise.secure import SecureNoise

MAX = torch.finfo(torch.float64).max
ANY = st.one_of(
    st.floats(),
    st.sampled_from([math.nan, math.inf, -math.inf, MAX, -MAX, 5e-324, -0.0, 1e200]),
    st.floats(-3, 3),
)
NORMS = st.floats(1e-6, 1e6)
DTYPES = st.sampled_from([torch.float64, torch.float32])
ROUNDING = 1e-9
check = settings(max_examples=300, deadline=None, derandomize=True, database=None)


@st.composite
def rows(draw: st.DrawFn, least: int = 1) -> list[list[float]]:
    """Some records' vectors, all of one length."""
    width = draw(st.integers(1, 5))
    vector = st.lists(ANY, min_size=width, max_size=width)
    return draw(st.lists(vector, min_size=least, max_size=6))


NO_NOISE = 1e-300


def bounded_sum(values: Tensor, clip_norm: float) -> Tensor:
    """As a plan makes it of per-record values, with next to no noise."""
    rows = clip(values, clip_norm).reshape(len(values), values[:1].numel() or 1)
    noise = SeededNoise(Stream.from_seed(0), clip_norm=clip_norm, noise_std=NO_NOISE)
    return noise.sum(0, rows)


def norm(vector: list[float]) -> float:
    return math.hypot(*vector)


@check
@given(values=st.lists(ANY, max_size=12), clip_norm=NORMS, dtype=DTYPES)
@example(values=[math.nan, math.inf, -math.inf, MAX, -MAX, 2.0, -2.0], clip_norm=2.0, dtype=None)
def test_scalars(values: list[float], clip_norm: float, dtype: torch.dtype | None) -> None:
    given_ = torch.tensor(values, dtype=dtype or torch.float64)
    expected = [
        max(-clip_norm, min(value, clip_norm)) if math.isfinite(value) else 0.0
        for value in given_.tolist()
    ]
    assert clip(given_, clip_norm).tolist() == expected


@check
@given(values=rows(), clip_norm=NORMS, dtype=DTYPES)
@example(values=[[1e-320] * 4, [MAX] * 4, [1e200, -1e200] * 2], clip_norm=1.0, dtype=torch.float64)
@example(values=[[3.0, 4.0], [math.nan, 1.0], [math.inf, 0.0]], clip_norm=1.0, dtype=torch.float32)
def test_vectors(values: list[list[float]], clip_norm: float, dtype: torch.dtype) -> None:
    given_ = torch.tensor(values, dtype=dtype)
    clipped = clip(given_, clip_norm)
    assert clipped.shape == given_.shape
    for before, after in zip(given_.tolist(), clipped.tolist(), strict=True):
        assert norm(after) <= clip_norm * (1 + ROUNDING)
        if not all(map(math.isfinite, before)):
            assert after == [0.0] * len(before)
        elif norm(before) <= clip_norm * (1 - ROUNDING):
            assert after == pytest.approx(before, rel=1e-14, abs=0)
        elif norm(before) < 1e300:
            assert norm(after) == pytest.approx(clip_norm, rel=1e-6)
            shrink = clip_norm / norm(before)
            assert after == pytest.approx([x * shrink for x in before], rel=1e-6, abs=1e-300)


def test_the_input_is_left_alone() -> None:
    for dtype, shape in product([torch.float32, torch.float64], [(5,), (5, 3)]):
        values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype) * 10
        values.view(-1)[0] = math.nan
        kept = values.clone()
        clip(values, 0.5)
        bounded_sum(values, 0.5)
        assert torch.equal(values.nan_to_num(), kept.nan_to_num())
        assert values.isnan().sum() == 1


def test_a_sum_is_over_the_records() -> None:
    scalars = bounded_sum(torch.tensor([3.0, -0.5, math.nan]), 2.0)
    assert scalars.tolist() == [1.5]
    vectors = bounded_sum(torch.tensor([[3.0, 4.0], [0.1, 0.0], [math.inf, 1.0]]), 1.0)
    assert torch.allclose(vectors, torch.tensor([0.7, 0.8], dtype=torch.float64))
    assert scalars.dtype == vectors.dtype == torch.float64
    assert float(bounded_sum(torch.zeros(0), 1.0)) == pytest.approx(0.0, abs=10 * NO_NOISE)


def test_a_sum_of_many_does_not_lose_the_small() -> None:
    """float32 would: 2e7 ones after one another stop at 2^24."""
    values = torch.cat([torch.full((1,), 3e7), torch.full((100,), 0.5)])
    assert bounded_sum(values, 1e8).item() == 3e7 + 50


def moved(values: Tensor, record: int, other: Tensor, clip_norm: float) -> tuple[float, float]:
    """How far replacing one record moves the sum, and how far it may."""
    neighbour = values.clone()
    neighbour[record] = other
    one, two = bounded_sum(values, clip_norm), bounded_sum(neighbour, clip_norm)
    return float((one - two).norm()), GaussianRelease(clip_norm, 1.0).sensitivity


@check
@given(
    values=st.lists(ANY, min_size=1, max_size=8),
    other=ANY,
    clip_norm=NORMS,
    dtype=DTYPES,
    data=st.data(),
)
def test_sensitivity_of_scalar_sums(
    values: list[float], other: float, clip_norm: float, dtype: torch.dtype, data: st.DataObject
) -> None:
    record = data.draw(st.integers(0, len(values) - 1))
    given_ = torch.tensor(values, dtype=dtype)
    replacement = torch.tensor(other, dtype=dtype)
    distance, allowed = moved(given_, record, replacement, clip_norm)
    assert distance <= allowed * (1 + ROUNDING)
    assert allowed == 2 * clip_norm


@check
@given(values=rows(least=2), clip_norm=NORMS, dtype=DTYPES)
def test_sensitivity_of_vector_sums(
    values: list[list[float]], clip_norm: float, dtype: torch.dtype
) -> None:
    *batch, other = torch.tensor(values, dtype=dtype)
    for record in range(len(batch)):
        distance, allowed = moved(torch.stack(batch), record, other, clip_norm)
        assert distance <= allowed * (1 + ROUNDING)


def test_the_sensitivity_is_reached() -> None:
    """So that a smaller figure would be wrong."""
    for width in [0, 1, 4]:
        ends = torch.tensor([1e9, -1e9])
        if width:
            ends = ends.unsqueeze(1).repeat(1, width)
        distance, allowed = moved(ends[:1], 0, ends[1], 3.0)
        assert distance == pytest.approx(allowed, rel=1e-12)


def test_one_sided_clips_and_clamps_would_not_do() -> None:
    """What DPZV prints, ``min{δ, C}``, and what PyTorch offers, on the same inputs."""
    values = torch.tensor([-1e6, math.nan])
    assert torch.minimum(values, torch.tensor(1.0))[0] == -1e6
    assert values.clamp(-1, 1).isnan().any()
    assert clip(values, 1.0).tolist() == [-1.0, 0.0]


def figures() -> dict[str, float]:
    """What rests on how far a record moves a clipped sum: each in proportion, or inversely."""
    federation = budget.Federation(400, 2, 3, 20)
    calibrated = guarantee.calibrate(
        *(1.0, 1e-5), clients=2, queries=3, server_share=0.5, steps_per_query=1.0
    )
    steps = SecretSteps(9, 0.1, 3.0)
    return {
        "a clip": Clip(3.0).sensitivity,
        "a release": GaussianRelease(3.0, 7.0).sensitivity,
        "noise on a grid": SecureNoise(clip_norm=3.0, noise_std=7.0).sensitivity,
        "noise for replies": calibrated.reply,
        "noise for a server": calibrated.server or 0.0,
        "steps on secret samples": guarantee.rough_mu(0.0, [steps]),
        "a person's steps": persons._mu(
            Releases(1, 1, GaussianRelease(1.0, 1e9), secret=steps), 3, 1e-9
        ),
        "noise on embeddings": embedding.noise_std_for_embeddings(
            *(3.0, 1.0), releases=4, sampling=0.1, published=False
        ),
        "what it costs": embedding.account(3.0, 60.0, 1e-5, releases=4, sampling=0.1).mu,
        "a published budget's": mu_of(budget.published(federation, 1.0, 1e-5).own_replies, 1e-5),
    }


def test_how_far_a_record_moves_a_sum_is_said_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that rests on it follows when that number is another."""
    before = figures()
    monkeypatch.setattr(clipping, "REPLACED", 0.5 * clipping.REPLACED)
    assert clipping.moved(3.0) == 3.0
    assert clipping.moved(clipping.relabelled(3.0)) == pytest.approx(3.0 * math.sqrt(2))
    for what, half in figures().items():
        assert half == pytest.approx(before[what] / 2, rel=1e-6), what


def test_nothing_else_doubles_a_clip() -> None:
    """Or it would stay behind; the paper's own formula aside, which is not ours to change."""
    privacy = Path(clipping.__file__).parent
    for path in sorted([*privacy.rglob("*.py"), *(privacy.parent / "run").rglob("*.py")]):
        for line in path.read_text(encoding="utf-8").splitlines():
            doubled = re.search(r"\b2(\.0)? \* (\w+\.)*(clip|math\.sqrt)|clip\w* \* 2\b", line)
            assert doubled is None or path.name == "gaussian.py", f"{path.name}: {line}"
            assert "sqrt(2)" not in line or path.name == "clipping.py", f"{path.name}: {line}"
