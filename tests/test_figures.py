"""Figures of pages: each is in a results file, which is no older than what it depends on."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests import figures
from tests.figures import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WHOLE = ""
WITHOUT_FILE = {
    ("decisions.md", WHOLE): "what was tried on the way, once, by the code of its day",
    ("mathematics.md", WHOLE): "values of formulas",
    ("reproduction.md", WHOLE): "written from the results files by `vertizo reproduce --page`",
    ("attacks.md", "The attacks"): "a value of a formula",
    ("attacks.md", "Limits"): "a value of a formula, which the test beside it checks",
    ("federation.md", "6. What was promised"): "a value of a formula, as the command prints it",
    ("tuning.md", "The space"): "values that are tried",
}
"""Pages, or one section of them, where figures stand without a mark, and why they may."""


# Pages and files


def test_every_figure_of_a_page_is_in_its_file() -> None:
    found = []
    marked = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found += figures.faults(page.relative_to(ROOT).as_posix(), text)
        marked += sum(len(block.figures) for block in figures.blocks(page.name, text))
    assert not found, "\n".join(found)
    assert marked > 700


def test_every_figure_of_a_page_is_marked() -> None:
    found, used = [], set()
    for page in PAGES:
        for line, section, text in figures.unmarked(page.read_text(encoding="utf-8")):
            exempt = {(page.name, section), (page.name, WHOLE)} & WITHOUT_FILE.keys()
            used |= exempt
            if not exempt:
                found.append(f"{page.relative_to(ROOT)}:{line}: {text} is in no block of figures")
    assert not found, "\n".join(found)
    idle = {key for key, why in WITHOUT_FILE.items() if why != "being made again"} - used
    assert not idle, "exempt, and without a figure"


TABLE = """
<!-- figures: digits_demo.json; 12.2 = 95.2 - 83.0 -->

| | DPZV, accuracy | published |
|---|---|---|
| with 0.5 of something | 95.2 ± 1.2 % | 99.9 |
| frozen, ε = 0.1 | 83.0 ± 2.7 % | |

It needs `1.234` and 16.4 MB, which is 12.2 points more (published: 88.8 %).

<!-- end figures -->
"""


def test_a_changed_digit_is_found() -> None:
    assert figures.faults("page", TABLE) == []
    for right, wrong in [
        ("95.2 ±", "95.3 ±"),  # a mean
        ("± 1.2", "± 1.3"),  # a spread
        ("± 2.7", "± 1.2"),  # another row's spread
        ("83.0 ±", "95.2 ±"),  # another row's mean
        ("16.4 MB", "17.4 MB"),
        ("83.0 ± 2.7 %", "83.0085 %"),  # one seed's figure
        ("more (published", "more, 1.25 times (published"),
        ("is 12.2 points", "is 12.4 points"),
        ("12.2 = 95.2 - 83.0", "12.2 = 95.9 - 83.7"),  # of numbers that are not in the file
    ]:
        changed = TABLE.replace(right, wrong)
        assert changed != TABLE
        assert figures.faults("page", changed), wrong


def test_a_wrong_file_or_part_is_found() -> None:
    for name in ("defaults.json", "nowhere.json", "digits_demo.json#nobody", "worth_adult.json"):
        assert figures.faults("page", TABLE.replace("digits_demo.json", name)), name
    part = TABLE.replace("digits_demo.json", "digits_demo.json#dpzv")
    assert figures.faults("page", part) == []
    frozen = figures.faults("page", TABLE.replace("digits_demo.json", "digits_demo.json#frozen"))
    assert any("95.2 ± 1.2" in each for each in frozen)
    with pytest.raises(ValueError, match="without its end"):
        figures.faults("page", TABLE.replace("<!-- end figures -->", ""))


def test_most_changed_digits_of_the_pages_are_found() -> None:
    """A file has many numbers, so that a wrong one can be another's; this says how often."""
    tried = unseen = 0
    for page in PAGES:
        for block in figures.blocks(page.name, page.read_text(encoding="utf-8")):
            results = figures.Results.read(block.names)
            for figure in block.figures:
                if figure.value in {*block.quoted, *block.formulas}:
                    continue
                known = results.numbers(block, figure.names)
                for step in (2, 5, 8):
                    value = f"{figure.value[:-1]}{(int(figure.value[-1]) + step) % 10}"
                    tried += 1
                    unseen += known.has(dataclasses.replace(figure, value=value))
    assert unseen < 0.16 * tried


def test_a_figure_without_mark_is_found() -> None:
    for text in ("It reaches 95.2 ± 1.2 %.", "| dpzv | 91.3 % |", "an AUC of 0.914"):
        assert list(figures.unmarked(f"# Title\n\n{text}\n")), text
    for text in (
        "at ε = 0.914",
        "`0.914`",
        "(published: 95.2 %)",
        "a share of 0.05",
        "version 0.1.0",
    ):
        assert not list(figures.unmarked(text)), text
    assert not list(figures.unmarked(TABLE))


# Files and the code that made them

NUMBERS_COME_FROM = (
    "src/vertizo/methods",
    "src/vertizo/models",
    "src/vertizo/party",
    "src/vertizo/zeroth_order",
    "src/vertizo/protocol/codecs",
    "src/vertizo/core/kernels",
    "src/vertizo/core/randomness.py",
)
STALE = ROOT / "experiments" / "results" / "STALE.md"
RESULTS = sorted(path for folder in figures.FOLDERS[:2] for path in folder.glob("*.json"))
COMMIT = re.compile(r"[0-9a-f]{7,40}\+?")


def commits(content: Any) -> set[str]:
    """Every commit that a results file names."""
    found: set[str] = set()
    if isinstance(content, dict):
        for key, value in content.items():
            if key == "commits":
                found |= set(value)
            elif re.fullmatch(r"commit(_\w+)?", key):
                found.add(str(value))
            else:
                found |= commits(value)
    return found


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@cache
def changed_since(commit: str, *own: str) -> str:
    """What of a figure's sources differs from a commit's, in words; empty where nothing does."""
    if commit.endswith("+"):
        return f"was made of {commit}, with changes that no commit has"
    if not COMMIT.fullmatch(commit):
        return "names no commit"
    if not git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"):
        return f"names a commit that is not here: {commit}"
    paths = git("diff", "--name-only", commit, "--", *NUMBERS_COME_FROM, *own).splitlines()
    paths = [path for path in paths if may_differ(commit, path)]
    return (
        f"is older ({commit}) than changes to {paths[0]} and {len(paths) - 1} more" if paths else ""
    )


def may_differ(commit: str, path: str) -> bool:
    """Whether a file does something else now, but for commits that alter no number."""
    now, then = meaning(file_now(path)), meaning(git_file(commit, path))
    if now == then:
        return False
    if now != meaning(git_file("HEAD", path)):
        return True
    later = git("log", "--format=%H", f"{commit}..HEAD", "--", path).splitlines()
    changes = [each for each in later if differs(path, f"{each}^", each)]
    return not changes or not all(each.startswith(altering_no_number()) for each in changes)


def differs(path: str, before: str, after: str) -> bool:
    return meaning(git_file(before, path)) != meaning(git_file(after, path))


@cache
def altering_no_number() -> tuple[str, ...]:
    """Commits that STALE.md names as such: ``* 1a2b3c4: reason``."""
    return tuple(re.findall(r"^\* ([0-9a-f]{7,40}): ", STALE.read_text("utf-8"), re.MULTILINE))


def git_file(commit: str, path: str) -> str:
    done = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True)
    return f"{path}\n{done.stdout.decode()}" if done.returncode == 0 else ""


def file_now(path: str) -> str:
    there = ROOT / path
    return f"{path}\n{there.read_text('utf-8')}" if there.is_file() else ""


def meaning(text: str) -> str:
    """Of a path and a content, what is done: Python without comments and docstrings."""
    path, _, content = text.partition("\n")
    if not path.endswith(".py"):
        return content
    tree = ast.parse(content)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            kept = [each for each in body if not is_text(each)]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.dump(tree)


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def why_stale(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    named = sorted(
        set(re.findall(r"(?:experiments|examples|benchmarks)/[\w/]+\.(?:yaml|py)", text))
    )
    named = [each for each in named if (ROOT / each).is_file()]
    reasons = [changed_since(each, *named) for each in sorted(commits(json.loads(text))) or [""]]
    return next(filter(None, reasons), "")


def excused() -> dict[str, str]:
    """Files that STALE.md names, and its reasons: ``* `a.json` `b.json`: reason``."""
    found = {}
    for item in re.findall(
        r"^\* (.+?)(?=^\* |^#|\Z)", STALE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    ):
        names, _, reason = item.partition(": ")
        for name in re.findall(r"`([\w.-]+\.json)`", names):
            assert name not in found, f"STALE.md names {name} twice"
            assert len(reason.split()) >= 5, f"STALE.md gives no reason for {name}"
            found[name] = reason
    return found


@pytest.mark.processes  # git
def test_changes_of_commits_that_alter_no_number_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    git("init", "--quiet")
    git("config", "user.email", "a@b.c")
    git("config", "user.name", "A")
    made = []
    for content in ("x = 1", "x = 1 + 0", "x = 1 + 0  # one", "x = 2"):
        (tmp_path / "a.py").write_text(content)
        git("add", "a.py")
        git("commit", "--quiet", "--message", content)
        made.append(git("rev-parse", "HEAD"))
        monkeypatch.setitem(globals(), "altering_no_number", lambda: tuple(made[1:2]))
        assert may_differ(made[0], "a.py") == (content == "x = 2"), content
    monkeypatch.setitem(globals(), "altering_no_number", lambda: tuple(made[3:]))
    assert may_differ(made[0], "a.py"), "of two changes one is named"
    assert not may_differ(made[1], "a.py")
    (tmp_path / "a.py").write_text("x = 3")
    assert may_differ(made[1], "a.py"), "a change that no commit has"


@pytest.mark.processes  # git
def test_results_name_no_folder_of_one_machine() -> None:
    for path in RESULTS:
        found = re.findall(r"[\s\"=](/(?:tmp|home|root|work|Users)/\S*)", path.read_text("utf-8"))
        assert not found, (path.name, found[:3])


def test_words_do_not_make_a_result_older() -> None:
    before = 'a.py\ndef f(x):\n    """One."""\n    return x'
    assert meaning(before) == meaning("a.py\ndef f(x):  # two\n    return x")
    assert meaning(before) != meaning("a.py\ndef f(x):\n    return -x")
    assert meaning("a.yaml\nx: 1") != meaning("a.yaml\nx: 1  # one")
    assert meaning("") != meaning("a.py\n"), "a file that is gone"


def test_results_are_as_new_as_the_code_or_say_why_they_hold() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of the repository")
    if git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("this checkout has no history")
    stale = {path.name: why for path in RESULTS if (why := why_stale(path))}
    known = excused()
    missing = [f"{name} {stale[name]}" for name in sorted(stale.keys() - known.keys())]
    assert not missing, "make anew, or say in STALE.md why they hold:\n" + "\n".join(missing)
    for commit in altering_no_number():
        assert git("diff", "--name-only", f"{commit}^", commit, "--", *NUMBERS_COME_FROM), commit
    idle = sorted(known.keys() - stale.keys())
    assert not idle, f"STALE.md names what is not stale, or not there: {', '.join(idle)}"
