"""What parties sign about a run: true at both ends, dated, and found out when it was changed."""

from __future__ import annotations

import hmac
import json
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests import deployments
from tests.deployments import PRIVATE, join_config, serve_config
from tests.rows import each

from vertizo.config.schema import parse
from vertizo.core.errors import ConfigError, RunError
from vertizo.lab import dossier
from vertizo.lab.dossier import Dossier
from vertizo.network.transport.authority import issue
from vertizo.network.transport.certificates import Credentials
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.run.experiment import Experiment
from vertizo.run.results import checkpoint

TABLE = {
    "seed": 0,
    "epochs": 1,
    "data": {"name": "table", "label": "default", "classes": [0, 1], "validation": 0},
    "method": {"name": "dpzv"},
    "privacy": {"epsilon": 1.0, "delta": 1e-4},
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "loans.csv"
    rows = (f"{n},{n * 7 % 11},{n % 2}" for n in range(60))
    path.write_text("\n".join(["income,age,default", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    issue(folder, "bank", ["shop"], [], 30)
    return folder


def lines(found: Dossier) -> str:
    every = (found.promise, found.sent, found.learned, found.protected, found.not_protected)
    return " ".join(line for part in every for line in part)


def test_a_simulation_says_that_it_was_one(table: Path, tmp_path: Path) -> None:
    data = {**TABLE["data"], "path": str(table), "columns": {"a": ["income"], "b": ["age"]}}
    result = Experiment(parse({**TABLE, "data": data})).run(tmp_path / "run")
    found = dossier.of_folder(tmp_path / "run", "Ada Brunner")
    assert found.role == "a simulation of all parties in one process"
    assert found.guarantee == "simulated"
    assert "nobody sent anything" in found.sent[0]
    assert dict(found.facts)["operator"] == "Ada Brunner"
    assert result.summary["privacy"]["words"] in found.promise
    digests = dict(found.digests)
    assert {"config.yaml", "preparation.json"} <= digests.keys()
    page = dossier.render(found, "2026-01-02T03:04:05+00:00", None)
    plain = sha256(table.read_bytes()).hexdigest()
    own = json.loads((tmp_path / "run" / "provenance.json").read_text())
    said = hmac.digest(own["key"].encode(), plain.encode(), "sha256").hex()
    assert digests[f"loans.csv, as the run began ({dossier.SEALED})"] == said
    # Whoever knows all of the table but one label would find it by trying, whatever ε is.
    assert plain not in page
    keyed = json.dumps({**own, "key": None}).encode()
    checkpoint.keep(tmp_path / "run" / "provenance.json", keyed)
    keyless = dict(dossier.of_folder(tmp_path / "run").digests)
    assert keyless[f"loans.csv, as the run began ({dossier.SEALED})"] == dossier.UNKNOWN
    assert "Not signed." in page
    assert "2026-01-02 03:04:05 UTC" in page
    (tmp_path / "run" / "provenance.json").unlink()  # of a version that wrote none
    old = dossier.of_folder(tmp_path / "run")
    assert dict(old.facts)["began"].startswith("not recorded")
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(RunError, match="unfinished run"):
        dossier.of_folder(tmp_path / "run")


@pytest.mark.full
def test_both_ends_of_a_job_tell_the_same_story(tmp_path: Path) -> None:
    """What a member cannot know, it cites; what left one party came to the other."""
    config = serve_config(tmp_path, federation={"trial": False}, **PRIVATE)
    members = [join_config(tmp_path, name, trial=False) for name in deployments.MEMBERS]
    done = deployments.served(tmp_path, config, members)
    holder = dossier.of_folder(tmp_path / "server")
    north = dossier.of_folder(tmp_path / "north")
    assert (holder.role, north.role) == ("the label holder", "a feature holder")
    assert holder.guarantee == "exact"
    assert holder.rates[0][:3] == ("one record", "2", "0.001")
    assert dict(holder.facts)["feature holders"] == ", ".join(deployments.MEMBERS)
    ((name, first, last),) = holder.charges
    assert name in DurableLedger.inspect(tmp_path / "server" / "ledger.sqlite").runs
    today = f"{datetime.now(UTC) - timedelta(minutes=1):%Y-%m-%d}"
    assert first.startswith(today[:7])
    assert last.endswith("UTC")
    assert dict(north.facts)["this party"] == "north"
    assert dict(north.facts)["queries"] == f"{done[0].queries:,}"
    assert done[0].words in north.protected[0]
    assert "which nobody here can check" in north.protected[0]
    assert "nothing protects this party's features" in north.promise[0]
    assert "No feature" not in lines(north)  # there are models that pass features on
    assert "noise" not in lines(north).replace(done[0].words, "")
    assert {"settings.yaml", "model.safetensors"} <= dict(north.digests).keys()


@pytest.mark.full
def test_noise_on_a_members_embeddings_is_called_no_guarantee(tmp_path: Path) -> None:
    noise = {"mechanism": "embedding-noise", "clip": 5.0, "noise_std": 2.0}
    config = serve_config(tmp_path, federation={"trial": False}, privacy=noise)
    members = [join_config(tmp_path, name, trial=False) for name in deployments.MEMBERS]
    deployments.served(tmp_path, config, members)
    north = dossier.of_folder(tmp_path / "north")
    assert (north.guarantee, north.badge[-6:]) == ("none", "noised")
    assert "ideal Gaussian noise" in north.promise[0]


@each(
    "changes, said",
    [
        ({}, ["test records that it is of"]),
        ({"privacy": {"mechanism": "teacher", "epsilon": 1}}, ["56 numbers made of its features"]),
        ({"server": {"final_head": "logistic"}}, ["each training record, for the raw head"]),
        (
            {"server": {"final_head": "logistic"}, "simulation": {"table": "upload"}},
            ["for the table before training and for the raw head in the end"],
        ),
        ({"control": "label-free"}, ["Once, the embedding of each training record."]),
        ({"data": {"name": "digits"}}, ["validation or test records"]),
    ],
)
def test_all_that_a_party_uploads_is_named(changes: dict[str, Any], said: list[str]) -> None:
    data = {"name": "digits", "validation": 0}
    config = parse({"data": data, "method": {"name": "vafl"}, **changes})
    sent = " ".join(dossier._uploads(config))
    assert all(words in sent for words in said), sent
    assert ("training record" in sent) is (len(changes) > 0 and "data" not in changes)


@pytest.mark.full
def test_a_signature_is_of_one_content_by_one_party(
    tmp_path: Path, certificates: Path, table: Path
) -> None:
    data = {**TABLE["data"], "path": str(table), "columns": {"a": ["income"], "b": ["age"]}}
    Experiment(parse({**TABLE, "data": data})).run(tmp_path / "run")
    found = dossier.of_folder(tmp_path / "run")
    bank, shop = (Credentials.load(certificates / name) for name in ("bank", "shop"))
    place, authority = tmp_path / "signed.html", certificates / "bank" / "authority.pem"
    assert len(dossier.write(found, place, bank)) == 3
    signed, made = dossier.verify(place, authority)
    assert signed.name == "bank"
    assert made.endswith("UTC")
    if shutil.which("openssl"):
        key = tmp_path / "key.pem"
        read = ["openssl", "x509", "-in", f"{place}.pem", "-pubkey", "-noout", "-out", key]
        subprocess.run(read, check=True)
        check = ["openssl", "dgst", "-sha256", "-verify", key, "-signature", f"{place}.sig", place]
        subprocess.run(check, check=True, capture_output=True)
    content, other = place.read_bytes(), tmp_path / "other.html"
    dossier.write(found, other, shop)

    later = re.sub(rb'content="20\d\d-', b'content="2050-', content)
    for text, by, words in (
        (content.replace(b"simulated", b"exact", 1), place, "by 'bank'"),
        (content + b"\n", place, "by 'bank'"),
        (content, other, "by 'shop'"),
        (later, place, "and what was signed is of 2050-"),
        (b"<html>", place, "no dossier"),
    ):
        changed = tmp_path / "x.html"
        changed.write_bytes(text)
        shutil.copy(f"{place}.sig", f"{changed}.sig")
        shutil.copy(f"{by}.pem", f"{changed}.pem")
        with pytest.raises((RunError, ConfigError), match=words):
            dossier.verify(changed, authority)
    issue(tmp_path / "others", "bank", [], [], 30)
    with pytest.raises(ConfigError, match="was not signed by"):
        dossier.verify(place, tmp_path / "others" / "authority" / "authority.pem")
    Path(f"{place}.sig").unlink()
    with pytest.raises(RunError, match="cannot be read"):
        dossier.verify(place, authority)
