"""What is read off finished runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from vertizo.lab.reproduction.figures import FigureChoice, Finished, held

Make = Callable[..., Finished]
ACCURACIES = [0.1, 0.5, 0.7, 0.65]
choose = TypeAdapter(FigureChoice).validate_python


FIGURES: list[tuple[dict[str, Any], float | None, str]] = [
    ({}, 65.0, "%"),
    ({"name": "test-loss"}, 0.5, ""),
    ({"name": "at-epoch"}, 65.0, "%"),
    ({"name": "at-epoch", "epoch": 1}, 50.0, "%"),
    ({"name": "at-epoch", "epoch": 1.5, "of": "train_accuracy"}, 60.0, "%"),
    ({"name": "at-epoch", "epoch": 9}, None, "%"),
    ({"name": "bytes-to", "accuracy": 0.6}, 2.0, "MB"),
    ({"name": "bytes-to", "accuracy": 0.6, "in": "GB"}, 0.002, "GB"),
    ({"name": "bytes-to", "accuracy": 0.5, "by": "train"}, 2.0, "MB"),
    ({"name": "bytes-to", "accuracy": 0.9}, None, "MB"),
    ({"name": "bytes"}, 3.0, "MB"),
    ({"name": "bytes", "way": "down", "epochs": 100}, 25.0, "MB"),
    ({"name": "bytes", "way": "up"}, 2.25, "MB"),
    ({"name": "accuracy-at", "megabytes": 1.5}, 50.0, "%"),
    ({"name": "accuracy-at", "megabytes": 50}, 70.0, "%"),
    ({"name": "rounds-to", "accuracy": 0.5}, 10.0, ""),
    ({"name": "rounds-to", "accuracy": 0.8}, None, ""),
    ({"name": "seconds-to", "accuracy": 0.6}, 4.0, ""),
    ({"name": "seconds-to", "accuracy": 0.8}, None, ""),
    ({"name": "clipped"}, 12.5, "%"),
    ({"name": "raw-accuracy"}, 91.25, "%"),
    ({"name": "raw-auc"}, None, ""),
]
HELD: list[tuple[dict[str, Any], str | None]] = [
    ({"guarantee": "none", "noise_std": None}, None),
    ({"guarantee": "none", "noise_std": 1.0}, "none"),
    ({"guarantee": "exact", "noise_std": 1.0, "epsilon": 0.99999}, "1"),
    (
        {"guarantee": "published", "noise_std": 1.0, "replies_alone_epsilon": 106.58},
        "none; replies 107",
    ),
    ({"guarantee": "none", "noise_std": 1e-6, "replies_alone_epsilon": 1e15}, "none"),
    (
        {"guarantee": "none", "noise_std": None, "embedding_noise": {"epsilon": 3075.2}},
        "none; embeddings 3,075",
    ),
]


def test_figures(finished: Make) -> None:
    run = finished(ACCURACIES, clip_fraction=0.125, raw_head={"test_accuracy": 0.9125})
    for options, expected, unit in FIGURES:
        figure = choose(options)
        assert figure.read(run) == (None if expected is None else pytest.approx(expected)), options
        assert figure.unit == unit, options


def test_a_run_without_a_raw_head_has_no_figure_of_one(finished: Make) -> None:
    assert choose({"name": "raw-accuracy"}).read(finished(ACCURACIES)) is None


def test_bytes_that_filled_the_table_count(finished: Make) -> None:
    run = finished(ACCURACIES, bytes_table=1_000_000)
    assert choose({"name": "bytes-to", "accuracy": 0.6}).read(run) == pytest.approx(3.0)
    assert choose({"name": "bytes"}).read(run) == pytest.approx(4.0)
    assert choose({"name": "bytes", "way": "down"}).read(run) == pytest.approx(0.75)
    assert choose({"name": "accuracy-at", "megabytes": 1.5}).read(run) == pytest.approx(10.0)


def test_an_epsilon_is_shown_where_it_holds_alone(finished: Make) -> None:
    for privacy, expected in HELD:
        assert held(finished(ACCURACIES, privacy).summary) == expected, privacy
