"""Federations whose server trains under noise: what is spent, refused, kept and said."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import federations as fed
from tests.rows import each
from torch import Tensor, nn

from vertizo.config import schema as config
from vertizo.core.errors import BudgetError, ConfigError, ConflictError
from vertizo.core.names import PRIVATE
from vertizo.models.losses import Classification, Huber, Task
from vertizo.party.private_updates import SeededSampler
from vertizo.privacy.accounting import guarantee
from vertizo.privacy.accounting.gaussian import epsilon_of, mu_of, mu_of_units
from vertizo.run.build.coverage import CODEC_HOLDS, DATA_HOLD, MODEL_HOLDS
from vertizo.run.build.labels import check_public
from vertizo.run.build.schedule import batch_sizes
from vertizo.run.experiment import Experiment
from vertizo.run.loop.federation import Federation, build

DELTA = 1e-5
PLUGIN = Path(__file__).parents[2] / "examples/plugin/src/vertizo_example"
GIVEN = {**fed.GAUSSIAN, "privacy.noise_std": 2.0}
SERVERS: dict[str, dict[str, Any]] = {
    "private-sgd": {"privacy.server_noise_std": 3.0},
    "private-zeroth-order": {"privacy.server_noise_std": 3.0},
    "poisson-dp-sgd": {
        "privacy.server_noise_std": 3.0,
        "server.secret": {"every": 3, "warm_up": 2, "sampling": 0.3},
    },
    "none": {},
}
WANTED = {"privacy.mechanism": "gaussian", "privacy.clip": 0.5, "privacy.epsilon": 2.0}
TIMINGS = ["asynchronous", "synchronous"]
every_server = each("update", SERVERS)
every_timing = each("timing", TIMINGS)


def changes(update: str, **more: Any) -> dict[str, Any]:
    dotted = {key.replace("__", "."): value for key, value in more.items()}
    return {**GIVEN, "server.update": update, **SERVERS[update], **dotted}


def ledger_of(federation: Federation) -> Any:
    plan: Any = federation.server.side.plan
    return plan._ledger


@every_server
@every_timing
def test_a_whole_run_spends_what_was_foreseen(update: str, timing: str) -> None:
    """Every record M·share units, every secret step of the schedule, and not one more."""
    federation, _ = fed.ran("dpzv", timing, changes(update))
    releases, ledger = federation.releases, ledger_of(federation)
    assert ledger.state()["charged"].tolist() == [[releases.share] * 29] * 3
    assert ledger.spent == 3 * releases.share
    assert mu_of_units(ledger.spent) == pytest.approx(releases.known_mu, rel=1e-12)
    # Replies: μ² = (2·0.5/2)². Updates: (2·1/3)², one for M queries in synchronous rounds.
    queries = 3 * 2
    updates = {"private-sgd", "private-zeroth-order"}
    steps = 0 if update not in updates else queries / (3 if timing == "synchronous" else 1)
    assert releases.known_mu**2 == pytest.approx(queries / 4 + steps * 4 / 9, rel=1e-9)
    rounds = 2 * 4 * (1 if timing == "synchronous" else 3)
    assert ledger.steps == (2 + rounds // 3 if update == "poisson-dp-sgd" else 0)
    before = fed.server_holds(federation)  # the next epoch is refused
    for client in range(3):
        with pytest.raises(BudgetError):
            federation.server.receive(fed.ask(federation, client))
    with pytest.raises(BudgetError):
        federation.server.side.plan.begin_step(ledger_of(federation).steps)
    assert fed.differences(before, fed.server_holds(federation)) == []


@each("batch_size", [1, 8, 29])
def test_batches_of_any_size_cost_the_same(batch_size: int) -> None:
    federation, _ = fed.ran("dpzv", None, changes("private-sgd", batch_size=batch_size))
    other = fed.build("dpzv", None, changes("private-sgd"))
    assert ledger_of(federation).spent == 3 * other.releases.share


@each("method", ["dpzv", "cascaded", "vafl", "czofo"])
@each("update", PRIVATE)
def test_calibrated_to_epsilon(method: str, update: str) -> None:
    more = {**WANTED, "server.update": update, "privacy.server_share": 0.3}
    if update == "poisson-dp-sgd":
        more["server.secret"] = {"sampling": 0.2, "every": 3}
    statement = fed.build(method, None, more).statement()
    assert statement.guarantee == "simulated"
    assert 0.99 * 2 < statement.epsilon <= 2
    replies = epsilon_of(math.sqrt(0.7) * mu_of(2.0, DELTA), DELTA)
    assert statement.replies_alone_epsilon == pytest.approx(replies, rel=1e-6)
    assert (statement.secret_steps is not None) == (update == "poisson-dp-sgd")
    assert (statement.server_noise_std is not None) == (update != "poisson-dp-sgd")


def test_secret_steps_are_on_the_public_schedule() -> None:
    """Before the first query, then by the round counter; samples have the accounting's capacity."""
    of_many = fed.build("dpzv", None, changes("poisson-dp-sgd"), of=fed.data(400))
    update: Any = of_many.server.side.update
    rows, count = update.sample(0, 400)
    assert 0 < count < rows.numel() == guarantee.capacity(400, 0.3) < 400
    federation = fed.build("dpzv", None, changes("poisson-dp-sgd"))
    ledger = ledger_of(federation)
    federation.start(upload_table=True)
    assert (federation.server.round, ledger.steps) == (0, 2)
    while federation.simulator.step():
        assert ledger.steps == 2 + federation.server.round // 3
        federation.server.train_between_queries()
        assert ledger.steps == 2 + federation.server.round // 3


def sampled(sample: int, rate: float) -> tuple[fed.Tape, Federation]:
    """All that is seen on the wire, with secret samples from another stream."""
    tape = fed.Tape()
    more = changes("poisson-dp-sgd", server__optimizer__learning_rate=rate)
    federation = fed.build("dpzv", None, more, observer=tape)
    side: Any = federation.server.side
    side.update.sampler = SeededSampler(fed.Stream.from_seed(sample))
    federation.start(upload_table=True)
    fed.go_on(federation)
    return tape, federation


def test_nothing_tells_the_secret_sample() -> None:
    """Where steps move next to nothing, runs with other samples are alike, frame by frame."""
    (tape, one), (other, two) = (sampled(sample, rate=1e-30) for sample in (1, 2))
    assert tape.seen == other.seen
    assert fed.differences(one.server.state(), two.server.state()) == []
    assert one.server.side.meter == two.server.side.meter
    moved = [sampled(sample, rate=0.1)[0].seen for sample in (1, 2)]
    assert moved[0] != moved[1]  # through the model, and only so


@each("update", SERVERS)
@each("label", [0, 1, 2])
def test_overflow_for_some_labels_leaves_all_finite(update: str, label: int) -> None:
    data = fed.data()
    data.labels["train"].fill_(label)
    federation = fed.build("dpzv", None, changes(update, server__embedding_bound=3e38), of=data)
    query = fed.query(fed.ask(federation, 0))
    h = query.embeddings
    signs = torch.where(torch.arange(h.numel()).view_as(h) % 2 == 0, 1.0, -1.0)
    frame = fed.encoded(replace(query, embeddings=3e38 * signs))
    ((_, answer),) = federation.server.receive(frame)
    federation.server.train_between_queries()
    assert fed.reply(answer).values.isfinite().all()
    assert federation.server.side.model.parameters.isfinite().all()
    fed.converse(federation, [1, 2])
    assert federation.server.side.model.parameters.isfinite().all()


def answers(data: Any, method: str, update: str) -> torch.Tensor:
    """Per-record values of one query, before anything is added up."""
    federation = fed.build(method, None, changes(update, privacy__clip=100.0), of=data)
    seen: list[torch.Tensor] = []
    plan: Any = federation.server.side.plan
    noise = plan._noise
    for name in ("sum", "each"):
        inner = getattr(noise, name)

        def kept(release: int, rows: torch.Tensor, inner: Any = inner) -> torch.Tensor:
            seen.append(rows.clone())
            return inner(release, rows)

        setattr(noise, name, kept)
    federation.server.receive(fed.ask(federation, 0))
    return torch.cat(seen, 1)


@each("method", ["dpzv", "cascaded", "vafl", "czofo"])
@each("what", ["label", "features"])
def test_replacing_a_record_leaves_the_others_alone(method: str, what: str) -> None:
    """δ of all other records: bit for bit for a label, up to rounding for features."""
    plain, other = fed.data(), fed.data()
    asked = fed.query(fed.ask(fed.build(method, None, changes("private-sgd")), 0))
    record = int(asked.ids[3])
    if what == "label":
        other.labels["train"][record] = (other.labels["train"][record] + 1) % 3
    else:
        for party in other.features:
            party["train"][record] = 5.0
    one, two = (answers(data, method, "private-sgd") for data in (plain, other))
    kept = [row for row in range(8) if row != 3]
    if what == "label":
        assert torch.equal(one[kept], two[kept])
    else:
        assert torch.allclose(one[kept], two[kept], rtol=1e-3, atol=1e-3 * float(one.abs().max()))
    assert float((one[3] - two[3]).norm()) > 1e-3 * float(one[3].norm())


@each("update", PRIVATE)
@every_timing
def test_a_run_that_was_stopped_goes_on_bit_by_bit(update: str, timing: str) -> None:
    more = {**changes(update), "server.optimizer.momentum": 0.9}
    whole, _ = fed.ran("dpzv", timing, more)
    half, _ = fed.ran("dpzv", timing, more, rounds=5)
    resumed = fed.build("dpzv", timing, more)
    resumed.load(fed.copied(half.state()))
    fed.go_on(resumed)
    assert fed.differences(fed.copied(whole.state()), fed.copied(resumed.state())) == []


def covered(method: str = "dpzv", data: Any = None, **more: Any) -> tuple[bool, bool]:
    """Whether labels are covered, and features."""
    covers = fed.build(method, None, changes("none", **more), of=data).statement().covers
    return covers[0].startswith("label"), any("features" in thing for thing in covers)


def test_labels_are_covered_and_features_where_nothing_carries_them() -> None:
    data = fed.data()
    assert covered() == (True, True)
    assert covered(data=replace(data, fitted=(data.parties[1],))) == (True, False)
    for method in ("vafl", "cascaded", "czofo"):
        first_order = fed.config(method).method.first_order_client
        assert covered(method) == (True, not first_order)
    for scale, mixes in (("array", True), ("record", False)):
        up = {"name": "uniform", "scale": scale}
        assert fed.config("vafl", None, {"codecs.up": up}).codecs.up.mixes_records == mixes
    assert covered(codecs__up={"name": "paired"}) == (True, False)


class Centred(nn.Module):
    """Takes the mean of a batch off: others decide what a record's outputs are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(fed.COLUMNS, fed.DIM)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(rows - rows.mean(0))


def test_a_model_is_tried_on_records_that_differ() -> None:
    """The first of a table may all be alike, as images' upper edges are."""
    mixing = {"client.model": {"name": "module", "path": f"{__file__}:Centred"}}
    for alike in (0, 5, 20):
        data = fed.data()
        for own in data.features:
            own["train"][:alike] = 0
        covers = fed.build("dpzv", None, changes("none", **mixing), of=data).statement().covers
        assert covers == ("labels",), alike


@each("update", ["private-sgd", "private-zeroth-order", "none", "poisson-dp-sgd"])
def test_a_step_of_the_server_is_paid_by_all_clients_or_not_made(update: str) -> None:
    """A round that is closed early makes a whole step, of which each query is charged a share."""
    federation = fed.build("dpzv", "synchronous", changes(update))
    federation.server.train_between_queries()
    client = federation.clients[0]
    federation.server.receive(client.ask(federation.server.announce(0)))
    if update.startswith("private"):
        with pytest.raises(ConflictError, match="wait for all clients"):
            federation.server.close_round()
    else:
        assert len(federation.server.close_round()) == 1


def plain_server() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 3), nn.Tanh())


def test_what_is_rested_on_and_cannot_be_proved_is_said() -> None:
    """A server model of the user's is named; ours are not, nor where nothing is guaranteed."""
    foreign = {"server.model": {"name": "module", "path": f"{__file__}:plain_server"}}

    def statement(**more: Any) -> Any:
        return fed.build("dpzv", None, {**GIVEN, "server.update": "none", **more}).statement()

    stated = statement(**foreign)
    assert stated.is_bounded
    (only,) = stated.assumptions
    assert only == f"server.model ({__file__}:plain_server) {MODEL_HOLDS}"
    assert f"Assumed, tried but not proved: {only}." in stated.words
    assert stated.as_dict()["assumptions"] == [only]
    assert statement().assumptions == ()
    named = statement(**{"data.name": f"{__file__}:fed"})
    assert named.assumptions == (f"data.name ({__file__}:fed) {DATA_HOLD}",)
    codec = f"{PLUGIN / 'codec.py'}:SharedExponent"
    coded = statement(**{"codecs.up": {"name": codec}})
    assert coded.assumptions == (f"codecs.up ({codec}) {CODEC_HOLDS}",)
    raw = statement(**foreign, **{"server.update": "sgd"})
    assert (raw.guarantee, raw.assumptions) == ("none", ())


@each(
    "more",
    [
        {"privacy.mechanism": "randomised-response", "privacy.epsilon": 1.0},
        {"privacy.mechanism": "teacher", "privacy.epsilon": 1.0, "privacy.teacher.components": 2},
        {"control": "label-free"},
    ],
)
def test_a_data_set_of_ones_own_may_make_features_of_labels(more: dict[str, Any]) -> None:
    """Private labels, and no replies at all, bound nothing then either."""

    def statement(**name: str) -> Any:
        return fed.build("dpzv", None, {**more, **name}).statement()

    stated = statement(**{"data.name": f"{__file__}:fed"})
    assert stated.is_bounded
    assert stated.assumptions == (f"data.name ({__file__}:fed) {DATA_HOLD}",)
    assert stated.assumptions[0] in stated.words
    assert statement().assumptions == ()


@each(
    "method, timing, more, expected",
    [
        ("vafl", None, {}, {8, 5}),
        ("dpzv", None, {}, {8, 5, 16, 10}),
        ("dpzv", "synchronous", {}, {8, 5, 48, 30}),
        ("czofo", None, {"method.num_directions": 4}, {8, 5, 32, 20}),
        ("cascaded", "synchronous", {}, {8, 5, 24, 15}),
    ],
)
def test_batch_sizes_are_those_that_the_server_model_sees(
    method: str,
    timing: str | None,
    more: dict[str, Any],
    expected: set[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """29 records in batches of 8, three clients: a model of the user's is asked for no others."""
    seen: set[int] = set()

    class Watched(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:
            seen.add(len(rows))
            return super().forward(rows)

    monkeypatch.setattr("vertizo.run.build.models.server_module", lambda *_: Watched(9, 3))
    federation = fed.build(method, timing, more)
    assert set(batch_sizes(fed.config(method, timing, more), 29, 3)) == expected
    seen.clear()
    federation.start(upload_table=False)
    fed.go_on(federation)
    assert seen <= expected


BY_FORMULA = {**WANTED, "privacy.accounting": "published", "server.update": "sgd"}


def test_a_published_epsilon_is_named_so_and_guarantees_nothing() -> None:
    statement = fed.build("dpzv", None, BY_FORMULA).statement()
    assert statement.guarantee == "published"
    assert (statement.epsilon, statement.delta, statement.mu) == (None, None, None)
    assert statement.epsilon_published == pytest.approx(2.0, rel=1e-9)
    true = mu_of(2.0, DELTA) * math.sqrt(29 / 8)
    assert statement.replies_alone_epsilon == pytest.approx(epsilon_of(true, DELTA), rel=1e-9)
    statement = fed.build("dpzv", None, {**WANTED, "server.update": "none"}).statement()
    assert statement.guarantee == "simulated"
    assert statement.epsilon == pytest.approx(2.0, rel=1e-6)
    assert 0 < statement.epsilon_published < 2
    statement = fed.build("dpzv", None, {**GIVEN, "server.update": "sgd"}).statement()
    assert (statement.guarantee, statement.epsilon, statement.covers) == ("none", None, ())


@each(
    "task, names, words",
    [
        (Classification(2), ("no", "yes"), r'data\.classes \(these are \["no", "yes"\]\)'),
        (Classification(2), None, r"the classes .* give data\.classes, provided"),
        (Huber(0.5, 1.0, 1.0), None, r"the scale of the labels .* give data\.label_range"),
    ],
)
def test_what_is_read_off_the_labels_is_named(
    task: Task, names: tuple[str, ...] | None, words: str
) -> None:
    data = replace(fed.data(40), task=task, class_names=names, fitted_labels=True)
    with pytest.raises(ConfigError, match=words):
        check_public(1.0, data)
    check_public(1.0, replace(data, fitted_labels=False))


def test_an_epsilon_that_cannot_be_had() -> None:
    more = {**WANTED, "privacy.epsilon": 1e-3, "privacy.delta": 1e-12, "epochs": 10**6}
    with pytest.raises(ConfigError, match="ledger's unit"):
        fed.build("dpzv", None, {**more, "server.update": "none"})


ASKED = (
    *("data.limit=100", "epochs=1", "batch_size=20", "server.update=private-sgd"),
    *(f"{key}={value}" for key, value in WANTED.items()),
)


def covers_of(*overrides: str) -> tuple[str, ...]:
    chosen = config.load(None, (*ASKED, *overrides))
    return build(chosen, Experiment(chosen).data()).statement().covers


@each(
    "overrides, holders, features",
    [
        ((), False, True),
        (("data.label_holder=party0",), True, True),
        (("data.name=breast-cancer", "data.label_holder=mean"), False, False),  # fitted columns
        (("data.name=breast-cancer",), False, False),
        (("method.name=vafl",), False, False),  # gradients of its own
        (("codecs.up.name=paired",), False, False),  # codes that span records
        (("data.parties=1",), False, False),  # nobody else
    ],
)
def test_what_is_covered(overrides: tuple[str, ...], holders: bool, features: bool) -> None:
    """Labels always; columns and features where nothing fits them or carries them elsewhere."""
    covers = covers_of(*overrides)
    assert "labels" in covers
    assert any("label holder" in thing for thing in covers) is holders
    assert any("features" in thing for thing in covers) is features


@each(
    "more, features",
    [
        ((), True),  # one model of which none is better
        (("evaluate_every=1",), False),
        (("evaluate_every=3",), False),
        (("evaluate_every=4",), True),
        (("evaluate_every=1", "data.validation=0"), True),
    ],
)
def test_a_choice_among_fitted_models_shows_features(more: tuple[str, ...], features: bool) -> None:
    """Every member learns which evaluation was the best, of models fitted to their own features."""
    statistic = ("method.name=label-statistic", "privacy.epsilon=1", "data.limit=100")
    chosen = config.load(None, (*statistic, *more))
    covers = build(chosen, Experiment(chosen).data()).statement().covers
    assert any("features" in thing for thing in covers) is features


class Standardised(nn.Linear):
    """An embedding that depends on the rest of the batch."""

    def __init__(self) -> None:
        super().__init__(16, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows.flatten(1) - rows.flatten(1).mean(0))


def test_features_are_not_covered_by_models_that_take_records_together() -> None:
    model = f"client.model={{name: module, path: '{__file__}:Standardised'}}"
    assert covers_of(model) == ("labels",)


@pytest.mark.full
def test_a_clip_without_epsilon_is_a_clip_alone() -> None:
    """Infinite where nothing is clipped, no reply where it is 0 or so, for every kind of reply."""
    for method in ("dpzv", "cascaded", "vafl", "czofo"):
        tree: dict[str, Any] = {"seed": 1, "epochs": 1, "data": {"limit": 99}}
        tree |= {"method": {"name": method}, "evaluate_every": 5}
        clips = ({}, {"clip": 1e6}, {"clip": 1e-9})
        configs = [config.parse(tree | {"privacy": clip}) for clip in clips]
        plain, wide, tight = (Experiment(each).run() for each in configs)
        assert plain.summary["clip_fraction"] is None
        assert wide.summary["clip_fraction"] == 0.0
        assert tight.summary["clip_fraction"] > 0.9
        assert abs(wide.summary["test_loss"] - plain.summary["test_loss"]) < 1e-3, method
        for run in (wide, tight):
            assert run.summary["privacy"]["guarantee"] == "none"
            assert "carry no noise" in run.summary["privacy"]["words"]
            assert run.summary["privacy"]["epsilon"] is None
