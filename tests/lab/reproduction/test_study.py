"""The form of a study, and every study that is shipped."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import one_line

from vertizo.config import schema as configuration
from vertizo.core.errors import ConfigError
from vertizo.lab.reproduction import grid, kinds, study
from vertizo.lab.reproduction.runs import Order, configure
from vertizo.lab.reproduction.study import GridConfig
from vertizo.run.experiment import Experiment

ROOT = Path(__file__).parents[3]
ORDER = Order(Path("nowhere"), None)
PAPERS = {
    "cascaded": "table1 table2 figure3 figure4 figure5",
    "czofo": "table2 table3 table4 table5 figure2 figure3 figure4 figure5",
    "dpzv": "table1 figure2 figure3 figure5 figure6 figure7",
}
WANTED = [f"{paper}-{each}" for paper, shown in PAPERS.items() for each in shown.split()]
SMALLER = {
    *(f"cascaded-{each}" for each in ["table2", "figure3", "figure4", "figure5"]),
    *(
        f"czofo-{each}"
        for each in ["table3", "table4", "table5", *(f"figure{k}" for k in (3, 4, 5))]
    ),
    *(f"dpzv-figure{k}" for k in (2, 3, 5, 6, 7)),
}
"""Studies whose full form is smaller than the paper's, and says so."""
FORMS = [(name, quick) for name in WANTED for quick in (False, True)]


@cache
def configurations(name: str, *, quick: bool) -> dict[str, configuration.ExperimentConfig]:
    """What a study would run."""
    found = study.load(name, quick=quick)
    if isinstance(found, GridConfig):
        return {case.label: case.config for case in grid.cases(found, ORDER)}
    if isinstance(found, study.IntrinsicConfig):
        rows = found.rows.items()
        return {k: configure(name, [found.settings, row.settings]) for k, row in rows}
    methods = [method for row in found.rows.values() for method in row.methods]
    places = itertools.product(methods, found.columns)
    tasks = [kinds.task_of(found, ORDER, method, column, 0) for method, column in places]
    return {task.name: configuration.parse(task.arguments[2]) for task in tasks}


def test_all_that_were_asked_for_are_there() -> None:
    files = sorted(path.stem for path in (ROOT / "experiments" / "papers").glob("*.yaml"))
    assert study.names() == files == sorted(WANTED)


@pytest.mark.full
def test_a_study_and_all_its_configurations_are_valid() -> None:
    """A default may change, or be chosen by the data; what is reproduced may not."""
    for name, quick in FORMS:
        found = study.load(name, quick=quick)
        assert found.title
        assert found.paper
        assert bool(found.reduced) == (quick or name in SMALLER), f"{name}: {found.reduced}"
        configs = configurations(name, quick=quick)
        assert configs
        for label, config in configs.items():
            for side in (config.client.optimizer, config.server.optimizer):
                assert {"learning_rate", "momentum"} <= side.model_fields_set, (name, label)
            assert {"batch_size", "epochs"} <= config.model_fields_set, (name, label)


def test_studies_of_our_own_are_valid() -> None:
    files = sorted((ROOT / "experiments" / "widths").glob("*.yaml"))
    assert len(files) == 3
    for file in files:
        for label, config in configurations(str(file), quick=False).items():
            assert config.client.model.outputs == int(label.rpartition(".n")[2]), label


def test_studies_of_seconds_are_valid() -> None:
    files = sorted((ROOT / "experiments" / "seconds").glob("*.yaml"))
    assert len(files) == 3
    for file in files:
        for label, config in configurations(str(file), quick=False).items():
            assert config.early_stopping.accuracy, label


@pytest.mark.full
def test_quick_is_smaller() -> None:
    def work(name: str, quick: bool) -> int:
        configs = configurations(name, quick=quick).values()
        seeds = study.load(name, quick=quick).seeds
        return sum(seeds * config.epochs * (config.data.limit or 60_000) for config in configs)

    for name in WANTED:
        assert work(name, True) < work(name, False) / 2, name


@pytest.mark.full
@pytest.mark.usefixtures("mnist_like")
def test_the_parties_can_be_made() -> None:
    """Of every configuration on images like MNIST's and on digits; other data needs its files."""
    known: dict[str, Any] = {}
    seen: set[str] = set()
    for name in WANTED:
        for label, config in configurations(name, quick=True).items():
            if config.data.name not in ("mnist", "digits"):
                continue
            data = config.data.model_copy(update={"limit": min(config.data.limit or 250, 250)})
            batch = min(config.batch_size, 32)
            small = config.model_copy(update={"data": data, "batch_size": batch})
            if small.model_dump_json() in seen:
                continue
            seen.add(small.model_dump_json())
            experiment = Experiment(small, known.get(data.model_dump_json()))
            known[data.model_dump_json()] = experiment.data()
            try:
                experiment.check()
            except ConfigError as error:
                pytest.fail(f"{name}, {label}: {error}")


def test_published_figures_are_those_of_the_specification() -> None:
    """A few of each table, so that a slip of the pen does not stay unnoticed."""
    for name, row, column, expected in (
        ("cascaded-table2", "zoo-vfl", "width-512", 86.0),
        ("cascaded-table2", "cascaded", "cifar-10", 87.2),
        ("czofo-table3", "vafl-dp", "to-95", 1413),
        ("czofo-table5", "forward-1", "accuracy", 30.2),
        ("czofo-table5", "forward-1", "forward", 96),
        ("dpzv-table1", "vafl", "mnist", 1209.6),
    ):
        found = study.load(name)
        assert found.rows[row].published[column] == expected


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
WRONG = [
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
]


def written(tmp_path: Path, old: str = "", new: str = "") -> str:
    """The whole study in a file, with a text in place of another."""
    path = tmp_path / "own.yaml"
    path.write_text(WHOLE.replace(old, new, 1))
    return str(path)


def epochs(name: str, *, quick: bool = False) -> dict[str, int]:
    return {label: c.epochs for label, c in configurations(name, quick=quick).items()}


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert study.runs_of(path) == "own"
    assert epochs(path) == {"vafl": 3, "vafl.b": 5}
    quick = study.load(path, quick=True)
    assert list(quick.columns) == ["a"]
    assert quick.rows["vafl"].published == {"a": 1.0}, "nothing is said of columns that are gone"
    assert epochs(path, quick=True) == {"vafl": 1}
    with pytest.raises(ConfigError, match="no quick form"):
        study.load(written(tmp_path, WHOLE[WHOLE.index("quick:") :]), quick=True)


def test_a_null_among_quick_settings_takes_the_key_from_above_away(tmp_path: Path) -> None:
    text = "  rows: {vafl: {settings: {data: {limit: null}}}}"
    path = Path(written(tmp_path, "  columns: {b: null}", text))
    path.write_text(path.read_text().replace("{epochs: 3}", "{data: {limit: 99}}"))
    found = configurations(str(path), quick=True)
    limits = {label: config.data.limit for label, config in found.items()}
    assert limits == {"vafl": None, "vafl.b": None}


@pytest.mark.full
def test_a_base_lends_its_keys_and_its_runs() -> None:
    assert study.runs_of("cascaded-figure3") == "cascaded-table2"
    for own, base in (
        ("cascaded-figure3", "cascaded-table2"),
        ("cascaded-figure5", "cascaded-table2"),
        ("dpzv-figure2", "dpzv-figure3"),
    ):
        for quick in (False, True):
            lent = configurations(base, quick=quick).items()
            assert configurations(own, quick=quick).items() <= lent


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    for old, new, words in WRONG:
        with one_line(ConfigError, *words, case=new):
            study.load(written(tmp_path, old, new))
    found = study.load(written(tmp_path, "{epochs: 3}", "{epoch: 3}"))
    with pytest.raises(ConfigError, match="none, vafl: unknown key 'epoch'"):
        grid.cases(found, ORDER)
    for name, near in (("cascaded-tabel2", "'cascaded-table2'"), ("xyz", "--list")):
        with pytest.raises(ConfigError, match=near):
            study.load(name)


def test_the_configuration_for_train_and_compare_is_the_same() -> None:
    """``experiments/cascaded_mnist.yaml`` is for `vertizo compare`; only its epochs are fewer."""
    for label in ("cascaded", "vafl", "split", "zoo-vfl", "syn-zoo-vfl"):
        plain = configuration.load(ROOT / "experiments" / "cascaded_mnist.yaml", (), label)
        whole = configurations("cascaded-table2", quick=False)[label]
        assert plain.model_copy(update={"epochs": whole.epochs}) == whole


def test_a_part_of_a_table_is_run() -> None:
    found = study.only(study.load("czofo-table3"), ["accuracy", "total"])
    run = [name for name, column in found.columns.items() if column.skip is None]
    assert run == ["accuracy", "total"]
    for columns, words in (
        (["acuracy"], "'acuracy'; did you mean 'accuracy'"),
        ([], "names none; the study has accuracy"),
    ):
        with pytest.raises(ConfigError, match=words):
            study.only(study.load("czofo-table3"), columns)
    with pytest.raises(ConfigError, match="this one is attack"):
        study.only(study.load("cascaded-table1"), ["accuracy"])


@pytest.mark.full
def test_studies_of_ones_own_that_cannot_be_read(tmp_path: Path) -> None:
    round_, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    round_.write_text(f"base: {other}\n")
    other.write_text(f"base: {round_}\n")
    for text, words in (
        (None, "which is built on this one"),
        ("kind: [1]\nquick: {seeds: 1}\n", r"kind is \[1\]; known are"),
        ("quick: 3\n", "quick is 3, no keys and values"),
        (f"a: {'[' * 3000}", "nested too deep"),
    ):
        if text is not None:
            round_.write_text(text)
        with pytest.raises(ConfigError, match=words):
            study.load(str(round_), quick=True)
