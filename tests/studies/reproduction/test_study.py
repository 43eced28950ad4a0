"""The form of a study, and every study that is shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vertizo.config import schema as configuration
from vertizo.core.errors import ConfigError
from vertizo.run.experiment import Experiment
from vertizo.studies.reproduction import attack, grid, scaling, study
from vertizo.studies.reproduction.runs import Order, configure
from vertizo.studies.reproduction.study import (
    AttackConfig,
    GridConfig,
    IntrinsicConfig,
    MemoryConfig,
    ScalingConfig,
)

ROOT = Path(__file__).parents[3]
ORDER = Order(Path("nowhere"), None)  # type: ignore[arg-type]
WANTED = [
    "cascaded-table1",
    "cascaded-table2",
    "cascaded-figure3",
    "cascaded-figure4",
    "cascaded-figure5",
    "czofo-table2",
    "czofo-table3",
    "czofo-table4",
    "czofo-table5",
    "czofo-figure2",
    "czofo-figure3",
    "czofo-figure4",
    "czofo-figure5",
    "dpzv-table1",
    "dpzv-figure2",
    "dpzv-figure3",
    "dpzv-figure4",
    "dpzv-figure5",
    "dpzv-figure6",
    "dpzv-figure7",
    "theory-scaling",
]
FORMS = [(name, quick) for name in WANTED for quick in (False, True)]


def configurations(name: str, *, quick: bool) -> dict[str, configuration.ExperimentConfig]:
    """What a study would run, without the memory study, which trains nothing."""
    found = study.load(name, quick=quick)
    if isinstance(found, GridConfig):
        return {case.label: case.config for case in grid.cases(found, ORDER)}
    if isinstance(found, ScalingConfig):
        return {case.label: case.config for case in scaling.cases(found, ORDER).values()}
    if isinstance(found, IntrinsicConfig):
        rows = found.rows.items()
        return {k: configure(name, [found.settings, row.settings]) for k, row in rows}
    if isinstance(found, AttackConfig):
        tasks = [
            attack.task_of(found, ORDER, method, column, 0)
            for row in found.rows.values()
            for method in row.methods
            for column in found.columns
        ]
        return {task.name: configuration.parse(task.arguments[2]) for task in tasks}
    assert isinstance(found, MemoryConfig)
    return {}


def test_all_that_were_asked_for_are_there() -> None:
    assert study.names() == sorted(WANTED)
    assert sorted(path.stem for path in (ROOT / "experiments" / "papers").glob("*.yaml")) == sorted(
        WANTED
    )


@pytest.mark.parametrize(("name", "quick"), FORMS)
def test_a_study_and_all_its_configurations_are_valid(name: str, quick: bool) -> None:
    found = study.load(name, quick=quick)
    assert found.title
    assert found.paper
    assert quick == bool(found.reduced), "the quick form says what is reduced, the full one nothing"
    if found.kind != "memory":
        assert configurations(name, quick=quick)


@pytest.mark.parametrize(("name", "quick"), FORMS)
def test_every_rate_is_stated(name: str, quick: bool) -> None:
    """A default may change, or be chosen by the data; what is reproduced may not."""
    for label, config in configurations(name, quick=quick).items():
        for side in (config.client.optimizer, config.server.optimizer):
            assert {"learning_rate", "momentum"} <= side.model_fields_set, label
        assert "batch_size" in config.model_fields_set, label
        assert "epochs" in config.model_fields_set, label


@pytest.mark.parametrize("name", [name for name in WANTED if name != "dpzv-figure4"])
def test_quick_is_smaller(name: str) -> None:
    def work(quick: bool) -> int:
        found = study.load(name, quick=quick)
        seeds = found.seeds
        configs = configurations(name, quick=quick).values()
        return sum(seeds * config.epochs * (config.data.limit or 60_000) for config in configs)

    assert work(True) < work(False) / 2


@pytest.mark.parametrize("name", WANTED)
def test_the_parties_can_be_made(name: str, mnist_like: Path) -> None:
    """Of every configuration on images like MNIST's and on digits; other data needs its files."""
    known: dict[str, Any] = {}
    for label, config in configurations(name, quick=True).items():
        if config.data.name not in ("mnist", "digits"):
            continue
        data = config.data.model_copy(update={"limit": min(config.data.limit or 250, 250)})
        small = config.model_copy(update={"data": data, "batch_size": min(config.batch_size, 32)})
        experiment = Experiment(small, known.get(data.model_dump_json()))
        known[data.model_dump_json()] = experiment.data()
        try:
            experiment.check()
        except ConfigError as error:
            pytest.fail(f"{label}: {error}")


def test_published_figures_are_those_of_the_specification() -> None:
    """A few of each table, so that a slip of the pen does not stay unnoticed."""
    table2 = study.load("cascaded-table2")
    assert isinstance(table2, GridConfig)
    assert table2.rows["zoo-vfl"].published["width-512"] == 86.0
    assert table2.rows["cascaded"].published["cifar-10"] == 87.2
    table3 = study.load("czofo-table3")
    assert isinstance(table3, GridConfig)
    assert table3.rows["vafl-dp"].published["to-95"] == 1413
    table5 = study.load("czofo-table5")
    assert isinstance(table5, GridConfig)
    assert table5.rows["forward-1"].published == {"accuracy": 30.2, "forward": 96}
    table1 = study.load("dpzv-table1")
    assert isinstance(table1, GridConfig)
    assert table1.rows["vafl"].published["mnist"] == 1209.6


class TestForm:
    def written(self, tmp_path: Path, text: str) -> str:
        path = tmp_path / "own.yaml"
        path.write_text(text)
        return str(path)

    WHOLE = """
title: Own
paper: none
seeds: 2
settings: {epochs: 3}
columns:
  a: {words: A}
  b: {words: B, settings: {epochs: 5}}
rows:
  vafl: {words: VAFL, settings: {method: {name: vafl}}, published: {a: 1.0, b: 2.0}}
quick:
  reduced: less
  settings: {epochs: 1}
  columns: {b: null}
"""

    def test_a_file_of_ones_own(self, tmp_path: Path) -> None:
        path = self.written(tmp_path, self.WHOLE)
        found = study.load(path)
        assert isinstance(found, GridConfig)
        assert study.runs_of(path) == "own"
        cases = {case.label: case.config.epochs for case in grid.cases(found, ORDER)}
        assert cases == {"vafl": 3, "vafl.b": 5}

    def test_the_quick_form_replaces_keys_and_forgets_columns(self, tmp_path: Path) -> None:
        found = study.load(self.written(tmp_path, self.WHOLE), quick=True)
        assert isinstance(found, GridConfig)
        assert list(found.columns) == ["a"]
        assert found.rows["vafl"].published == {"a": 1.0}
        assert [case.config.epochs for case in grid.cases(found, ORDER)] == [1]

    def test_a_null_among_quick_settings_takes_the_key_from_above_away(
        self, tmp_path: Path
    ) -> None:
        text = self.WHOLE.replace("{epochs: 3}", "{data: {limit: 99}}").replace(
            "  columns: {b: null}", "  rows: {vafl: {settings: {data: {limit: null}}}}"
        )
        found = study.load(self.written(tmp_path, text), quick=True)
        assert isinstance(found, GridConfig)
        limits = {case.label: case.config.data.limit for case in grid.cases(found, ORDER)}
        assert limits == {"vafl": None, "vafl.b": None}

    def test_a_base_lends_its_keys_and_its_runs(self) -> None:
        assert study.runs_of("cascaded-figure3") == "cascaded-table2"
        for quick in (False, True):
            own = configurations("cascaded-figure3", quick=quick)
            base = configurations("cascaded-table2", quick=quick)
            assert own.items() <= base.items()
            own = configurations("cascaded-figure5", quick=quick)
            assert own.items() <= base.items()
            assert configurations("dpzv-figure2", quick=quick).items() <= (
                configurations("dpzv-figure3", quick=quick).items()
            )

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("seeds: 2", "seed: 2", ["unknown key", "'seed'", "'seeds'"]),
            ("published: {a: 1.0", "published: {aa: 1.0", ["'aa'", "'a'"]),
            ("title: Own", "kind: tabel", ["kind is 'tabel'", "table"]),
            ("title: Own", "", ["title is missing"]),
            ("reduced: less", "rows: {vafl: {skip: less, of it}}", ["'of it'", "quotes"]),
            ("{words: A}", "{words: A, figure: {name: bytes-t}}", ["'bytes-t'", "'bytes-to'"]),
            ("{words: A}", "{words: A, figure: {name: bytes-to}}", ["accuracy is missing"]),
            ("{words: A}", "{words: A, runs: c}", ["'c'"]),
            ("title: Own", "title: Own\nkind: sweep", ["axis"]),
            ("title: Own", "title: Own\nkind: curves", ["panels"]),
        ],
    )
    def test_what_is_wrong_is_one_line(
        self, tmp_path: Path, old: str, new: str, words: list[str]
    ) -> None:
        path = self.written(tmp_path, self.WHOLE.replace(old, new, 1))
        with pytest.raises(ConfigError) as error:
            study.load(path)
        assert "\n" not in str(error.value)
        for word in words:
            assert word in str(error.value)

    def test_a_wrong_setting_names_the_study_and_the_key(self, tmp_path: Path) -> None:
        found = study.load(self.written(tmp_path, self.WHOLE.replace("{epochs: 3}", "{epoch: 3}")))
        assert isinstance(found, GridConfig)
        with pytest.raises(ConfigError, match="none, vafl: unknown key 'epoch'"):
            grid.cases(found, ORDER)

    @pytest.mark.parametrize(
        ("name", "near"), [("cascaded-tabel2", "'cascaded-table2'"), ("xyz", "--list")]
    )
    def test_an_unknown_name_offers_the_nearest(self, name: str, near: str) -> None:
        with pytest.raises(ConfigError, match=near):
            study.load(name)

    def test_without_a_quick_form(self, tmp_path: Path) -> None:
        text = self.WHOLE[: self.WHOLE.index("quick:")]
        with pytest.raises(ConfigError, match="no quick form"):
            study.load(self.written(tmp_path, text), quick=True)


@pytest.mark.parametrize("label", ["cascaded", "vafl", "split", "zoo-vfl", "syn-zoo-vfl"])
def test_the_configuration_for_train_and_compare_is_the_same(label: str) -> None:
    """``experiments/cascaded_mnist.yaml`` is for `vertizo compare`; only its epochs are fewer."""
    plain = configuration.load(ROOT / "experiments" / "cascaded_mnist.yaml", (), label)
    whole = configurations("cascaded-table2", quick=False)[label]
    assert plain.model_copy(update={"epochs": whole.epochs}) == whole
