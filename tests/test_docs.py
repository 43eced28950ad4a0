"""The documentation: what is taken from the code, what is shown to type, and the site."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import ImageFont
from tests.words import says

import vertizo as vz
from vertizo.cli.init import init
from vertizo.config import schema as configuration
from vertizo.methods.choice import METHODS, asking

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
MADE = runpy.run_path(str(DOCS / "generate"))
PACKAGE = ROOT / "src" / "vertizo"
SVG = "{http://www.w3.org/2000/svg}"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# What is taken from the code


@pytest.mark.full
def test_nothing_that_is_made_has_drifted() -> None:
    for path, text in MADE["files"]():
        fresh = path.exists() and path.read_text(encoding="utf-8") == text
        assert fresh, f"{name_of(path)}: run `make docs`, which writes it anew"


def test_pages_read_the_same_without_the_site() -> None:
    """No directive but those of the navigation, which GitHub shows as a list of names."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"^[`:]{3}\{(.*?)\}", text, re.MULTILINE)) <= {"toctree"}, page.name
        assert not re.search(r"^:::", text, re.MULTILINE), page.name
    names = (DOCS / "api.md").read_text(encoding="utf-8")
    for name in vz.__all__:
        assert name.startswith("_") or f"\n### {name}\n" in names, name


def test_every_method_has_a_page_with_its_drawing_bytes_and_options() -> None:
    sections = ["What it is for", "The algorithm", "Messages", "What leaks, what can be guaranteed"]
    sections += ["Options", "When to choose it", "Try it", "Sources"]
    for name, options in METHODS.items():
        text = (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")
        made = (f"<!-- made: bytes {name} -->", f"<!-- made: options {name} -->")
        says(text, f"]({name}.svg)", *made, case=name)
        for option in options.model_fields:
            assert option == "name" or f"`method.{option}`" in text, (name, option)
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == sections, name


@pytest.mark.full
@pytest.mark.parametrize("name", sorted({*asking()} - {"label-statistic"}))
def test_bytes_of_a_page_are_those_that_runs_count(name: str) -> None:
    exchange = MADE["traffic"].exchange
    config = {
        "epochs": 1,
        "batch_size": MADE["traffic"].BATCH,
        "method": {"name": name},
        "client": {
            "model": {"name": "mlp", "outputs": MADE["traffic"].DIMENSION},
            "optimizer": {"learning_rate": 1e-5},
        },
        "server": {"model": {"name": "mlp"}, "optimizer": {"learning_rate": 1e-5}},
    }
    summary = vz.Experiment(configuration.parse(config)).run().summary
    full, rest = divmod(summary["records"], MADE["traffic"].BATCH)
    counted = [exchange(name)] * full + [exchange(name, rest)] * (rest > 0)
    assert summary["bytes_up"] == summary["clients"] * sum(each.query for each in counted)
    down = sum(each.reply + each.announcement for each in counted)
    assert summary["bytes_down"] == summary["clients"] * down


def test_bytes_are_of_the_run_that_starts_without_a_configuration() -> None:
    config = configuration.load(None)
    assert config.batch_size == MADE["traffic"].BATCH
    assert getattr(config.client.model, "outputs", None) == MADE["traffic"].DIMENSION


@pytest.mark.full
def test_drawings_can_be_read_by_everybody() -> None:
    drawings = sorted(DOCS.rglob("*.svg"))
    assert len(drawings) > len(METHODS)
    for drawing in drawings:
        check_drawing(drawing)


def check_drawing(drawing: Path) -> None:
    """Described in words, made for dark screens too, and no text beyond its box."""
    root = ElementTree.parse(drawing).getroot()
    assert root.get("role") == "img"
    described = root.get("aria-labelledby", "").split()
    assert [root.find(f".//*[@id='{id_}']") is not None for id_ in described] == [True, True]
    style = root.findtext(f"{SVG}style") or ""
    assert "prefers-color-scheme: dark" in style
    width = float(root.get("viewBox", "").split()[2])
    boxes = [each for each in root.iter(f"{SVG}rect") if float(each.get("width", 0)) > 200]
    for text in root.iter(f"{SVG}text"):
        start, wide = float(text.get("x", 0)), width_of(text)
        y = float(text.get("y", 0))
        around = [each for each in boxes if 0 <= y - number(each, "y") <= number(each, "height")]
        edges = [number(each, "x") + number(each, "width") for each in around]
        match text.get("text-anchor"):
            case "middle":
                assert start - wide / 2 > 0, text.text
                assert start + wide / 2 < width, text.text
            case "end":
                assert start - wide > width / 2, text.text
            case _:
                assert start + wide < min(edge for edge in edges if edge > start), text.text


def number(element: ElementTree.Element, name: str) -> float:
    return float(element.get(name, 0))


def width_of(text: ElementTree.Element) -> float:
    """How wide a line is in a wide font; those of most systems are narrower."""
    words, size = "".join(text.itertext()), float(text.get("font-size", 14))
    if "monospace" in text.get("font-family", ""):
        return 0.602 * size * len(words)
    return 1.1 * ImageFont.load_default(size).getlength(words)


# What is shown to type

FENCE = re.compile(r"^```[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PROGRAM = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?vertizo (?=[a-z])(.*)$", re.MULTILINE)


def typed() -> Iterator[tuple[str, str, bool]]:
    """Every command line of the pages: whole ones of blocks, and parts in a sentence."""
    for page in [*PAGES, ROOT / "README.md"]:
        text = page.read_text(encoding="utf-8")
        for block in FENCE.findall(text):
            for line in PROGRAM.findall(block.replace("\\\n", " ")):
                if not line.endswith("[options]"):  # the reference's own
                    yield name_of(page), line, True
        for code in CODE.findall(FENCE.sub("", text)):
            for line in PROGRAM.findall(code):
                yield name_of(page), line, False


def test_command_lines_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    init(tmp_path / "bank", 50)
    commands = {tuple(names[1:]): command for names, command in MADE["commands"].programs()}
    lines = list(typed())
    assert len(lines) > 100
    for page, line, whole in lines:
        try:
            check_command(line, whole, commands, tmp_path)
        except Exception as error:
            raise AssertionError(f"{page}: vertizo {line}") from error


def check_command(line: str, whole: bool, commands: dict[tuple[str, ...], Any], made: Path) -> None:
    words = [word for word in shlex.split(line, comments=True) if "…" not in word]
    length = max(count for count in range(len(words) + 1) if tuple(words[:count]) in commands)
    command, given = commands[tuple(words[:length])], words[length:]
    assert length, f"no command {words[0]!r}"
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    for word in given:
        if word.startswith("--"):
            assert word.split("=")[0] in {*options, "--help"}, word
    settings = [value for flag, value in pairwise(given) if flag == "--set"]
    for setting in settings:
        assert "=" in setting
    if getattr(command, "commands", None) is not None:
        assert not given, f"no command {given[0]!r}"
        return
    if whole:
        command.make_context(command.name, list(given))
    if words[0] in ("train", "compare"):
        files = [Path(word) for word in given if word.endswith(".yaml")]
        ours = [path for path in files if path.parts[0] in ("examples", "experiments")]
        ours += [made / path for path in files if (made / path).is_file()]  # of vertizo init
        path = ours[0] if ours else None  # others are the reader's own
        methods = given[given.index("--methods") + 1].split(",") if "--methods" in given else [None]
        for method in methods:
            if method is None or ":" not in method:
                configuration.load(path, [e for e in settings if e != "KEY=VALUE"], method)


KEY = re.compile(r"(?:data|client|server|privacy|codecs|simulation|method)(?:\.[a-z_]+)+")


@pytest.mark.full
def test_keys_in_sentences_exist() -> None:
    tables = [MADE["part"]("configuration"), *(MADE["part"](f"options {name}") for name in METHODS)]
    found = {key for text in tables for key in KEY.findall(text)}
    found |= {key.replace("codecs.up.", "codecs.down.") for key in found} | {"method.name"}
    known = found | {key.rsplit(".", count)[0] for key in found for count in (1, 2)}
    for page in [*PAGES, ROOT / "README.md"]:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for code in CODE.findall(text):
            if match := re.fullmatch(rf"({KEY.pattern})(?:[:=].*)?", code):
                assert match[1] in known, (name_of(page), code)


def test_files_that_the_architecture_names_exist() -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in DOCS.glob("architecture*.md")}
    assert len(pages) == 4
    for page, text in pages.items():
        named = re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py)?|[a-z_]+\.py)`", text)
        assert len(named) > 10, page.name
        for path in named:
            assert [*ROOT.glob(path), *PACKAGE.rglob(path), *ROOT.glob(f"tests/**/{path}")], path


def test_code_and_tests_that_pages_name_exist() -> None:
    named = set()
    for page in (*DOCS.rglob("*.md"), *ROOT.glob("*.md")):
        if page.name != "CHANGELOG.md":  # which tells of what there was
            text = page.read_text(encoding="utf-8")
            named |= set(re.findall(r"\b((?:src/vertizo|tests)/[\w/]+\.py)\b", text))
    assert len(named) > 60
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_is_short_and_without_marks() -> None:
    prose = re.sub(r"\]\([^)]*\)", "]", FENCE.sub("", README))
    assert len(re.findall(r"[^\W_][\w.%’'-]*", prose)) <= 600
    assert "<!--" not in README


@pytest.mark.full
@pytest.mark.usefixtures("without_pandas")
def test_readme_shows_what_its_lines_print(capsys: pytest.CaptureFixture[str]) -> None:
    """Up to two of the 143 records that are scored, on another processor."""
    _, lines, shown = FENCE.findall(README)[:3]
    exec(compile(lines, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    (score, words), (found, said) = (text.strip().split(" ", 1) for text in (shown, printed))
    assert float(found) == pytest.approx(float(score), abs=2 / 143 + 1e-3)
    assert said == words


# The site


NOT_FETCHED = ("next", "prev", "search", "index", "canonical")


class Links(HTMLParser):
    """What a page makes a browser fetch, and the pages it leads to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.pages: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.pages.append(given.get("href", ""))
        elif tag == "link" and given.get("rel") not in NOT_FETCHED:
            self.fetched.append(given.get("href", ""))
        names = ("src", "srcset", "poster", "data")
        self.fetched += [given[name] for name in names if name in given]
        if style := given.get("style"):
            self.fetched += re.findall(r"url\(([^)]*)\)", style)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, built with warnings as errors."""
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    flags = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(folder / "trees")]
    command = [sys.executable, "-m", "sphinx", *flags, str(DOCS), str(folder / "html")]
    there = {**os.environ, "DOCS_URL": "https://example.org/pages/1.2.0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=there)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.full
def test_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        for address in Links(page).fetched:
            assert not re.match(r"(?:[a-z]+:)?//", address), (page.name, address)
            there = address.partition("?")[0].partition("#")[0]
            is_here = address.startswith("data:") or (page.parent / there).exists()
            assert not there or is_here, (page.name, address)
    imported = re.compile(r"(?:url\(|@import)\s*[\"']?([^\"')\s]+)")
    for sheet in site.rglob("*.css"):
        for address in imported.findall(sheet.read_text("utf-8")):
            assert not re.match(r"(?:https?:)?//", address), (sheet.name, address)


@pytest.mark.full
def test_site_can_be_hosted_and_searched(site: Path) -> None:
    """Every page is in the sitemap, at the address that it says is its own, and in the index."""
    places = [place.text or "" for place in ElementTree.parse(site / "sitemap.xml").iter()]
    pages = {page.relative_to(DOCS).with_suffix(".html").as_posix() for page in PAGES}
    assert {place for place in places if place.strip()} == {
        f"https://example.org/pages/1.2.0/{page}" for page in pages
    }
    for page in pages:
        canonical = f'<link rel="canonical" href="https://example.org/pages/1.2.0/{page}"'
        text = (site / page).read_text(encoding="utf-8")
        assert canonical in text, page
        assert 'class="versions" hidden' in text
        assert "versions.js" in text
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert all(f'"{page.removesuffix(".html")}"' in index for page in pages)


@pytest.mark.full
def test_every_page_is_in_the_navigation(site: Path) -> None:
    led_to = {address.partition("#")[0] for address in Links(site / "index.html").pages}
    for page in PAGES:
        address = page.relative_to(DOCS).with_suffix(".html").as_posix()
        assert address in led_to or address == "index.html", address
