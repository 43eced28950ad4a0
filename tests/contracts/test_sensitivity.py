"""One record moves what a private server update releases by 2C at most: every model, every update;
and what a reply along tangents does, of any tangents.

What is held is the sum before its noise, for records that a search chose to break the bound: large
and nearly constant rows (a normalisation divides by what rounding left of their spread), subnormal
ones, ones that cancel, huge batches. The search climbs: it keeps what moved the sum furthest and
varies it. It found 5.9 and 13 times 2C where norms and sums were computed by different ways.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from tests import mixing
from tests.cards import DEVICES, LIKE_A_CARD, as_on_a_card
from tests.mixing import MODULES
from tests.rows import each, pairs
from torch import Tensor, nn

from vertizo.config.architectures import ResnetRestConfig, SumConfig, TextRestConfig
from vertizo.core.randomness import Stream
from vertizo.methods.choice import METHODS, asking
from vertizo.models.architectures.networks import Bag, Filters, Sum, TableNet, TabularNet, cnn, mlp
from vertizo.models.base import DifferentiableModel, Points, Where
from vertizo.models.encoded import EncodedModel
from vertizo.models.losses import (
    Classification,
    ClassWeighted,
    Huber,
    MultiLabel,
    Quantile,
    Regression,
    Task,
)
from vertizo.models.optimizers import Sgd
from vertizo.models.recordwise import RecordwiseModel
from vertizo.models.torch import wrap
from vertizo.party.private_updates import PrivateSgd, PrivateZerothOrder, SecretSgd, SeededSampler
from vertizo.party.server_model import ServerModel
from vertizo.run.build import models as build_models
from vertizo.run.build.models import server_module
from vertizo.testing import federations
from vertizo.testing.sensitivity import (
    Heard,
    Replies,
    Search,
    a_record_moves_no_release_too_far,
    moved,
)
from vertizo.testing.subject import Subject
from vertizo.zeroth_order.directions import Directions

WIDTH, CLASSES = 8, 3
TASK = Classification(CLASSES)


class Several(nn.Module):
    """Weights that each record uses several times."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(WIDTH // 2, WIDTH // 2)
        self.last = nn.Linear(WIDTH // 2, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        state = rows[:, : WIDTH // 2]
        for _ in range(3):
            state = torch.tanh(self.cell(state)) + rows[:, WIDTH // 2 :]
        return self.last(state)


def chain(at: str, *parts: nn.Module) -> DifferentiableModel:
    return wrap(nn.Sequential(*parts), Where(at))


def plain(at: str, *hidden: int, outputs: int = CLASSES) -> DifferentiableModel:
    return wrap(mlp(WIDTH, [*hidden], outputs, final_relu=False), Where(at))


def encoded(at: str, encoder: nn.Module, *shape: int, tokens: bool = False) -> DifferentiableModel:
    """With own features behind the first columns of a row."""
    dtype = torch.int64 if tokens else torch.float32

    def behind(width: int) -> nn.Module:
        return mlp(2 + width, [5], CLASSES, final_relu=False)

    return EncodedModel(behind, encoder, 2, shape, dtype, where=Where(at))


def shipped(at: str, config: Any, width: int) -> DifferentiableModel:
    return wrap(server_module(config, width, CLASSES), Where(at))


@dataclass(frozen=True)
class Kind:
    make: Callable[[str], DifferentiableModel]
    """On a device."""
    width: int = WIDTH
    tokens: int = 0
    """Columns at the end that hold tokens."""
    codes: int = 0
    """Columns at the end that hold codes of categories, before other ones of `width`."""
    tries: int = 150


RESNET = ResnetRestConfig(image=(8, 8), parts=2, width=8)
TEXT = TextRestConfig(checkpoint="random", vector=4, layers=1, heads=2, vocabulary=16)
GROUPS = (nn.Unflatten(1, (4, 2)), nn.GroupNorm(2, 4), nn.Flatten())
KINDS = {
    "linear": Kind(lambda at: plain(at)),
    "mlp": Kind(lambda at: plain(at, 6, 5)),
    "sum": Kind(lambda at: shipped(at, SumConfig(), 9), width=9),
    "resnet18-rest": Kind(lambda at: shipped(at, RESNET, 8 * 64), width=8 * 64, tries=25),
    "text-rest": Kind(lambda at: shipped(at, TEXT, 12), width=12, tries=30),
    "tanh": Kind(lambda at: chain(at, nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, CLASSES))),
    "layer norm": Kind(lambda at: chain(at, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))),
    "layer norm inside": Kind(
        lambda at: chain(at, nn.Linear(WIDTH, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, CLASSES))
    ),
    "layer norm alone": Kind(
        lambda at: wrap(nn.LayerNorm(CLASSES), Where(at)), width=CLASSES, tries=600
    ),
    "two layer norms": Kind(
        lambda at: chain(at, nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)),
        tries=300,
    ),
    "group norm": Kind(lambda at: chain(at, *GROUPS, nn.Linear(WIDTH, CLASSES))),
    "convolution": Kind(
        lambda at: chain(
            at,
            nn.Unflatten(1, (1, 2, 4)),
            nn.Conv2d(1, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.Flatten(),
            nn.Linear(32, CLASSES),
        )
    ),
    "one weight, several uses": Kind(lambda at: wrap(Several(), Where(at))),
    "encoder: mlp": Kind(lambda at: encoded(at, mlp(6, [4], 3, final_relu=True), 6)),
    "encoder: along an axis": Kind(lambda at: encoded(at, nn.Linear(3, 2), 2, 3)),
    "encoder: cnn": Kind(lambda at: encoded(at, cnn((1, 4, 4), [2], 3), 1, 4, 4), width=18),
    "encoder: filters": Kind(lambda at: encoded(at, Filters((1, 4, 4), 2), 1, 4, 4), width=18),
    "encoder: table": Kind(
        lambda at: encoded(at, TableNet(6, (5, 3), [4], 3, final_relu=True), 6), codes=2
    ),
    "encoder: tabular": Kind(
        lambda at: encoded(at, TabularNet(6, (5, 3), [4], 3, bins=4, width=3), 6), codes=2
    ),
    "encoder: bag": Kind(
        lambda at: encoded(at, Bag(16, 3, [], 2), 4, tokens=True), width=6, tokens=4
    ),
}


class Game:
    """What an update releases for a batch, before noise."""

    def __init__(self, model: DifferentiableModel, update: str, clip: float, task: Task) -> None:
        self.clip = clip
        self._head = ServerModel(model, task)
        self._start = model.parameters.clone()
        self._heard = Heard(clip)
        size = model.parameters.numel()
        directions = Directions("scaled-sphere", size, Stream.from_seed(3))
        sampler = SeededSampler(Stream.from_seed(4))
        self._update: Any
        if update == "private-sgd":
            self._update = PrivateSgd(Sgd(1.0), self._heard, 4)
        elif update == "private-zeroth-order":
            self._update = PrivateZerothOrder(Sgd(1.0), self._heard, 4, directions, 1e-3)
        else:
            self._update = SecretSgd(
                Sgd(1.0), self._heard, sampling=0.5, capacity=8, sampler=sampler
            )

    def released(
        self, joined: Tensor, labels: Tensor, weights: Tensor | None = None
    ) -> list[Tensor]:
        self._heard.releases.clear()
        head, update = self._head, self._update
        head.parameters.copy_(self._start)
        with np.errstate(all="ignore"):
            if isinstance(update, SecretSgd):
                update.between(0, head, joined, labels, len(joined), 16, weights)
            else:
                update.steps = 0
                evaluation = head.evaluate(Points(joined), labels, weights=weights)
                update.step(head, evaluation, joined, labels)
        head.parameters.copy_(self._start)
        return list(self._heard.releases)


def brought(kind: type[nn.Module], at: str) -> DifferentiableModel:
    """A user's module, as a guarantee has it."""
    return wrap(kind(WIDTH, CLASSES), Where(at), kind=RecordwiseModel)


BROUGHT = {name: Kind(partial(brought, kind)) for name, kind in MODULES.items()}
"""Modules that mix records, if they are let."""


def searched(kind: Kind, task: Task, *, weighs: bool = False) -> Search:
    of_rows = {"tokens": kind.tokens, "codes": kind.codes}
    return Search(kind.width, task, kind.tries, weighs=weighs, **of_rows)


UPDATES = ["private-sgd", "poisson-dp-sgd", "private-zeroth-order"]
LIGHT = [name for name in KINDS if name not in ("resnet18-rest", "text-rest")]
"""Without the ones that take seconds, or Transformers, which takes seconds to import."""


@each("name, update", list(product(KINDS, UPDATES)), gate=pairs(LIGHT, UPDATES))
@pytest.mark.parametrize("device", [*DEVICES, LIKE_A_CARD])
def test_a_record_moves_no_release_by_more_than_its_sensitivity(
    device: str, name: str, update: str, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    kind, task = KINDS[name], Classification(CLASSES)
    largest, gate = 0.0, rows == "gate"
    if gate:
        kind = replace(kind, tries=kind.tries // 3)
    like_a_card = device not in ("cpu", "cuda")
    with as_on_a_card(monkeypatch) if like_a_card else nullcontext():
        model = kind.make("cpu" if like_a_card else device)
        for clip in (1.0,) if gate else (1e-3, 1.0):
            found = searched(kind, task).furthest(Game(model, update, clip, task))
            assert found <= 1.0, f"{found:.6g} times 2C"
            largest = max(largest, found)
    assert largest > 0.5  # else the search would have shown nothing


@each("name, update", list(product(BROUGHT, UPDATES)), gate=pairs(BROUGHT, UPDATES)[::3])
def test_no_module_of_somebodys_moves_a_release_further(name: str, update: str, rows: str) -> None:
    """Whatever it does; at parameters at which it would mix."""
    torch.manual_seed(1)
    kind = replace(BROUGHT[name], tries=9 if rows == "gate" else 20)
    model = kind.make("cpu")
    mixing.opened(model)
    found = searched(kind, TASK).furthest(Game(model, update, 1.0, TASK))
    assert 0.1 < found <= 1.0, f"{found:.6g} times 2C"


CONSTANT = ("softmax", "minmax", "counts", "normed")
"""Modules that say the same of every record that is alone, or of all that are near each other."""
ANSWERED = ("tangent", "vafl", "dpzv", "czofo", "cascaded", "split")


@each("method, name", list(product(ANSWERED, MODULES)), gate=pairs(ANSWERED, ["shut", "gate"]))
def test_no_module_of_somebodys_moves_a_reply_further(
    method: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that no trial told anybody of: replies moved by up to 4 times 2C."""
    monkeypatch.setattr(build_models, "mixes_records", lambda *_, **__: False)
    module = {"name": "module", "path": f"{mixing.__file__}:{name}"}
    sizes = {"inputs": 3 * federations.DIM, "outputs": federations.CLASSES}
    more = {"server.model": {**module, "arguments": sizes}, "server.join": "concat"}
    game = Replies(Subject(method, METHODS[method].timings[0]), 0.05, more)
    mixing.opened(game)
    found = Search(game.width, TASK, 20).furthest(game)
    assert found <= 1.0 + 1e-12, f"{found:.6g} times 2C"
    assert found > 0.1 or name in CONSTANT


LABELS = MultiLabel(("a", "b", "c"))
NUMBERS = Kind(lambda at: plain(at, 6, outputs=1))
LOG_ODDS = Kind(lambda at: wrap(Sum(3, 2, 3), Where(at)), width=3)
TASKS: dict[str, tuple[Kind, Task]] = {
    "regression": (NUMBERS, Regression()),
    "Huber": (NUMBERS, Huber(delta=0.5)),
    "quantile": (NUMBERS, Quantile(level=0.9)),
    "sum of log-odds": (LOG_ODDS, Classification(2)),
    "all labels of a record together": (Kind(lambda at: plain(at, 6)), LABELS),
}


@each("update", UPDATES)
@each("name", TASKS)
def test_other_tasks_keep_to_it_as_well(name: str, update: str) -> None:
    torch.manual_seed(1)
    kind, task = TASKS[name]
    found = searched(kind, task).furthest(Game(kind.make("cpu"), update, 1.0, task))
    assert 0.5 < found <= 1.0, f"{found:.6g} times 2C"


WIDE = {"server.model": {"name": "sum"}, "method.num_directions": 5, "batch_size": 29}


@each("method", ["tangent", "label-statistic"])
def test_no_tangents_move_a_reply_by_more_than_its_sensitivity(method: str) -> None:
    subject = Subject(method, METHODS[method].timings[0], WIDE)
    assert a_record_moves_no_release_too_far(subject, tries=150) > 0.5


@each("update", UPDATES)
@each("name", ["linear", "layer norm alone"])
def test_no_weight_moves_a_release_further(name: str, update: str) -> None:
    """Of a record and of its class; the neighbour's are others."""
    torch.manual_seed(1)
    kind, task = replace(KINDS[name], tries=80), ClassWeighted(torch.tensor([1e6, 0.0, 30.0]))
    found = searched(kind, task, weighs=True).furthest(Game(kind.make("cpu"), update, 1.0, task))
    assert 0.5 < found <= 1.0, f"{found:.6g} times 2C"


@each("method", asking())
def test_no_weight_moves_a_reply_further(method: str) -> None:
    more = {"data.class_weights": {"0": 1e6, "1": 0.0, "2": 30.0}}
    game = Replies(Subject(method, METHODS[method].timings[0]), 1.0, more)
    search = Search(game.width, Classification(CLASSES), 50, weighs=True)
    found = search.furthest(game)
    assert 0.4 < found <= 1.0 + 1e-12, f"{found:.6g} times 2C"


@each("method", [name for name in asking() if name != "label-statistic"])
def test_all_labels_of_a_record_move_no_reply_further(method: str) -> None:
    game = Replies(Subject(method, METHODS[method].timings[0]), 0.05, task=LABELS)
    found = Search(game.width, LABELS, 50).furthest(game)
    assert 0.4 < found <= 1.0 + 1e-12, f"{found:.6g} times 2C"


@each("records", [20_000, 100_000])
@each("hidden", [[], [6]])
def test_a_huge_batch_adds_no_rounding_of_its_own(hidden: list[int], records: int) -> None:
    """All records push the same way, and one that is exchanged pushes back."""
    torch.manual_seed(1)
    model = plain("cpu", *hidden, outputs=1)
    game = Game(model, "private-sgd", 1.0, Regression())
    generator = torch.Generator().manual_seed(2)
    largest = 0.0
    for _ in range(3):
        rows = torch.randn(WIDTH, generator=generator).repeat(records, 1)
        labels = torch.full((records,), 1e4)
        changed = labels.clone()
        changed[0] = -1e4
        largest = max(largest, moved(game, (rows, labels), (rows, changed)))
    assert 0.999 < largest <= 1.0
