"""The page in a real browser: opened from disk, switched, sorted, printed, and read aloud.

Needs Chromium (Debian: ``apt-get install chromium``) and Playwright, which drives it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.lazy import Lazy

from vertizo.lab.report import read, write

playwright = Lazy("playwright.sync_api")

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.needs("playwright"),
    pytest.mark.full,
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here"),
]
PATIENT = 60_000
"""Milliseconds that a loaded machine may take."""
OPEN = "document.querySelectorAll('details').forEach(d => d.open = true)"


@pytest.fixture(scope="module")
def file(
    comparison: Path, private: Path, attacks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    place = tmp_path_factory.mktemp("page") / "report.html"
    write(read([comparison, private, attacks]), place)
    return place


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        # Without a sandbox where the tests run as root, which Chromium refuses otherwise.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=BROWSER, args=arguments, timeout=PATIENT)
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Any, file: Path, said: list[str] | None = None, **options: Any
) -> Iterator[Any]:
    """The page in a tab of its own; what goes wrong or leaves it is a failure, or else ``said``."""
    messages: list[str] = [] if said is None else said
    requests: list[str] = []
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENT)
    page = context.new_page()
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    yield page
    if said is None:
        assert messages == []
        assert requests == [file.as_uri()]
    context.close()


@pytest.fixture
def page(browser: Any, file: Path) -> Iterator[Any]:
    with opened(browser, file, viewport={"width": 1200, "height": 900}) as page:
        yield page


def shown_plot(page: Any) -> Any:
    return page.locator("#curves0 figure.plot:not([hidden])")


def test_plots_are_drawn(page: Any) -> None:
    for figure in ("#curves0", "#timing0"):
        plot = page.locator(f"{figure} figure.plot:not([hidden])")
        assert plot.count() == 1
        area = plot.locator(".area").bounding_box()
        assert area["width"] > 600
        assert area["height"] > 150
        lines = plot.locator("path.line")
        assert lines.count() >= 3
        for place in range(lines.count()):
            box = lines.nth(place).bounding_box()
            assert box["width"] > 0.05 * area["width"]
            assert box["x"] >= area["x"] - 3
            assert box["x"] + box["width"] <= area["x"] + area["width"] + 3
            stroke = lines.nth(place).evaluate("line => getComputedStyle(line).stroke")
            assert stroke.startswith("rgb(")
    marks = shown_plot(page).locator(".mark use")
    assert marks.count() >= 12
    assert marks.first.bounding_box()["width"] > 5
    style = "lines => lines.map(line => getComputedStyle(line).strokeDasharray)"
    assert len(set(shown_plot(page).locator("path.line").evaluate_all(style))) == 3


def test_axes_are_switched_by_pointer_and_by_keyboard(page: Any) -> None:
    assert shown_plot(page).get_attribute("data-axis") == "round"
    page.locator("#curves0 label", has_text="bytes").click()
    plot = shown_plot(page)
    assert plot.count() == 1
    assert plot.get_attribute("data-axis") == "bytes"
    assert plot.locator(".across-title").inner_text() == "kB sent, both directions"
    page.keyboard.press("ArrowRight")
    assert shown_plot(page).get_attribute("data-axis") == "seconds"
    page.locator("#curves0 label", has_text="Validation loss").click()
    plot = shown_plot(page)
    assert plot.get_attribute("data-measure") == "validation_loss"
    assert plot.get_attribute("data-axis") == "seconds"
    words = page.locator("#curves0 .in-words:visible")
    assert words.inner_text().startswith("Validation loss: vafl goes from")
    page.locator("#curves0 label", has_text="ε spent").click()
    assert shown_plot(page).locator("path.line").count() == 1
    notes = shown_plot(page).locator(".note").all_inner_texts()
    assert any("no ε is spent under no guarantee" in note for note in notes)


def test_lines_are_hidden_and_shown(page: Any) -> None:
    def drawn() -> set[str]:
        found = shown_plot(page).locator('[data-line="1"]')
        return set(found.evaluate_all("f => f.map(e => getComputedStyle(e).display)"))

    box = page.locator('#curves0 .legend input[data-line="1"]')
    assert drawn() == {"inline"}
    box.uncheck()
    assert drawn() == {"none"}
    page.locator("#curves0 label", has_text="bytes").click()
    assert drawn() == {"none"}
    box.check()
    assert drawn() == {"inline"}


def test_a_pointer_reads_figures(page: Any) -> None:
    plot = shown_plot(page)
    assert not plot.locator(".reading").is_visible()
    box = plot.locator(".area").bounding_box()
    plot.locator(".area").hover(position={"x": box["width"] - 3, "y": box["height"] / 2})
    reading = plot.locator(".reading")
    assert reading.is_visible()
    assert "rounds" in reading.locator("p").inner_text()
    last = page.locator("#curves0 .in-words:visible").inner_text()
    first = reading.locator("li").first.inner_text()
    assert first.startswith("vafl: ")
    assert first.removeprefix("vafl: ") in last
    page.mouse.move(5, 5)
    assert not reading.is_visible()


def test_tables_are_sorted_by_click_and_by_keyboard(page: Any) -> None:
    table = page.locator("#methods table").first
    head = table.locator("th", has_text="bytes up")

    def figures() -> list[float]:
        column = head.evaluate("head => head.cellIndex")
        cells = table.locator(f"tbody tr > :nth-child({column + 1})")
        return [float(value) for value in cells.evaluate_all("c => c.map(x => x.dataset.value)")]

    assert head.get_attribute("aria-sort") == "none"
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert figures() == sorted(figures())
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert figures() == sorted(figures(), reverse=True)
    page.keyboard.press("Space")
    assert head.get_attribute("aria-sort") == "ascending"
    said = page.locator("#methods [role=status]").first.inner_text()
    assert said == "Sorted by bytes up, ascending."
    name = table.locator("th", has_text="method")
    name.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "none"
    names = table.locator("tbody th").all_inner_texts()
    assert names == sorted(names)


def test_the_focus_can_be_seen(page: Any) -> None:
    page.keyboard.press("Tab")
    style = "getComputedStyle(document.activeElement)"
    assert page.evaluate("document.activeElement.textContent") == "To the figures"
    assert page.evaluate(f"{style}.outlineStyle") == "solid"
    button = page.locator("#methods thead button").first
    button.focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert page.evaluate(f"parseFloat({style}.outlineWidth)") >= 2


def test_a_telephone_needs_no_sideways_scrolling(browser: Any, file: Path) -> None:
    for width in (320, 360, 768):
        size = {"width": width, "height": 740}
        with opened(browser, file, viewport=size, has_touch=True) as page:
            for script in ("0", OPEN):
                page.evaluate(script)
                assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert shown_plot(page).locator(".area").bounding_box()["width"] > 0.7 * width


def test_paper_has_everything_and_no_controls(browser: Any, file: Path) -> None:
    with opened(browser, file, color_scheme="dark") as page:
        paper = page.pdf(format="A4", print_background=True)
        assert paper.startswith(b"%PDF-")
        assert len(paper) > 20_000
        assert page.locator("details[open]").count() < page.locator("details").count(), "as before"
        page.emulate_media(media="print", color_scheme="dark")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.locator("pre").first.is_visible()
        assert page.locator("#curves0 .as-table table").is_visible()
        assert page.locator("#curves0 figure.plot:visible").count() >= 3, "every measure"
        for gone in ("nav", ".switches", ".legend input"):
            assert not page.locator(gone).first.is_visible()
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(255, 255, 255)"


def test_axe_finds_nothing(browser: Any, private: Path, attacks: Path, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not there")
    file = tmp_path / "report.html"
    write(read([private, attacks]), file)
    for width, scheme in ((360, "light"), (1200, "dark")):
        # Axe is a script that is put into the page, which the page's own policy would not run.
        options = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
        with opened(browser, file, said=[], bypass_csp=True, **options) as page:
            page.evaluate(OPEN)
            results = axe.Axe().run(page).response
            found = [(each["id"], each["nodes"][0]["html"]) for each in results["violations"]]
            assert found == [], (width, scheme)
            assert len(results["passes"]) > 20


def test_without_a_script_it_can_still_be_read(browser: Any, file: Path) -> None:
    with opened(browser, file, said=[], java_script_enabled=False) as page:
        assert shown_plot(page).count() == 1
        assert not page.locator(".switches").first.is_visible()
        assert page.locator("#methods table").first.is_visible()


def test_a_foreign_script_does_not_run(browser: Any, file: Path, tmp_path: Path) -> None:
    """Were something let through unescaped, the policy would stop it."""
    foreign = (
        "<script>document.title = 'mine'</script><img src=x onerror=\"document.title='mine'\">"
    )
    other = tmp_path / "page.html"
    other.write_text(file.read_text(encoding="utf-8").replace("</h1>", f"</h1>{foreign}"))
    said: list[str] = []
    with opened(browser, other, said) as page:
        assert page.title().endswith("Vertizo report")
    assert len([line for line in said if "Content Security Policy" in line]) >= 2
