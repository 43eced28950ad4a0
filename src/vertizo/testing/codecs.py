"""The check of codecs: what every `vertizo.protocol.codecs.base.Codec` must do."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vertizo.core.errors import MalformedError
from vertizo.protocol import wire
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.messages import Query
from vertizo.testing.demands import demand, demand_refused

SHAPES = ((1,), (5,), (0,), (3, 3), (0, 4), (4, 0), (2, 3, 5), (1, 1, 6), (6, 1, 2), (2, 0, 3))


def back(codec: Codec, array: Tensor) -> Tensor:
    """Encode an array and decode it again."""
    return codec.decode(codec.encode(array), tuple(array.shape))


def check_codec(
    codec: Codec, *, error: float, tight: bool = True, gain: float = 1.0, seed: int = 0
) -> None:
    """Check that a codec does what every codec must; else raise AssertionError, in one line.

    Arrays come back in shape and nearly as they were, in as many bytes as announced; the same array
    makes the same bytes; bytes that fit no shape are refused, and none crash; numbers that are not
    finite stay so; steps along decoded arrays are as long as claimed; and its three flags are true:
    ``mixes_records`` decides what a guarantee covers.

    Args:
        codec: the codec, made of its options.
        error: the largest error that it claims, relative to the largest number of an array.
        tight: whether an array of one axis can come within a factor of four of that error.
        gain: length of a step along 100 decoded normal numbers, relative to one along the numbers
            themselves; replies of a gain other than 1 change the clients' learning rate.
        seed: seed of the arrays and bytes that are drawn.
    """
    random = np.random.default_rng(seed)
    for shape in SHAPES:
        drawn = random.uniform(0.125, 1000, shape) * random.choice([-1, 0, 1], shape)
        comes_back(codec, drawn.astype(np.float32), error)
        for size in {codec.size(shape), *random.integers(0, 64, 4).tolist()}:
            decodes_or_refuses(codec, memoryview(random.bytes(size)), shape)
    decodes_or_refuses(codec, memoryview(b""), (2**31 - 1, 0, 2**31 - 1))
    generator = torch.Generator().manual_seed(seed)
    _is_as_exact_as_claimed(codec, error, tight)
    _keeps_the_length_of_steps(codec, gain, generator)
    _is_the_same_for_any_view(codec, generator)
    _gives_arrays_of_the_receivers_own(codec, generator)
    _refuses_other_sizes(codec, generator)
    _keeps_zeros_and_single_numbers(codec, error)
    _keeps_what_is_not_finite(codec)
    _says_truly_what_it_keeps(codec, generator)
    _fits_the_wire(codec, error)


def comes_back(codec: Codec, numbers: NDArray[np.float32], error: float) -> None:
    """Check that an array comes back in shape, up to its error, and that it is not changed."""
    array, before = torch.from_numpy(numbers), numbers.copy()
    data = codec.encode(array)
    demand(np.array_equal(numbers, before), f"{codec!r} changes the array that it encodes")
    size = codec.size(numbers.shape)
    told = f"{codec!r}, shape {numbers.shape}"
    demand(len(data) == size, f"{told}: {len(data)} bytes where size says {size}")
    demand(bool(len(data)) == bool(numbers.size), f"{told}: {len(data)} bytes")
    found = codec.decode(data, numbers.shape)
    as_sent = (found.dtype, found.shape) == (torch.float32, numbers.shape)
    demand(as_sent, f"{told}: decoded to {found.dtype} of shape {tuple(found.shape)}")
    far = float((found - array).abs().amax() if array.numel() else 0.0)
    allowed = error * (1 + 1e-5) * float(np.abs(numbers).max(initial=0.0))
    demand(far <= allowed, f"{told}: an error of {far:.4g}; {allowed:.4g} is claimed")


def decodes_or_refuses(codec: Codec, data: memoryview, shape: tuple[int, ...]) -> None:
    """Check that decoding any bytes gives an array of that shape, or a MalformedError."""
    with suppress(MalformedError):
        found = codec.decode(data, shape)
        as_asked = (found.dtype, found.shape) == (torch.float32, shape)
        demand(
            as_asked, f"{codec!r} decodes {len(data)} bytes to {tuple(found.shape)}, not {shape}"
        )


def _is_as_exact_as_claimed(codec: Codec, error: float, tight: bool) -> None:
    array = torch.linspace(-1.0, 1.0, 2001)
    far = float((back(codec, array) - array).abs().amax())
    demand(far <= error * (1 + 1e-5), f"{codec!r}: an error of {far:.4g}; {error:.4g} is claimed")
    demand(far >= error / 4 or not tight, f"{codec!r} is better than the error {error:.4g}: {far}")


def _keeps_the_length_of_steps(codec: Codec, gain: float, generator: torch.Generator) -> None:
    rows = torch.randn(300, 100, generator=generator)
    arrived = torch.stack([back(codec, row) for row in rows])
    found = float((rows * arrived).sum() / rows.square().sum())
    demand(abs(found - gain) <= 0.02, f"{codec!r}: a gain of {found:.4g}; {gain:.4g} is claimed")


def _is_the_same_for_any_view(codec: Codec, generator: torch.Generator) -> None:
    array = torch.randn(4, 3, 2, generator=generator)
    for view in (array, array.transpose(0, 2), array[:, 1], array[::2], array.narrow(1, 1, 1)):
        one, other = codec.encode(view), codec.encode(view.contiguous().clone())
        demand(bytes(one) == bytes(other), f"{codec!r}: other bytes for strides {view.stride()}")


def _gives_arrays_of_the_receivers_own(codec: Codec, generator: torch.Generator) -> None:
    """Check that no decoded array is a view of its frame, which is read-only and used again."""
    array = torch.randn(3, 4, generator=generator)
    data = bytearray(codec.encode(array))
    found = codec.decode(memoryview(data), (3, 4))
    kept = found.clone()
    data[:] = bytes(len(data))
    demand(torch.equal(found, kept), f"{codec!r} decodes to a window on the frame")
    frame = bytes(codec.encode(array))
    codec.decode(memoryview(frame), (3, 4)).add_(1)
    again = codec.decode(memoryview(frame), (3, 4))
    demand(torch.equal(again, kept), f"{codec!r} decodes to a window on the frame")


def _refuses_other_sizes(codec: Codec, generator: torch.Generator) -> None:
    data = bytes(codec.encode(torch.randn(3, 4, generator=generator)))
    for wrong in (*(data[:size] for size in range(len(data))), data + b"\0", data + data):
        words = f"{codec!r} takes {len(wrong)} bytes for {len(data)}"
        demand_refused(MalformedError, codec.decode, memoryview(wrong), (3, 4), words=words)


def _keeps_zeros_and_single_numbers(codec: Codec, error: float) -> None:
    data = codec.encode(torch.tensor(3.0))
    demand(len(data) == codec.size(()), f"{codec!r}: another size for a number without an axis")
    far = abs(float(codec.decode(data, ())) - 3)
    demand(far <= 3 * error, f"{codec!r}: a number without an axis is off by {far:.4g}")
    for shape in ((1,), (5,), (3, 3), (2, 3, 5)):
        zeros = torch.zeros(shape)
        demand(torch.equal(back(codec, zeros), zeros), f"{codec!r}: zeros come back as others")


def _keeps_what_is_not_finite(codec: Codec) -> None:
    """Check that numbers that are not finite stay so, since the receiver must refuse them."""
    inf, nan = float("inf"), float("nan")
    for shape in ((1,), (2,), (9,), (3, 3), (2, 3, 4), (1, 1, 5)):
        numbers = torch.Size(shape).numel()
        for value, place in product((inf, -inf, nan), range(numbers)):
            array = torch.linspace(-1, 1, numbers)
            array[place] = value
            found = back(codec, array.view(shape))
            words = f"{codec!r} makes {value} at {place} of {shape} finite"
            demand(not found.isfinite().all(), words)
    for values in ([inf, -inf], [nan] * 2, [inf] * 2):  # everything
        found = back(codec, torch.tensor(values).repeat(2, 3, 2))
        demand(not found.isfinite().all(2).any(), f"{codec!r} makes some of {values} finite")


def _says_truly_what_it_keeps(codec: Codec, generator: torch.Generator) -> None:
    """Check the three flags: records mix (docs/mathematics.md, Records must not mix), two numbers
    are kept exactly, and differences to an error of 0.6, since bfloat16 keeps little more."""
    array = torch.randn(2, 3, 8, generator=generator)
    other = array.clone()
    other[:, 1] *= 100
    mixed = not torch.equal(back(codec, array)[:, ::2], back(codec, other)[:, ::2])
    losses = [torch.tensor(pair) for pair in ([1.1, 0.3], [-2.0, 5e-5], [0.7, 0.7 + 1e-6])]
    kept = all(torch.equal(back(codec, pair), pair) for pair in losses)
    middle, shift = torch.randn(2, 64, 16, generator=generator)
    shift *= 3e-3
    plus, minus = back(codec, torch.stack([middle + shift, middle - shift]))
    error = float((plus - minus - 2 * shift).norm() / (2 * shift).norm())
    for flag, found in (
        ("mixes_records", mixed),
        ("keeps_two_numbers", kept),
        ("keeps_differences", error < 0.6),
    ):
        words = f"{codec!r} says {flag}: {getattr(codec, flag)}, and it is {found}"
        demand(getattr(codec, flag) == found, words)


def _fits_the_wire(codec: Codec, error: float) -> None:
    demand(codec.name, f"{codec!r} has no name")
    as_told = isinstance(codec.encode(torch.ones(2)), memoryview)
    demand(as_told, f"{codec!r} encodes to something else than a memoryview")
    query = Query(1, 2, torch.tensor([3, 4]), torch.ones(2, 2, 3))
    found = wire.decode(wire.encode(query, codec), codec)
    near = isinstance(found, Query) and torch.allclose(
        found.embeddings, query.embeddings, atol=error
    )
    demand(near, f"{codec!r}: a query is another one after the wire")
