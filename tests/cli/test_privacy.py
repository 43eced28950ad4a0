"""``vertizo privacy``: budgets before a run, what a run protects, ledgers and measurements."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.command_line import TINY, Refuses, Vertizo, sets
from tests.rows import each
from tests.words import says

from vertizo.run.results import checkpoint

MNIST = shlex.split(
    "plan --records 60000 --clients 7 --epochs 100 --batch 64 --epsilon 1 --delta 1e-3 --clip 10"
)
NOISED = "privacy: {mechanism: gaussian, clip: 1, epsilon: 2}"
CHARGED = f"{{epochs: 1, batch_size: 20, data: {{limit: 60}}, server: {{update: none}}, {NOISED}}}"
"""A run that a ledger can be charged with."""


def test_plan_prints_figures_of_mnist(vertizo: Vertizo) -> None:
    """DPZV's σ gives 106.6 by the replies of all clients and 23.23 by one's own."""
    out = vertizo("privacy", *MNIST, "--server", "none").quietly()
    says(out, "106.6", "23.23", "44.495", "30.62", "no bound", "advantage 0.154", "57.7 %")


@pytest.mark.full
def test_plan_as_json(vertizo: Vertizo) -> None:
    found = json.loads(vertizo("privacy", *MNIST, "--server", "private-sgd", "--json").out)
    assert 0.995 <= found["epsilon"] <= 1
    assert found["label_advantage"] == pytest.approx(0.1539, abs=5e-4)
    assert found["published"]["noise_std"] / 64 == pytest.approx(0.69524, abs=5e-6)
    assert found["published"]["all_replies"] == pytest.approx(106.58, abs=5e-3)
    assert found["published"]["own_replies"] == pytest.approx(23.23, abs=5e-3)
    assert found["releases"]["step"] is not None
    more = ("--steps", "50", "--sampling", "0.02", "--json")
    found = json.loads(vertizo("privacy", *MNIST, *more).out)
    assert 0.995 <= found["epsilon"] <= 1
    assert found["releases"]["secret"]["count"] == 50
    assert found["releases"]["secret"]["sampling"] == 0.02


@pytest.mark.full
def test_plan_warns_where_noise_is_all_there_is(vertizo: Vertizo) -> None:
    """3,600 records with 3 % positives gave an AUC of 0.545 at ε = 1."""
    small = shlex.split("plan --records 3600 --clients 3 --epsilon 1 --delta 1e-5")
    replies = ("--epochs", "5", "--batch", "180")
    said = vertizo("privacy", *small, *replies, "--positives", "0.03")
    says(said.out, "Warning: signal to noise is 0.2", "label-statistic")
    found = json.loads(vertizo("privacy", *small, *replies, "--json").out)
    assert found["signal_to_noise"].keys() == {"replies", "server"}
    large = [word.replace("3600", "60000") for word in small]
    assert "Warning" not in vertizo("privacy", *large, *replies).out
    rare = vertizo("privacy", *small, "--positives", "0.03")
    assert "Take statistic" in rare.out
    assert "Take tangent" in vertizo("privacy", *large).out


@pytest.mark.full
@each("records", [2, 3, 21, 40])
def test_plan_rounds_bounds_up(vertizo: Vertizo, records: int) -> None:
    """What is below does not hold: the plan of 21 records, 56.8048, once said 56.8."""
    given = shlex.split("plan --records 1000 --clients 3 --epochs 5 --batch 100 --epsilon 1")
    given += ["--delta", "1e-5", "--records-per-person", str(records)]
    found = json.loads(vertizo("privacy", *given, "--json").out)
    (row,) = (x for x in vertizo("privacy", *given).out.splitlines() if "of a person with" in x)
    shown = float(row.split("│")[2])
    assert found["epsilon_per_person"] <= shown <= 1.001 * found["epsilon_per_person"]


WRONG = """\
--positives 1 | positives is 1
--epsilon 0 | epsilon is 0
--delta 1 | delta is 1
--records 0 | records is 0
--batch 60001 | batch is 60001
--clip -1 | clip is -1
--server-share 1 | --server-share is 1
--epsilon 5e-324 | --epsilon is 5e-324; it must be between 1e-09 and 1e+06
--delta 5e-324 | --delta is 5e-324; it must be between 1e-100 and 0.5
--clip 5e-324 | --clip is 5e-324; it must be between 1e-30 and 1e+30
--steps 5 | --steps
--sampling 0.1 | --sampling
--server secret | 'secret'
--server-clip -1 | --server-clip is -1
--server poisson-dp-sgd --sampling 0 | --sampling is 0
--server poisson-dp-sgd --sampling 1e-40 | --sampling is 1e-40; it must be between 1e-05 and 0.999
"""
TOO_SMALL = ("--classes 0", "--width 0", "--releases 0", "--server poisson-dp-sgd --steps 0")
VALUE = re.compile("is '0'; it must be |: 0 is not in the range x>=")
"""As Typer's newest and its oldest allowed version have it."""
COMPARED = """\
--clip 2 | --clip is for --epochs and --batch
--server none | --server is for
--server-share 0.4 | --server-share is for
--steps 3 | --steps is for
--sampling 0.1 | --sampling is for
--records-per-person 2 | --records-per-person is for
"""


def test_plan_refuses_wrong_numbers(vertizo: Vertizo, refuses: Refuses) -> None:
    given = "privacy", *MNIST, "--server", "private-sgd"
    refuses(WRONG, *given)
    for row in TOO_SMALL:
        *_, option, _ = row.split()
        refuses(f"{row} | {option}", *given)
        assert VALUE.search(vertizo(*given, *row.split()).line), row
    few = "--records 100 --clients 2 --epsilon 1 --delta 1e-5"
    refuses(COMPARED, "privacy", "plan", *few.split())


def test_a_plan_of_many_steps_says_that_it_takes_long(
    vertizo: Vertizo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vertizo.lab.planning.SLOW", 5)
    secret = "--records 100 --clients 2 --epsilon 1 --delta 1e-5 --epochs 1 --batch 10"
    given = "privacy", "plan", *secret.split(), "--server", "poisson-dp-sgd", "--json", "--steps"
    some, many = vertizo(*given, "5"), vertizo(*given, "6")
    assert (some.code, some.err) == (0, "")
    assert (many.code, many.err) == (0, "composing 6 secret steps exactly, which takes minutes\n")


def test_a_run_and_a_configuration_are_explained(vertizo: Vertizo, refuses: Refuses) -> None:
    settings = sets("privacy={mechanism: gaussian, clip: 1, epsilon: 2}", "server.update=none")
    assert vertizo("train", *TINY, *settings, "--out", "run").code == 0
    said = vertizo("privacy", "explain", "run").well()
    says(said, "Guarantee: exact", "Protected", "Not protected", "δ = 1e-05", "validation")
    assert "the label advantage is at most" in " ".join(said.split())
    words = json.loads(vertizo("privacy", "explain", "run", "--json").out)
    assert words["guarantee"] == "exact"
    assert set(words) >= {"guarantee", "summary", "protected", "not_protected", "how"}
    Path("mine.yaml").write_text("data: {limit: 60}\nbatch_size: 9\nepochs: 2\n")
    words = json.loads(vertizo("privacy", "explain", "mine.yaml", "--json").out)
    assert (words["guarantee"], words["protected"]) == ("none", [])
    Path("run/summary.json").unlink()
    Path("empty").mkdir()
    refuses("run | unfinished\nempty | empty\nabsent | absent", "privacy", "explain")


def test_a_members_folder_is_explained_by_what_it_knows(vertizo: Vertizo, refuses: Refuses) -> None:
    Path("lab").mkdir()
    checkpoint.keep(Path("lab/job"), b"job 0")
    refuses("lab | the job is not over; `vertizo join`", "privacy", "explain")
    told = {"words": "ε is 1.", "own_words": "Nothing protects them.", "queries": 3}
    checkpoint.keep(Path("lab/summary.json"), json.dumps(told).encode())
    said = vertizo("privacy", "explain", "lab").well()
    assert "what this party sent: Nothing protects them." in said
    assert "as the label holder says, which nobody here can check: ε is 1." in said
    found = json.loads(vertizo("privacy", "explain", "lab", "--json").out)
    assert found == {"own_words": "Nothing protects them.", "words": "ε is 1."}


@pytest.fixture
def create(vertizo: Vertizo, here: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The beginning of a command that makes a ledger; known ledgers are those of this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "state"))
    (here / "c.yaml").write_text(CHARGED)
    return ("privacy", "ledger", "create")


def test_a_ledger_is_made_used_and_shown(vertizo: Vertizo, create: tuple[str, ...]) -> None:
    assert "0.0 % of μ²" in vertizo(*create, "own.sqlite", "c.yaml", "--runs", "2").well()
    assert vertizo(*create, "own.sqlite", "c.yaml").line
    own = ("train", "c.yaml", "--set", "privacy.ledger=own.sqlite", "--out", "run")
    with_controls = vertizo(*own, "--controls")  # three runs of a ledger for two
    assert with_controls.code == 2
    assert "pays for 2 more runs of this kind, and 3 are to be made" in with_controls.err
    assert "0.0 % of μ²" in vertizo("privacy", "ledger", "show", "own.sqlite").out
    assert vertizo(*own).code == 0
    assert "50.0 % of μ²" in vertizo("privacy", "ledger", "show", "own.sqlite").out
    assert vertizo("privacy", "ledger", "accept", "own.sqlite").code == 0
    explained = vertizo("privacy", "explain", "run")
    assert "all runs on the ledger" in " ".join(explained.out.split())
    whole = Path("own.sqlite").read_bytes()
    Path("own.sqlite").write_bytes(whole[:2000])  # what is known of the run is said even so
    assert "is not known now" in " ".join(vertizo("privacy", "explain", "run").out.split())
    Path("own.sqlite").write_bytes(whole)
    for word in ("show", "accept"):
        vertizo("privacy", "ledger", word, "no.sqlite").refused("no.sqlite")


@pytest.mark.full
def test_a_second_ledger_for_the_same_records(vertizo: Vertizo, create: tuple[str, ...]) -> None:
    assert vertizo(*create, "first.sqlite", "c.yaml", "--set", "seed=3").code == 0
    for setting in ("seed=3", "seed=4", "data.limit=40"):
        again = vertizo(*create, "second.sqlite", "c.yaml", "--set", setting)
        again.refused("records are charged to the ledger", "first.sqlite", case=setting)
    first = ("c.yaml", *sets("privacy.ledger=first.sqlite", "seed=3"), "--out", "before")
    assert vertizo("train", *first).code == 0
    assert vertizo(*create, "second.sqlite", "c.yaml", "--set", "seed=3", "--further").code == 0
    own = sets("privacy.ledger=second.sqlite", "seed=4")
    assert vertizo("train", "c.yaml", *own, "--out", "run").code == 0
    shown = vertizo("privacy", "ledger", "show", "second.sqlite").out
    assert "first.sqlite as well: ε = 2 at δ = 1e-05 more" in shown
    explained = " ".join(vertizo("privacy", "explain", "run").out.split())
    assert "ledgers of some of the same records ('first.sqlite') ε = 4" in explained
    words = json.loads(vertizo("privacy", "explain", "before", "--json").out)
    assert "second.sqlite as well: ε = 2 at δ = 1e-05 more" in words["how"][-1]  # it came later
    explained = vertizo("privacy", "explain", "before").out
    assert "second.sqlite" in "".join(explained.split())  # whole, over several lines
    assert vertizo("privacy", "dossier", "before", "--out", "before.html").code == 0
    page = Path("before.html").read_text(encoding="utf-8")
    assert "second.sqlite as well: ε = 2 at δ = 1e-05 more" in page
    assert "for all runs together" not in page


@pytest.mark.full
def test_private_labels_beside_a_ledger(vertizo: Vertizo, create: tuple[str, ...]) -> None:
    response = sets("privacy={mechanism: randomised-response, epsilon: 1}", "seed=3")
    assert vertizo(*create, "first.sqlite", "c.yaml", "--set", "seed=3").code == 0
    on_file = "train", "c.yaml", *response, *sets("privacy.ledger=labels"), "--out", "run"
    vertizo(*on_file).refused("ledger create FILE CONFIG --further")
    made = vertizo(*create, "labels", "c.yaml", *response, "--further")
    assert "set apart for private labels" in made.well()
    assert "--runs is 2" in vertizo(*create, "more", "c.yaml", *response, "--runs", "2").line
    assert vertizo(*on_file).code == 0  # the refused one left no folder
    explained = " ".join(vertizo("privacy", "explain", "run").out.split())
    assert "the ledgers of some of the same records ('first.sqlite') ε = 3" in explained
    assert "labels as well: ε = 1" in vertizo("privacy", "ledger", "show", "first.sqlite").out


def test_a_ledger_knows_the_records_of_a_table(
    vertizo: Vertizo, create: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known by their identifiers, or else by all that is said of them."""
    lines = [f"p{row},{row / 7},{row * row % 11},{'ab'[row % 2]}" for row in range(80)]
    for name, rows in (("one.csv", lines[:60]), ("two.csv", lines[40:])):
        Path(name).write_text("\n".join(["who,x,y,z", *rows]) + "\n")
    Path("c.yaml").write_text(
        f"{{epochs: 1, batch_size: 9, server: {{update: none}}, {NOISED}, data: {{name: table, "
        "path: one.csv, label: z, classes: [a, b], columns: {left: [x], right: [y]}}}"
    )
    for number, identifier in enumerate(("data.id=who", "data.drop=[who]")):
        monkeypatch.setenv("XDG_STATE_HOME", str(Path(f"state{number}").absolute()))
        assert vertizo(*create, f"one{number}.sqlite", "c.yaml", *sets(identifier)).code == 0
        other = sets(identifier, "data.path=two.csv")
        again = vertizo(*create, f"two{number}.sqlite", "c.yaml", *other)
        again.refused("records are charged to the ledger")


def test_a_ledger_of_a_label_holder(vertizo: Vertizo, create: tuple[str, ...], here: Path) -> None:
    """One that pays for several of its jobs."""
    federation = "federation: {name: f, members: [a, b], certificates: c, folder: run}"
    (here / "bank.yaml").write_text(
        "{epochs: 1, batch_size: 20, data: {name: digits, limit: 60}, server: {update: none}, "
        f"{NOISED}, {federation}}}"
    )
    made = vertizo(*create, "people.sqlite", "bank.yaml", "--runs", "3")
    assert "54 records, 2 clients" in made.well()
    assert not (here / "run").exists()


@pytest.mark.full
def test_intrinsic_figures_of_a_run(vertizo: Vertizo, refuses: Refuses) -> None:
    small = sets("epochs=1", "data.limit=100")
    for method in ("czofo", "dpzv"):
        vertizo("train", "--set", f"method.name={method}", *small, "--out", method)
    words = vertizo("privacy", "intrinsic", "czofo", "--repeats", "5")
    assert words.well().startswith("No privacy guarantee")
    figures = json.loads(vertizo("privacy", "intrinsic", "czofo", "--repeats", "5", "--json").out)
    assert figures["variance"] > 0
    assert (figures["repeats"], figures["records"]) == (5, 90)
    refuses("dpzv | 'dpzv'", "privacy", "intrinsic")


@pytest.mark.full
def test_audit_of_a_configuration(vertizo: Vertizo, here: Path, refuses: Refuses) -> None:
    (here / "c.yaml").write_text(
        "{epochs: 1, batch_size: 8, data: {limit: 40, parties: 2}, server: {update: none}, "
        "privacy: {mechanism: gaussian, clip: 1, epsilon: 1}}"
    )
    rows = json.loads(vertizo("privacy", "audit", "c.yaml", "--trials", "20", "--json").well())
    assert rows
    assert all(row["bound"]["epsilon"] <= 1 for row in rows)
    refuses("method.name=vafl | vafl", "privacy", "audit", "--set")


def test_a_dossier_is_written_signed_and_verified(vertizo: Vertizo, refuses: Refuses) -> None:
    assert vertizo("certs", "certs", "--server", "bank").code == 0
    assert vertizo("train", *TINY, "--out", "run").code == 0
    plain = vertizo("privacy", "dossier", "run", "--out", "plain.html")
    assert plain.out.splitlines()[0] == "plain.html"
    assert "not signed" in plain.out
    signed = vertizo("privacy", "dossier", "run", "--certificates", "certs/bank")
    assert signed.out.split() == [f"run/dossier.html{end}" for end in ("", ".sig", ".pem")]
    told = json.loads(vertizo("privacy", "dossier", "run", "--json").out)
    assert told["guarantee"] == "none"
    authority = ("--authority", "certs/bank/authority.pem")
    checked = vertizo("privacy", "verify", "run/dossier.html", *authority)
    assert "signed by 'bank'" in checked.out
    refuses("absent | absent\nrun --out page.txt | page.txt", "privacy", "dossier")
    refuses("run --certificates certs | no certificate.pem", "privacy", "dossier")
    refuses("plain.html | plain.html.sig\nrun | run", "privacy", "verify", *authority)


LABELS = sets(
    *("data.name=digits", "data.limit=60", "epochs=1", "seed=0", "method.name=vafl"),
    "privacy={mechanism: randomised-response, epsilon: 1, ledger: labels}",
)


def test_a_file_of_private_labels_is_made_shown_and_used_again(vertizo: Vertizo) -> None:
    assert vertizo("train", *LABELS, "--out", "first").code == 0
    shown = vertizo("privacy", "ledger", "show", "labels").out
    assert "ε = 1 at δ = 0, once; all runs on them are free" in shown
    assert "label advantage: at most 0.147" in shown  # of ten classes: (e − 1)/(e + 9)
    out = vertizo("train", *LABELS, *sets("seed=1", "method.name=dpzv"), "--out", "second").well()
    assert "all runs on the private labels in 'labels' together" in " ".join(out.split())


def test_what_a_file_of_labels_is_not_for_is_refused_in_a_line(vertizo: Vertizo) -> None:
    vertizo("train", *LABELS, "--out", "first")
    other = (*LABELS, *sets("privacy.epsilon=2"), "--out", "other")
    vertizo("train", *other).refused("made with 1.0")
    vertizo("privacy", "ledger", "accept", "labels").refused("is no ledger of this package")
