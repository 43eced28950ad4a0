"""A run's models as files: what they predict, their names, and what cannot be written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.command_line import program
from tests.data.refusals import refused
from torch import nn

from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError
from vertizo.run.experiment import Experiment
from vertizo.run.trained.export import export, parts_of

TABLE = "id,job,town,age,label\n" + "".join(
    f"{n},j{n % 3},t{n % 2},{n},{n % 2}\n" for n in range(60)
)
SMALL: dict[str, Any] = {"seed": 0, "epochs": 1, "batch_size": 20}
DIGITS = {"limit": 60, "parties": 2}


def ran(folder: Path, **more: Any) -> Path:
    Experiment(parse(SMALL | more)).run(folder)
    return folder


def of_a_table(folder: Path, **more: Any) -> Path:
    """Categories, an encoder of the label holder's columns, and a file that is gone afterwards."""
    path = folder / "people.csv"
    path.write_text(TABLE)
    columns = {"bank": ["age"], "shop": ["job"], "phone": ["town"]}
    data = {"name": "table", "path": str(path), "label": "label", "columns": columns}
    run = ran(folder / "run", data=data | {"label_holder": "bank"}, **more)
    path.unlink()
    return run


def test_state_dicts_have_the_modules_own_names(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = ran(tmp_path / "run", data=DIGITS, client={"pretrain": "pca", "components": 4})
    said = " ".join(program(capfd)("export", run).well().split())
    assert "party0.pt: takes records of shape [1, 4, 8]" in said
    server = torch.load(run / "export" / "server.pt", weights_only=True)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 10))
    plain.load_state_dict(server)
    client = torch.load(run / "export" / "party1.pt", weights_only=True)
    assert set(client) == {"front.centre", "front.basis", "model.1.weight", "model.1.bias"}
    for part in parts_of(run):
        assert not part.module.training
        assert part.module(part.example).shape[0] == 2


def test_parts_together_predict_what_the_run_was_scored_by(tmp_path: Path) -> None:
    run = ran(tmp_path / "run", data=DIGITS | {"test_limit": 40}, client={"model": {"name": "cnn"}})
    summary = json.loads((run / "summary.json").read_text())
    data = Experiment(parse(SMALL | {"data": DIGITS | {"test_limit": 40}})).data()
    *clients, server = parts_of(run)
    pairs = zip(clients, data.features, strict=True)
    embeddings = [part.module(own["test"]) for part, own in pairs]
    logits = server.module(torch.cat(embeddings, 1))
    right = (logits.argmax(1) == data.labels["test"]).float().mean()
    assert float(right) == pytest.approx(summary["test_accuracy"])


def test_a_table_is_exported_without_its_file(tmp_path: Path) -> None:
    shop, phone, server = parts_of(of_a_table(tmp_path))
    assert (shop.name, phone.name, server.name) == ("shop", "phone", "server")
    assert server.example.shape == (2, 2 * 16 + 1)
    names = {name.split(".")[0] for name in server.module.state_dict()}
    assert names == {"top", "encoder"}
    path = export(server, tmp_path, "torch")
    assert torch.load(path, weights_only=True).keys() == server.module.state_dict().keys()


def test_what_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ran(tmp_path / "run", data=DIGITS)
    refused(["--party part0", "did you mean 'party0'"], ConfigError, parts_of, run, ["part0"])
    (tmp_path / "rules.py").write_text("def apply(w, x):\n    return x.reshape(len(x), -1) * w\n")
    rules = {"name": "function", "path": str(tmp_path / "rules.py:apply"), "num_parameters": 32}
    other = ran(tmp_path / "other", data=DIGITS, client={"model": rules, "models": {"party1": {}}})
    refused(["model of party0 is a plain function", "--party"], ConfigError, parts_of, other)
    assert [part.name for part in parts_of(other, ["server", "party1"])] == ["party1", "server"]
    named = {"a/b": ["mean radius"], "a_b": ["mean area"]}
    alike = ran(tmp_path / "alike", data={"name": "breast-cancer", "columns": named})
    refused(["'a/b' and 'a_b'", "files are the same"], ConfigError, parts_of, alike)
    assert [part.name for part in parts_of(alike, ["server"])] == ["server"]
    monkeypatch.setitem(sys.modules, "onnx", None)
    (part,) = parts_of(run, ["party1"])
    refused(["pip install 'vertizo[onnx]'"], ConfigError, export, part, tmp_path, "onnx")


@pytest.mark.filterwarnings("ignore")
def test_onnx_computes_the_same_for_batches_of_any_size(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    pytest.importorskip("onnxscript", reason="the exporter's package is not installed")
    for part in parts_of(of_a_table(tmp_path), ["shop", "server"]):
        session = runtime.InferenceSession(str(export(part, tmp_path, "onnx")))
        for count in (1, 5):
            rows = torch.rand(count, *part.example.shape[1:])
            (found,) = session.run(None, {"rows": rows.numpy()})
            with torch.no_grad():
                expected = part.module(rows).numpy()
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_label_holder_is_known_by_its_name(tmp_path: Path) -> None:
    run = of_a_table(tmp_path)
    assert [part.name for part in parts_of(run, ["bank"])] == ["server"]
    assert [part.name for part in parts_of(run, ["phone", "bank"])] == ["phone", "server"]
