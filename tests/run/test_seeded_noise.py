"""Noise of runs: secret where no seed was asked for, simulated else, and shared by no two runs."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import deployments as dep
from tests import federations as fed
from tests.rows import each
from torch import Tensor

from vertizo.config import schema as configuration
from vertizo.lab import comparison
from vertizo.lab.reproduction.runs import configure
from vertizo.party.private_updates import SecretSgd
from vertizo.privacy.noise.mechanisms import SeededNoise
from vertizo.run.experiment import Experiment
from vertizo.run.results.summary_figures import rows

PRIVATE: dict[str, Any] = {
    "privacy.mechanism": "gaussian",
    "privacy.clip": 0.5,
    "privacy.epsilon": 1.0,
    "server.update": "poisson-dp-sgd",
    "server.clip": 1.0,
    "server.secret": {"sampling": 0.2, "every": 2, "warm_up": 2},
}
CHANGES: dict[str, Any] = {
    "privacy.clip": 1.0,
    "privacy.delta": 1e-6,
    "server.secret": {"sampling": 0.3, "every": 2, "warm_up": 2},
    "server.clip": 2.0,
    "privacy.epsilon": 2.0,
    "privacy.server_share": 0.3,
    "epochs": 3,
    "batch_size": 9,
    "client.optimizer.learning_rate": 0.06,
    "method.smoothing": 2e-3,
    "control": "frozen",
    "threads": 2,
    "seed": 1,
    "data.limit": 28,
}


def noises(changes: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Of standard deviation 1, of a reply and of a server's step; and the first secret sample."""
    federation = fed.build("dpzv", None, {**PRIVATE, **changes})
    update: Any = federation.server.side.update
    assert isinstance(update, SecretSgd)
    plan: Any = federation.server.side.plan
    found = []
    for noise in (plan._noise, update.noise):
        assert isinstance(noise, SeededNoise)
        found.append(noise.onto(0, torch.zeros(64, dtype=torch.float64)) / noise.noise_std)
    sample = update.sampler.uniform(0, 64).double()
    return found[0], found[1], sample


def test_runs_that_differ_in_anything_share_no_noise() -> None:
    """Two releases with one noise and two clips: a combination of them has none."""
    nothing = noises({})
    found = {"nothing": nothing, **{key: noises({key: CHANGES[key]}) for key in CHANGES}}
    for one, other in combinations(found, 2):
        for mine, theirs in zip(found[one], found[other], strict=True):
            alike = torch.corrcoef(torch.stack([mine, theirs]))[0, 1].abs()
            assert alike < 0.7, (one, other)  # 64 numbers: 5.6 standard errors
    assert all(torch.equal(a, b) for a, b in zip(noises({}), nothing, strict=True))


def test_noise_on_embeddings_is_shared_no_more() -> None:
    def of(**changes: Any) -> Tensor:
        federation = fed.build("vafl", None, {**fed.EMBEDDING_NOISE, **changes})
        noise: Any = federation.clients[0].noise
        return noise.release(0, torch.zeros(1, 8, 4)) / noise.noise_std

    assert torch.equal(of(), of())
    assert not torch.allclose(of(), of(**{"server.optimizer.learning_rate": 0.2}))
    assert not torch.allclose(of(), of(**{"privacy.clip": 0.25}))


TINY = ("data.limit=60", "data.parties=2", "batch_size=9", "epochs=1")
ASKED = ("privacy.epsilon=3", "server.update=none")


@each(
    "given, guarantee",
    [
        ((), "exact"),
        (("seed=0",), "simulated"),
        (("seed=7",), "simulated"),
        (("seed=0", "privacy.noise=secure"), "exact"),
        (("privacy.noise=seeded",), "simulated"),
    ],
)
def test_only_secret_noise_is_called_exact(
    given: tuple[str, ...], guarantee: str, tmp_path: Path
) -> None:
    settings = configuration.load(None, (*TINY, *ASKED, *given))
    result = Experiment(settings).run(tmp_path / "run")
    privacy = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert privacy["guarantee"] == guarantee
    assert privacy["epsilon"] == pytest.approx(3, rel=1e-3)
    assert privacy["words"].startswith("Simulated: ε = " if guarantee == "simulated" else "ε = ")
    assert dict(rows(result.summary))["privacy"].startswith(f"{guarantee}: ε")
    assert (privacy["records"], "test records" in privacy["not_covered"]) == (54, True)
    assert "each of the 54 training records" in privacy["words"]
    assert "test records" in privacy["words"]
    # Written out and read again it says the same: the file has every key, the seed too.
    again = configuration.load(tmp_path / "run" / "config.yaml")
    assert again.privacy.noise == settings.privacy.noise
    experiment = Experiment(settings)
    experiment.data()
    assert again.digest == experiment.config.digest


def test_comparisons_and_studies_name_seeds() -> None:
    """They are resumed where they were stopped, which takes noise that can be repeated."""
    assert configuration.load(None, ("seed=1",)).privacy.noise is None  # without noise, no source
    found = comparison.configurations(None, ASKED, ["dpzv"])["dpzv"]
    assert (found.privacy.noise, found.seed) == ("seeded", 0)
    asked = comparison.configurations(None, (*ASKED, "privacy.noise=secure"), ["dpzv"])["dpzv"]
    assert asked.privacy.noise == "secure"
    study = configure("a study", [{"privacy": {"epsilon": 1.0}}])
    assert study.privacy.noise == "seeded"


def test_real_parties_never_make_noise_from_a_seed(tmp_path: Path) -> None:
    asked = {"mechanism": "gaussian", "clip": 1.0, "epsilon": 2.0}
    for seed in ({}, {"seed": 3}):
        real = dep.serve_config(tmp_path, federation={"trial": False}, privacy=asked, **seed)
        assert real.experiment().privacy.noise == "secure"
        trial = dep.serve_config(tmp_path, privacy=asked, **seed)
        assert trial.experiment().privacy.noise == "seeded"
    seeded = {**asked, "noise": "seeded"}
    with pytest.raises(ValueError, match="never made from a seed; leave it out"):
        dep.serve_config(tmp_path, federation={"trial": False}, privacy=seeded)
