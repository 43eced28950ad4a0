"""`vz.compare`, `vz.worth` and `vz.plan`: the commands' numbers, as frames, pictures and HTML."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.command_line import Vertizo, sets
from tests.lazy import Lazy
from tests.same import timeless
from tests.words import says

import vertizo as vz
from vertizo.config import choosing
from vertizo.config.choosing import Source
from vertizo.lab import comparison, notebook
from vertizo.lab.findings import Dot, Findings, Picture, Table
from vertizo.lab.reproduction import plots
from vertizo.lab.worth import study

pandas = Lazy("pandas")
figures = Lazy("matplotlib.figure")
EVIL = "<script>alert(1)</script>\"'&$x_$"
SMALL = ("data.name=breast-cancer", "data.limit=120", "epochs=1")
TREE = {"data": {"name": "breast-cancer", "limit": 120}, "epochs": 1}
CASE = {"records": 5000, "clients": 3, "epsilon": 1.0, "delta": 1e-5}
REPLIES = {"epochs": 5, "batch": 100, "server": "none", "records_per_person": 3}


def words_of(html: str) -> str:
    """What is shown; the HTML is well-formed."""
    return "\n".join(ElementTree.fromstring(f"<div>{html}</div>").itertext())


def axes() -> Any:
    return figures.Figure().subplots()


@pytest.fixture
def evil() -> Findings:
    return Findings(
        *(EVIL, [EVIL], [(EVIL, EVIL)], [Table(EVIL, [EVIL, EVIL], [[EVIL, EVIL]])], [EVIL]),
        content={},
        records={"first": [{EVIL: EVIL}], "second": [{"a": {"b": 1}}]},
        picture=Picture(EVIL, [Dot(EVIL, 1.0, (0.5, 2.0)), Dot("", float("inf"))], 1.0, log=True),
    )


def test_no_text_becomes_html_or_mathematics(evil: Findings) -> None:
    html = evil._repr_html_()
    assert "<script" not in html
    assert words_of(html).count("alert(1)") == 10
    drawn = evil.plot(axes())
    assert [label.get_text() for label in drawn.get_yticklabels()] == [EVIL.replace("$", r"\$")]
    assert EVIL in repr(evil)
    assert str(evil).endswith(f"\n\n{EVIL}  {EVIL}\n{EVIL}  {EVIL}")


def test_frames(evil: Findings) -> None:
    assert list(evil.frames) == ["first", "second"]
    assert evil.frame.to_dict("records") == [{EVIL: EVIL}]
    assert list(evil.frames["second"].columns) == ["a.b"]


def test_what_is_not_installed_is_one_line(evil: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(vz.VertizoError, match=r"^frames need pandas; pip install pandas$"):
        evil.frame
    monkeypatch.setattr(plots, "available", lambda: False)
    with pytest.raises(
        vz.VertizoError, match=r"^pictures need Matplotlib; pip install '\w+\[plots"
    ):
        evil.plot()


@pytest.mark.parametrize("more", [{}, {"cover": "features", "positives": 0.1}, REPLIES])
def test_a_plan_has_the_numbers_of_the_command(call: Vertizo, more: dict[str, Any]) -> None:
    given = {**CASE, **more}
    options = [x for key, value in given.items() for x in (f"--{key.replace('_', '-')}", value)]
    out = call("privacy", "plan", *options, "--json").well()
    found = vz.plan(**given)
    assert json.loads(json.dumps(found.content)) == json.loads(out)
    shown = words_of(found._repr_html_())
    for line in call("privacy", "plan", *options).out.splitlines():
        if line.startswith("│"):
            assert all(cell.strip() in shown for cell in line.strip("│").split("│")), line
    assert len(found.plot(axes()).get_yticklabels()) >= 3
    first = found.frame.iloc[0]
    assert (first.noise if "ways" in found.content else first.epsilon) > 0


def test_a_plan_for_a_configuration(tmp_path: Path) -> None:
    tree = {**TREE, "privacy": {"epsilon": 2.0}}
    (tmp_path / "config.yaml").write_text(json.dumps(tree))
    data = vz.Experiment.from_yaml(tmp_path / "config.yaml").data()
    known = {"records": data.records, "clients": len(data.parties), "delta": 1e-5}
    for source in (tree, tmp_path / "config.yaml", str(tmp_path / "config.yaml")):
        assert vz.plan(source).content == vz.plan(**known, epsilon=2.0).content
    other = vz.plan(tree, ["privacy.delta=1e-6"], epsilon=1.0, clients=9)
    assert other.content == vz.plan(**{**known, "delta": 1e-6, "clients": 9}, epsilon=1.0).content
    auto = vz.plan({**TREE, "method": "auto"}, epsilon=2.0)  # nothing is tried out
    assert auto.content == vz.plan(**known, epsilon=2.0).content


def sources(path: Path) -> dict[str, notebook.Config]:
    """One configuration in every form, with another method's own keys where it is complete."""
    path.write_text(json.dumps(TREE))
    other = vz.ExperimentConfig.model_validate({**TREE, "method": {"name": "cascaded"}})
    return {
        "path": path,
        "text": str(path),
        "dict": TREE,
        "from_yaml": vz.Experiment.from_yaml(path),
        "config": vz.ExperimentConfig.model_validate(TREE),
        "of another method": other,
        "experiment": vz.Experiment(other),
    }


def test_every_form_of_a_configuration_is_the_same_to_every_method(tmp_path: Path) -> None:
    methods = ["vafl", "dpzv", "split", "cascaded", "tangent"]
    expected = comparison.configurations(None, SMALL, methods)
    for name, source in sources(tmp_path / "config.yaml").items():
        found = comparison.configurations(*notebook._read(source, ()), methods)
        assert found == expected, name
        for label, config in found.items():
            given, others = config.model_fields_set, expected[label].model_fields_set
            assert given - {"seed", "method"} == others - {"seed", "method"}, (name, label)


def test_the_methods_of_a_file_stay_with_its_experiment(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    methods = {"a": {"method": {"name": "vafl"}}, "dpzv": {}}
    path.write_text(json.dumps({**TREE, "methods": methods}))
    made = vz.Experiment.from_yaml(path, ["epochs=3"])
    source, settings = notebook._read(made, ["seed=5"])
    found = comparison.configurations(source, settings, [])
    assert list(found) == ["a", "dpzv"]
    assert all((each.epochs, each.seed) == (3, 5) for each in found.values())


def test_what_is_given_stays_in_the_shortest_form() -> None:
    config = vz.ExperimentConfig.model_validate({"epochs": 120, "server": {"join": "mean"}})
    tree = choosing.source_of(config)
    assert (tree["epochs"], tree["server"]) == (120, {"join": "mean"})


REFUSED: list[tuple[Any, str]] = [
    (lambda: vz.compare(3), "config is 3; use a path"),
    (lambda: vz.compare(None, "vafl"), "methods is 'vafl'; use a list"),
    (lambda: vz.compare(None, ["vafl", "vafl"]), "methods is"),
    (lambda: vz.compare(TREE), "methods is empty"),
    (
        lambda: vz.compare(TREE, ["vaffl"]),
        "methods vaffl: there is no method 'vaffl'; did you mean 'vafl'",
    ),
    (lambda: vz.compare(ElementTree.Element("a")), "config is a Element; use a path"),
    (lambda: vz.compare(TREE, ["vafl"], "seed=1"), "overrides is 'seed=1'"),
    (lambda: vz.compare(TREE, ["vafl"], ["epochz=1"]), "epochz"),
    (lambda: vz.compare(TREE, ["vafl"], by="test"), "by is 'test'; use one of validation, train"),
    (lambda: vz.compare(TREE, ["vafl"], seeds=0), "seeds is 0"),
    (lambda: vz.compare(TREE, ["vafl"], jobs=0), "jobs is 0"),
    (lambda: vz.compare(TREE, None), "methods is None; use a list"),
    (lambda: vz.compare(TREE, [3]), "methods is [3]; use a list"),
    (lambda: vz.worth(TREE, {"seed": 1}), "overrides is {'seed': 1}; use a list"),
    (lambda: vz.compare(TREE, ["vafl"], targets=["80"]), "targets has '80'"),
    (lambda: vz.plan({"data": {"name": "diabetes"}}, epsilon=1.0), "diabetes has no classes"),
    (lambda: vz.compare(TREE, ["vafl"], targets=[80]), "targets has 80"),
    (lambda: vz.compare("none.yaml", ["vafl"]), "none.yaml"),
    (lambda: vz.worth({**TREE, "epochz": 1}), "epochz"),
    (lambda: vz.worth(TREE, seeds=1.5), "seeds is 1.5"),
    (lambda: vz.worth(TREE, repeats=-1), "repeats is -1"),
    (lambda: vz.worth({**TREE, "privacy": {"ledger": "l", "epsilon": 1}}, jobs=2), "l is for one"),
    (lambda: vz.plan(clients=3, epsilon=1.0), "records is missing"),
    (lambda: vz.plan(records=9, clients=0, epsilon=1.0), "clients is 0"),
    (lambda: vz.plan(records="x", clients=3, epsilon=1.0), "records is 'x'"),
    (lambda: vz.plan(records=9, clients=3, epsilon=-1.0), "epsilon is -1"),
    (lambda: vz.plan(records=9, clients=3, epsilon=1.0, epochs=5), "batch is missing"),
    (lambda: vz.plan(records=9, clients=3, epsilon=1.0, clip=2.0), "clip is for epochs and batch"),
    (lambda: vz.plan(records=9, clients=3, epsilon=1.0, cover="all"), "cover is 'all'"),
]


def test_what_is_wrong_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for call, words in REFUSED:
        with pytest.raises(vz.VertizoError) as caught:
            call()
        line = str(caught.value)
        assert words in line
        assert "\n" not in line
        assert "--" not in line.replace("vertizo init --from", "")
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_with_data_of_its_own_is_refused() -> None:
    made = vz.Experiment(vz.ExperimentConfig.model_validate(TREE))
    own = vz.Experiment(made.config, made.data())
    for call in (vz.compare, vz.worth, vz.plan):
        with pytest.raises(vz.VertizoError, match="this experiment was given its data"):
            call(own)


@pytest.mark.full
@pytest.mark.usefixtures("inline")
def test_a_comparison_has_the_numbers_of_the_command(call: Vertizo, tmp_path: Path) -> None:
    command = ("compare", "--methods", "vafl,dpzv", "--seeds", "2", *sets(*SMALL), "--json")
    out = call(*command).well()
    expected = {label: timeless(own) for label, own in json.loads(out).items()}
    found = vz.compare(TREE, ["vafl", "dpzv"], seeds=2, out=tmp_path / "kept")
    assert {label: timeless(own) for label, own in found.content.items()} == expected
    again = vz.compare(TREE, ["vafl", "dpzv"], seeds=2, out=tmp_path / "kept", jobs=2)
    assert again.content == found.content, "nothing is run twice"
    saved = json.loads((tmp_path / "kept/comparison.json").read_text())
    assert (saved["command"], saved["methods"]) == ("vertizo.compare", found.content)
    frame = found.frame
    assert len(frame) == 2 * 2 * 4
    for label, own in expected.items():
        main = frame[(frame.method == label) & (frame.control == "none")]
        assert main.test_auc.tolist() == own["test_auc"]
        assert main.bytes_up.tolist() == own["bytes_up"]
        frozen = frame[(frame.method == label) & (frame.control == "frozen")]
        assert frozen.test_auc.tolist() == own["controls"]["frozen"]["test_auc"]
    html = found._repr_html_()
    order = ["highest test AUC", "No privacy guarantee", "<table"]
    assert sorted(order, key=html.index) == order
    assert len(found.plot(axes()).get_yticklabels()) == 8


@pytest.mark.full
@pytest.mark.usefixtures("inline")
def test_worth_has_the_numbers_of_the_command(call: Vertizo, tmp_path: Path) -> None:
    tree = {
        **TREE,
        "method": {"name": "tangent"},
        "client": {"model": {"name": "mlp", "outputs": 1}},
        "server": {"final_head": "boosting"},
        "data": {**TREE["data"], "label_holder": "mean"},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(tree))
    command = ("worth", "config.yaml", "--repeats", "1", "--json", "--out", "typed")
    expected = json.loads(call(*command).well())
    found = vz.worth(vz.Experiment.from_yaml("config.yaml"), repeats=1, out="kept")
    own = {key: found.content[key] for key in found.content if key not in ("command", "made_by")}
    assert own == {key: expected[key] for key in own}
    assert json.loads(Path("kept", study.NAME).read_text())["rows"] == expected["rows"]
    frame = found.frame
    assert frame["value"].tolist() == [row["value"] for row in expected["rows"]]
    assert frame["gain.value"][1] == expected["rows"][1]["gain"]["value"]
    assert found.frames["shapley"]["value"].tolist() == [e["value"] for e in expected["shapley"]]
    assert len(found.plot(axes()).get_yticklabels()) == len(frame)
    html = found._repr_html_()
    order = ["All together add", "No privacy guarantee", "<table"]
    assert sorted(order, key=html.index) == order


@pytest.mark.full
def test_the_page_on_python_shows_the_three(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    block = re.search(r"^## Studies$.*?^```python\n(.*?)^```$", page, re.M | re.S)
    exec(compile(block[1], "api.md", "exec"), {})
    said = capsys.readouterr().out
    says(said, "highest test AUC", "training the clients", "All together add", "Take statistic")


@pytest.mark.full
def test_names_of_parties_columns_and_methods_are_no_html(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    party, column = "<img src=x onerror=alert(1)>", "<script>alert(2)</script>"
    rows = "\n".join(f"p{n * n},{n % 7},{n % 5},{n % 3},{(n * n) % 2}" for n in range(240))
    Path("t.csv").write_text(f"id,{column},b,c,y\n{rows}\n")
    tree: Source = {
        "epochs": 1,
        "method": {"name": "vafl"},
        "data": {
            "name": "table",
            "path": Path("t.csv"),
            "label": "y",
            "id": "id",
            "columns": {party: [column], "other": ["b", "c"]},
        },
    }
    found = vz.worth(tree, repeats=1)
    for one in (found, vz.compare(tree, ["vafl"], controls=False)):
        html = one._repr_html_()
        assert "<img" not in html
        assert "<script" not in html
    assert party in words_of(found._repr_html_())
    assert column in words_of(found._repr_html_())
