"""Releases and the hosted pages: files that name the version, workflows, the site of versions."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

import vertizo as vz

ROOT = Path(__file__).parents[1]
RELEASE = runpy.run_path(str(ROOT / ".ci" / "release.py"))
PUBLISH = runpy.run_path(str(ROOT / "docs" / "publish.py"))["publish"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def workflow(path: Path) -> dict[str, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in found.items()}


def jobs(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from workflow(path)["jobs"].items()


def test_files_that_name_the_version_agree() -> None:
    assert list(RELEASE["faults"]()) == []
    assert set(RELEASE["found"](RELEASE["PATTERNS"]).values()) == {vz.__version__}


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """What a release looks like."""
    texts = {
        "src/vertizo/core/version.py": 'VERSION = "1.2.0"\n',
        "CITATION.cff": 'version: "1.2.0"\ndate-released: "2027-01-31"\n',
        "CHANGELOG.md": "## [Unreleased]\n\n## [1.2.0] - 2027-01-31\n\n- New.\n\n## [1.1.0]\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_version_is_published_where_every_file_says_it(ready: Path) -> None:
    assert list(RELEASE["faults"]("1.2.0", ready)) == []
    assert list(RELEASE["faults"](None, ready)) == []
    assert "1.2 is no version such as 1.2.0" in RELEASE["faults"]("1.2", ready)
    (other,) = {line.partition("version ")[2] for line in RELEASE["faults"]("1.2.1", ready)}
    assert other == "1.2.0, and not 1.2.1"


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("src/vertizo/core/version.py", "1.2.0", "1.3.0", "version.py has version 1.3.0"),
        ("CITATION.cff", "1.2.0", "1.1.0", "CITATION.cff has version 1.1.0"),
        ("CITATION.cff", 'version: "1.2.0"\n', "", "CITATION.cff has version None"),
        ("CITATION.cff", "2027-01-31", "2027-02-01", "dates of release differ"),
        ("CITATION.cff", "date-released", "dated", "CITATION.cff has no date"),
        ("CHANGELOG.md", "2027-01-31", "not yet released", "CHANGELOG.md has no date"),
        ("CHANGELOG.md", "## [1.2.0]", "## [1.2.1]", "CHANGELOG.md has version 1.2.1"),
        ("CHANGELOG.md", "ased]\n", "ased]\n\n- More.\n", "CHANGELOG.md has unreleased changes"),
    ],
)
def test_what_keeps_a_version_from_being_published(
    ready: Path, name: str, old: str, new: str, words: str
) -> None:
    text = (ready / name).read_text()
    assert old in text
    (ready / name).write_text(text.replace(old, new, 1))
    starts = (words, f"src/vertizo/core/{words}")
    assert any(line.startswith(starts) for line in RELEASE["faults"]("1.2.0", ready))


def test_the_description_on_pypi_names_no_file_beside_it() -> None:
    functions, _ = (ROOT / "setup.py").read_text(encoding="utf-8").split("\nsetup(")
    names: dict[str, Any] = {"__file__": str(ROOT / "setup.py")}
    exec(compile(functions, "setup.py", "exec"), names)
    places = re.findall(r"\]\(([^)]+)\)", names["description"]())
    assert len(places) > 20
    assert [place for place in places if not place.startswith("https://")] == []
    pictures = [place for place in places if place.endswith(".svg")]
    assert all("raw.githubusercontent.com" in place for place in pictures)


def test_workflows_pin_what_they_use_and_may_do_little() -> None:
    assert [path.name for path in WORKFLOWS] == ["docs.yml", "release.yml"]
    for path in WORKFLOWS:
        text = path.read_text(encoding="utf-8")
        used = re.findall(r"uses: (.+)", text)
        assert len(used) > 4, path
        for each in used:
            pinned = re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)
            assert pinned or each == "./.github/workflows/docs.yml", each
        installed = re.findall(r"pip install (\S+)", text)
        assert all("==" in each or each.startswith(("-", "torch")) for each in installed), installed
        assert workflow(path)["permissions"] == {}
        for name, job in jobs(path):
            wider = {"deploy", "tag", "docs"} if path.name == "release.yml" else {"deploy"}
            allowed = {"contents": "write"} if name in wider else {"contents": "read"}
            if name == "publish":
                allowed = {"id-token": "write"}
            assert job["permissions"] in (allowed, {}), (path.name, name)
            for step in job.get("steps", ()):  # what people type never becomes a script
                assert "${{" not in step.get("run", ""), (path.name, name)
                if step.get("uses", "").startswith("actions/checkout@"):
                    assert step["with"]["persist-credentials"] is (name == "deploy")


def test_nothing_but_a_person_publishes() -> None:
    path = ROOT / ".github" / "workflows" / "release.yml"
    found = workflow(path)
    assert list(found["on"]) == ["workflow_dispatch"]
    assert found["on"]["workflow_dispatch"]["inputs"]["version"]["required"] is True
    every = dict(jobs(path))
    assert every["check"]["if"] == "github.ref == 'refs/heads/main'"
    assert every["check"]["steps"][-1]["run"] == 'python3 .ci/release.py "$VERSION"'
    assert every["publish"]["environment"]["name"] == "pypi"
    assert every["publish"]["steps"][-1]["with"] == {"attestations": True}
    before, waiting = set(), ["publish"]
    while waiting:
        needed = every[waiting.pop()].get("needs", [])
        waiting += [needed] if isinstance(needed, str) else needed
        before |= set(waiting)
    assert before == {"check", "source", "wheels", "try"}
    assert {name for name in every if "publish" in every[name].get("needs", ())} == {"tag", "docs"}
    others = [name for name, job in every.items() if "id-token" in job["permissions"]]
    assert others == ["publish"]


def test_the_pages_are_not_published_from_elsewhere_than_main() -> None:
    path = ROOT / ".github" / "workflows" / "docs.yml"
    deploy = dict(jobs(path))["deploy"]
    assert deploy["if"] == "github.event_name != 'pull_request' && github.ref == 'refs/heads/main'"
    assert deploy["needs"] == "build"


def test_a_site_has_every_version_and_shows_the_newest_release(tmp_path: Path) -> None:
    built, site = tmp_path / "built", tmp_path / "site"
    built.mkdir()
    (built / ".buildinfo").touch()
    shown = {"latest": "latest", "1.9.0": "1.9.0", "1.10.0": "1.10.0", "1.2.0": "1.10.0"}
    for name, first in shown.items():
        (built / "index.html").write_text(name)
        PUBLISH(site, built, name, "https://example.org/pages/")
        assert f"url={first}/" in (site / "index.html").read_text()
        place = f"<loc>https://example.org/pages/{first}/sitemap.xml</loc>"
        assert place in (site / "sitemap.xml").read_text()
    ElementTree.parse(site / "sitemap.xml")
    names = json.loads((site / "versions.json").read_text())
    assert names == ["latest", "1.10.0", "1.9.0", "1.2.0"]
    assert [(site / name / "index.html").read_text() for name in names] == names
    assert not (site / "latest" / ".buildinfo").exists()
    (built / "index.html").write_text("newer")
    PUBLISH(site, built, "latest", "https://example.org/pages")
    assert (site / "latest" / "index.html").read_text() == "newer"
    shutil.rmtree(built)
    for wrong in ("../latest", "main", "1", "1.2.0rc1", ""):
        with pytest.raises(SystemExit, match="is neither latest nor a version such as"):
            PUBLISH(site, built, wrong, "https://example.org")
    assert json.loads((site / "versions.json").read_text()) == names
