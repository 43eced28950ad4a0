"""What a configuration leaves open."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from tests import federations
from tests.rows import each

from vertizo.config.method_defaults import TABLES
from vertizo.config.schema import ExperimentConfig, parse
from vertizo.data.datasets.catalog import CATALOG
from vertizo.data.vertical import VerticalData
from vertizo.methods.choice import METHODS, asking
from vertizo.methods.czofo import Czofo
from vertizo.methods.dpzv import Dpzv
from vertizo.methods.first_order import Vafl
from vertizo.models.losses import Classification
from vertizo.models.optimizers import Sgd
from vertizo.run.build import data_defaults
from vertizo.run.build.data_defaults import (
    TANGENT_CLIP,
    client_rate,
    complete,
    reply_clip,
    server_rate,
)
from vertizo.run.experiment import Experiment
from vertizo.run.loop.federation import build


def people(records: int, columns: int = 4, parties: int = 2, seed: int = 0) -> VerticalData:
    data = federations.data(records, parties, held_out=5, seed=seed, sides=(columns,))
    labels = {purpose: rows % 2 for purpose, rows in data.labels.items()}
    return replace(data, task=Classification(2), labels=labels)


class TestComplete:
    def test_a_small_table_makes_many_epochs_and_a_large_one_few(self) -> None:
        found = [complete(ExperimentConfig(), people(records)) for records in (30, 6400, 640_000)]
        assert [one.batch_size for one in found] == [30, 64, 64]
        assert [one.epochs for one in found] == [120, 30, 5]

    def test_noise_wants_few_epochs_and_large_batches(self) -> None:
        config = parse({"privacy": {"epsilon": 1.0}})
        found = [complete(config, people(records)) for records in (100, 10_000, 100_000)]
        assert [one.batch_size for one in found] == [64, 500, 2000]
        assert [one.epochs for one in found] == [5, 5, 5]

    def test_a_teacher_keeps_as_much_as_rises_above_its_noise(self) -> None:
        """Of MNIST's 54,000 records at ε = 0.1, 88 components; at ε = 1 more than there are."""

        def kept(epsilon: float, records: int, **teacher: int) -> int | None:
            privacy = {"mechanism": "teacher", "epsilon": epsilon, "teacher": teacher}
            return complete(parse({"privacy": privacy}), people(records)).privacy.teacher.kept

        assert [kept(0.1, 54_000), kept(0.1, 200), kept(0.1, 54_000, kept=7)] == [88, 16, 7]
        assert (kept(1.0, 54_000) or 0) > 392

    def test_many_columns_take_more_directions(self) -> None:
        """Up to a quarter of the widest party's; a tangent query a third as many."""

        def count(method: str, epsilon: float, columns: int) -> int:
            config = {"method": {"name": method}, "privacy": {"epsilon": epsilon}}
            chosen = complete(parse(config), people(20_000, columns, parties=3)).method
            return int(chosen.model_dump()["num_directions"])

        counts = [count("label-statistic", 1.0, columns) for columns in (4, 100, 400)]
        assert counts == [16, 25, 100]
        assert [count("label-statistic", 0.1, columns) for columns in (4, 400)] == [16, 20]
        assert [count("tangent", 1.0, columns) for columns in (4, 400)] == [16, 54]

    def test_what_is_given_or_complete_stays_in_its_file_as_well(self) -> None:
        config = parse({"epochs": 120, "batch_size": 64, "privacy": {"epsilon": 1, "clip": 3.0}})
        assert complete(config, people(100_000)) == config
        data = people(500)
        once = complete(parse({"privacy": {"epsilon": 1.0}}), data)
        assert complete(once, people(90_000)) == once
        again = parse(once.model_dump(mode="json"))
        assert again == once
        assert complete(again, people(90_000)) == once

    def test_no_value_of_a_record_is_looked_at(self) -> None:
        config = parse({"privacy": {"epsilon": 1.0}})
        data = people(700)
        other = people(700, seed=1)
        for own in other.features:
            for rows in own.values():
                rows.fill_(math.nan)
        assert complete(config, data) == complete(config, other)

    def test_a_federation_is_built_from_what_is_complete(self) -> None:
        made = build(ExperimentConfig(), people(200))
        assert made.total_rounds == 2 * 120 * 4


class TestRates:
    def test_estimates_in_many_dimensions_take_shorter_steps(self) -> None:
        """A gradient that is computed does not; the mean of directions takes longer ones."""
        assert client_rate(Vafl(), 10**6, 16, 64, 0.9) == pytest.approx(0.01)
        few, many = (client_rate(Dpzv(), d, 16, 64, 0.0) for d in (500, 5000))
        assert few == pytest.approx(10 * many)
        assert client_rate(Dpzv(num_directions=4), 5000, 16, 64, 0.0) == pytest.approx(4 * many)
        assert server_rate("sgd", 10**6, 0.9) == pytest.approx(0.01)
        ratio = server_rate("zeroth-order", 1000, 0.0) / server_rate("zeroth-order", 4000, 0.0)
        assert ratio == pytest.approx(4)

    def test_of_embeddings_their_size_matters_and_not_that_of_the_model(self) -> None:
        rates = [client_rate(Czofo(num_directions=1), d, 16, 64, 0.0) for d in (10, 10**6)]
        assert rates[0] == rates[1]
        assert client_rate(Czofo(num_directions=1), 10, 32, 64, 0.0) == pytest.approx(rates[0] / 2)
        alone = client_rate(Czofo(num_directions=1, scalars="record"), 10, 256, 64, 0.0)
        batch = client_rate(Czofo(num_directions=1), 10, 256, 64, 0.0)
        assert alone == pytest.approx(64 * batch)

    def test_noise_shortens_the_steps_of_a_private_server(self) -> None:
        quiet, loud = (server_rate("poisson-dp-sgd", 100, 0.0, noise, 100) for noise in (1e-9, 1.0))
        assert quiet == data_defaults.PRIVATE_RATE
        assert loud == pytest.approx(data_defaults.PRIVATE_WANDERING / 10)

    @each("method", asking())
    def test_every_run_has_rates_and_says_which(self, method: str) -> None:
        config = parse({"method": {"name": method}, "epochs": 1})
        made = build(config, people(100))
        assert len(made.learning_rates) == 2
        for rate, optimizer in zip(made.learning_rates, made.optimizers, strict=True):
            assert isinstance(optimizer, Sgd)
            assert optimizer.learning_rate == rate > 0
        summary = Experiment(config, people(100)).run().summary
        assert summary["learning_rates"]["clients"] == made.learning_rates
        assert summary["learning_rates"]["server"] > 0

    def test_a_rate_that_is_given_is_kept_and_does_not_fall(self) -> None:
        config = parse({"client": {"optimizer": {"learning_rate": 0.5}}, "epochs": 1})
        made = build(config, people(100))
        assert made.learning_rates == [0.5, 0.5]
        assert config.client.optimizer.schedule == "none"
        assert config.server.optimizer.schedule == "linear"


class TestGuarantee:
    @each("method", asking())
    def test_an_epsilon_is_enough_with_every_method(self, method: str) -> None:
        config = parse({"privacy": {"epsilon": 2.0}, "method": {"name": method}})
        privacy = Experiment(config, people(400)).privacy()
        assert privacy["guarantee"] == "exact"
        assert (1.9 if method == "dpzv" else 0) < privacy["epsilon"] <= 2.0
        if METHODS[method].first_order_client:  # replies are gradients: labels are made private
            assert (privacy["clip"], privacy["covers"]) == (None, ["labels"])
            return
        clip = TANGENT_CLIP if METHODS[method].sends_tangents else reply_clip(people(400))
        assert privacy["clip"] == clip

    def test_a_server_that_is_chosen_stays(self) -> None:
        """Only what is missing is filled in, and a published ε changes no server."""
        config = parse({"privacy": {"epsilon": 1.0}, "server": {"update": "none"}})
        assert config.server.update == "none"
        assert config.server.model == ExperimentConfig().server.model
        given: dict[str, Any] = {"model": {"name": "mlp", "hidden": [5]}, "clip": 0.5}
        config = parse({"privacy": {"epsilon": 1.0}, "server": given})
        assert (config.server.update, config.server.clip) == ("poisson-dp-sgd", 0.5)
        assert config.server.model.model_dump()["hidden"] == (5,)
        assert config.simulation.table == "upload"
        config = parse({"privacy": {"epsilon": 1.0, "accounting": "published"}})
        assert config.server.update == "sgd"

    def test_the_clip_grows_with_columns_and_shrinks_with_parties(self) -> None:
        assert reply_clip(people(50, columns=40)) > reply_clip(people(50, columns=10))
        assert reply_clip(people(50, parties=6)) < reply_clip(people(50, parties=2))

    def test_columns_that_nobody_knows_are_typical_ones(self) -> None:
        data = people(50, columns=data_defaults.TYPICAL_COLUMNS)
        assert reply_clip(replace(data, features=())) == reply_clip(data)


class TestTables:
    def test_those_that_have_columns_and_no_others(self) -> None:
        with_columns = {
            name
            for name in CATALOG
            if name == "table" or (not CATALOG[name].needs_files and name != "digits")
        }
        in_memory = {"frame"}
        assert with_columns | in_memory < set(TABLES) < set(CATALOG) | in_memory
        others = {"adult", "bank-marketing", "credit-default"}
        assert set(TABLES) - with_columns == others | in_memory

    @each("name", TABLES)
    def test_wider_embeddings(self, name: str) -> None:
        tree: dict[str, Any] = {"name": name}
        if name == "table":
            tree |= {"path": "a.csv", "label": "y", "columns": {"a": ["x"]}}
        assert parse({"data": tree}).client.model.model_dump()["outputs"] == 16
        private = parse({"data": tree, "privacy": {"epsilon": 1.0}}).client.model.model_dump()
        assert (private["outputs"], private["final_relu"]) == (64, True)
        narrow = parse({"data": tree, "client": {"model": {"outputs": 2}}})
        assert narrow.client.model.model_dump()["outputs"] == 2

    def test_other_models_are_left_alone(self) -> None:
        model = {"name": "module", "path": "own.py:Own"}
        config = parse({"data": {"name": "diabetes"}, "client": {"model": model}})
        assert config.client.model.name == "module"


def test_a_server_that_hears_mostly_noise_says_so_before_it_trains() -> None:
    for epsilon, warns in ((0.1, True), (19.0, False)):
        config = complete(parse({"privacy": {"epsilon": epsilon}}), people(2000))
        notes = build(config, people(2000)).notes
        assert any("mostly noise" in note for note in notes) == warns, epsilon
