"""Users' modules in a job: whole in every file, and failing in a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests import deployments as dep
from tests.network.by_hand import begin, live
from tests.rows import each
from torch import Tensor, nn

from vertizo.core.errors import ConfigError
from vertizo.core.randomness import Stream
from vertizo.models.torch import wrap
from vertizo.network.serving.job import records_of
from vertizo.network.serving.serving import FederationService
from vertizo.run.build.coverage import MODEL_HOLDS, assumptions
from vertizo.run.results import checkpoint


class Whole(nn.Module):
    """A frozen layer, batch normalisation and dropout."""

    def __init__(self, inputs: int = 16, outputs: int = 4) -> None:
        super().__init__()
        self.body = nn.Linear(inputs, 8).requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.2)
        self.top = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.drop(self.norm(self.body(x.flatten(1))).tanh()))


class Failing(nn.Module):
    """Works for a while."""

    def __init__(self, inputs: int = 16, outputs: int = 4) -> None:
        super().__init__()
        self.top = nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh())
        self.left = 60

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise LookupError("gone\nfor good")
        return self.top(x.flatten(1))


def module(kind: type[nn.Module], **arguments: Any) -> dict[str, Any]:
    path = f"{__file__}:{kind.__name__}"
    return {"model": {"name": "module", "path": path, "arguments": arguments}}


def members(folder: Path, kind: type[nn.Module]) -> list[Any]:
    return [dep.join_config(folder, member, client=module(kind)) for member in dep.MEMBERS]


def test_a_job_keeps_modules_whole(tmp_path: Path) -> None:
    """At the label holder and at each member: what is kept makes the same module again."""
    server = module(Whole, inputs=16, outputs=10)
    # In step: else the best evaluation may be before a member's first query.
    config = dep.serve_config(tmp_path, method={"name": "vafl"}, server=server, **dep.IN_STEP)
    with FederationService(config) as service, dep.ticking(service):
        dep.joined(members(tmp_path, Whole), dep.direct(service))
        ours: Any = live(service).job.party.side.model.state()
        (note,) = live(service).job.party.side.notes
        assert "as PyTorch has it" in note
    ended = checkpoint.load(tmp_path / "server" / "checkpoints" / "last.safetensors")["state"]
    kept = ended["course"]["parameters"]
    assert kept["rest"].keys() == ours["rest"].keys()
    assert all(torch.equal(kept["rest"][name], ours["rest"][name]) for name in ours["rest"])
    for member in dep.MEMBERS:
        state = checkpoint.load(tmp_path / member / "model.safetensors")["parameters"]
        assert int(state["rest"]["norm.num_batches_tracked"]) > 0
        other = wrap(Whole(), training=Stream.from_seed(0))
        other.load(state)
        assert other(torch.ones(3, 16)).isfinite().all()


def test_a_member_is_told_that_replies_carry_noise(tmp_path: Path) -> None:
    """Batch normalisation is then refused, as in a simulation."""
    noise = {"noise_std": 1.0, "clip": 1.0}
    config = dep.serve_config(tmp_path, method={"name": "vafl"}, privacy=noise)
    with pytest.raises(ConfigError, match="BatchNorm1d, which mixes"):
        dep.served(tmp_path, config, members(tmp_path, Whole))


@pytest.mark.full
@each("method", ["dpzv", "vafl"])
def test_a_members_module_that_fails_ends_in_a_line(method: str, tmp_path: Path) -> None:
    config = dep.serve_config(tmp_path, method={"name": method}, epochs=9)
    with pytest.raises(ConfigError, match=r"model Failing fails for .*LookupError: gone$"):
        dep.served(tmp_path, config, members(tmp_path, Failing))


@pytest.mark.full
def test_a_label_holders_module_that_fails_ends_in_a_line(tmp_path: Path) -> None:
    server = module(Failing, inputs=16, outputs=10)
    config = dep.serve_config(tmp_path, server=server, epochs=9)
    with FederationService(config) as service, dep.ticking(service) as raised:
        configs = [dep.join_config(tmp_path, member) for member in dep.MEMBERS]
        with pytest.raises(dep.GoneError):  # members hear nothing any more
            dep.joined(configs, dep.direct(service))
        assert isinstance(service.failure, ConfigError)
        assert str(service.failure).endswith("LookupError: gone")
    assert all(isinstance(error, ConfigError) for error in raised)


def encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 2), nn.Tanh())


def test_what_a_job_rests_on_is_stated(tmp_path: Path) -> None:
    """Its label holder's encoder, and what members may have for models, which they do not tell."""
    ours = dep.serve_config(tmp_path, federation={"trial": False}, **dep.PRIVATE)
    words = "each member's client.model, where it is code of the member's own"
    with FederationService(ours) as service:
        begin(service)
        statement = live(service).job.statement
    assert "each client's features against the other clients" in statement.covers
    (only,) = statement.assumptions
    assert only.startswith(words)
    assert only in statement.words


def test_the_encoder_of_a_table_is_named_though_its_holder_is_not(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("id,own,y\n" + "\n".join(f"{n},{n % 7},{n % 2}" for n in range(90)))
    foreign = {"name": "module", "path": f"{__file__}:encoder"}
    config = dep.serve_config(
        tmp_path,
        data={"name": "table", "path": path, "id": "id", "label": "y", "classes": ["0", "1"]},
        privacy=dep.PRIVATE["privacy"],
        server={**dep.PRIVATE["server"], "encoder": foreign},
    ).experiment()
    records = records_of(config, dep.serve_config(tmp_path).federation)
    assert records.data.own is not None
    assert config.data.label_holder is None
    (only,) = assumptions(config, records.data, ("labels",), served=True)
    assert only == f"server.encoder ({__file__}:encoder) {MODEL_HOLDS}"
