"""Training images that are moved and mirrored at random."""

from __future__ import annotations

import torch
from tests.rows import each
from torch import Tensor
from torch.nn.functional import pad

from vertizo.core.randomness import Stream
from vertizo.party.batches import Augmentation

BATCH = 300


def windows(image: Tensor, crop: int) -> dict[tuple[int, int, bool], Tensor]:
    """All that an image [channels, height, width] may become: (down, right, mirrored) → it."""
    whole, (high, wide) = pad(image, (crop,) * 4), image.shape[1:]
    places = [(down, right) for down in range(2 * crop + 1) for right in range(2 * crop + 1)]
    cut = {(d, r): whole[:, d : d + high, r : r + wide] for d, r in places}
    mirrored = {(*at, True): part.flip(2) for at, part in cut.items()}
    return {(*at, False): part for at, part in cut.items()} | mirrored


@each("crop, flip, ways", [(1, True, 18), (2, False, 25), (0, True, 2)])
def test_every_way_of_moving_is_as_frequent(crop: int, flip: bool, ways: int) -> None:
    images = torch.rand(BATCH, 3, 4, 5) + 1
    augmentation = Augmentation(Stream.from_seed(0).child("own"), crop, flip)
    counts: dict[tuple[int, int, bool], int] = {}
    for number in range(5):
        made = augmentation(number, images)
        assert made.shape == images.shape
        assert made.is_contiguous()
        for image, one in zip(images, made, strict=True):
            (way,) = (at for at, part in windows(image, crop).items() if torch.equal(part, one))
            counts[way] = counts.get(way, 0) + 1
    assert len(counts) == ways
    expected = 5 * BATCH / ways
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < ways + 5 * (2 * ways) ** 0.5


def test_a_query_decides_and_images_stay() -> None:
    """Asked again or told after a restart, a query is about the same images."""
    images = torch.rand(8, 1, 6, 6)
    before, stream = images.clone(), Stream.from_seed(3)
    first = Augmentation(stream, 2, True)(7, images)
    assert torch.equal(first, Augmentation(stream, 2, True)(7, images))
    assert not torch.equal(first, Augmentation(stream, 2, True)(8, images))
    assert not torch.equal(first, Augmentation(Stream.from_seed(4), 2, True)(7, images))
    assert torch.equal(images, before)
    alone = Augmentation(stream, 2, True)(7, torch.cat([images[:4], torch.rand(4, 1, 6, 6)]))
    assert torch.equal(alone[:4], first[:4]), "images do not depend on each other"
