"""Label statistics: what is told is of labels alone, and the fit is the maximum it should be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import deployments, federations
from tests.lazy import Lazy
from tests.rows import each
from torch import Tensor

from vertizo import Experiment
from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError
from vertizo.methods.base import Outcome
from vertizo.methods.label_statistic import LabelStatistic, _weights, fitted
from vertizo.models.array import ArrayModel
from vertizo.models.torch import wrap
from vertizo.protocol.messages import Query
from vertizo.run.loop.federation import build

sklearn_linear = Lazy("sklearn.linear_model")

PEOPLE: dict[str, Any] = {"seed": 3, "data": {"name": "breast-cancer"}}
PEOPLE["client"] = {"model": {"name": "mlp", "last_layer": "zeros"}}
PEOPLE["method"] = {"name": "label-statistic"}


def asked(classes: int, records: int = 300, **keys: Any) -> tuple[Any, ...]:
    """A linear client, its features, labels of that many classes, and its query."""
    torch.manual_seed(0)
    features = torch.randn(records, 4) * torch.tensor([3.0, 1.0, 0.5, 2.0])
    outputs = 1 if classes == 2 else classes
    model = wrap(torch.nn.Linear(4, outputs))
    model.parameters.zero_()
    side = federations.side_of(model)
    method = LabelStatistic(num_directions=5 * outputs, **keys)
    scores = features @ torch.randn(4, classes) / 2 + torch.randn(records, classes)
    query = Query(0, 0, torch.arange(records), method.ask(side, 0, features))
    return side, features, scores.argmax(1), method, query


def told(method: LabelStatistic, query: Query, labels: Tensor, classes: int) -> Tensor:
    """What the server takes of each record, whatever its model and other parties are."""
    resting = 1 / classes - torch.nn.functional.one_hot(labels, classes).float()
    nothing = torch.full((len(labels),), torch.nan)
    return method.told(Outcome(nothing, nothing, lambda: nothing, query, lambda: resting))


@each("classes", [2, 3])
def test_the_fit_is_logistic_regression_on_one_statistic(classes: int) -> None:
    """Of every record weighted alike by its length, as another library fits it from all labels."""
    side, features, labels, method, query = asked(classes, spread=1e3)
    released = told(method, query, labels, classes).mean(0)
    method.tell(side, 0, features, method.answered(query, released, 0.0).values)
    found = side.model(features)
    rows = side.model.tangents(method.chosen(side, 0, features), features)
    other = sklearn_linear.LogisticRegression(C=1e9, max_iter=5000, tol=1e-9)
    other.fit(features.numpy(), labels.numpy(), sample_weight=_weights(rows).double().numpy())
    wanted = torch.from_numpy(other.predict_proba(features.numpy()))
    logits = torch.cat([torch.zeros_like(found), found], 1) if classes == 2 else found
    assert torch.allclose(logits.softmax(1).double(), wanted.double(), atol=2e-3)


@each("classes", [2, 3, 10])
def test_no_label_of_an_honest_client_passes_the_clip(classes: int) -> None:
    """So that the clip changes nothing, and a flipped label moves the sum by 2C at most."""
    _, _, _, method, query = asked(classes)
    labels = [torch.full((300,), y) for y in range(classes)]
    rows = torch.stack([told(method, query, alike, classes) for alike in labels])
    lengths = rows.norm(dim=2)
    assert float(lengths.max()) == pytest.approx(0.5, rel=1e-5)
    assert float(lengths.amax(0).square().mean()) > 0.1
    if classes == 2:  # both labels' rows are opposite: all of 2C is used
        assert torch.equal(rows[0], -rows[1])


def test_no_tangents_make_a_label_count_more_than_the_clip() -> None:
    clip, batch, count = 0.5, 29, 6
    noise = {"privacy.mechanism": "gaussian", "privacy.clip": clip, "privacy.noise_std": 1e-7}
    changes = {**noise, "method.num_directions": count, "batch_size": batch}
    changes["server.update"] = "none"
    federation = federations.build("label-statistic", None, changes)
    side, method = federation.server.side, federation.server.side.method
    assert isinstance(method, LabelStatistic)
    plain = torch.randn(count, batch, 3, generator=torch.Generator().manual_seed(0))
    lone, broken = plain.clone(), plain.clone()
    lone[:, 0] *= 1e30
    broken[0, 0, 0] = torch.nan
    labels = torch.zeros(batch, dtype=torch.int64)
    largest = 0.0
    for tangents in (*(plain * s for s in (1e-38, 1e-3, 1.0, 1e6, 3e38)), lone, broken):
        query = Query(0, 0, torch.arange(batch), torch.cat([plain[:1], tangents]))
        released = []
        for label in range(3):
            changed = labels.clone()
            changed[0] = label
            released.append(side.plan.total(told(method, query, changed, 3)).double())
        for one in released:
            moved = max(float((one - another).norm()) for another in released) * batch
            assert moved <= 2 * clip * (1 + 1e-4) + 1e-5
            largest = max(largest, moved)
    assert largest > 1.5 * clip  # else this would have shown nothing


def test_a_reply_is_of_nothing_but_the_clients_own_query_and_labels() -> None:
    """Other parties, the server's model and the table may be anything."""
    answers = []
    for other in (False, True):
        changes = {"server.update": "none"}
        federation = federations.build("label-statistic", None, changes)
        if other:
            federation.server.side.model.parameters.fill_(5.0)
            federation.server.side.table.values.fill_(-3.0)
        ((_, answer),) = federation.server.receive(federations.ask(federation, 1))
        answers.append(bytes(answer))
    assert answers[0] == answers[1]


def test_noise_makes_the_fit_shorter_and_never_unbounded() -> None:
    side, features, labels, method, query = asked(2)
    released = told(method, query, labels, 2).mean(0)
    along = side.model.tangents(method.chosen(side, 0, features), features)
    weights = _weights(along)

    def fit(statistic: Tensor, noise: float) -> float:
        found = fitted(
            torch.zeros(300, 1), along, weights, statistic, torch.tensor(noise), variance=1.0
        )
        assert bool(found.isfinite().all())
        return float(found.norm())

    assert fit(released, 0.0) > fit(released, 0.05) > fit(released, 1.0) > 0
    for size in (1e3, -1e12):  # of a server that answers anything
        fit(torch.full_like(released, size), 0.0)
    assert fit(torch.zeros_like(released), 0.0) < 1e-6


def test_a_flat_direction_is_left_alone_and_a_plain_function_asks_at_random() -> None:
    model = ArrayModel(lambda w, x: np.outer(x[:, 0], w[:1]) + w[1:].sum(), torch.zeros(4))
    side = federations.side_of(model)
    features = torch.randn(60, 2)
    method = LabelStatistic(num_directions=9, directions="orthonormal")
    sent = method.ask(side, 0, features)
    query = Query(0, 0, torch.arange(60), sent)
    labels = (features[:, 0] > 0).long()
    released = told(method, query, labels, 2).mean(0)
    assert bool((released[4:] == 0).all())
    method.tell(side, 0, features, method.answered(query, released, 0.01).values)
    assert float(((model(features)[:, 0] > 0) == labels).float().mean()) > 0.95


def test_all_parties_together_spend_one_release_each() -> None:
    config = parse({**PEOPLE, "privacy": {"epsilon": 1.0, "delta": 1e-5}})
    assert (config.server.update, config.server.join) == ("none", "mean")
    federation = build(config, Experiment(config).data())
    statement = federation.statement()
    parties = len(federation.data.parties)
    assert statement.guarantee in ("exact", "simulated")
    assert statement.mu == pytest.approx(math.sqrt(parties) * 1.0 / statement.noise_std, rel=1e-4)
    assert statement.mu == pytest.approx(0.268051123, rel=1e-4)
    assert federation.total_rounds == parties


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="is for classes, but the labels are numbers"):
        Experiment(parse({**PEOPLE, "data": {"name": "diabetes"}})).privacy()
    wide = {"model": {"name": "mlp", "outputs": 3}}
    with pytest.raises(ConfigError, match=r"of 3 numbers at client 0, .* fits logits: 1 or 2"):
        Experiment(parse({**PEOPLE, "client": wide})).privacy()
    with pytest.raises(ConfigError, match=r"server\.update"):
        parse({**PEOPLE, "server": {"update": "poisson-dp-sgd"}})


@each("hidden", [[], [40]])
def test_one_message_each_way_classifies(tmp_path: Path, hidden: list[int]) -> None:
    """Linear clients, and the linearisation of others where they begin."""
    model = {"name": "mlp", "last_layer": "zeros", "hidden": hidden}
    config = parse({**PEOPLE, "client": {"model": model}, "server": {"final_head": "logistic"}})
    summary = Experiment(config).run(tmp_path).summary
    assert summary["rounds"] == summary["clients"]
    assert summary["test_auc"] > 0.97
    assert summary["raw_head"]["test_auc"] > 0.97


def test_real_parties_end_where_simulated_ones_do(tmp_path: Path) -> None:
    keys = {"method": {"name": "label-statistic"}, "client": {"model": {"outputs": 10}}}
    keys |= {"epochs": 1, "batch_size": 180, "server": {"update": "none"}}
    config = deployments.serve_config(tmp_path, **keys)
    deployments.served(tmp_path, config)
    federation = deployments.simulated(config)
    for client in federation.clients:
        ((_, answer),) = federation.server.receive(client.ask())
        client.tell(answer)
    deployments.assert_ended_as(federation, tmp_path)
