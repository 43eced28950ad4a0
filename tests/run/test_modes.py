"""Users' modules whole: frozen parts, buffers, dropout and batch normalisation; and what fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.refusals import refused
from tests.rows import each
from tests.same import same
from torch import Tensor, nn

from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError
from vertizo.models.base import Points, copied
from vertizo.run.experiment import Experiment
from vertizo.run.loop.federation import Federation, build
from vertizo.run.results import checkpoint
from vertizo.run.trained.prediction import Predictor

ROWS, CLASSES = 64, 10
Kind = Callable[..., nn.Module]


class Half(nn.Module):
    """A frozen layer under one that is trained; its first parameters are random."""

    def __init__(self, inputs: int = 32, outputs: int = 3) -> None:
        super().__init__()
        self.body = nn.Linear(inputs, 8).requires_grad_(False)
        self.top = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.body(x.flatten(1)).tanh())


def normed(inputs: int = 32, outputs: int = 3, share: float = 0.0) -> nn.Module:
    """Batch normalisation, and dropout where there is a share of it."""
    first, top = nn.Linear(inputs, 12), nn.Linear(12, outputs)
    drop = nn.Dropout(share) if share else nn.Identity()
    return nn.Sequential(nn.Flatten(), first, nn.BatchNorm1d(12), nn.ReLU(), drop, top)


def random(inputs: int = 32, outputs: int = 3) -> nn.Module:
    """Dropout and batch normalisation."""
    return normed(inputs, outputs, 0.3)


def dropped(inputs: int = 32, outputs: int = 3) -> nn.Module:
    """Dropout alone."""
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(inputs, outputs))


class Running(nn.Module):
    """Centres by a running mean of all that it saw, in whatever mode, and puts a new one there."""

    def __init__(self, inputs: int = 32, outputs: int = 3, kept: bool = True) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs), persistent=kept)
        self.top = nn.Linear(inputs, outputs)

    def move(self, x: Tensor) -> None:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)

    def forward(self, x: Tensor) -> Tensor:
        self.move(x.flatten(1))
        return self.top(x.flatten(1) - self.mean[: x[0].numel()])


class Old(Running):
    """The same in the style of old, which PyTorch does not see."""

    def move(self, x: Tensor) -> None:
        self.mean.data.mul_(0.9).add_(0.1 * x.data.mean(0))


class Growing(Running):
    def move(self, x: Tensor) -> None:
        self.mean = torch.cat([self.mean, x.new_zeros(1)])


def config(method: str = "split", **more: Any) -> Any:
    tree: dict[str, Any] = {
        "method": {"name": method},
        "epochs": 2,
        "batch_size": 20,
        "data": {"limit": ROWS, "parties": 2, "test_limit": 30},
        "evaluate_every": 3,
    }
    return parse({**tree, **more})


def module(kind: Kind, **arguments: Any) -> dict[str, Any]:
    path = f"{__file__}:{kind.__name__}"
    return {"model": {"name": "module", "path": path, "arguments": arguments}}


def server_of(kind: Kind) -> dict[str, Any]:
    return module(kind, inputs=6, outputs=CLASSES)


def both(kind: Kind) -> dict[str, Any]:
    """Clients of that kind; and a server, unless it would mix its records."""
    server = {} if kind in (Running, Old) else {"server": server_of(kind)}
    return {"client": module(kind), **server}


def refusal(settings: Any, *words: str) -> None:
    refused(words, ConfigError, Experiment(settings).run)


def made(settings: Any, rounds: int | None = None) -> Federation:
    """A federation, after so many rounds if any."""
    experiment = Experiment(settings)
    federation = build(experiment.config, experiment.data())
    if rounds is not None:
        federation.start(upload_table=False)
        go_on(federation, rounds)
    return federation


def go_on(federation: Federation, rounds: int) -> None:
    for _ in range(rounds):
        assert federation.simulator.step()


@each("method", ["dpzv", "cascaded", "czofo", "vafl", "split"])
def test_frozen_parts_stay(method: str) -> None:
    federation = made(config(method, client=module(Half)))
    before = [copied(model.state()) for model in federation.models]
    federation.start(upload_table=False)
    go_on(federation, 4)
    for model, then in zip(federation.models, before, strict=True):
        now: Any = model.state()
        assert model.parameters.numel() == 8 * 3 + 3
        assert same(now["rest"], then["rest"])
        assert not torch.equal(now["parameters"], then["parameters"])
        assert set(now["rest"]) == {"body.weight", "body.bias"}


@each(
    "update",
    ["sgd", "zeroth-order", "forward-difference", "private-sgd", "private-zeroth-order"],
)
def test_frozen_parts_of_a_server_stay(update: str) -> None:
    noise = {"noise_std": 1.0, "clip": 1.0, "server_noise_std": 1.0}
    privacy = noise if update.startswith("private") else {}
    settings = config("dpzv", server={**server_of(Half), "update": update}, privacy=privacy)
    federation = made(settings)
    model = federation.server.side.model.model
    before = copied(model.state())
    federation.start(upload_table=False)
    go_on(federation, 4)
    assert model.parameters.numel() == 8 * CLASSES + CLASSES
    assert same(model.state()["rest"], before["rest"])
    assert not torch.equal(model.parameters, before["parameters"])


@each("kind", [Half, random, Running])
def test_a_model_loads_whole_elsewhere(kind: Kind, tmp_path: Path) -> None:
    """Into a federation of other first parameters: all that decides predictions came along."""
    settings = config("split", **both(kind))
    federation = made(settings, 5)
    checkpoint.save(tmp_path / "models", federation.parameters)
    other = build(settings.model_copy(update={"seed": 8}), federation.data)
    other.parameters = checkpoint.load(tmp_path / "models")
    assert same(federation.parameters, other.parameters)
    for index, (one, two) in enumerate(zip(federation.models, other.models, strict=True)):
        rows = federation.data.features[index]["test"]
        assert torch.equal(one(rows), two(rows))
    rows = torch.randn(9, 6)
    first, second = (one.server.side.model.logits(rows) for one in (federation, other))
    assert torch.equal(first, second)


@each("kind", [random, dropped, Running, Old])
@each("method", ["vafl", "split", "fedbcd"])
def test_a_run_goes_on_as_if_it_had_never_stopped(kind: Kind, method: str, tmp_path: Path) -> None:
    """With queries open, local steps, and an evaluation in between."""
    settings = config(method, **both(kind))
    federation = made(settings, 3)
    checkpoint.save(tmp_path / "last", federation.state())
    other = build(settings, federation.data)
    other.load(checkpoint.load(tmp_path / "last"))
    federation.simulator.upload("test", 30)
    federation.server.score("test")
    for one in (federation, other):
        go_on(one, 3)
    assert same(federation.parameters, other.parameters)
    assert torch.equal(federation.server.side.table.values, other.server.side.table.values)


@each("kind", [Half, random, Running])
def test_the_best_model_predicts_what_the_summary_says(kind: Kind, tmp_path: Path) -> None:
    data = {"limit": 200, "parties": 2, "test_limit": 60, "validation": 0.3}
    settings = config("split", **both(kind), data=data, epochs=3)
    summary = Experiment(settings).run(tmp_path / "run").summary
    found = Predictor.load(tmp_path / "run").test().scores
    assert summary["model"] == "best"
    assert found["loss"] == pytest.approx(summary["test_loss"], rel=1e-6)


def test_a_baseline_trains_as_pytorch_does() -> None:
    """Batch normalisation by batches, running statistics, momentum: split is one joined model."""
    optimizer: Any = {"optimizer": {"learning_rate": 0.1, "momentum": 0.5}}
    sides = {"client": module(normed) | optimizer, "server": server_of(normed) | optimizer}
    federation = made(config("split", **sides))
    data = federation.data
    pairs = [(m, normed()) for m in federation.models]
    server_model: Any = federation.server.side.model.model
    pairs.append((server_model, normed(6, CLASSES)))
    for model, plain in pairs:
        plain.load_state_dict({k: v.clone() for k, v in model.module.state_dict().items()})
        plain.train()
    plains = [plain for _, plain in pairs]
    weights = [part for plain in plains for part in plain.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.5)
    federation.start(upload_table=False)
    for round_ in range(4):
        ids = federation.server.batches.ids(round_)
        embeddings = [plain(data.features[m]["train"][ids]) for m, plain in enumerate(plains[:-1])]
        logits = plains[-1](torch.cat(embeddings, 1))
        labels = data.labels["train"][ids]
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum") / 20
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert federation.simulator.step()
    for model, plain in pairs:
        found, expected = model.module.state_dict(), plain.state_dict()
        for name, value in expected.items():
            assert torch.allclose(found[name], value, rtol=1e-4, atol=1e-5), name
    plains[0].eval()
    rows = data.features[0]["test"]
    assert torch.allclose(federation.models[0](rows), plains[0](rows), rtol=1e-4, atol=1e-4)


def test_a_record_that_would_be_alone_in_its_batch_is_refused() -> None:
    """Before the run, where batch normalisation would end it at the last batch: 58 = 3 · 19 + 1."""
    for sides in ({"client": module(normed)}, {"server": server_of(normed)}):
        for batch_size in (19, 1):
            with pytest.raises(ConfigError, match=r"model: batch_size is .* another batch_size"):
                made(config("split", batch_size=batch_size, **sides))
        made(config("split", batch_size=20, **sides))
    made(config("split", batch_size=19, client=module(dropped)))
    made(config("dpzv", batch_size=19))


def test_masks_are_drawn_anew_each_pass_and_the_seed_decides_them() -> None:
    settings = config("vafl", client=module(dropped))
    one, two = made(settings), made(settings)
    rows = torch.ones(5, 32)
    model = one.models[0]
    first, other, again = (model.forward(Points(rows), number)[0] for number in (0, 1, 0))
    assert torch.equal(first, two.models[0].forward(Points(rows), 0)[0])
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, model(rows))
    assert torch.equal(model(rows), model(rows))
    state = torch.random.get_rng_state()
    model.forward(Points(rows), 4)
    assert torch.equal(state, torch.random.get_rng_state())


@each("method", ["dpzv", "cascaded", "czofo", "zoo-vfl"])
def test_dropout_is_off_where_losses_are_compared_and_that_is_said(method: str) -> None:
    federation = made(config(method, client=module(dropped)))
    (note,) = federation.notes
    assert note.startswith("client.model: Dropout does nothing")
    assert f"method {method!r} compares losses" in note
    rows = torch.ones(5, 32)
    assert torch.equal(federation.models[0](rows), federation.models[0](rows))


def test_what_is_in_training_is_said() -> None:
    federation = made(config("vafl", client=module(random), server=server_of(dropped)))
    client, server = federation.notes
    assert client.startswith("client.model: BatchNorm1d, Dropout as PyTorch has it")
    assert server.startswith("server.model: Dropout as PyTorch has it")
    federation = made(config("vafl", client=module(Half)))
    assert federation.notes == ()


HIDDEN = {"mechanism": "embedding-noise", "noise_std": 1.0, "clip": 1.0}
NOISED = {"noise_std": 1.0, "clip": 1.0}


@each(
    "privacy, why",
    [(NOISED, "replies carry noise"), (HIDDEN, "privacy.mechanism is 'embedding-noise'")],
)
def test_dropout_is_off_under_privacy(privacy: Any, why: str) -> None:
    (note,) = made(config("vafl", client=module(dropped), privacy=privacy)).notes
    assert why in note


@each("method, privacy", [("dpzv", {}), ("czofo", {}), ("vafl", NOISED), ("split", HIDDEN)])
@each("kind", [Running, Old, random])
def test_nothing_changes_buffers_elsewhere(method: str, privacy: Any, kind: Kind) -> None:
    """Of clients and the server alike: no state carries one record into another's outputs."""
    why = "BatchNorm1d, which mixes" if kind is random else "its buffer 'mean'"
    for side, model in (("client", module(kind)), ("server", server_of(kind))):
        refusal(config(method, privacy=privacy, **{side: model}), why, f"{side}.model")


def test_buffers_that_no_checkpoint_has_and_that_grow_are_refused() -> None:
    refusal(config("split", client=module(Running, kept=False)), "persistent=True", "'mean'")
    refusal(config("split", client=module(Growing)), "'mean'", "[32]", "[33]")


class Failing(nn.Module):
    """Works where it is tried, and fails later."""

    def __init__(self, how: str = "raises", inputs: int = 32, outputs: int = 3) -> None:
        super().__init__()
        self.top = nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh())
        self.how, self.left = how, 40

    def forward(self, x: Tensor) -> Any:
        self.left -= 1
        found = self.top(x.flatten(1))
        if self.left >= 0:
            return found
        if self.how == "raises":
            raise LookupError("the third\nline")
        if self.how == "exits":
            raise MemoryError
        return {"none": None, "wide": found.repeat(1, 2), "whole": found.long()}[self.how]


class Lazy(nn.Module):
    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.top = nn.LazyLinear(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(x.flatten(1))


class OneWay(nn.Linear):
    def __init__(self, inputs: int = 32, outputs: int = 3) -> None:
        super().__init__(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x.flatten(1))
        if found.requires_grad:
            found.register_hook(no_way_back)
        return found


def no_way_back(gradient: Tensor) -> Tensor:
    raise ArithmeticError("no way back")


@pytest.mark.full
@each(
    "how, words",
    [
        ("raises", ["fails for", "LookupError: the third"]),
        ("exits", ["fails for", "MemoryError"]),
        ("none", ["NoneType", "one row for each record"]),
        ("wide", ["always 3"]),
        ("whole", ["torch.int64", "floating-point"]),
    ],
)
@each("method", ["dpzv", "split"])
def test_a_module_that_fails_in_training_ends_in_a_line(
    method: str, how: str, words: list[str]
) -> None:
    client = module(Failing, how=how)
    refusal(config(method, client=client, epochs=30), "Failing", *words)
    server = module(Failing, how=how, inputs=6, outputs=CLASSES)
    refusal(config(method, server=server, epochs=30), "Failing")


def test_a_module_that_fails_backwards_ends_in_a_line() -> None:
    for place in ({"client": module(OneWay)}, {"server": server_of(OneWay)}):
        refusal(config("split", **place), "OneWay", "no way back")


def test_the_papers_resnet_has_batch_normalisation() -> None:
    """In baselines without privacy; its running statistics are those of training."""
    stem = {"model": {"name": "resnet18-stem", "width": 2, "norm": "batch"}}
    rest = {"name": "resnet18-rest", "width": 2, "norm": "batch", "image": [8, 8]}
    data = {"limit": ROWS, "parties": 2, "test_limit": 30, "split": "rows"}
    rest |= {"parts": 2, "assemble": "height"}
    tree = {"data": data, "client": stem, "server": {"model": rest}, "epochs": 1}
    result = Experiment(config("split", **tree)).run()
    (client, _), server = result.parameters["clients"], result.parameters["server"]
    for state in (client, server):
        means = [part for name, part in state["rest"].items() if name.endswith("running_mean")]
        assert means
        assert all(part.abs().max() > 0 for part in means)
    whole = {"model": {"name": "resnet18", "width": 2, "norm": "batch"}}
    refusal(config("dpzv", client=stem), "client.model.norm is 'batch'", "use 'group'")
    refusal(config("cascaded", client=whole), "client.model.norm is 'batch'", "first-order")
    refusal(config("cascaded", **tree | {"client": {}}), "server.model.norm is 'batch'", "'group'")
    private = {"privacy": {"noise_std": 1.0, "clip": 1.0}}
    refusal(config("vafl", client=whole, **private), "client.model.norm is 'batch'")


class LazyWidth(Lazy):
    def __init__(self) -> None:
        super().__init__()
        self.side = nn.LazyLinear(3)  # which no pass reaches


@each("method", ["dpzv", "split"])
def test_lazy_layers_take_their_sizes_from_the_data(method: str) -> None:
    """Before parameters are counted, in clients and server, and the same for the same seed."""
    found = [Experiment(config(method, client=module(Lazy))).run() for _ in range(2)]
    assert found[0].summary["parameters"]["clients"] == [32 * 3 + 3] * 2
    assert same(found[0].parameters, found[1].parameters)
    server = Experiment(config(method, server=module(Lazy, outputs=CLASSES))).run()
    assert server.summary["parameters"]["server"] == 6 * CLASSES + CLASSES
    for place in ({"client": module(LazyWidth)}, {"server": module(LazyWidth)}):
        refusal(config(method, **place), "layer side is LazyLinear", "nn.Linear(inputs, outputs)")


class Told(nn.Module):
    """Says what it was told; `sizes` are what it made of it."""

    def __init__(
        self,
        inputs: int,
        shape: tuple[int, ...] = (),
        cardinalities: tuple[int, ...] | None = None,
        width: int = 2,
        **more: Any,
    ) -> None:
        super().__init__()
        assert shape
        assert torch.Size(shape).numel() == inputs
        assert not more
        self.top = nn.Linear(inputs + 7 * len(cardinalities), width)
        self.more = len(cardinalities)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(nn.functional.pad(x.flatten(1), (0, 7 * self.more)))


class ToldOutputs(nn.Linear):
    def __init__(self, inputs: int, *, outputs: int) -> None:
        super().__init__(inputs, outputs)


def test_what_makes_a_module_is_told_what_it_asks_for(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(
        "id,job,town,age,label\n"
        + "".join(f"{n},j{n % 3},t{n % 2},{n},{n % 2}\n" for n in range(40))
    )
    data = {"name": "table", "path": str(tmp_path / "people.csv"), "label": "label", "id": "id"}
    columns = {"one": ["job", "age"], "two": ["town"]}
    tree = {"client": module(Told), "server": module(ToldOutputs), "batch_size": 8}
    result = Experiment(config(**tree, data={**data, "columns": columns})).run()
    sizes = result.summary["parameters"]
    assert sizes["clients"] == [2 * (2 + 7) + 2, 2 * (1 + 7) + 2]
    assert sizes["server"] == 2 * 4 + 2  # both embeddings, and two classes
    given = Experiment(config(client=module(Told, width=5))).run()
    assert given.summary["parameters"]["clients"] == [5 * 32 + 5] * 2
    refusal(config(client=module(Told, inputs=3)), "client.model: making")


def test_models_of_parties(tmp_path: Path) -> None:
    own = {"party1": {"hidden": [4], "outputs": 5}, "party0": module(Half)["model"]}
    tree = {"client": {"models": own}}
    result = Experiment(config(**tree)).run(tmp_path / "run")
    sizes = result.summary["parameters"]["clients"]
    assert sizes == [8 * 3 + 3, 32 * 4 + 4 + 4 * 5 + 5]
    assert Predictor.load(tmp_path / "run").test().scored == 30
    refusal(config(client={"models": {"party7": {}}}), "client.models names 'party7'", "'party1'")
    filters = {"models": {"party1": {"name": "bag"}}}
    refusal(config(client=filters), "client.models.party1 is 'bag'", "no tokens")


def failing_function(w: Any, x: Any) -> Any:
    if len(x) == 20:
        raise LookupError("twenty")
    return x.reshape(len(x), -1)[:, :3] * w[:3]


def test_a_function_that_fails_ends_in_a_line() -> None:
    model = {"name": "function", "path": f"{__file__}:failing_function", "num_parameters": 3}
    words = "the model failing_function fails for 20 records"
    refusal(config("dpzv", client={"model": model}), words)
