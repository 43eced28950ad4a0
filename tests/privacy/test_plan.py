"""What passes through a plan is clipped, noised and divided, and the statement says what holds.

Statistical tests draw 8,000 replies: a noise scale that is 5 % off is then more than six standard
errors away, and a test shows that it is rejected.
"""

from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import fields
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.laws import plausible
from tests.refusals import refused
from torch import Tensor, nn

from vertizo.core.errors import BudgetError, ConfigError, ConflictError
from vertizo.core.randomness import Stream
from vertizo.models.base import Points
from vertizo.models.losses import Classification
from vertizo.models.torch import wrap
from vertizo.party.server_model import ServerModel
from vertizo.privacy.accounting.events import GaussianRelease, Releases, SecretSteps
from vertizo.privacy.accounting.gaussian import UNIT, epsilon_of
from vertizo.privacy.accounting.guarantee import joined_epsilon
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.ledger.base import Answered, Entry, MemoryLedger
from vertizo.privacy.noise.mechanisms import SeededNoise
from vertizo.privacy.plan import Answer, ClippedGaussian, ClippedOnly, NoPrivacy, Plan
from vertizo.privacy.statement import Statement
from vertizo.zeroth_order.directions import Directions
from vertizo.zeroth_order.estimators import two_point

Array = NDArray[np.float64]

CLIP, SIGMA, BATCH, DRAWS = 2.0, 30.0, 64, 8000


def noise(seed: int = 0, clip_norm: float = CLIP, noise_std: float = SIGMA) -> SeededNoise:
    stream = Stream.from_seed(seed).child("noise")
    return SeededNoise(stream, clip_norm=clip_norm, noise_std=noise_std)


def normal(seed: int, release: int, size: tuple[int, ...]) -> Tensor:
    """The noise alone, in units of σ."""
    return noise(seed).onto(release, torch.zeros(size, dtype=torch.float64)) / SIGMA


def plan(
    *, seed: int = 0, clip_norm: float = CLIP, noise_std: float = SIGMA, **more: Any
) -> ClippedGaussian:
    """Keys of `Releases` and of the plan in place of the usual ones; of ``records``, usually 10."""
    source, records = noise(seed, clip_norm, noise_std), more.pop("records", 10)
    reply = GaussianRelease(clip_norm, noise_std)
    own = {one.name: more.pop(one.name) for one in fields(Releases) if one.name in more}
    releases = Releases(**{"clients": 2, "queries": 8, "reply": reply, **own})
    steps = releases.secret.count if releases.secret else 0
    ledger = MemoryLedger(records, releases.clients, releases.share, steps)
    usual = {"batch_size": BATCH, "delta": 1e-5, "ledger": ledger, "noise": source}
    return ClippedGaussian(releases, **(usual | more))


def loaded(made: ClippedGaussian, **options: Any) -> ClippedGaussian:
    """Another plan, with what a checkpoint of this one holds."""
    other = plan(**options)
    other.load(deepcopy(made.state()))
    return other


def answer(client: int, *ids: int, number: int = 0) -> Answer:
    return Answer(client, number, b"query", torch.tensor(ids), b"reply")


def charge(made: Plan, client: int, *ids: int) -> None:
    made.admit(client, torch.tensor(ids))
    made.commit([answer(client, *ids)])


def spent(made: ClippedGaussian) -> list[list[int]]:
    found: list[list[int]] = made.state()["ledger"]["charged"].tolist()
    return found


def four(made: ClippedGaussian) -> list[float]:
    """Replies that are noise alone."""
    return [made.total(torch.zeros(4)).item() for _ in range(4)]


def quiet(batch_size: int = BATCH) -> ClippedGaussian:
    """So little noise that the rest can be seen."""
    return plan(noise_std=1e-9, batch_size=batch_size)


def totals(made: Plan, values: Tensor, draws: int = DRAWS) -> Array:
    return torch.cat([made.total(values) for _ in range(draws)]).double().numpy()


def test_noise_is_on_the_sum() -> None:
    """σ belongs to the sum: the mean's noise is σ/B, whatever B is."""
    for batch_size in [1, 1000]:
        values = torch.tensor([1.0, -0.5, 7.0, math.nan])  # clipped sum 2.5
        sample = totals(plan(batch_size=batch_size), values) * batch_size - 2.5
        assert plausible(sample, SIGMA)
        for wrong in (0.95, 1.05):
            assert not plausible(sample, wrong * SIGMA)


def test_noise_smaller_than_what_is_counted_is_refused() -> None:
    plan(noise=noise(noise_std=1.001 * SIGMA))
    small = noise(noise_std=0.999 * SIGMA)
    refused("small", ConfigError, plan, noise=small, match="is too small for clip 2")


def test_noise_does_not_depend_on_how_many_records_came() -> None:
    short, full = (totals(plan(), torch.zeros(rows), 500) * BATCH for rows in (3, BATCH))
    assert np.array_equal(short, full)


def test_noise_on_each_record() -> None:
    values = torch.full((20, 4), 0.1)
    made = plan()
    sample = torch.stack([made.each(values) for _ in range(100)]).double() * BATCH - 0.1
    assert sample.shape == (100, 20, 4)
    assert plausible(sample.flatten().numpy(), SIGMA)
    rows = np.corrcoef(sample.flatten(1).numpy().T) - np.eye(80)
    assert np.abs(rows).max() < 5.5 / 100**0.5


def test_replies_have_independent_noise() -> None:
    made = plan()
    sample = torch.stack([made.total(torch.zeros(4, 2)) for _ in range(DRAWS)]).double().numpy()
    following = np.concatenate([sample[:-1], sample[1:]], axis=1)
    correlations = np.corrcoef(following.T) - np.eye(4)
    assert np.abs(correlations).max() < 5 / DRAWS**0.5


def test_division_is_by_the_nominal_batch_size() -> None:
    """A short batch is divided by B as well, so that each record weighs the same."""
    for rows in [3, BATCH]:
        values = torch.full((rows,), 1.5)
        assert quiet().total(values).tolist() == pytest.approx([rows * 1.5 / BATCH])
        assert NoPrivacy(BATCH).total(values).tolist() == pytest.approx([rows * 1.5 / BATCH])
        for made in (quiet(), NoPrivacy(BATCH)):
            each = made.each(torch.ones(rows, 2))
            assert torch.allclose(each, torch.full((rows, 2), 1 / BATCH))


def test_values_are_clipped_record_by_record() -> None:
    scalars = torch.tensor([9.0, -9.0, 1.0, math.nan, math.inf])
    assert quiet(1).total(scalars).item() == pytest.approx(1.0)
    vectors = torch.tensor([[30.0, 40.0], [0.3, 0.4], [math.nan, 1.0]])
    assert quiet(1).total(vectors).tolist() == pytest.approx([1.5, 2.0])
    expected = torch.tensor([[1.2, 1.6], [0.3, 0.4], [0.0, 0.0]])
    assert torch.allclose(quiet(1).each(vectors), expected)


def test_shapes_and_types() -> None:
    for made in [plan(), NoPrivacy(BATCH)]:
        for values, size in ((torch.zeros(5), 1), (torch.zeros(5, 3), 3)):
            assert made.total(values).shape == (size,)
            assert made.total(values).dtype == torch.float32
        assert made.each(torch.zeros(5, 3)).shape == (5, 3)
        assert made.each(torch.zeros(5, 3)).dtype == torch.float32


def test_no_privacy_passes_values_through() -> None:
    made = NoPrivacy(2)
    assert made.total(torch.tensor([1.0, -5.0, 100.0])).tolist() == [48.0]
    assert made.total(torch.tensor([[1.0, 2.0], [3.0, 1e6]])).tolist() == [2.0, 500_001.0]
    assert made.each(torch.tensor([[1e9, 2.0]])).tolist() == [[5e8, 1.0]]
    assert made.clip_fraction is None


def test_a_clip_alone_has_no_noise_and_no_guarantee() -> None:
    values = torch.tensor([[3.0, 4.0], [0.3, 0.4], [float("nan"), 1.0]])
    plan = ClippedOnly(4, 1.0)
    clipped = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]])
    assert torch.allclose(plan.each(values), clipped / 4)
    assert torch.allclose(plan.total(values), clipped.sum(0) / 4)
    assert plan.total(torch.tensor([-7.0, 0.5])).tolist() == [-0.125]
    assert (plan.each(values).dtype, plan.total(values).dtype) == (torch.float32,) * 2
    assert plan.clip_fraction == 9 / 14
    statement = plan.statement(server_is_private=True)
    assert (statement.guarantee, statement.epsilon, statement.clip) == ("none", None, 1.0)
    assert "clipped to 1 and carry no noise" in statement.words
    other = ClippedOnly(4, 1.0)
    other.load(plan.state())
    assert other.clip_fraction == plan.clip_fraction


def test_clip_fraction() -> None:
    made = plan()
    assert made.clip_fraction is None
    made.total(torch.tensor([CLIP, -CLIP, 0.0, 2 * CLIP]))
    assert made.clip_fraction == pytest.approx(1 / 4)
    made.total(torch.tensor([math.nan, math.inf, -1e9, 0.0]))
    assert made.clip_fraction == pytest.approx(4 / 8)
    made.each(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    assert made.clip_fraction == pytest.approx(5 / 10)


def test_global_seeds_do_not_fix_the_noise() -> None:
    expected = four(plan())
    assert len(set(expected)) == 4
    for global_seed in [0, 1]:
        made = plan()
        for reply in expected:
            torch.manual_seed(global_seed)
            assert made.total(torch.zeros(4)).item() == reply


def direction_numbers(seed: int, number: int) -> Tensor:
    stream = Stream.from_seed(seed).child("client", 0)
    vector = torch.zeros(2000)
    Directions("gaussian", 2000, stream).draw(number).add_to(vector, 1.0)
    return vector


def test_fixed_directions_leave_the_noise_free_and_noise_the_directions() -> None:
    """Drawing the same direction before every reply, as a reseeded generator would."""
    made, first = plan(), direction_numbers(7, 0)
    replies = []
    for _ in range(4):
        assert torch.equal(direction_numbers(7, 0), first)
        replies.append(made.total(torch.zeros(4)).item())
    assert len(set(replies)) == 4
    assert four(plan()) == replies
    drawn = []
    for seed in (1, 2, 3):
        assert four(plan(seed=5)) == four(plan(seed=5))
        drawn.append(direction_numbers(seed, 0))
    correlations = torch.corrcoef(torch.stack(drawn)) - torch.eye(3)
    assert float(correlations.abs().max()) < 5 / 2000**0.5


def test_noise_is_a_function_of_seed_and_release() -> None:
    assert torch.equal(normal(1, 3, (2, 2)), normal(1, 3, (2, 2)))
    others = [normal(1, 4, (1,)), normal(2, 3, (1,)), normal(1, 3, (1,))]
    assert len({other.item() for other in others}) == 3
    # Noise and directions of one seed are unrelated.
    numbers, drawn = direction_numbers(0, 0).double(), normal(0, 0, (2000,))
    assert drawn.dtype == torch.float64
    assert abs(np.corrcoef(numbers, drawn)[0, 1]) < 5 / 2000**0.5
    assert not np.intersect1d(numbers.numpy(), drawn.float().double().numpy()).size


def test_what_is_answered_is_charged() -> None:
    made = plan(records=4, clients=1, queries=1)
    charge(made, 0, 0, 1)
    assert spent(made) == [[made.releases.cost] * 2 + [0, 0]]
    refused("charged before", BudgetError, made.admit, 0, torch.tensor([1, 2]))
    assert spent(made) == [[made.releases.cost] * 2 + [0, 0]]
    charge(made, 0, 2, 3)


def test_charges_depend_on_ids_and_public_constants_alone() -> None:
    """Not on values; nor on the batch size: σ is on the sum, dividing it by B buys nothing."""
    cost = plan().releases.cost
    assert cost == pytest.approx((2 * CLIP / SIGMA) ** 2 / UNIT, rel=1e-9)
    values = (torch.zeros(2), torch.full((2,), math.nan), torch.tensor([1e30, -math.inf]))
    for value, batch_size in product(values, [1, 64, 10_000]):
        made = plan(batch_size=batch_size)
        made.admit(1, torch.tensor([3, 4]))
        made.total(value)
        made.commit([answer(1, 3, 4)])
        assert spent(made) == [[0] * 10, [0, 0, 0, cost, cost, 0, 0, 0, 0, 0]]


def test_a_loaded_plan_repeats_no_noise_and_no_charge() -> None:
    whole = plan()
    charge(whole, 0, 1)
    first = whole.total(torch.tensor([9.0, 0.0])).item()
    resumed = loaded(whole)
    rest = four(whole)
    assert four(resumed) == rest
    assert first not in rest
    assert resumed.clip_fraction == whole.clip_fraction == pytest.approx(1 / 18)
    assert spent(resumed) == spent(whole)


class Recording(MemoryLedger):
    """A ledger that keeps what it is told, and remembers an answer."""

    def __init__(self) -> None:
        super().__init__(records=10, clients=2, share=10**18, steps=2)
        self.entries: list[Entry] = []

    def commit(self, entries: Any) -> None:
        self.entries += entries

    def answered(self, client: int) -> Answered | None:
        return Answered(7, b"digest", b"kept") if client else None


def test_the_ledger_is_told_the_frames() -> None:
    ledger = Recording()
    made = plan(ledger=ledger)
    made.commit([answer(0, 3, 4, number=5), answer(1, 3, number=6)])
    first, second = ledger.entries
    assert (first.client, first.number, first.query, first.reply) == (0, 5, b"query", b"reply")
    assert first.ids.tolist() == [3, 4]
    assert (second.client, second.number) == (1, 6)
    assert first.cost == second.cost == made.releases.cost
    assert made.answered(0) is None
    assert made.answered(1) == Answered(7, b"digest", b"kept")


def test_secret_steps_are_the_ledgers_to_count() -> None:
    made = plan(secret=SecretSteps(3, 0.1, 2.0))
    for number in range(3):
        assert made.steps == number
        for other in (number - 1, number + 1):
            refused("not the next", ConflictError, made.begin_step, other, match="next one")
        made.begin_step(number)
    refused("all made", BudgetError, made.begin_step, 3)
    assert loaded(made, secret=SecretSteps(3, 0.1, 2.0)).steps == 3


def test_the_plan_without_privacy_charges_nothing() -> None:
    made = NoPrivacy(4)
    for number in range(3):
        charge(made, 0, 1, 1)
        made.begin_step(number)
    made.settle()
    assert (made.steps, made.answered(0), made.state()) == (0, None, {})
    assert not made.tolerant  # only a plan with noise mends embeddings
    assert plan().tolerant


def test_mu_of_all_replies() -> None:
    """``μ = 2C√k/σ``, k over all clients; B and D do not enter."""
    for queries, clients in product([1, 100], [1, 7]):
        for batch_size, records in ((1, 10), (64, 60_000)):
            made = plan(batch_size=batch_size, records=records, clients=clients, queries=queries)
            expected = 2 * CLIP * math.sqrt(clients * queries) / SIGMA
            assert made.releases.replies_alone_mu == pytest.approx(expected, rel=1e-12)
            # A charge is rounded up to a whole unit of μ²: by less than 1 in (2C/σ)²/1e-12 = 2e10.
            assert expected * (1 - 1e-12) <= made.releases.known_mu <= expected * (1 + 1e-10)


EPSILON = 4.3771781
"""At μ = 1 and δ = 1e-5; σ = 16 makes it that of the 16 replies."""
STEP = GaussianRelease(0.5, 8.0)
"""μ of one: 1/8."""
SECRET = SecretSteps(200, 0.02, 1.5)


def test_statement_with_a_private_server() -> None:
    made = plan(noise_std=16.0, published=0.1)
    statement = made.statement(server_is_private=True)
    assert (statement.guarantee, statement.delta) == ("simulated", 1e-5)
    assert statement.mu == pytest.approx(1.0)
    assert statement.epsilon == pytest.approx(EPSILON, abs=1e-7)
    assert statement.epsilon == pytest.approx(epsilon_of(1.0, 1e-5))
    assert (statement.noise_std, statement.clip) == (16.0, CLIP)
    assert statement.covers == ("labels",)
    assert statement.max_participations == 16
    assert statement.replies_alone_mu == pytest.approx(statement.mu, rel=1e-9)
    assert statement.replies_alone_epsilon == pytest.approx(statement.epsilon, rel=1e-9)
    assert statement.max_releases == 16
    assert (statement.server_noise_std, statement.secret_steps) == (None, None)
    assert "4.378" in statement.words
    assert "1e-05" in statement.words
    assert "simulation" in str(statement.noise_source)
    # The published figure may stand beside a guarantee, and is not in its words.
    assert statement.epsilon_published == pytest.approx(epsilon_of(0.1, 1e-5))
    assert f"{epsilon_of(0.1, 1e-5):.4g}" not in statement.words
    assert plan(noise_std=16.0).statement(server_is_private=True).epsilon_published is None
    # It is about what may happen, not what did.
    charge(made, 0, 0)
    made.total(torch.tensor([math.nan]))
    assert made.statement(server_is_private=True) == statement
    written = json.loads(json.dumps(statement.as_dict()))
    read = {key: tuple(written[key]) for key in ("covers", "not_covered", "assumptions")}
    assert Statement(**{**written, **read}) == statement


def test_statement_with_a_server_trained_on_raw_labels() -> None:
    """No ε, no δ and no μ of a guarantee anywhere; the replies' own μ by its own name only."""
    statement = plan(noise_std=16.0).statement(server_is_private=False)
    assert statement.guarantee == "none"
    assert (statement.epsilon, statement.delta, statement.mu) == (None, None, None)
    assert statement.replies_alone_mu == pytest.approx(1.0)
    assert statement.words.startswith("No privacy guarantee")
    assert "ε" not in statement.words
    assert statement.covers == ()
    figures = statement.as_dict()
    assert figures.pop("replies_alone_epsilon") == pytest.approx(EPSILON, abs=1e-7)
    assert "4.377" not in str(figures)


def test_statement_without_noise() -> None:
    for server_is_private in [True, False]:
        figures = NoPrivacy(4).statement(server_is_private=server_is_private).as_dict()
        assert figures.pop("guarantee") == "none"
        assert figures.pop("words").startswith("No privacy guarantee")
        assert [figures.pop(k) for k in ("covers", "not_covered", "assumptions")] == [[], [], []]
        assert set(figures.values()) == {None}


def test_statement_with_updates_on_the_same_batches() -> None:
    """16 replies of μ = 1/4 and 16 updates of 1/8: μ² = 1 + 1/4."""
    statement = plan(noise_std=16.0, step=STEP).statement(server_is_private=True)
    assert statement.guarantee == "simulated"
    assert statement.mu == pytest.approx(math.sqrt(1.25), rel=1e-9)
    assert statement.epsilon == pytest.approx(epsilon_of(math.sqrt(1.25), 1e-5), rel=1e-8)
    assert (statement.server_clip, statement.server_noise_std) == (0.5, 8.0)
    assert statement.replies_alone_mu == pytest.approx(1.0)
    assert statement.secret_steps is None


def test_statement_with_steps_on_secret_samples() -> None:
    """ε covers both; μ is of what clients know, and no μ is equivalent to both."""
    statement = plan(noise_std=16.0, secret=SECRET).statement(server_is_private=True)
    assert statement.mu == pytest.approx(1.0)
    assert statement.epsilon > epsilon_of(1.0, 1e-5) + 0.01
    assert statement.epsilon == joined_epsilon(statement.mu, SECRET, 1e-5)
    assert bound_text(statement.epsilon) in statement.words
    assert statement.secret_steps == {"count": 200, "sampling": 0.02, "noise_multiplier": 1.5}


def test_the_words_say_what_is_covered() -> None:
    for covers in [("label",), ("label", "columns"), ("label", "columns", "features")]:
        statement = plan().statement(server_is_private=True, covers=covers)
        assert statement.covers == covers
        for thing in ("label", "columns", "features"):
            assert (thing in statement.words) == (thing in covers)


def test_statement_by_the_published_formula() -> None:
    """What it claims stands under a name of its own, and nowhere as a guarantee."""
    for server_is_private in [True, False]:
        made = plan(noise_std=16.0, published=0.1, by_formula=True)
        statement = made.statement(server_is_private=server_is_private)
        assert statement.guarantee == "published"
        assert (statement.epsilon, statement.delta, statement.mu) == (None, None, None)
        assert statement.covers == ()
        assert statement.epsilon_published == pytest.approx(epsilon_of(0.1, 1e-5))
        assert statement.replies_alone_epsilon == pytest.approx(EPSILON, abs=1e-7)
        for word in ("does not hold", "ε = 4.377", f"ε = {epsilon_of(0.1, 1e-5):.4g}"):
            assert word in statement.words


def test_nonsense_is_refused() -> None:
    bad = {"clip_norm": (0.0, math.inf, -1.0), "noise_std": (0.0, math.nan), "delta": (0.0, 1.0)}
    for key, values in bad.items():
        for value in values:
            refused((key, value), ConfigError, plan, match=r"privacy\.", **{key: value})


def one_sided() -> ServerModel:
    """Embeddings [batch, 1]; logits are −1e30 h and 0, so that a large h overflows one of them."""
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1e30], [0.0]]))
    return ServerModel(wrap(model), Classification(2))


def losses_at(points: Tensor, labels: Tensor, stored: str = "zeros") -> Tensor:
    """As of a query that changes every embedding, which the table holds as zeros or as the mean."""
    rows = points.mean(0) if stored == "mean" else torch.zeros_like(points[0])
    given = Points(rows, ((0, points - rows),))
    return one_sided().evaluate(given, labels).losses[:-1]


def reply(points: Tensor, labels: Tensor, stored: str) -> float:
    losses = losses_at(points, labels, stored)
    return plan().total(two_point(losses[0], losses[1], 1e-3)).item()


LARGE = 1e20
POINTS = {
    "both overflow": (LARGE, LARGE),
    "one overflows": (LARGE, 0.0),
    "the other overflows": (0.0, LARGE),
    "to plus infinity": (-LARGE, -LARGE),
    "to either side": (LARGE, -LARGE),
}


def test_logits_that_overflow_for_one_label_yield_a_finite_reply() -> None:
    """Finite embeddings, logits of ±∞ and 0: losses of label 0 are not finite, those of 1 are."""
    for stored, name in product(["zeros", "mean"], POINTS):
        points = torch.tensor(POINTS[name]).view(2, 1, 1).repeat(1, 4, 1)
        assert bool(points.isfinite().all())
        for label in (0, 1):
            assert math.isfinite(reply(points, torch.full((4,), label), stored))


def test_one_label_moves_the_reply_by_its_sensitivity_at_most() -> None:
    """From the embeddings to what is sent, with the same noise."""
    for stored, name in product(["zeros", "mean"], POINTS):
        points = torch.linspace(-1, 1, 8).view(2, 4, 1).clone()
        points[:, 2, 0] = torch.tensor(POINTS[name])
        labels = torch.tensor([0, 1, 0, 1])
        other = torch.tensor([0, 1, 1, 1])
        moved = abs(reply(points, labels, stored) - reply(points, other, stored))
        assert moved <= 2 * CLIP / BATCH * (1 + 1e-5)


def test_the_overflow_is_real() -> None:
    points = torch.full((1, 1, 1), LARGE)
    assert one_sided().logits(points[0]).tolist() == [[-math.inf, 0.0]]
    assert losses_at(points, torch.tensor([0])).tolist() == [[math.inf]]
    assert losses_at(points, torch.tensor([1])).tolist() == [[0.0]]
