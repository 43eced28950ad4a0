"""Directions that a card draws: their laws, and that blocks are parts of the whole.

On the processor's tensors by PyTorch, on a card by Triton as well. Fixed seeds; five standard
errors are allowed.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tests.cards import DEVICES, INTERPRETED, TRITON, placed
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from vertizo.core.arrays import card, philox
from vertizo.core.arrays.philox import CHUNK, LANE, Kind
from vertizo.core.names import LawName
from vertizo.core.randomness import Stream
from vertizo.zeroth_order.card_directions import CardDirections, directions_of
from vertizo.zeroth_order.directions import KEEP_UP_TO, LAWS, Directions

SIZES = [1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 77]
KINDS: list[Kind] = ["normals", "signs"]
D = 6


def seed(value: int, device: str = "cpu") -> Tensor:
    return torch.tensor(philox.signed(value), device=device)


def made(law: LawName, dimension: int, count: int = 1, device: str = "cpu") -> CardDirections:
    stream = Stream.from_seed(3).child(law)
    return CardDirections(law, dimension, stream, count, torch.device(device))


def test_words_are_those_of_the_paper() -> None:
    """The known answers that Random123 comes with, of counter and key 0 and of all ones."""
    zero = torch.zeros(1, dtype=torch.int64)
    found = [int(word) for word in philox.words(seed(0), zero)]
    assert found == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    other = [int(word) for word in philox.words(seed(2**64 - 1), zero + (2**63 - 1))]
    assert other == _reference(2**64 - 1, 2**63 - 1)


def _reference(key: int, counter: int) -> list[int]:
    """Philox4x32-10 by Python's whole numbers."""
    word, k, c = (
        2**32 - 1,
        [key & 0xFFFFFFFF, key >> 32],
        [counter & 0xFFFFFFFF, counter >> 32, 0, 0],
    )
    for _ in range(10):
        one, other = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [other >> 32 ^ c[1] ^ k[0], other & word, one >> 32 ^ c[3] ^ k[1], one & word]
        k = [(k[0] + 0x9E3779B9) & word, (k[1] + 0xBB67AE85) & word]
    return c


@pytest.mark.skipif(INTERPRETED, reason="kernels that are interpreted are not compiled")
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("signs", [True, False])
def test_kernels_compile_for_cards(signs: bool, capability: int) -> None:
    """An A100's, H100's and B200's machine code, which Triton makes without a card."""
    compiler = pytest.importorskip("triton.compiler")
    backends = pytest.importorskip("triton.backends.compiler")
    fused = card._triton()
    assert fused is not None
    target = backends.GPUTarget("cuda", capability, 32)
    common = {"seed": "*i64", "size": "i32"}
    kernels = [(fused._squares, {"sums": "*fp32", **common}, {})]
    for writes, kind in itertools.product([True, False], ["fp32", "bf16", "fp16", "fp64"]):
        types = {"vector": f"*{kind}", "factor": "constexpr" if writes else "*fp32", **common}
        kernels.append((fused._add, types, {"factor": None} if writes else {}))
    for drawn, falls in itertools.product([True, False], [True, False]):
        types = {"vector": "*fp32", "velocity": "*fp32", "constant": "fp32", "momentum": "fp32"}
        types |= dict.fromkeys(("numbers", "seed", "scale", "factor"), "constexpr") | common
        constants: dict[str, object] = dict.fromkeys(("numbers", "seed", "scale", "factor"))
        for name in ("scale" if drawn else "numbers", *(["factor"] if falls else [])):
            types[name] = "*fp32"
            del constants[name]
        if drawn:
            del constants["seed"]
        else:
            types["seed"] = "constexpr"
        kernels.append((fused._descend, types, constants))
    for _, _, constants in kernels:
        constants |= {"signs": signs, "lane_size": LANE}
    arrays = {"values": "*fp32", "slopes": "*fp32", "right": "*i1", "logits": "*fp32"}
    numbers = {"labels": "*i64", "batch": "i32", "classes": "i32"}
    kernels.append((fused._softmax, arrays | numbers, {"width": 16}))
    for kernel, types, constants in kernels:
        source = compiler.ASTSource(kernel, types, constexprs=constants)
        made = compiler.compile(source, target=target, options={"num_warps": fused.WARPS})
        assert made.asm["cubin"]


@pytest.mark.parametrize("device", [*DEVICES, TRITON])
@pytest.mark.parametrize("kind", KINDS)
def test_a_part_is_drawn_anywhere(kind: Kind, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole, its blocks, its squares, and what is added are of the same numbers."""
    ulp = 4e-3 if device == "cpu" else 8e-3  # Triton's interpreter cuts where a card rounds
    device = placed(device, monkeypatch)
    for size in SIZES:
        start = seed(2**63 + 11, device)
        whole = card.drawn(kind, start, size)
        assert whole.shape == (size,)
        for chunk in range(-(-size // CHUNK)):
            part = card.drawn(kind, start, min(CHUNK, size - chunk * CHUNK), chunk)
            near = torch.allclose(part, whole[chunk * CHUNK :][:CHUNK], rtol=1e-5, atol=1e-5)
            assert near, (size, chunk)
        assert torch.allclose(card.squares(kind, start, size), whole.square().sum(), rtol=1e-4)
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            vector = torch.full((size,), 1.0, dtype=dtype, device=device)
            card.add_drawn(vector, kind, start, torch.tensor(-0.25, device=device))
            wanted = (1 - 0.25 * whole.double()).to(dtype)
            slack = ulp if dtype is torch.bfloat16 else 1e-5
            assert torch.allclose(vector, wanted, rtol=1e-5, atol=slack)


@pytest.mark.parametrize("device", [*DEVICES[1:], TRITON])
@pytest.mark.parametrize("kind", KINDS)
def test_fused_numbers_are_the_specified_ones(
    kind: Kind, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = placed(device, monkeypatch)
    fused = card._triton()
    assert fused is not None, "PyTorch's build for a card comes with Triton"
    for size in SIZES:
        one = torch.empty(size, device=place)
        fused.add(one, kind, seed(77, place), None)
        one, other = one.cpu(), philox.chunks(kind, seed(77), 0, -(-size // CHUNK))[:size]
        assert torch.allclose(one, other, rtol=1e-4, atol=2e-5), size


@pytest.mark.parametrize("device", [*DEVICES[1:], TRITON])
def test_a_step_with_momentum_is_one_pass(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Along numbers that are held, and along those of a seed, which never reach memory."""
    place = placed(device, monkeypatch)
    start, slope = seed(77, place), torch.tensor(-0.25, device=place)
    for size, kind, rate in itertools.product(SIZES, KINDS, (-0.5, slope)):
        u = card.drawn(kind, start, size)
        for numbers, scale in ((u, None), (u, slope), ((kind, start), slope)):
            w, v = torch.ones(size, device=place), torch.full((size,), 2.0, device=place)
            moved = 0.9 * v + (u if scale is None else scale * u)
            wanted = w + rate * moved
            assert card.descend(w, v, 0.9, numbers, scale, rate)
            assert torch.allclose(v, moved, rtol=1e-4, atol=2e-5), (size, kind)
            assert torch.allclose(w, wanted, rtol=1e-4, atol=2e-5), (size, kind)


def test_normal_numbers_are_normal() -> None:
    x = card.drawn("normals", seed(5), 2**20).double()
    n = len(x)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((x**power).mean()) - moment) < 5 * math.sqrt(variance / n), power
    for place in (0.5, 1.0, 2.0, 3.0):
        share = math.erfc(place / math.sqrt(2))
        found = float((x.abs() > place).double().mean())
        assert abs(found - share) < 5 * math.sqrt(share * (1 - share) / n), place
    lanes = x.view(-1, 4, CHUNK // 4)
    for one in range(4):
        for other in range(one):
            product = (lanes[:, one] * lanes[:, other]).mean()
            assert abs(float(product)) < 5 / math.sqrt(n / 4), (one, other)
    signs = card.drawn("signs", seed(5), 2**20)
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert abs(float(signs.mean())) < 5 / math.sqrt(n)


@pytest.mark.parametrize("device", [*DEVICES, TRITON])
@pytest.mark.parametrize("law", LAWS)
def test_a_law_is_what_it_says(law: LawName, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """φ E[(u·g) u] = g, the norm, and the same whether it is held or not."""
    device = placed(device, monkeypatch)
    directions, g = made(law, D, device=device), torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0, -0.7])
    rows = torch.stack([directions.draw(n).numbers().cpu() for n in range(1000)]).double()
    factor = directions.draw(0).factor
    estimates = factor * (rows @ g.double()).unsqueeze(1) * rows
    error = estimates.std(0) / math.sqrt(len(rows))
    assert bool(((estimates.mean(0) - g).abs() <= 5 * error + 1e-6).all())
    for dimension in (D, CHUNK + 9):
        direction = made(law, dimension, device=device).draw(7)
        norm = direction.numbers().norm()
        assert torch.allclose(torch.as_tensor(direction.norm()).to(norm), norm, rtol=1e-4)
        found = []
        for keep in (True, False):
            directions = made(law, dimension, device=device)
            directions.are_kept = keep
            vector = torch.zeros(dimension, device=device)
            directions.draw(7).add_to(vector, torch.tensor(0.5, device=device))
            found.append(vector)
        assert torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-6)
        assert torch.allclose(found[0], 0.5 * direction.numbers(), rtol=1e-4, atol=1e-6)


def test_large_ones_are_drawn_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(philox, "AT_ONCE", 2 * CHUNK)
    directions, size = made("scaled-sphere", 5 * CHUNK + 3), 5 * CHUNK + 3
    direction = directions.draw(0)
    whole, vector = direction.numbers(), torch.zeros(size)
    directions.are_kept = False
    other = made("scaled-sphere", size)
    other.are_kept = False
    other.draw(0).add_to(vector, 1.0)
    assert torch.allclose(vector, whole, rtol=1e-4, atol=1e-6)


def test_a_direction_is_the_same_every_time() -> None:
    """And another for every number, place in a query, and stream."""
    directions = made("gaussian", 40, count=2)
    drawn = [directions.draw(n).numbers().clone() for n in (0, 1, 2, 3)]
    assert torch.equal(directions.draw(1).numbers(), drawn[1])
    for one in range(4):
        for other in range(one):
            assert not torch.allclose(drawn[one], drawn[other])
    assert not torch.allclose(made("sphere", 40).draw(0).numbers(), drawn[0])


def test_the_place_of_the_parameters_decides() -> None:
    stream = Stream.from_seed(0)
    assert type(directions_of(torch.zeros(3), "sphere", stream)) is Directions
    on_meta = directions_of(torch.zeros(3, device="meta"), "sphere", stream)
    assert type(on_meta) is CardDirections


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("size", [D, KEEP_UP_TO + 1])
def test_nothing_is_read_back(law: LawName, size: int) -> None:
    """Every look at a value fails here."""
    with FakeTensorMode():
        vector = torch.zeros(size)
        direction = made(law, size, count=2).draw(1)
        direction.add_to(vector, torch.tensor(0.1) * direction.norm())
        assert direction.held(torch.tensor(0.1)) is None or direction.keep
