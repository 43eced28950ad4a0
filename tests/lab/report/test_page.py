"""What the page says, and that it says it to everybody and to nobody else."""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.lab.conftest import EXACT, ran
from tests.lab.report.pages import Element, page_of, parsed

from vertizo.core.names import CONTROLS
from vertizo.lab.report import read, render
from vertizo.run.results import checkpoint
from vertizo.run.results.folder import RunFolder

HOSTILE = "<script>alert(1)</script>"

pytestmark = pytest.mark.full  # over a comparison in processes


def says(element: Element, *words: str) -> None:
    for word in words:
        assert word in element.text


def summary_of(folder: Path) -> Any:
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def page(comparison: Path) -> Element:
    return page_of(comparison)


@pytest.fixture(scope="module")
def everything(comparison: Path, private: Path, attacks: Path) -> Element:
    return page_of(comparison, private, attacks)


def section(page: Element, name: str) -> Element:
    return page.one("section", id=name)


def test_landmarks_headings_and_links(everything: Element) -> None:
    assert everything.one("html").attributes["lang"] == "en"
    for tag in ("header", "main", "footer", "h1", "title", "nav"):
        assert len(everything.all(tag)) == 1, tag
    assert everything.one("nav").attributes["aria-label"]
    for each in everything.all("section"):
        assert everything.one("h2", id=each.attributes["aria-labelledby"] or "").text
    ids = {e.attributes["id"] for tag in ("section", "main") for e in everything.all(tag)}
    links = [link.attributes["href"] for link in everything.all("a")]
    assert len(links) >= 8
    assert {f"#{name}" for name in ids} >= set(links)

    def names(element: Element) -> Iterator[str | None]:
        yield element.attributes.get("id")
        for child in element.children:
            yield from names(child)

    found = list(filter(None, names(everything)))
    assert len(found) == len(set(found)) > 20


def test_tables_and_figures_are_for_everybody(everything: Element) -> None:
    tables = everything.all("table")
    assert len(tables) >= 8
    for table in tables:
        assert table.one("caption").text
        assert all(head.attributes["scope"] in ("col", "row") for head in table.all("th"))
        width = len(table.one("thead").one("tr").children)
        for row in table.one("tbody").all("tr"):
            assert len(row.children) == width
            assert row.children[0].has("scope", "row")
    figures = everything.all("div", class_="figure")
    assert len(figures) >= 2
    for figure in figures:
        assert figure.all("details", class_="as-table")
        for area in figure.all("svg", class_="area"):
            assert area.has("role", "img")
            assert area.attributes["aria-label"]
            words = figure.one("p", id=area.attributes["aria-describedby"] or "")
            assert len(words.text) > 20


def test_nothing_is_loaded(comparison: Path) -> None:
    html = render(read([comparison]))
    page = parsed(html)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", html)
    for tag in ("link", "img", "iframe", "object", "form"):
        assert not page.all(tag)
    assert all("src" not in script.attributes for script in page.all("script"))


def test_the_policy_names_this_style_and_this_script(page: Element) -> None:
    (meta,) = page.all("meta", http_equiv="Content-Security-Policy")
    policy = meta.attributes["content"] or ""
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    (script,) = (s for s in page.all("script") if s.attributes.get("type") is None)
    for kind, element in (("style", page.one("style")), ("script", script)):
        digest = b64encode(sha256(element.own.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    html = "".join(str(e.attributes) for e in page.all("p") + page.all("svg") + page.all("td"))
    assert "'style'" not in html, "which the policy would not let through"


def test_headline(page: Element, comparison: Path) -> None:
    cards = section(page, "overview").all("li", class_="card")
    assert [card.all("p")[0].text for card in cards] == ["vafl on digits", "dpzv on digits"]
    one, two = (100 * summary_of(comparison / f"vafl/seed{s}")["test_accuracy"] for s in (0, 1))
    figure = f"{(one + two) / 2:.2f} ± {abs(one - two) / 2**0.5:.2f} %"
    says(cards[0], figure, "2 seeds", *CONTROLS.values(), "No privacy guarantee.")
    assert "paid" in cards[0].text or "pays" in cards[0].text or "is better in 2" in cards[0].text
    assert page.one("h1").text == "vafl, dpzv on digits"


def test_methods_with_controls_and_units(page: Element, comparison: Path) -> None:
    methods = section(page, "methods")
    short, whole = (Element("", {}, None, [each]) for each in methods.all("table"))
    assert short.one("table").has("class_", "sortable")
    needed = ["bytes up", "bytes down", "rounds", "seconds", "privacy"]
    assert list(short.rows()[1]) == ["method", "Test accuracy, %", *CONTROLS.values(), *needed]
    row = whole.rows()[1]
    start = ["method", "Test accuracy, %", *CONTROLS.values(), "Test loss"]
    assert list(row)[: len(start)] == start
    assert row["method"].text == "dpzv"
    frozen = (summary_of(comparison / f"dpzv/seed{seed}-frozen") for seed in (0, 1))
    mean = sum(figures["test_accuracy"] for figures in frozen) / 2
    cell = row["frozen clients"]
    assert float(cell.attributes["data-value"] or "") == pytest.approx(mean)
    assert cell.text.startswith(f"{100 * mean:.2f} ±")
    assert row["bytes up"].text.endswith("kB")


def test_both_heads_are_shown_by_what_may_be_done_with_them(tmp_path: Path) -> None:
    own = ("server.final_head=logistic", *EXACT, "seed=0")
    folder = ran(tmp_path / "run", *own)
    ran(folder / "controls" / "frozen", *own, "control=frozen")
    page, raw = page_of(folder), "raw (stays with the label holder)"
    private = "private (may be handed on, were the noise secret)"
    (table,) = (t for t in section(page, "methods").all("table") if "Both heads" in t.text)
    first, second = Element("", {}, None, [table]).rows()
    assert first["method and head"].text == f"dpzv, {private}"
    assert second["method and head"].text == f"dpzv, {raw}"
    for run, column in (
        (folder, "Test accuracy, %"),
        (folder / "controls/frozen", "frozen clients"),
    ):
        summary = summary_of(run)
        for row, figures in ((first, summary), (second, summary["raw_head"])):
            value = float(row[column].attributes["data-value"] or "")
            assert value == pytest.approx(figures["test_accuracy"])
    says(section(page, "overview"), f"Test accuracy, {private}", raw, "raw, frozen clients")
    says(section(page, "privacy"), f"{private}:", f"{raw}: The raw head was fitted")
    assert "Both heads" not in page_of(folder / "controls" / "frozen").text


def test_curves_against_everything_there_is(page: Element, comparison: Path) -> None:
    figure = section(page, "curves").one("div", class_="figure")
    plots = figure.all("figure", class_="plot")
    chosen = {(p.attributes["data-measure"], p.attributes["data-axis"]) for p in plots}
    for axis in ("round", "bytes", "seconds", "virtual"):
        for measure in ("validation_accuracy", "validation_loss", "train_loss"):
            assert (measure, axis) in chosen
    assert len([plot for plot in plots if "hidden" not in plot.attributes]) == 1
    assert len(plots[0].all("path", class_="line")) == 6
    assert len(plots[0].all("path", class_="band")) == 2
    choices = [c.attributes["value"] for c in figure.all("input", type="radio")]
    assert len(choices) == len(set(choices)) == 4 + 4
    row = figure.one("details", class_="as-table").rows()[3]
    one, two = (rows_of(comparison / f"vafl/seed{seed}")[3] for seed in (0, 1))
    assert row["round"].text == str(one["round"])
    mean = (one["validation_loss"] + two["validation_loss"]) / 2
    assert row["Validation loss"].text.startswith(f"{mean:.4f} ±")


def test_stragglers(page: Element) -> None:
    tables = section(page, "timing").all("table", class_="timeline")
    assert len(tables) == 2
    rows = tables[0].one("tbody").all("tr")
    assert len(rows) == 4
    assert "straggler, 6 times slower" in rows[1].text
    assert "25.0 %" in rows[0].text
    assert len(rows[0].all("rect")) == 3


def test_differences_and_everything(page: Element, comparison: Path) -> None:
    configuration = section(page, "configuration")
    keys = {row.children[0].text for row in configuration.one("tbody").all("tr")}
    assert "method.name" in keys
    assert not keys & {"seed", "control", "epochs"}
    assert page.all("pre")[0].own == (comparison / "vafl/seed0/config.yaml").read_text()
    assert "vertizo compare --methods vafl,dpzv" in configuration.text
    page = parsed(render(read([comparison]), "Öl & <Gas>"))
    assert page.one("h1").text == "Öl & <Gas>"
    assert page.one("title").text == "Öl & <Gas> – Vertizo report"


def test_an_exact_guarantee(private: Path) -> None:
    page = page_of(private)
    privacy = section(page, "privacy")
    says(privacy, "Exact guarantee", summary_of(private)["privacy"]["words"], "δ")
    says(privacy, "Protected", "Not protected", "Labels, of each training record")
    says(privacy, "σ on the sum of a reply", "Keep this page with the labels.")
    assert "Not comparable" not in privacy.text
    says(section(page, "overview"), "ε = 3 at δ = ")
    axes = {p.attributes["data-axis"] for p in page.all("figure", class_="plot")}
    assert "epsilon0" in axes


def test_published_is_no_guarantee(tmp_path: Path) -> None:
    published = ("privacy.accounting=published", "server.update=sgd")
    page = page_of(ran(tmp_path / "run", *EXACT, *published))
    says(section(page, "privacy"), "Published formula: no guarantee", "gaps are not covered")
    card = section(page, "overview").one("li", class_="card")
    says(card, "which does not hold")
    assert "g-published" in str([badge.attributes for badge in card.all("p")])
    assert not any("ε spent" in label.text for label in page.all("label"))


def test_no_guarantee_and_those_of_other_things(
    page: Element, private: Path, tmp_path: Path
) -> None:
    (statement,) = section(page, "privacy").all("article")
    assert statement.one("h3").text == "No guarantee vafl, dpzv"
    assert "no bound holds against the clients" in statement.text
    other = ran(tmp_path / "other", *EXACT, "privacy.delta=1e-6", "method.name=czofo")
    assert "Not comparable" in section(page_of(private, other), "privacy").text


def test_attacks_beside_their_controls(everything: Element, attacks: Path) -> None:
    figure = json.loads((attacks / "attacks.json").read_text())["results"][0]["figures"]["accuracy"]
    (row,) = section(everything, "attacks").rows()
    assert row["attack"].text.startswith("direct-client")
    assert row["found"].text.startswith(f"{figure['mean']:.3f} ±")
    assert row["control"].text == f"{figure['control']:.3f}"
    assert "no proof of privacy" in section(everything, "attacks").text


def test_attacks_alone(attacks: Path, tmp_path: Path) -> None:
    page = page_of(attacks)
    assert page.one("h1").text == "Attacks"
    assert not page.all("section", id="curves")
    result = {"attack": "x", "method": "dpzv", "noise": True, "figures": {}}
    content = {"results": [{**result, "not_applicable": f"because {HOSTILE}"}]}
    (tmp_path / "attacks.json").write_text(json.dumps(content))
    text = section(page_of(tmp_path), "attacks").text
    assert f"x on dpzv with noise: because {HOSTILE}" in text


def altered(folder: Path, name: str, **changes: Any) -> None:
    """Change keys of a folder's file; None removes one."""
    content = json.loads((folder / name).read_text()) | changes
    kept = {key: value for key, value in content.items() if value is not None}
    checkpoint.keep(folder / name, json.dumps(kept).encode())


def copied(source: Path, folder: Path, *controls: str) -> Path:
    """A run's folder somewhere else, with those of its controls in it."""
    shutil.copytree(source, folder)
    for control in controls:
        place = source.with_name(f"{source.name}-{control}")
        shutil.copytree(place, folder / "controls" / control)
    return folder


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return RunFolder(folder).metrics()


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    checkpoint.keep(folder / "metrics.jsonl", text.encode())


def test_names_are_text(private: Path, comparison: Path, tmp_path: Path) -> None:
    folder = copied(private, tmp_path / f"a{HOSTILE.replace('/', '')}")
    altered(
        folder,
        "summary.json",
        classes=[HOSTILE] * 10,
        parties=[HOSTILE, "'\"", "</svg>", "b"],
        dataset=f"{HOSTILE}</title>",
        version=HOSTILE,
    )
    html = render(read([folder]))
    page = parsed(html)
    kinds = [script.attributes.get("type") for script in page.all("script")]
    assert [kind for kind in kinds if kind != "application/json"] == [None]
    assert HOSTILE not in html
    assert page.one("h1").text.endswith(f"{HOSTILE}</title>")
    (table,) = section(page, "timing").all("table", class_="timeline")
    names = [row.children[0].text for row in table.one("tbody").all("tr")]
    assert names == [HOSTILE, "'\"", "</svg>", "b"]
    label = "a<!--<script>&amp;'"
    copied(comparison / "dpzv" / "seed0", tmp_path / "compared" / label / "seed0")
    script = section(page_of(tmp_path / "compared"), "curves").one("script", class_="readings")
    readings = json.loads(script.own)
    assert readings["names"] == [label], "a label cannot leave the readings"


def test_an_unfinished_run(private: Path, tmp_path: Path) -> None:
    folder = copied(private, tmp_path / "run")
    (folder / "summary.json").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([*lines[:3], lines[3][:20]]))
    page = page_of(folder)
    card = section(page, "overview").one("li", class_="card")
    says(card, "unfinished", f"round {json.loads(lines[2])['round']}")
    says(section(page, "methods"), "No run on digits is finished.")
    says(section(page, "privacy"), "statement is made at the end")
    assert section(page, "curves").all("path", class_="line")
    (folder / "metrics.jsonl").unlink()
    page = page_of(folder)
    says(section(page, "curves"), "There are no evaluations yet.")
    says(section(page, "overview"), "before its first evaluation")


def test_older_versions(private: Path, comparison: Path, tmp_path: Path) -> None:
    folder = copied(comparison / "dpzv" / "seed0", tmp_path / "rows")
    new = {"queries", "staleness_mean", "staleness_max"}
    old = [{k: v for k, v in row.items() if k not in new} for row in rows_of(folder)]
    write_rows(folder, old)
    page = page_of(folder)
    assert "do not say whose queries" in section(page, "timing").text
    assert not section(page, "timing").all("table", class_="timeline")
    assert section(page, "curves").all("path", class_="line")
    folder = copied(private, tmp_path / "summary")
    privacy = {"guarantee": "exact", "words": "So it is.", "epsilon": 3.0, "delta": 1e-5}
    altered(folder, "summary.json", privacy=privacy, staleness=None, best=None)
    says(section(page_of(folder), "privacy"), "So it is.", "of an older version")


def test_rows_that_make_no_sense(comparison: Path, tmp_path: Path) -> None:
    metrics = copied(comparison / "dpzv" / "seed0", tmp_path / "run") / "metrics.jsonl"
    usual = metrics.read_text()
    for row in (
        "[]",
        '"text"',
        '{"round": "1"}',
        '{"round": 99, "validation_loss": NaN, "queries": {}}',
        '{"round": 99, "validation_loss": 1e400, "bytes_up": "x"}',
        '{"round": true}',
    ):
        checkpoint.keep(metrics, f"{usual}{row}\n".encode())
        assert section(page_of(tmp_path / "run"), "curves").all("path", class_="line"), row


def test_a_run_without_test_records(private: Path, tmp_path: Path) -> None:
    folder = copied(private, tmp_path / "run")
    best = {"validation_accuracy": 0.875, "validation_loss": 1.5, "round": 9}
    gone = {key: None for key in summary_of(folder) if key.startswith("test_")}
    altered(folder, "summary.json", **gone, best=best)
    says(section(page_of(folder), "overview"), "87.50 %", "Validation accuracy")


def test_controls_are_beside_their_runs(comparison: Path, tmp_path: Path) -> None:
    source = comparison / "dpzv" / "seed0"
    for name in ("one", "two"):
        copied(source, tmp_path / "runs" / name, "frozen", "random")
    cards = section(page_of(tmp_path / "runs"), "overview").all("li", class_="card")
    assert len(cards) == 2
    assert not any("unfinished" in card.text for card in cards)
    page = page_of(tmp_path / "runs" / "one")
    assert len(section(page, "overview").all("li", class_="card")) == 1
    first = section(page, "curves").all("figure", class_="plot")[0]
    assert len(first.all("path", class_="line")) == 3
    assert "1 seed, no spread" in section(page, "overview").text
    page = page_of(source, comparison / "dpzv" / "seed0-frozen")
    assert len(section(page, "overview").all("li", class_="card")) == 1, "one and its control"
    other = page_of(source, comparison / "vafl" / "seed0")
    assert other.one("h1").text == "dpzv, vafl on digits"


def test_a_served_job(private: Path, tmp_path: Path) -> None:
    """Rows of served jobs: closing ones are of the test records, and of the best parameters."""
    folder = copied(private, tmp_path / "hospital")
    (folder / "federation.json").write_text("{}")
    rows = rows_of(folder)
    for number, row in enumerate(rows):
        row.update(number=number, model="now")
        row.pop("virtual_seconds")
    rows.append({**rows[-1], "model": "best", "validation_loss": 0.0, "round": 1000})
    write_rows(folder, rows)
    page = page_of(folder)
    assert "ledger.sqlite" in section(page, "privacy").text
    assert "seconds, 0 to" in section(page, "timing").one("table", class_="timeline").text
    table = section(page, "curves").one("details", class_="as-table").one("tbody")
    assert "1,000" not in table.text
