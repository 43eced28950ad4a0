"""Private updates: what one record may move, how large the noise is, and what they are without it.

Statistical tests have fixed seeds. With n normal numbers a scale that is 5 % off moves the sum of
squares by ``0.1 n``, which is ``0.07 √n`` standard errors: more than six for the 8,000 drawn here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from tests.rows import each
from torch import Tensor, nn
from torch.nn import functional as F

from vertizo.core.randomness import Stream
from vertizo.models.base import Points
from vertizo.models.losses import Classification
from vertizo.models.networks import mlp
from vertizo.models.optimizers import Sgd
from vertizo.models.torch import wrap
from vertizo.party.private_updates import (
    ROUNDING,
    PrivateSgd,
    PrivateZerothOrder,
    Schedule,
    SecretSgd,
    SeededSampler,
    SystemSampler,
    clipped_gradient,
)
from vertizo.party.server_model import FirstOrder, ServerModel, ServerUpdate, ZerothOrder
from vertizo.privacy.mechanisms import SeededNoise
from vertizo.zeroth_order.directions import LAWS, Directions

WIDTH, BATCH, CLASSES = 4, 8, 3
HUGE, TINY = 1e6, 1e-12
"""A clip that clips nothing, and noise that is none."""


def data(records: int = BATCH, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    joined = torch.randn(records, WIDTH, generator=generator)
    return joined, joined[:, :CLASSES].argmax(1)


def network(kind: str = "stack") -> nn.Module:
    torch.manual_seed(2)
    if kind == "stack":
        return mlp(WIDTH, [6], CLASSES, final_relu=False)
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def head_of(module: nn.Module) -> ServerModel:
    return ServerModel(wrap(copy.deepcopy(module)), Classification(CLASSES))


def noise(clip: float = HUGE, noise_std: float = TINY, seed: int = 0) -> SeededNoise:
    stream = Stream.from_seed(seed).child("server noise")
    return SeededNoise(stream, clip_norm=clip, noise_std=noise_std)


def take(update: ServerUpdate, head: ServerModel, joined: Tensor, labels: Tensor) -> None:
    """One step as a method makes it: at the last of three points."""
    shift = torch.full((2, *joined.shape), 0.1) * torch.tensor([1.0, -1.0]).view(2, 1, 1)
    evaluation = head.evaluate(Points(joined, ((0, shift),)), labels)
    update.step(head, evaluation, joined, labels)


def summed(head: ServerModel, joined: Tensor, labels: Tensor, clip: float, **more: Any) -> Tensor:
    return clipped_gradient(head.evaluate(Points(joined), labels), clip, **more)


def record_gradients(module: nn.Module, joined: Tensor, labels: Tensor) -> Tensor:
    """Each record's own, by autograd in float64, [batch, d]."""
    module = copy.deepcopy(module).double().requires_grad_(True)
    rows = []
    for row, label in zip(joined.double(), labels, strict=True):
        loss = F.cross_entropy(module(row[None]), label[None])
        parts = torch.autograd.grad(loss, list(module.parameters()))
        rows.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(rows)


def clipped(rows: Tensor, clip: float) -> Tensor:
    bound = clip * (1 - ROUNDING)
    return rows * (bound / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)


class TestClippedGradient:
    @each("kind", ["stack", "autograd"])
    @each("share", [0.1, 1.0, 10.0])
    def test_is_the_sum_of_clipped_gradients(self, kind: str, share: float) -> None:
        """``Σ_i min(1, C/‖g_i‖) g_i``, C below, among and above the norms."""
        module, (joined, labels) = network(kind), data()
        rows = record_gradients(module, joined, labels)
        clip = share * float(rows.norm(dim=1).median())
        found = summed(head_of(module), joined, labels, clip)
        assert found.dtype == torch.float64
        assert torch.allclose(found, clipped(rows, clip).sum(0), rtol=1e-4, atol=1e-5 * clip)
        shares = clipped(rows, clip).norm(dim=1) / rows.norm(dim=1)
        assert bool((shares < 0.99).any()) == (share < 10)
        assert bool((shares > 0.999).any()) == (share > 0.1)

    @each("kind", ["stack", "autograd"])
    def test_at_the_last_of_several_points(self, kind: str) -> None:
        module, (joined, labels) = network(kind), data()
        head = head_of(module)
        shift = torch.ones(2, *joined.shape)
        evaluation = head.evaluate(Points(joined, ((0, shift),)), labels)
        found = clipped_gradient(evaluation, 0.5)
        assert torch.allclose(found, summed(head, joined, labels, 0.5), atol=1e-5)

    @each("value", [0.0, 7.0, 1e30, math.nan, math.inf, -math.inf])
    @each("count", [0, 1, 3, BATCH])
    def test_rows_beyond_the_count_weigh_nothing(self, count: int, value: float) -> None:
        """Exactly: what they are makes no difference, bit for bit."""
        head, (joined, labels) = head_of(network()), data()
        found = summed(head, joined, labels, 0.5, count=count)
        joined[count:], labels[count:] = value, 0
        assert torch.equal(summed(head, joined, labels, 0.5, count=count), found)
        assert bool(found.any()) == (count > 0)
        rows = record_gradients(network(), joined[:count], labels[:count]) if count else None
        if rows is not None:
            assert torch.allclose(found, clipped(rows, 0.5).sum(0), atol=1e-5)

    @each("value", [math.nan, math.inf, -math.inf])
    @each("kind", ["stack", "autograd"])
    def test_records_that_are_not_finite_count_as_zero(self, kind: str, value: float) -> None:
        module, (joined, labels) = network(kind), data()
        rows = record_gradients(module, joined, labels)
        joined[2, 1] = joined[5, 0] = value
        rows[[2, 5]] = 0
        found = summed(head_of(module), joined, labels, 0.5)
        kept = [i for i in range(BATCH) if i not in (2, 5)]
        assert torch.allclose(found, clipped(rows[kept], 0.5).sum(0), atol=1e-5)

    @each("kind", ["stack", "autograd"])
    def test_nothing_finite_is_zero(self, kind: str) -> None:
        head, (joined, labels) = head_of(network(kind)), data()
        joined[:, 0] = math.nan
        found = summed(head, joined, labels, 0.5)
        assert found.shape == head.parameters.shape
        assert found.dtype == torch.float64
        assert not found.any()

    def test_the_inputs_are_left_alone(self) -> None:
        head, (joined, labels) = head_of(network()), data()
        joined[3] = math.nan
        before = joined.clone(), labels.clone(), head.parameters.clone()
        summed(head, joined, labels, 0.5)
        assert torch.equal(joined.nan_to_num(), before[0].nan_to_num())
        assert torch.equal(labels, before[1])
        assert torch.equal(head.parameters, before[2])


ROWS = st.lists(
    st.one_of(
        st.floats(-5, 5, width=32),
        st.sampled_from([0.0, 1e10, -1e20, 3e38, -3e38, math.nan, math.inf, -math.inf]),
    ),
    min_size=WIDTH,
    max_size=WIDTH,
)
RECORDS = st.lists(st.tuples(ROWS, st.integers(0, CLASSES - 1)), min_size=2, max_size=6)


@each("kind", ["stack", "autograd"])
def test_a_record_moves_the_sum_by_its_sensitivity_at_most(kind: str) -> None:
    """Whatever a record is replaced by: 2C, for every input, NaN, ±∞ and overflow among them."""
    head = head_of(network(kind))
    largest = 0.0

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(records=RECORDS, clip=st.sampled_from([0.01, 1.0, 30.0]), at=st.data())
    def check(records: list[tuple[list[float], int]], clip: float, at: st.DataObject) -> None:
        nonlocal largest
        *batch, other = records
        index = at.draw(st.integers(0, len(batch) - 1))
        neighbour = list(batch)
        label_only = at.draw(st.booleans())
        neighbour[index] = (batch[index][0], other[1]) if label_only else other
        sums = []
        for rows in (batch, neighbour):
            joined = torch.tensor([row for row, _ in rows])
            with np.errstate(all="ignore"):
                sums.append(summed(head, joined, torch.tensor([y for _, y in rows]), clip))
        assert bool(sums[0].isfinite().all())
        distance = float((sums[0] - sums[1]).norm())
        assert distance <= 2 * clip
        largest = max(largest, distance / clip)

    check()
    assert largest > 1  # else a clip of half of it would pass as well


def one_sided() -> nn.Module:
    """Logits −1e30 h and 0: a large h overflows one of them."""
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1e30], [0.0]]))
    return model


@each("large", [1e20, -1e20])
def test_an_overflow_for_one_label_only(large: float) -> None:
    """Gradients that are finite for one label of a record and not for the other."""
    head = ServerModel(wrap(one_sided()), Classification(2))
    joined = torch.tensor([[0.5], [large], [-0.2]])
    sums = []
    for label in (0, 1):
        labels = torch.tensor([0, label, 1])
        with np.errstate(all="ignore"):
            sums.append(summed(head, joined, labels, 1.0))
    assert bool(torch.stack(sums).isfinite().all())
    assert float((sums[0] - sums[1]).norm()) <= 2.0


def quiet(name: str, head: ServerModel, rate: float, momentum: float, law: str = "sphere") -> Any:
    """A private update with next to no noise, and the plain one that it then is."""
    size = head.parameters.numel()

    def directions() -> Directions:
        return Directions(law, size, Stream.from_seed(3).child("server"))

    if name == "private-sgd":
        private: Any = PrivateSgd(Sgd(rate, momentum), noise(), BATCH)
        return private, FirstOrder(Sgd(rate, momentum), BATCH)
    private = PrivateZerothOrder(Sgd(rate, momentum), noise(), BATCH, directions(), 0.1)
    return private, ZerothOrder(Sgd(rate, momentum), directions(), 0.1, BATCH)


@each("kind", ["stack", "autograd"])
@each("name", ["private-sgd", "private-zeroth-order"])
@each("momentum", [0.0, 0.9])
def test_without_noise_it_is_the_plain_method(kind: str, name: str, momentum: float) -> None:
    head, other = head_of(network(kind)), head_of(network(kind))
    private, plain = quiet(name, head, 0.05, momentum)
    start = head.parameters.clone()
    for step in range(12):
        joined, labels = data(BATCH if step % 3 else 3, seed=step)  # some batches are short
        take(private, head, joined, labels)
        take(plain, other, joined, labels)
        assert torch.allclose(head.parameters, other.parameters, rtol=1e-3, atol=1e-4)
    assert float((head.parameters - start).norm()) > 0.05


@each("law", LAWS)
def test_slopes_are_clipped_record_by_record(law: str) -> None:
    """``w ← w − η φ Σ_i clip_C(δ_i)/B · u``."""
    joined, labels = data()
    size = head_of(network()).parameters.numel()
    directions = Directions(law, size, Stream.from_seed(3))
    direction, u = directions.draw(0), torch.zeros(size)
    direction.add_to(u, 1.0)
    losses = []
    for offset in (1e-2, -1e-2):
        moved = head_of(network())
        moved.parameters.add_(u, alpha=offset)
        losses.append(moved.task.losses(moved.logits(joined), labels).values)
    slopes = (losses[0] - losses[1]) / 2e-2
    clip = float(slopes.abs().max()) / 4
    taken = []
    for bound in (clip, HUGE):
        head = head_of(network())
        start = head.parameters.clone()
        update = PrivateZerothOrder(Sgd(1.0), noise(bound), BATCH, directions, 1e-2)
        take(update, head, joined, labels)
        taken.append(float((head.parameters - start) @ u) / float(u @ u) / direction.factor)
    # Losses are float32: slopes are off by 1e-7/1e-2 each.
    assert taken[0] == pytest.approx(-float(slopes.clamp(-clip, clip).sum()) / BATCH, abs=1e-4)
    assert taken[1] == pytest.approx(-float(slopes.sum()) / BATCH, abs=1e-4)
    assert abs(taken[1] - taken[0]) > 3e-4


CLIP, SIGMA, DRAWS = 0.5, 4.0, 8000
Array = NDArray[np.float64]


def plausible(sample: Array, std: float) -> bool:
    """Whether the sample may be of N(0, std²): by its variance and by its shape."""
    squares = float((sample**2).sum()) / std**2
    tail = min(stats.chi2.cdf(squares, sample.size), stats.chi2.sf(squares, sample.size))
    return tail > 1e-4 and stats.kstest(sample.ravel() / std, "norm").pvalue > 1e-4


def secret(
    clip: float = HUGE,
    noise_std: float = TINY,
    *,
    sampling: float = 0.2,
    capacity: int = BATCH,
    rate: float = 1.0,
    momentum: float = 0.0,
    seed: int = 0,
) -> SecretSgd:
    return SecretSgd(
        Sgd(rate, momentum),
        noise(clip, noise_std, seed),
        sampling=sampling,
        capacity=capacity,
        sampler=SeededSampler(Stream.from_seed(seed).child("secret samples")),
    )


class TestNoise:
    def moves(self, step: Callable[[ServerModel], None], rounds: int) -> Array:
        """How far each of many steps of learning rate 1 takes the weights, from one start."""
        head = head_of(network())
        start, rows = head.parameters.clone(), []
        for _ in range(rounds):
            head.parameters.copy_(start)
            step(head)
            rows.append((head.parameters - start).double().numpy())
        return np.stack(rows)

    def check(self, sample: Array, std: float) -> None:
        sample = sample - sample.mean(0)
        rows = len(sample)
        sample = sample * math.sqrt(rows / (rows - 1))
        assert sample.size >= DRAWS
        assert plausible(sample, std)
        for wrong in (0.95, 1.05):
            assert not plausible(sample, wrong * std)

    @each("batch_size", [1, 64])
    def test_of_private_sgd_is_on_the_sum(self, batch_size: int) -> None:
        """σ_s/B on every weight, whatever B is."""
        update = PrivateSgd(Sgd(1.0), noise(CLIP, SIGMA), batch_size)
        joined, labels = data()
        sample = self.moves(lambda head: take(update, head, joined, labels), 250)
        assert sample.shape[1] == 51
        self.check(sample, SIGMA / batch_size)

    def test_of_a_private_slope(self) -> None:
        """σ_s/B on the slope, told apart from the slope itself by the same steps without noise."""
        size, batch_size, rounds = head_of(network()).parameters.numel(), 16, 1500
        directions = Directions("sphere", size, Stream.from_seed(3))
        joined, labels = data()
        along = []
        for sigma in (SIGMA, TINY):
            made = PrivateZerothOrder(Sgd(1.0), noise(CLIP, sigma), batch_size, directions, 1e-3)
            sample = self.moves(lambda head, made=made: take(made, head, joined, labels), rounds)
            along.append(sample)
        lengths = np.empty(rounds)
        for number, row in enumerate(along[0] - along[1]):
            direction, u = directions.draw(number), torch.zeros(size)
            direction.add_to(u, 1.0)
            numbers = u.double().numpy()
            lengths[number] = row @ numbers / (numbers @ numbers) / direction.factor
        assert plausible(lengths, SIGMA / batch_size)
        for wrong in (0.88, 1.12):  # of 1,500: again more than six standard errors
            assert not plausible(lengths, wrong * SIGMA / batch_size)

    @each("count", [0, 3])
    def test_of_secret_steps_is_over_the_expected_sample(self, count: int) -> None:
        """``z C_s/(qD)``; an empty sample has it as well."""
        records, sampling = 40, 0.2
        update = secret(CLIP, SIGMA, sampling=sampling)
        joined, labels = data()
        numbers = iter(range(10**6))

        def step(head: ServerModel) -> None:
            update.between(next(numbers), head, joined, labels, count, records)

        self.check(self.moves(step, 250), SIGMA / (sampling * records))

    def test_of_every_step_is_its_own(self) -> None:
        update = PrivateSgd(Sgd(1.0), noise(CLIP, SIGMA), 1)
        joined, labels = data()
        sample = self.moves(lambda head: take(update, head, joined, labels), 12)
        correlations = np.corrcoef(sample - sample.mean(0)) - np.eye(12)
        # Taking the mean of 12 away correlates them by −1/11.
        assert np.abs(correlations + (1 - np.eye(12)) / 11).max() < 5 / math.sqrt(51)


class TestSecretSgd:
    def test_without_noise_it_is_the_mean_over_the_expected_sample(self) -> None:
        """``w ← w − η Σ_{sample} g_i / (qD)``."""
        records, sampling = 40, 0.3
        module, (joined, labels) = network(), data(records)
        head = head_of(module)
        update = secret(sampling=sampling, capacity=records, rate=0.7)
        rows, count = update.sample(0, records)
        assert 0 < count < records
        start = head.parameters.clone()
        update.between(0, head, joined[rows], labels[rows], count, records)
        gradients = record_gradients(module, joined[rows[:count]], labels[rows[:count]])
        expected = -0.7 * gradients.sum(0).float() / (sampling * records)
        assert torch.allclose(head.parameters - start, expected, rtol=1e-3, atol=1e-6)

    def test_queries_do_not_move_it(self) -> None:
        head, (joined, labels) = head_of(network()), data()
        before = head.parameters.clone()
        take(secret(CLIP, SIGMA), head, joined, labels)
        assert torch.equal(head.parameters, before)

    @each("sampling", [0.05, 0.5])
    @each("system", [False, True])
    def test_samples_are_poisson(self, sampling: float, system: bool) -> None:
        """Sizes are binomial, records alike and independent; 400 samples of 500 records.

        Whole numbers of standard errors: 5, which chance exceeds once in a million.
        """
        records, draws = 500, 400
        update = secret(sampling=sampling, capacity=records)
        if system:
            update = SecretSgd(
                Sgd(1.0), noise(), sampling=sampling, capacity=records, sampler=SystemSampler()
            )
        chosen = np.zeros((draws, records))
        for step in range(draws):
            rows, count = update.sample(step, records)
            assert rows.shape == (records,)
            assert rows[:count].unique().numel() == count
            assert not rows[count:].any()
            chosen[step, rows[:count].numpy()] = 1
        spread = math.sqrt(sampling * (1 - sampling))
        total = records * draws
        assert abs(chosen.mean() - sampling) < 5 * spread / math.sqrt(total)
        sizes = chosen.sum(1)
        variance = records * spread**2
        # The variance of n sizes has relative error √(2/n), for sizes that are nearly normal.
        assert abs(sizes.var() / variance - 1) < 5 * math.sqrt(2 / draws) + 0.02
        often = chosen.mean(0)
        assert np.abs(often - sampling).max() < 5.5 * spread / math.sqrt(draws)
        following = (chosen[1:] - sampling) * (chosen[:-1] - sampling)
        assert abs(following.mean()) < 5 * spread**2 / math.sqrt(following.size)

    def test_samples_are_functions_of_seed_and_step(self) -> None:
        one, again, other = (secret(capacity=50, seed=seed) for seed in (1, 1, 2))
        assert torch.equal(one.sample(3, 50)[0], again.sample(3, 50)[0])
        assert not torch.equal(one.sample(3, 50)[0], one.sample(4, 50)[0])
        assert not torch.equal(one.sample(3, 50)[0], other.sample(3, 50)[0])

    def test_a_sample_beyond_the_capacity_is_cut(self) -> None:
        rows, count = secret(sampling=0.9, capacity=3).sample(0, 40)
        assert (rows.shape, count) == ((3,), 3)
        assert rows.unique().numel() == 3

    def test_as_many_rows_are_evaluated_whatever_the_sample(self) -> None:
        """Its size is no secret that time could tell."""
        head, records, capacity = head_of(network()), 60, 25
        joined, labels = data(records)
        seen: list[int] = []
        model = head.model

        class Watched:
            parameters = model.parameters

            def __call__(self, inputs: Tensor) -> Tensor:
                raise AssertionError

            along = state = load = settle = __call__

            def forward(self, points: Points, number: int = 0) -> Any:
                seen.append(len(points.rows) * len(points))
                return model.forward(points, number)

        watched = ServerModel(Watched(), Classification(CLASSES))
        update = secret(CLIP, SIGMA, sampling=0.2, capacity=capacity)
        counts = []
        for step in range(10):
            rows, count = update.sample(step, records)
            counts.append(count)
            update.between(step, watched, joined[rows], labels[rows], count, records)
        assert len(set(counts)) > 3
        assert seen == [capacity] * 10


@each("name", ["private-sgd", "private-zeroth-order", "poisson-dp-sgd"])
def test_a_loaded_update_goes_on_the_same_way(name: str) -> None:
    """Optimiser, directions and noise."""

    def make(head: ServerModel) -> Any:
        if name == "private-sgd":
            return PrivateSgd(Sgd(0.1, 0.9), noise(CLIP, SIGMA), BATCH)
        if name == "poisson-dp-sgd":
            return secret(CLIP, SIGMA, rate=0.1, momentum=0.9)
        directions = Directions("sphere", head.parameters.numel(), Stream.from_seed(3))
        return PrivateZerothOrder(Sgd(0.1, 0.9), noise(CLIP, SIGMA), BATCH, directions, 1e-3)

    def advance(update: Any, head: ServerModel, step: int) -> None:
        joined, labels = data(seed=step)
        if name == "poisson-dp-sgd":
            update.between(step, head, joined, labels, 5, 40)
        else:
            take(update, head, joined, labels)

    head = head_of(network())
    update = make(head)
    for step in range(5):
        advance(update, head, step)
    other = head_of(network())
    other.parameters.copy_(head.parameters)
    resumed = make(other)
    resumed.load({key: value.clone() for key, value in update.state().items()})
    for step in range(5, 10):
        advance(update, head, step)
        advance(resumed, other, step)
    assert torch.equal(head.parameters, other.parameters)


def test_they_are_private() -> None:
    assert all(kind.is_private for kind in (PrivateSgd, PrivateZerothOrder, SecretSgd))


class TestSchedule:
    @each(
        "schedule, due",
        [
            (Schedule(1, 0, 5), [0, 1, 2, 3, 4, 5, 5]),
            (Schedule(3, 0, 2), [0, 0, 0, 1, 1, 1, 2]),
            (Schedule(2, 4, 7), [4, 4, 5, 5, 6, 6, 7]),
            (Schedule(1, 4, 5), [4, 5, 5, 5, 5, 5, 5]),
        ],
    )
    def test_steps_follow_the_round_counter(self, schedule: Schedule, due: list[int]) -> None:
        assert [schedule.due(round_) for round_ in range(7)] == due
