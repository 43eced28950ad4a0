"""What the page says, and that it says it to everybody and to nobody else."""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.studies.conftest import EXACT, ran
from tests.studies.report.pages import Element, page_of, parsed

from vertizo.studies.report import read, render

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def page(comparison: Path) -> Element:
    return page_of(comparison)


@pytest.fixture(scope="module")
def everything(comparison: Path, private: Path, attacks: Path) -> Element:
    return page_of(comparison, private, attacks)


def section(page: Element, name: str) -> Element:
    return page.one("section", id=name)


class TestForm:
    def test_landmarks_headings_and_links(self, everything: Element) -> None:
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
        found: list[str] = []

        def walk(element: Element) -> None:
            found.extend(filter(None, [element.attributes.get("id")]))
            for child in element.children:
                walk(child)

        walk(everything)
        assert len(found) == len(set(found)) > 20

    def test_tables_and_figures_are_for_everybody(self, everything: Element) -> None:
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

    def test_nothing_is_loaded(self, comparison: Path) -> None:
        html = render(read([comparison]))
        page = parsed(html)
        assert not re.search(r"https?:|//[a-z]|url\(|@import", html)
        for tag in ("link", "img", "iframe", "object", "form"):
            assert not page.all(tag)
        assert all("src" not in script.attributes for script in page.all("script"))

    def test_the_policy_names_this_style_and_this_script(self, page: Element) -> None:
        (meta,) = page.all("meta", http_equiv="Content-Security-Policy")
        policy = meta.attributes["content"] or ""
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        scripts = [s for s in page.all("script") if s.attributes.get("type") is None]
        assert len(scripts) == 1
        for kind, element in (("style", page.one("style")), ("script", scripts[0])):
            text = "".join(piece for piece in element.pieces if isinstance(piece, str))
            digest = b64encode(sha256(text.encode()).digest()).decode()
            assert f"{kind}-src 'sha256-{digest}'" in policy
        html = "".join(str(e.attributes) for e in page.all("p") + page.all("svg") + page.all("td"))
        assert "'style'" not in html, "which the policy would not let through"


class TestContent:
    def test_headline(self, page: Element, comparison: Path) -> None:
        cards = section(page, "overview").all("li", class_="card")
        assert [card.all("p")[0].text for card in cards] == ["vafl on digits", "dpzv on digits"]
        summaries = [
            json.loads((comparison / "vafl" / f"seed{seed}" / "summary.json").read_text())
            for seed in (0, 1)
        ]
        one, two = (100 * summary["test_accuracy"] for summary in summaries)
        spread = abs(one - two) / 2**0.5
        assert f"{(one + two) / 2:.2f} ± {spread:.2f} %" in cards[0].text
        assert "2 seeds" in cards[0].text
        assert "frozen clients" in cards[0].text
        assert "random updates" in cards[0].text
        assert "No privacy guarantee." in cards[0].text
        assert page.one("h1").text == "vafl, dpzv on digits"

    def test_methods_with_controls_and_units(self, page: Element, comparison: Path) -> None:
        table = section(page, "methods").one("table")
        assert table.has("class_", "sortable")
        heads = [head.text for head in table.one("thead").all("th")]
        start = ["method", "Test accuracy, %", "frozen clients", "random updates", "Test loss"]
        assert heads[:5] == start
        row = table.one("tbody").all("tr")[1]
        assert row.children[0].text == "dpzv"
        figures = [
            json.loads((comparison / "dpzv" / f"seed{seed}-frozen" / "summary.json").read_text())
            for seed in (0, 1)
        ]
        mean = sum(figure["test_accuracy"] for figure in figures) / 2
        assert float(row.children[2].attributes["data-value"] or "") == pytest.approx(mean)
        assert row.children[2].text.startswith(f"{100 * mean:.2f} ±")
        assert row.children[heads.index("bytes up")].text.endswith("kB")

    def test_curves_against_everything_there_is(self, page: Element) -> None:
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

    def test_the_table_of_a_figure_has_its_figures(self, page: Element, comparison: Path) -> None:
        figure = section(page, "curves").one("div", class_="figure")
        table = figure.one("details", class_="as-table").one("table")
        heads = [head.text for head in table.one("thead").all("th")]
        row = table.one("tbody").all("tr")[3]
        rows = [
            json.loads(
                (comparison / "vafl" / f"seed{s}" / "metrics.jsonl").read_text().split("\n")[3]
            )
            for s in (0, 1)
        ]
        assert row.children[heads.index("round")].text == str(rows[0]["round"])
        mean = sum(row["validation_loss"] for row in rows) / 2
        assert row.children[heads.index("Validation loss")].text.startswith(f"{mean:.4f} ±")

    def test_stragglers(self, page: Element) -> None:
        tables = section(page, "timing").all("table", class_="timeline")
        assert len(tables) == 2
        rows = tables[0].one("tbody").all("tr")
        assert len(rows) == 4
        assert "straggler, 6 times slower" in rows[1].text
        assert "25.0 %" in rows[0].text
        assert len(rows[0].all("rect")) == 3

    def test_differences_and_everything(self, page: Element, comparison: Path) -> None:
        configuration = section(page, "configuration")
        keys = {row.children[0].text for row in configuration.one("tbody").all("tr")}
        assert "method.name" in keys
        assert not keys & {"seed", "control", "epochs"}
        texts = ["".join(p for p in pre.pieces if isinstance(p, str)) for pre in page.all("pre")]
        assert texts[0] == (comparison / "vafl" / "seed0" / "config.yaml").read_text()
        assert "vertizo compare --methods vafl,dpzv" in configuration.text

        page = parsed(render(read([comparison]), "Öl & <Gas>"))
        assert page.one("h1").text == "Öl & <Gas>"
        assert page.one("title").text == "Öl & <Gas> – Vertizo report"


class TestPrivacy:
    def test_exact(self, private: Path) -> None:
        page = page_of(private)
        words = json.loads((private / "summary.json").read_text())["privacy"]["words"]
        privacy = section(page, "privacy")
        assert "Exact guarantee" in privacy.text
        assert words in privacy.text
        for wanted in ("Protected", "Not protected", "Labels, of each training record", "δ"):
            assert wanted in privacy.text
        assert "σ on the sum of a reply" in privacy.text
        assert "Keep this page with the labels." in privacy.text
        assert "Not comparable" not in privacy.text
        assert "ε = 3 at δ = " in section(page, "overview").text
        axes = {p.attributes["data-axis"] for p in page.all("figure", class_="plot")}
        assert "epsilon0" in axes

    def test_published_is_no_guarantee(self, tmp_path: Path) -> None:
        published = ("privacy.accounting=published", "server.update=sgd")
        page = page_of(ran(tmp_path / "run", *EXACT, *published))
        assert "Published formula: no guarantee" in section(page, "privacy").text
        assert "gaps are not covered" in section(page, "privacy").text
        card = section(page, "overview").one("li", class_="card")
        assert "which does not hold" in card.text
        assert "g-published" in str([badge.attributes for badge in card.all("p")])
        assert not any("ε spent" in label.text for label in page.all("label"))

    def test_none(self, page: Element) -> None:
        (statement,) = section(page, "privacy").all("article")
        assert statement.one("h3").text == "No guarantee vafl, dpzv"
        assert "no bound holds against the clients" in statement.text

    def test_guarantees_of_other_things_are_not_compared(
        self, private: Path, tmp_path: Path
    ) -> None:
        other = ran(tmp_path / "other", *EXACT, "privacy.delta=1e-6", "method.name=czofo")
        text = section(page_of(private, other), "privacy").text
        assert "Not comparable" in text


class TestAttacks:
    def test_figures_beside_their_controls(self, everything: Element, attacks: Path) -> None:
        figure = json.loads((attacks / "attacks.json").read_text())["results"][0]["figures"]
        table = section(everything, "attacks").one("table")
        row = table.one("tbody").one("tr")
        heads = [head.text for head in table.one("thead").all("th")]
        assert row.children[0].text.startswith("direct-client")
        found = row.children[heads.index("found")]
        assert found.text.startswith(f"{figure['accuracy']['mean']:.3f} ±")
        control = row.children[heads.index("control")]
        assert control.text == f"{figure['accuracy']['control']:.3f}"
        assert "no proof of privacy" in section(everything, "attacks").text

    def test_attacks_alone(self, attacks: Path, tmp_path: Path) -> None:
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
    (folder / name).write_text(json.dumps(kept))


def copied(source: Path, folder: Path, *controls: str) -> Path:
    """A run's folder somewhere else, with those of its controls in it."""
    shutil.copytree(source, folder)
    for control in controls:
        place = source.with_name(f"{source.name}-{control}")
        shutil.copytree(place, folder / "controls" / control)
    return folder


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


class TestOddFolders:
    def test_names_are_text(self, private: Path, comparison: Path, tmp_path: Path) -> None:
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
        readings = json.loads("".join(p for p in script.pieces if isinstance(p, str)))
        assert readings["names"] == [label], "a label cannot leave the readings"

    def test_an_unfinished_run(self, private: Path, tmp_path: Path) -> None:
        folder = copied(private, tmp_path / "run")
        (folder / "summary.json").unlink()
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        (folder / "metrics.jsonl").write_text("\n".join([*lines[:3], lines[3][:20]]))
        page = page_of(folder)
        card = section(page, "overview").one("li", class_="card")
        assert "unfinished" in card.text
        assert f"round {json.loads(lines[2])['round']}" in card.text
        assert "No run on digits is finished." in section(page, "methods").text
        assert "statement is made at the end" in section(page, "privacy").text
        assert section(page, "curves").all("path", class_="line")
        (folder / "metrics.jsonl").unlink()
        page = page_of(folder)
        assert "There are no evaluations yet." in section(page, "curves").text
        assert "before its first evaluation" in section(page, "overview").text

    def test_older_versions(self, private: Path, comparison: Path, tmp_path: Path) -> None:
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
        text = section(page_of(folder), "privacy").text
        assert "So it is." in text
        assert "of an older version" in text

    def test_rows_that_make_no_sense(self, comparison: Path, tmp_path: Path) -> None:
        source = comparison / "dpzv" / "seed0"
        for number, row in enumerate(
            (
                "[]",
                '"text"',
                '{"round": "1"}',
                '{"round": 99, "validation_loss": NaN, "queries": {}}',
                '{"round": 99, "validation_loss": 1e400, "bytes_up": "x"}',
                '{"round": true}',
            )
        ):
            folder = copied(source, tmp_path / f"run{number}")
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(row + "\n")
            assert section(page_of(folder), "curves").all("path", class_="line"), row

    def test_a_run_without_test_records(self, private: Path, tmp_path: Path) -> None:
        folder = copied(private, tmp_path / "run")
        tested = json.loads((folder / "summary.json").read_text())
        best = {"validation_accuracy": 0.875, "validation_loss": 1.5, "round": 9}
        gone = {key: None for key in tested if key.startswith("test_")}
        altered(folder, "summary.json", **gone, best=best)
        overview = section(page_of(folder), "overview").text
        assert "87.50 %" in overview
        assert "Validation accuracy" in overview

    def test_controls_are_beside_their_runs(self, comparison: Path, tmp_path: Path) -> None:
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

    def test_a_served_job(self, private: Path, tmp_path: Path) -> None:
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
