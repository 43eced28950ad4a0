"""How the server model moves: the plain updates, and those that protect labels.

Of the latter, what one record may move, how large the noise is, and what they are without it.
Statistical tests have fixed seeds. With n normal numbers a scale that is 5 % off moves the sum of
squares by ``0.1 n``, which is ``0.07 √n`` standard errors: more than six for the 8,000 drawn here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.laws import plausible
from tests.rows import each, examples
from torch import Tensor, nn
from torch.nn import functional as F

from vertizo.core.randomness import Stream
from vertizo.models.architectures.networks import mlp
from vertizo.models.array import ArrayModel
from vertizo.models.base import Points
from vertizo.models.losses import Classification
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
from vertizo.party.server_model import FirstOrder, NoUpdate, ServerModel, ServerUpdate, ZerothOrder
from vertizo.privacy.noise.mechanisms import SeededNoise
from vertizo.zeroth_order.directions import LAWS, Directions

WIDTH, BATCH, CLASSES = 4, 8, 3
HUGE, TINY = 1e6, 1e-12
"""A clip that clips nothing, and noise that is none."""
CLIP, SIGMA, DRAWS = 0.5, 4.0, 8000
Array = NDArray[np.float64]
every_kind = each("kind", ["stack", "autograd"])


def data(records: int = BATCH, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Joined embeddings and labels that they tell."""
    generator = torch.Generator().manual_seed(seed)
    joined = torch.randn(records, WIDTH, generator=generator)
    return joined, joined[:, :CLASSES].argmax(1)


def network(kind: str = "stack") -> nn.Module:
    torch.manual_seed(2)
    if kind == "stack":
        return mlp(WIDTH, [6], CLASSES, final_relu=False)
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def head_of(kind: str = "stack") -> ServerModel:
    return ServerModel(wrap(network(kind)), Classification(CLASSES))


SIZE = head_of().parameters.numel()


def noise(clip: float = HUGE, noise_std: float = TINY, seed: int = 0) -> SeededNoise:
    stream = Stream.from_seed(seed).child("server noise")
    return SeededNoise(stream, clip_norm=clip, noise_std=noise_std)


def directions(law: str = "scaled-sphere", dimension: int = SIZE) -> Directions:
    return Directions(law, dimension, Stream.from_seed(3).child("server"))


def first_direction(law: str) -> tuple[float, Tensor]:
    """Its factor, and the numbers."""
    direction, u = directions(law).draw(0), torch.zeros(SIZE)
    direction.add_to(u, 1.0)
    return direction.factor, u


def secret(
    clip: float = HUGE,
    noise_std: float = TINY,
    *,
    sampling: float = 0.2,
    capacity: int = BATCH,
    sgd: Sgd | None = None,
    seed: int = 0,
    sampler: Any = None,
) -> SecretSgd:
    drawn = sampler or SeededSampler(Stream.from_seed(seed).child("secret samples"))
    options = {"sampling": sampling, "capacity": capacity, "sampler": drawn}
    return SecretSgd(sgd or Sgd(1.0), noise(clip, noise_std, seed), **options)


def updates(
    sgd: Callable[[], Sgd], clip: float = HUGE, noise_std: float = TINY, law: str = "sphere"
) -> dict[str, Any]:
    """One of each that an optimiser makes."""
    return {
        "first-order": FirstOrder(sgd(), BATCH),
        "zeroth-order": ZerothOrder(sgd(), directions(law), 0.1, BATCH),
        "forward-difference": ZerothOrder(sgd(), directions(law), 0.1, BATCH, forward=True),
        "private-sgd": PrivateSgd(sgd(), noise(clip, noise_std), BATCH),
        "private-zeroth-order": PrivateZerothOrder(
            sgd(), noise(clip, noise_std), BATCH, directions(law), 0.1
        ),
        "poisson-dp-sgd": secret(clip, noise_std, sgd=sgd()),
    }


def take(update: ServerUpdate, head: ServerModel, joined: Tensor, labels: Tensor) -> None:
    """One step as a method makes it: at the last of three points."""
    shift = torch.full((2, *joined.shape), 0.1) * torch.tensor([1.0, -1.0]).view(2, 1, 1)
    evaluation = head.evaluate(Points(joined, ((0, shift),)), labels)
    update.step(head, evaluation, joined, labels)


def short_or_whole(step: int) -> tuple[Tensor, Tensor]:
    """The batch of a step; every third is short."""
    return data(BATCH if step % 3 else 3, seed=step)


def mean_loss(head: ServerModel, joined: Tensor, labels: Tensor) -> float:
    return float(head.task.losses(head.logits(joined), labels).values.mean())


def reduces_the_loss(
    update: ZerothOrder, head: ServerModel, evaluated: ServerModel, steps: int
) -> None:
    joined, labels = data(64)
    before = mean_loss(head, joined, labels)
    for _ in range(steps):
        evaluation = evaluated.evaluate(Points(joined), labels)
        update.step(head, evaluation, joined, labels)
    assert mean_loss(head, joined, labels) < 0.6 * before


@every_kind
@each("momentum", [0.0, 0.9])
def test_first_order_equals_pytorch(kind: str, momentum: float) -> None:
    reference, head = network(kind), head_of(kind)
    update = FirstOrder(Sgd(0.1, momentum), BATCH)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=momentum)
    for step in range(15):
        joined, labels = short_or_whole(step)
        take(update, head, joined, labels)
        optimizer.zero_grad()
        (F.cross_entropy(reference(joined), labels, reduction="sum") / BATCH).backward()
        optimizer.step()
        expected = nn.utils.parameters_to_vector(reference.parameters()).detach()
        assert torch.allclose(head.parameters, expected, rtol=1e-4, atol=1e-5)


@each("forward", [False, True])
@each("law", LAWS)
def test_zeroth_order_reduces_the_loss(law: str, forward: bool) -> None:
    update, head = ZerothOrder(Sgd(0.003), directions(law), 1e-3, BATCH, forward=forward), head_of()
    reduces_the_loss(update, head, head, 600)


def test_zeroth_order_trains_what_has_no_gradient() -> None:
    """Logits from a rule; the step goes through the same directions."""

    def rule(w: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.round((x @ w.reshape(WIDTH, CLASSES)) * 1e4) / 1e4

    size = WIDTH * CLASSES
    head = ServerModel(ArrayModel(rule, torch.zeros(size)), Classification(CLASSES))
    update = ZerothOrder(Sgd(0.05), directions(dimension=size), 0.01, 64)
    reduces_the_loss(update, head, head_of(), 300)


@each("law", LAWS)
@each("rows", [3, BATCH])
@each("forward, smoothing", [(False, 1e-3), (True, 0.1)])
def test_a_zeroth_order_step_is_the_formula(
    law: str, rows: int, forward: bool, smoothing: float
) -> None:
    """``w ← w − η φ (f(w + λu) − f(w − λu)) / 2λ · u``, f the sum over the batch by nominal B.

    By forward difference ``(f(w + μu) − f(w)) / μ``, where f(w) is the last point's loss.
    """
    head, (joined, labels) = head_of(), data(rows)
    start, module = head.parameters.clone(), network().double()
    factor, u = first_direction(law)

    def loss(offset: float) -> float:
        at = start.double() + offset * u.double()
        nn.utils.vector_to_parameters(at, module.parameters())
        logits = module(joined.double()).detach()
        return float(F.cross_entropy(logits, labels, reduction="sum")) / BATCH

    update = ZerothOrder(Sgd(0.3), directions(law), smoothing, BATCH, forward=forward)
    take(update, head, joined, labels)
    two = (loss(smoothing) - loss(-smoothing)) / (2 * smoothing)
    one = (loss(smoothing) - loss(0.0)) / smoothing
    step, other = (-0.3 * factor * slope * u for slope in ((one, two) if forward else (two, one)))
    off = float((head.parameters - start - step).norm())
    assert float(step.norm()) > 1e-3
    if not forward:
        assert off < 0.02 * float(step.norm()) + 1e-3 * factor**0.5
        return
    assert off < 1e-3 * float(step.norm()) + 1e-5
    assert float((other - step).norm()) > 1e-3 * float(step.norm()) + 1e-5  # no two-point step


def test_every_zeroth_order_step_has_a_direction_of_its_own() -> None:
    head, (joined, labels) = head_of(), data()
    update, steps = ZerothOrder(Sgd(0.01), directions(), 1e-3, BATCH), []
    for _ in range(6):
        before = head.parameters.clone()
        take(update, head, joined, labels)
        steps.append(head.parameters - before)
    correlations = torch.corrcoef(torch.stack(steps)) - torch.eye(6)
    assert float(correlations.abs().max()) < 0.6


def test_a_forward_difference_takes_the_loss_that_is_known() -> None:
    """At the weights before the step: it is the evaluation's, whatever that was made of."""
    head, (joined, labels) = head_of(), data()
    start = head.parameters.clone()
    evaluation = head.evaluate(Points(joined), labels)
    moved = []
    for shift in (0.0, 1e-3):
        head.parameters.copy_(start)
        known = replace(evaluation, losses=evaluation.losses + shift)
        update = ZerothOrder(Sgd(0.3), directions(), 1e-3, BATCH, forward=True)
        update.step(head, known, joined, labels)
        moved.append(head.parameters - start)
    _, u = first_direction("scaled-sphere")
    assert torch.allclose(moved[1] - moved[0], 0.3 * u, atol=1e-3)  # a slope less by 1e-3 / μ


class Watched:
    """A model that notes the rows it is asked for, and refuses what nobody should ask."""

    def __init__(self, head: ServerModel) -> None:
        self.inner, self.parameters, self.rows = head.model, head.parameters, []

    def __call__(self, inputs: Tensor) -> Tensor:
        self.rows.append(len(inputs))
        return self.inner(inputs)

    def along(self, direction: Tensor, offsets: list[float], inputs: Tensor) -> Tensor:
        self.rows.append(len(offsets) * len(inputs))
        return self.inner.along(direction, offsets, inputs)

    def forward(self, points: Points, number: int = 0) -> Any:
        self.rows.append(len(points.rows) * len(points))
        return self.inner.forward(points, number)

    def settle(self) -> None:
        raise AssertionError

    state = load = tangents = table_of = settle
    is_affine = False


def test_evaluations_are_counted_and_only_some_updates_are_private() -> None:
    plain, (joined, labels) = head_of(), data()
    model = Watched(plain)
    head = ServerModel(model, Classification(CLASSES))
    evaluation = plain.evaluate(Points(joined), labels)
    made = {"none": NoUpdate(), **updates(lambda: Sgd(0.1))}
    counts = {"zeroth-order": 2, "forward-difference": 1, "private-zeroth-order": 2}
    for name, update in made.items():
        model.rows.clear()
        before = plain.parameters.clone()
        for _ in range(3):
            update.step(head, evaluation, joined, labels)
        assert update.evaluations == counts.get(name, 0), name
        assert sum(model.rows) == 3 * update.evaluations * BATCH, name
        stays = name in ("none", "poisson-dp-sgd")  # the latter is not moved by queries
        assert torch.equal(plain.parameters, before) == stays, name
        assert update.is_private == (name == "none" or "private" in name or "dp-sgd" in name), name
    assert made["none"].state() == {}


@each("name", list(updates(lambda: Sgd(0.1))))
def test_a_loaded_update_goes_on_the_same_way(name: str) -> None:
    """Optimiser, directions and noise."""

    def advance(update: Any, head: ServerModel, step: int) -> None:
        joined, labels = data(seed=step)
        if isinstance(update, SecretSgd):
            update.between(step, head, joined, labels, 5, 40)
        else:
            take(update, head, joined, labels)

    head, other = head_of(), head_of()
    update, resumed = (updates(lambda: Sgd(0.1, 0.9), CLIP, SIGMA)[name] for _ in range(2))
    for step in range(5):
        advance(update, head, step)
    other.parameters.copy_(head.parameters)
    resumed.load(copy.deepcopy(update.state()))
    for step in range(5, 10):
        advance(update, head, step)
        advance(resumed, other, step)
    assert torch.equal(head.parameters, other.parameters)
    assert not torch.equal(head.parameters, head_of().parameters)


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
    @every_kind
    @each("share", [0.1, 1.0, 10.0])
    def test_is_the_sum_of_clipped_gradients(self, kind: str, share: float) -> None:
        """``Σ_i min(1, C/‖g_i‖) g_i``, C below, among and above the norms; of several points, at
        the last."""
        head, (joined, labels) = head_of(kind), data()
        rows = record_gradients(network(kind), joined, labels)
        clip = share * float(rows.norm(dim=1).median())
        found = summed(head, joined, labels, clip)
        assert found.dtype == torch.float64
        assert torch.allclose(found, clipped(rows, clip).sum(0), rtol=1e-4, atol=1e-5 * clip)
        shares = clipped(rows, clip).norm(dim=1) / rows.norm(dim=1)
        assert bool((shares < 0.99).any()) == (share < 10)
        assert bool((shares > 0.999).any()) == (share > 0.1)
        points = Points(joined, ((0, torch.ones(2, *joined.shape)),))
        found = clipped_gradient(head.evaluate(points, labels), 0.5)
        assert torch.allclose(found, summed(head, joined, labels, 0.5), atol=1e-5)

    @each("value", [0.0, 7.0, 1e30, math.nan, math.inf, -math.inf])
    @each("count", [0, 1, 3, BATCH])
    def test_rows_beyond_the_count_weigh_nothing(self, count: int, value: float) -> None:
        """Exactly: what they are makes no difference, bit for bit."""
        head, (joined, labels) = head_of(), data()
        found = summed(head, joined, labels, 0.5, count=count)
        joined[count:], labels[count:] = value, 0
        assert torch.equal(summed(head, joined, labels, 0.5, count=count), found)
        assert bool(found.any()) == (count > 0)
        if count:
            rows = record_gradients(network(), joined[:count], labels[:count])
            assert torch.allclose(found, clipped(rows, 0.5).sum(0), atol=1e-5)

    @each("value", [math.nan, math.inf, -math.inf])
    @each("records", [[2, 5], [*range(BATCH)]])
    @every_kind
    def test_records_that_are_not_finite_count_as_zero(
        self, kind: str, records: list[int], value: float
    ) -> None:
        """And nothing is changed but the sum."""
        head, (joined, labels) = head_of(kind), data()
        kept = [i for i in range(BATCH) if i not in records]
        expected = clipped(record_gradients(network(kind), joined, labels), 0.5)[kept].sum(0)
        joined[records, 1] = value
        before = joined.clone(), labels.clone(), head.parameters.clone()
        found = summed(head, joined, labels, 0.5)
        assert (found.shape, found.dtype) == (head.parameters.shape, torch.float64)
        assert torch.allclose(found, expected, atol=1e-5 if kept else 0.0)
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


@every_kind
def test_a_record_moves_the_sum_by_its_sensitivity_at_most(kind: str) -> None:
    """Whatever a record is replaced by: 2C, for every input, NaN, ±∞ and overflow among them."""
    head = head_of(kind)
    largest = 0.0

    @settings(max_examples=examples(150), deadline=None, derandomize=True, database=None)
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


@each("large", [1e20, -1e20])
def test_an_overflow_for_one_label_only(large: float) -> None:
    """Logits −1e30 h and 0: gradients are finite for one label of a record, not for the other."""
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1e30], [0.0]]))
    head = ServerModel(wrap(model), Classification(2))
    joined = torch.tensor([[0.5], [large], [-0.2]])
    with np.errstate(all="ignore"):
        sums = [summed(head, joined, torch.tensor([0, label, 1]), 1.0) for label in (0, 1)]
    assert bool(torch.stack(sums).isfinite().all())
    assert float((sums[0] - sums[1]).norm()) <= 2.0


@every_kind
@each("name, other", [("private-sgd", "first-order"), ("private-zeroth-order", "zeroth-order")])
@each("momentum", [0.0, 0.9])
def test_without_noise_it_is_the_plain_method(
    kind: str, name: str, other: str, momentum: float
) -> None:
    heads = head_of(kind), head_of(kind)
    made = updates(lambda: Sgd(0.05, momentum))
    start = heads[0].parameters.clone()
    for step in range(12):
        for key, head in zip((name, other), heads, strict=True):
            take(made[key], head, *short_or_whole(step))
        assert torch.allclose(heads[0].parameters, heads[1].parameters, rtol=1e-3, atol=1e-4)
    assert float((heads[0].parameters - start).norm()) > 0.05


@each("law", LAWS)
def test_slopes_are_clipped_record_by_record(law: str) -> None:
    """``w ← w − η φ Σ_i clip_C(δ_i)/B · u``."""
    joined, labels = data()
    factor, u = first_direction(law)
    losses = []
    for offset in (1e-2, -1e-2):
        moved = head_of()
        moved.parameters.add_(u, alpha=offset)
        losses.append(moved.task.losses(moved.logits(joined), labels).values)
    slopes = (losses[0] - losses[1]) / 2e-2
    clip = float(slopes.abs().max()) / 4
    taken = []
    for bound in (clip, HUGE):
        head = head_of()
        start = head.parameters.clone()
        update = PrivateZerothOrder(Sgd(1.0), noise(bound), BATCH, directions(law), 1e-2)
        take(update, head, joined, labels)
        taken.append(float((head.parameters - start) @ u) / float(u @ u) / factor)
    # Losses are float32: slopes are off by 1e-7/1e-2 each.
    assert taken[0] == pytest.approx(-float(slopes.clamp(-clip, clip).sum()) / BATCH, abs=1e-4)
    assert taken[1] == pytest.approx(-float(slopes.sum()) / BATCH, abs=1e-4)
    assert abs(taken[1] - taken[0]) > 3e-4


def moves(step: Callable[[ServerModel], None], rounds: int) -> Array:
    """How far each of many steps of learning rate 1 takes the weights, from one start."""
    head = head_of()
    start, rows = head.parameters.clone(), []
    for _ in range(rounds):
        head.parameters.copy_(start)
        step(head)
        rows.append((head.parameters - start).double().numpy())
    return np.stack(rows)


class TestNoise:
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
        """σ_s/B on every weight, whatever B is; every step has its own."""
        update = PrivateSgd(Sgd(1.0), noise(CLIP, SIGMA), batch_size)
        sample = moves(lambda head: take(update, head, *data()), 250)
        assert sample.shape[1] == 51
        self.check(sample, SIGMA / batch_size)
        few = sample[:12]
        correlations = np.corrcoef(few - few.mean(0)) - np.eye(12)
        # Taking the mean of 12 away correlates them by −1/11.
        assert np.abs(correlations + (1 - np.eye(12)) / 11).max() < 5 / math.sqrt(51)

    def test_of_a_private_slope(self) -> None:
        """σ_s/B on the slope, told apart from the slope itself by the same steps without noise."""
        batch_size, rounds, drawn = 16, 1500, directions("sphere")
        along = []
        for sigma in (SIGMA, TINY):
            made = PrivateZerothOrder(Sgd(1.0), noise(CLIP, sigma), batch_size, drawn, 1e-3)
            along.append(moves(lambda head, made=made: take(made, head, *data()), rounds))
        lengths = np.empty(rounds)
        for number, row in enumerate(along[0] - along[1]):
            direction, u = drawn.draw(number), torch.zeros(SIZE)
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
        numbers = iter(range(10**6))

        def step(head: ServerModel) -> None:
            update.between(next(numbers), head, *data(), count, records)

        self.check(moves(step, 250), SIGMA / (sampling * records))


class TestSecretSgd:
    def test_without_noise_it_is_the_mean_over_the_expected_sample(self) -> None:
        """``w ← w − η Σ_{sample} g_i / (qD)``."""
        records, sampling = 40, 0.3
        head, (joined, labels) = head_of(), data(records)
        update = secret(sampling=sampling, capacity=records, sgd=Sgd(0.7))
        rows, count = update.sample(0, records)
        assert 0 < count < records
        start = head.parameters.clone()
        update.between(0, head, joined[rows], labels[rows], count, records)
        gradients = record_gradients(network(), joined[rows[:count]], labels[rows[:count]])
        expected = -0.7 * gradients.sum(0).float() / (sampling * records)
        assert torch.allclose(head.parameters - start, expected, rtol=1e-3, atol=1e-6)

    @each("sampling", [0.05, 0.5])
    @each("sampler", [None, SystemSampler()])
    def test_samples_are_poisson(self, sampling: float, sampler: SystemSampler | None) -> None:
        """Sizes are binomial, records alike and independent; 400 samples of 500 records.

        Whole numbers of standard errors: 5, which chance exceeds once in a million.
        """
        records, draws = 500, 400
        update = secret(sampling=sampling, capacity=records, sampler=sampler)
        chosen = np.zeros((draws, records))
        for step in range(draws):
            rows, count = update.sample(step, records)
            assert rows.shape == (records,)
            assert rows[:count].unique().numel() == count
            assert not rows[count:].any()
            chosen[step, rows[:count].numpy()] = 1
        spread = math.sqrt(sampling * (1 - sampling))
        assert abs(chosen.mean() - sampling) < 5 * spread / math.sqrt(records * draws)
        # The variance of n sizes has relative error √(2/n), for sizes that are nearly normal.
        variance = chosen.sum(1).var() / (records * spread**2)
        assert abs(variance - 1) < 5 * math.sqrt(2 / draws) + 0.02
        often = chosen.mean(0)
        assert np.abs(often - sampling).max() < 5.5 * spread / math.sqrt(draws)
        following = (chosen[1:] - sampling) * (chosen[:-1] - sampling)
        assert abs(following.mean()) < 5 * spread**2 / math.sqrt(following.size)

    def test_samples_are_functions_of_seed_and_step_and_cut_at_the_capacity(self) -> None:
        one, again, other = (secret(capacity=50, seed=seed) for seed in (1, 1, 2))
        assert torch.equal(one.sample(3, 50)[0], again.sample(3, 50)[0])
        assert not torch.equal(one.sample(3, 50)[0], one.sample(4, 50)[0])
        assert not torch.equal(one.sample(3, 50)[0], other.sample(3, 50)[0])
        rows, count = secret(sampling=0.9, capacity=3).sample(0, 40)
        assert (rows.shape, count) == ((3,), 3)
        assert rows.unique().numel() == 3

    def test_as_many_rows_are_evaluated_whatever_the_sample(self) -> None:
        """Its size is no secret that time could tell."""
        records, capacity = 60, 25
        joined, labels = data(records)
        model = Watched(head_of())
        watched = ServerModel(model, Classification(CLASSES))
        update = secret(CLIP, SIGMA, sampling=0.2, capacity=capacity)
        counts = []
        for step in range(10):
            rows, count = update.sample(step, records)
            counts.append(count)
            update.between(step, watched, joined[rows], labels[rows], count, records)
        assert len(set(counts)) > 3
        assert model.rows == [capacity] * 10


@each(
    "schedule, due",
    [
        (Schedule(1, 0, 5), [0, 1, 2, 3, 4, 5, 5]),
        (Schedule(3, 0, 2), [0, 0, 0, 1, 1, 1, 2]),
        (Schedule(2, 4, 7), [4, 4, 5, 5, 6, 6, 7]),
        (Schedule(1, 4, 5), [4, 5, 5, 5, 5, 5, 5]),
    ],
)
def test_steps_follow_the_round_counter(schedule: Schedule, due: list[int]) -> None:
    assert [schedule.due(round_) for round_ in range(7)] == due
