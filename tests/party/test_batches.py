"""Every record is in exactly one batch of an epoch; images are moved and mirrored at random."""

from __future__ import annotations

from itertools import product

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests import federations
from tests.lazy import Lazy
from tests.rows import each, examples
from torch import Tensor
from torch.nn.functional import pad

from vertizo.core.randomness import Stream
from vertizo.party.batches import Augmentation, Batches

stats = Lazy("scipy.stats")


@settings(max_examples=examples(100), deadline=None, derandomize=True, database=None)
@given(records=st.integers(1, 60), size=st.integers(1, 70), number=st.integers(0, 50))
@example(records=60_000, size=64, number=0)
def test_an_epoch_holds_every_record_once(records: int, size: int, number: int) -> None:
    batches = Batches(records, size, Stream.from_seed(1))
    first = number * batches.per_epoch
    cut = [batches.ids(first + position) for position in range(batches.per_epoch)]
    assert sorted(torch.cat(cut).tolist()) == list(range(records))
    assert all(len(ids) == size for ids in cut[:-1])
    assert len(cut[-1]) == records - size * (len(cut) - 1) > 0
    assert cut[0].dtype == torch.int64


def test_a_batch_is_a_function_of_its_number() -> None:
    forward, jumping = (Batches(23, 5, Stream.from_seed(3)) for _ in range(2))
    known = [forward.ids(n).tolist() for n in range(20)]
    for n in (17, 2, 19, 3, 0, 9):
        assert jumping.ids(n).tolist() == known[n]


def test_epochs_and_owners_are_shuffled_apart() -> None:
    mine, other = (Batches(100, 100, Stream.from_seed(3).child("client", m)) for m in (0, 1))
    orders = [mine.ids(0), mine.ids(1), other.ids(0), torch.arange(100)]
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_every_record_is_as_likely_to_come_first() -> None:
    batches = Batches(8, 8, Stream.from_seed(5))
    counts = torch.zeros(8)
    for number in range(2000):
        counts[batches.ids(number)[0]] += 1
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


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


@each("method, model", product(("dpzv", "cascaded", "czofo", "vafl"), ("mlp", "cnn")))
def test_a_query_is_about_moved_images(method: str, model: str) -> None:
    """Of every model, and those that read rows of the table in place as well."""
    changes = {"client.model": {"name": model, "outputs": 3}, "client.crop": 2, "client.flip": True}
    federation = federations.build(method, None, changes, of=federations.data(sides=(1, 4, 4)))
    federation.start(upload_table=False)
    client = federation.clients[1]
    sent = federations.query(federations.ask(federation, 1))
    images = client.features["train"][sent.ids]
    assert client.augmentation is not None
    wanted = client.pair.ask(0, client.augmentation(0, images))
    assert torch.allclose(sent.embeddings, wanted, atol=1e-6)
    assert not torch.allclose(sent.embeddings, client.pair.ask(0, images), atol=1e-2)
