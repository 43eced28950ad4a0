"""Whatever a module does, a record decides its own part of what comes of a batch, and no other's.

In all that is asked of a model: outputs, slopes of its inputs, each record's gradient, tangents.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.mixing import MODULES, Centred, Gate, Plain, Shut, opened
from tests.refusals import refused
from tests.rows import each
from torch import Tensor, nn

from vertizo.core.errors import ConfigError
from vertizo.models.array import ArrayModel
from vertizo.models.base import DifferentiableModel, Points
from vertizo.models.encoded import EncodedModel
from vertizo.models.mixing import mixes_records
from vertizo.models.recordwise import RecordwiseModel
from vertizo.models.torch import wrap

BATCH = 4
HIDDEN = ("counts", "normed", "draws", "leaves")
"""What a trial may miss: they show with other sizes, or as what they keep."""


def apart(module: nn.Module) -> RecordwiseModel:
    made = wrap(module, kind=RecordwiseModel)
    assert isinstance(made, RecordwiseModel)
    return made


def told(model: DifferentiableModel, rows: Tensor) -> list[Tensor]:
    """All that is asked of a model, a row for each record."""
    slopes = rows.sum(1, keepdim=True).cos() * torch.linspace(1, 2, 3)
    outputs, pullback = model.forward(Points(rows))
    parts = pullback.record_gradients(slopes, slice(0, len(rows))).parts  # type: ignore[attr-defined]
    along = torch.randn(2, model.parameters.numel(), generator=torch.Generator().manual_seed(3))
    return [outputs, model(rows), pullback.inputs(slopes), *parts, *model.tangents(along, rows)]


def batches() -> Iterator[tuple[Tensor, Tensor, list[int]]]:
    """A batch, one in which a record is another, and the places of the others."""
    rows = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(1)) / 2
    for place, value in ((0, rows[1] + 3), (2, 1e4 * rows[2])):
        changed = rows.clone()
        changed[place] = value
        yield rows, changed, [one for one in range(BATCH) if one != place]


@each("name", MODULES)
def test_no_module_mixes_records(name: str) -> None:
    """Not at its first parameters, not at others, not in a second pass, nor by what is left."""
    model = apart(MODULES[name]())
    for _ in range(2):
        before, kept = copy.deepcopy(vars(model.module)), model.parameters.clone()
        for rows, changed, others in batches():
            one, other = (told(model, batch) for batch in (rows, changed))
            for mine, theirs in zip(one, other, strict=True):
                assert torch.equal(mine[others], theirs[others])
        each_alone = [told(model, row.unsqueeze(0)) for row in changed]
        for mine, *single in zip(other, *each_alone, strict=True):
            assert torch.allclose(mine, torch.cat(single), atol=1e-5, rtol=1e-4)
        assert str(before) == str(vars(model.module))
        assert torch.equal(model.parameters, kept)
        opened(model)


@each("name", MODULES)
def test_the_same_modules_mix_otherwise(name: str) -> None:
    """Else the test above would show nothing."""
    found = []
    for rows, changed, others in batches():
        said: list[list[Tensor]] = []
        for batch in (rows, changed):
            torch.manual_seed(0)
            model = wrap(MODULES[name]())
            opened(model)
            try:
                outputs, pullback = model.forward(Points(batch))
                slopes = batch.sum(1, keepdim=True).cos() * torch.linspace(1, 2, 3)
                parts = [outputs[others], pullback.inputs(slopes)[others], model.parameters]
                said.append([part.clone() for part in parts])
            except ConfigError as error:
                found.append("changes its buffer" in str(error))
                said.append([model(batch)[others]] if name == "leaves" else [])
        found.append(not all(map(torch.equal, *said)))
    assert any(found)


def test_a_plain_module_says_what_it_says_otherwise() -> None:
    module = Plain()
    other, one = wrap(copy.deepcopy(module)), apart(module)
    rows, changed, _ = next(batches())
    for batch in (rows, changed):
        for mine, theirs in zip(told(one, batch), told(other, batch), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-6)
    shift = torch.randn(2, BATCH, 3, generator=torch.Generator().manual_seed(2))
    (mine, pullback), (theirs, plain) = (
        model.forward(Points(rows, ((2, shift),))) for model in (one, other)
    )
    assert torch.allclose(mine, theirs, atol=1e-6)
    slopes = torch.linspace(-1, 1, 3 * BATCH).view(BATCH, 3)
    assert torch.allclose(pullback(slopes), plain(slopes), atol=1e-5)
    assert one(rows[:0]).shape == (0, 3)
    assert set(one._went.values()) == {True}, "one pass for all records"


def test_an_encoder_is_kept_apart_as_well() -> None:
    """And the module that predicts behind it."""
    made = EncodedModel(lambda n: Gate(2 + n, 3), Shut(6, 2), 2, (6,), kinds=(RecordwiseModel,) * 2)
    opened(made)
    for rows, changed, others in batches():
        for one, other in zip(made_of(made, rows), made_of(made, changed), strict=True):
            assert torch.equal(one[others], other[others])


def made_of(model: EncodedModel, rows: Tensor) -> list[Tensor]:
    outputs, pullback = model.forward(Points(rows))
    slopes = rows.sum(1, keepdim=True).cos() * torch.linspace(1, 2, 3)
    squares = pullback.record_gradients(slopes, slice(0, len(rows))).squares()
    return [outputs, pullback.inputs(slopes), squares]


def test_a_function_is_asked_of_one_record() -> None:
    def centred(w, x):  # type: ignore[no-untyped-def]
        w *= 2
        x -= x.mean(0) / 2
        return x[:, :2] * w

    model = ArrayModel(centred, torch.ones(2), recordwise=True)
    rows, changed, others = next(batches())
    assert torch.equal(model(rows)[others], model(changed)[others])
    assert torch.equal(model.parameters, torch.ones(2))
    assert torch.allclose(model(rows), rows[:, :2])
    assert mixes_records(model, rows)


def test_a_record_for_which_it_fails_is_zeros_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Picky(Plain):
        def hidden(self, rows: Tensor) -> Tensor:
            if float(rows.detach().abs().max()) > 100:
                raise ValueError("too large")
            return super().hidden(rows)

    model = apart(Picky())
    rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    good = told(model, rows)
    bad = rows.clone()
    bad[2] = 1000.0
    for one, other in zip(good, told(model, bad), strict=True):
        assert torch.equal(one[[0, 1, 3]], other[[0, 1, 3]])
        assert not other[2].any()
    assert not told(model, bad[2:3])[0].any()
    assert "the model Picky fails for a record, which counts as zeros" in caplog.messages
    words = r"the model Picky fails for 4 records.*too large"
    refused("at first", ConfigError, apart(Picky()), bad, match=words)


def test_what_cannot_be_copied_is_refused() -> None:
    class Held(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.lines = (line for line in "ab")

    refused("a generator", ConfigError, apart(Held()), torch.zeros(2, 8), match="cannot be copied")


def test_a_batching_rule_of_somebodys_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function may say itself how it takes many records; it may take them together."""
    monkeypatch.setattr(Centred, "vmap", staticmethod(lambda info, dims, *_: None), raising=False)
    model = apart(Plain())
    told(model, next(batches())[0])
    assert set(model._went.values()) == {False}


@each("name", [name for name in MODULES if name not in HIDDEN])
def test_a_trial_tells_people_early(name: str) -> None:
    """Behind a shut gate and zeros, too; and nothing that it does is left."""
    model = apart(MODULES[name]())
    before, rows = model.parameters.clone(), next(batches())[0]
    assert mixes_records(model, rows, (BATCH,))
    assert torch.equal(model.parameters, before)
    assert not getattr(model.module, "seen", [])


def test_a_trial_does_not_depend_on_scale() -> None:
    """A thousand times a record is no index; what fails for it may keep records apart."""

    class Looks(Plain):
        def hidden(self, rows: Tensor) -> Tensor:
            places = nn.functional.one_hot(rows.abs().long(), 9).float().flatten(1)
            return places[:, :6] + 0 * super().hidden(rows)

    assert not mixes_records(apart(Looks()), next(batches())[0])
    assert not mixes_records(apart(Plain()), next(batches())[0], (1, 2, 64))


@each("kind", (None, RecordwiseModel))
def test_threads_differentiate_forward_each_for_itself(kind: type[RecordwiseModel] | None) -> None:
    """As parties in one process do; PyTorch alone would mix them up."""
    torch.manual_seed(0)
    rows = torch.randn(5, 4)
    models = [
        wrap(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), kind=kind)
        for _ in range(3)
    ]
    directions = torch.randn(4, models[0].parameters.numel())
    wanted = [model.tangents(directions, rows) for model in models]

    def right(place: int) -> bool:
        found = (models[place].tangents(directions, rows) for _ in range(40))
        return all(torch.equal(one, wanted[place]) for one in found)

    with ThreadPoolExecutor(len(models)) as pool:
        assert all(pool.map(right, range(len(models))))
