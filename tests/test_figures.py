"""Figures of pages: each is in a results file that the manifest names (docs/figures.yaml)."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests import figures
from tests.figures import ROOT

pytestmark = pytest.mark.fresh

PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
MANIFEST = figures.manifest()
RESULTS = sorted(path for folder in figures.FOLDERS[:2] for path in folder.glob("*.json"))


def listed() -> list[figures.Section]:
    pages = [(page, known) for page, known in MANIFEST.items() if isinstance(known, dict)]
    return [each for page, known in pages for each in figures.sections(page, PAGES[page], known)]


def test_every_figure_of_a_page_is_in_its_file() -> None:
    found = [line for section in listed() for line in figures.faults(section)]
    assert not found, "\n".join(found)
    assert sum(len(section.figures) for section in listed()) > 700


def test_every_section_with_figures_is_in_the_manifest() -> None:
    found, bare = [], set()
    for page, text in PAGES.items():
        known = MANIFEST.get(page, {})
        for line, section, figure in figures.unlisted(text, ()):
            bare |= {(page, section), (page, None)}
            if isinstance(known, dict) and section not in known:
                found.append(f"{page}:{line}: {figure} is in no section of docs/figures.yaml")
    assert not found, "\n".join(found)
    excused = [(page, None) for page, known in MANIFEST.items() if isinstance(known, str)]
    for page, known in MANIFEST.items():
        if isinstance(known, dict):
            excused += [(page, name) for name, said in known.items() if isinstance(said, str)]
    assert set(excused) <= bare, "excused, and without a figure"


def section(text: str, **changes: object) -> figures.Section:
    ((name, line, own),) = figures.parts(f"## Title\n\n{text}")
    derived = {"12.2": "95.2 - 83.0"}
    made = figures.Section("page", name, own, line, ("digits_demo.json",), derived=derived)
    return replace(made, **changes)


TABLE = """
| | DPZV, accuracy | published |
|---|---|---|
| with 0.5 of something | 95.2 ± 1.2 % | 99.9 |
| frozen, ε = 0.1 | 83.0 ± 2.7 % | |

It needs `1.234` and 16.4 MB, which is 12.2 points more (published: 88.8 %).
"""


def test_a_changed_digit_is_found() -> None:
    assert figures.faults(section(TABLE)) == []
    for right, wrong in [
        ("95.2 ±", "95.3 ±"),  # a mean
        ("± 1.2", "± 1.3"),  # a spread
        ("± 2.7", "± 1.2"),  # another row's spread
        ("83.0 ±", "95.2 ±"),  # another row's mean
        ("16.4 MB", "17.4 MB"),
        ("83.0 ± 2.7 %", "83.0085 %"),  # one seed's figure
        ("more (published", "more, 1.25 times (published"),
        ("is 12.2 points", "is 12.4 points"),
    ]:
        changed = TABLE.replace(right, wrong)
        assert changed != TABLE
        assert figures.faults(section(changed)), wrong
    assert figures.faults(section(TABLE, derived={"12.2": "95.9 - 83.7"})), "of others' numbers"
    assert figures.faults(section(TABLE, quoted=frozenset({"4.56"}))), "which is not there"


def test_a_wrong_file_part_or_section_is_found() -> None:
    for name in ("defaults.json", "nowhere.json", "digits_demo.json#nobody", "worth_adult.json"):
        assert figures.faults(section(TABLE, files=(name,))), name
    assert figures.faults(section(TABLE, files=("digits_demo.json#dpzv",))) == []
    frozen = figures.faults(section(TABLE, files=("digits_demo.json#frozen",)))
    assert any("95.2 ± 1.2" in each for each in frozen)
    known = {"Elsewhere": {"files": ["digits_demo.json"]}}
    with pytest.raises(ValueError, match="page has no section 'Elsewhere'"):
        list(figures.sections("page", f"## Title{TABLE}", known))


def test_most_changed_digits_of_the_pages_are_found() -> None:
    """A file has many numbers, so that a wrong one can be another's; this says how often."""
    tried = unseen = 0
    for each in listed():
        results = figures.Results.read(each.files)
        for figure in each.figures:
            if figure.value in {*each.quoted, *each.derived}:
                continue
            known = results.numbers(each, figure.names)
            for step in (2, 5, 8):
                value = f"{figure.value[:-1]}{(int(figure.value[-1]) + step) % 10}"
                tried += 1
                unseen += known.has(replace(figure, value=value))
    assert unseen < 0.16 * tried


def test_a_figure_outside_the_manifest_is_found() -> None:
    for text in ("It reaches 95.2 ± 1.2 %.", "| dpzv | 91.3 % |", "an AUC of 0.914"):
        assert list(figures.unlisted(f"# Title\n\n{text}\n", ())), text
        assert not list(figures.unlisted(f"# Title\n\n{text}\n", ["Title"])), text
    for text in (
        "at ε = 0.914",
        "`0.914`",
        "(published: 95.2 %)",
        "a share of 0.05",
        "version 0.1.0",
    ):
        assert not list(figures.unlisted(f"# Title\n\n{text}\n", ())), text


def test_results_name_no_folder_of_one_machine() -> None:
    for path in RESULTS:
        found = re.findall(r"[\s\"=](/(?:tmp|home|root|work|Users)/\S*)", path.read_text("utf-8"))
        assert not found, (path.name, found[:3])


def test_every_results_file_says_how_it_was_made() -> None:
    """A commit to compare with, or for what is computed the command."""
    for path in RESULTS:
        text = path.read_text("utf-8")
        assert re.search(r'"commit\w*"|"commands?"', text), path.name
