"""Which runs are made together, and which are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vertizo import config
from vertizo.batched.kinds import kind, shape_of, why_alone
from vertizo.config import ExperimentConfig
from vertizo.engines import TOGETHER, Run, in_batches
from vertizo.experiment import Experiment
from vertizo.federation import build

Configs = Callable[..., list[ExperimentConfig]]
ALONE = {
    "method czofo": ("method.name=czofo",),
    "method compressed-vfl": ("method.name=compressed-vfl",),
    "method fedbcd": ("method.name=fedbcd",),
    "method flex-vfl": ("method.name=flex-vfl",),
    "codecs": ("method.name=vafl", "codecs.up.name=uniform"),
    "embedding noise": (
        "method.name=vafl",
        "privacy.mechanism=embedding-noise",
        "privacy.clip=1",
        "privacy.noise_std=1",
    ),
    "noise that cannot be repeated": (
        "privacy.mechanism=gaussian",
        "privacy.clip=1",
        "privacy.noise_std=1",
        "privacy.noise=secure",
    ),
    "lost messages": ("simulation.drop=0.1",),
    "limited bandwidth": ("simulation.bandwidth=1000",),
    "embeddings joined by sum": ("server.join=sum",),
    "client model cnn": ("client.model.name=cnn",),
    "server model sum": ("server.model.name=sum",),
    "a label holder with features": (
        "data.name=breast-cancer",
        "data.parties=3",
        "data.label_holder=party2",
    ),
}
APART = (
    "batch_size=17",
    "data.limit=101",
    "method.name=cascaded",
    "method.directions=gaussian",
    "method.num_directions=2",
    "client.model.outputs=4",
    "server.model.hidden=[9]",
    "server.update=zeroth-order",
    "simulation.timing=synchronous",
    "threads=2",
    "server.embedding_bound=100",
)
TOGETHER_THEN = (
    "seed=9",
    "epochs=7",
    "rounds=7",
    "control=random",
    "client.optimizer.learning_rate=0.5",
    "server.optimizer={learning_rate: 0.5, momentum: 0, decay: linear}",
    "method.smoothing=0.5",
    "simulation.stragglers={0: 3.0}",
    "evaluate_every=3",
)


@pytest.mark.parametrize(("reason", "overrides"), ALONE.items(), ids=ALONE)
def test_what_is_made_alone(configs: Configs, reason: str, overrides: tuple[str, ...]) -> None:
    (found,) = configs(*overrides, seeds=1)
    assert why_alone(found) == reason


def test_a_ledger(configs: Configs, tmp_path: Path) -> None:
    (found,) = configs(
        "privacy={mechanism: gaussian, clip: 1, epsilon: 3}", "server.update=none", seeds=1
    )
    assert why_alone(found) is None
    privacy = found.privacy.model_copy(update={"ledger": tmp_path / "ledger"})
    assert why_alone(found.model_copy(update={"privacy": privacy})) == "a ledger"


@pytest.mark.parametrize("override", APART)
def test_what_keeps_runs_apart(configs: Configs, override: str) -> None:
    (one,), (other,) = configs(seeds=1), configs(override, seeds=1)
    assert why_alone(one) is why_alone(other) is None
    assert kind(one) != kind(other)


@pytest.mark.parametrize("override", TOGETHER_THEN)
def test_what_does_not(configs: Configs, override: str) -> None:
    (one,), (other,) = configs(seeds=1), configs(override, seeds=1)
    assert kind(one) == kind(other)


@pytest.mark.parametrize(
    ("overrides", "fits"),
    [
        ((), True),
        (("data.name=breast-cancer",), True),
        (("client.model={name: mlp, outputs: 20000}", "method.num_directions=4"), False),
    ],
)
def test_what_was_made_is_looked_at(
    configs: Configs, overrides: tuple[str, ...], fits: bool
) -> None:
    """Directions that are too large to be held are drawn block by block, alone."""
    experiment = Experiment(configs(*overrides, seeds=1)[0])
    federation = build(experiment.config, experiment.data())
    assert (shape_of(federation, experiment.config) is not None) == fits


def run(found: ExperimentConfig, tmp_path: Path, name: str) -> Run:
    return Run(name, found.control, found, tmp_path / name / str(found.seed))


class TestBatches:
    def test_runs_of_a_kind_share_a_process(self, configs: Configs, tmp_path: Path) -> None:
        plain = [run(each, tmp_path, "dpzv") for each in configs()]
        lossy = [run(each, tmp_path, "lossy") for each in configs("simulation.drop=0.1", seeds=2)]
        vafl = [run(each, tmp_path, "vafl") for each in configs("method.name=vafl", seeds=2)]
        found = in_batches([plain[0], *lossy, *vafl, *plain[1:]], 1)
        assert found == [plain, [lossy[0]], [lossy[1]], vafl]

    @pytest.mark.parametrize(
        ("runs", "jobs", "sizes"),
        [
            (5, 1, [5]),
            (5, 2, [3, 2]),
            (5, 8, [3, 2]),
            (1, 4, [1]),
            (2 * TOGETHER + 1, 1, [22, 22, 21]),
        ],
    )
    def test_all_processes_have_something_to_do(
        self, configs: Configs, tmp_path: Path, runs: int, jobs: int, sizes: list[int]
    ) -> None:
        (one,) = configs(seeds=1)
        wanted = [run(one.model_copy(update={"seed": seed}), tmp_path, "x") for seed in range(runs)]
        found = in_batches(wanted, jobs)
        assert [len(batch) for batch in found] == sizes
        assert [each for batch in found for each in batch] == wanted

    def test_several_kinds_are_not_cut_for_few_processes(
        self, configs: Configs, tmp_path: Path
    ) -> None:
        names = ("dpzv", "cascaded", "vafl")
        wanted = [
            run(each, tmp_path, name)
            for name in names
            for each in configs(f"method.name={name}", seeds=4)
        ]
        assert [len(batch) for batch in in_batches(wanted, 2)] == [4, 4, 4]
        assert [len(batch) for batch in in_batches(wanted, 6)] == [2] * 6


def test_defaults_that_were_left_out_are_their_own_kind() -> None:
    given, left_out = config.load(None, ["batch_size=64"]), config.load(None, [])
    assert kind(given) != kind(left_out)
