from __future__ import annotations

import torch
import torch.nn.functional as F
from tests.federations import back
from torch import Tensor, nn

from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.paired import Paired
from vertizo.protocol.codecs.sign import Sign
from vertizo.protocol.codecs.uniform import Uniform

EXACT = Paired(midpoint=NoCompression(), difference=NoCompression())


def around(pairs: int, *, batch: int = 6, dim: int = 5, shift: float = 1e-3) -> Tensor:
    """2·pairs points around one middle."""
    middle, shifts = torch.randn(batch, dim), shift * torch.randn(pairs, batch, dim)
    return torch.stack([middle + shifts, middle - shifts], 1).view(-1, batch, dim)


SMOOTHING = 1e-3
TWO_POINT, FORWARD = (1, -1), (0, 1)
"""Shifts of DPZV's points and of VFL-Cascaded's, of which only the second one has any."""


def error_of_loss_difference(codec: Codec, shifts: tuple[int, int]) -> float:
    """Relative, root mean square over directions, at λ = 1e-3.

    A linear client of 20 columns and 8 outputs, a server of one hidden layer, softmax loss.
    """
    with torch.random.fork_rng():
        torch.manual_seed(1)
        weight = nn.Linear(20, 8).weight.detach()
        server = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        features, labels = torch.randn(64, 20), torch.randint(0, 3, (64,))
        directions = torch.randn(50, *weight.shape)

    @torch.no_grad()
    def difference(points: Tensor) -> float:
        first, second = (
            F.cross_entropy(server(h), labels, reduction="none").double().mean() for h in points
        )
        return float(first - second)

    off = size = 0.0
    for direction in directions:
        moved = [weight + shift * SMOOTHING * direction for shift in shifts]
        points = torch.stack([features @ w.T for w in moved])
        true = difference(points)
        off += (difference(back(codec, points)) - true) ** 2
        size += true**2
    return float((off / size) ** 0.5)


def test_at_8_bits_the_loss_difference_is_kept_where_separate_rounding_destroys_it() -> None:
    """docs/codecs.md, Two-point queries; measured: 0.04 and 0.06 against 0.7 and 1.0."""
    for shifts in (TWO_POINT, FORWARD):
        assert error_of_loss_difference(Paired(), shifts) < 0.07, shifts
        assert error_of_loss_difference(Uniform(), shifts) > 0.5, shifts
        assert error_of_loss_difference(EXACT, shifts) < 0.01, shifts


def test_the_difference_has_a_scale_of_its_own() -> None:
    for pairs in (1, 3):
        array = around(pairs)
        found = back(Paired(), array)
        differences, kept = array[::2] - array[1::2], found[::2] - found[1::2]
        step = differences.abs().amax((1, 2), keepdim=True) * 2 / 255
        assert ((differences - kept).abs() <= step / 2 + 1e-6).all(), pairs
        middle = array.mean(0)
        width = float(middle.max() - middle.min()) / 255
        assert float((found.mean(0) - middle).abs().max()) <= width / 2 + 1e-6, pairs


def test_without_compression_only_rounding_is_left() -> None:
    for array in (around(1), around(4), around(2, shift=0.0), 100 * around(1)):
        assert torch.allclose(back(EXACT, array), array, rtol=1e-6, atol=1e-6)


def test_an_unequal_pair_is_a_pair_and_equal_points_stay_equal() -> None:
    middle = torch.randn(1, 6, 5)
    array = torch.cat([middle, middle + 1e-3 * torch.randn(1, 6, 5)])
    found = back(Paired(), array)
    assert torch.allclose(found[0] - found[1], array[0] - array[1], atol=2e-5)
    found = back(Paired(), around(2, shift=0.0))
    assert (found == found[0]).all()


def test_what_is_no_pair_is_the_middles_codec_alone() -> None:
    middle = Uniform(bits=4)
    codec = Paired(midpoint=middle, difference=Sign())
    for shape in ((1, 6, 5), (3, 6, 5), (6, 5), (2,), (0, 6, 5), (2, 0, 5), ()):
        array = torch.randn(shape)
        assert bytes(codec.encode(array)) == bytes(middle.encode(array)), shape
        assert torch.equal(back(codec, array), back(middle, array)), shape


def test_a_record_that_is_not_finite_leaves_the_others_where_records_do_not_mix() -> None:
    own = Uniform(scale="record")
    codec = Paired(midpoint=own, difference=own, scale="record")
    array = around(1)
    array[0, 2, 1] = float("inf")
    found = back(codec, array)
    assert found.isfinite().all(2).all(0).tolist() == [True, True, False, True, True, True]
