"""An agent's file, a job's file and a policy: what they refuse, each in one line."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from tests.damage import damage
from tests.ops.agent.houses import HOLDER, finished, holder_config, member_config, offer
from tests.refusals import refused
from tests.rows import each

from vertizo.core.errors import ConfigError, RefusedError, RunError
from vertizo.data import tutorial
from vertizo.network.serving.options import JoinConfig, ServeConfig, load_serve
from vertizo.ops.agent import processes
from vertizo.ops.agent.children import environment
from vertizo.ops.agent.jobs.messages import Offer, Standing
from vertizo.ops.agent.jobs.store import Store
from vertizo.ops.agent.options import LabelHolderAgent, MemberAgent, load_agent, load_job
from vertizo.ops.agent.policy import check_label_holder, check_member
from vertizo.ops.agent.preparing import submit
from vertizo.ops.scoring import callers

MEMBER = """\
agent: {name: test, server: "bank:7443", certificates: certs, folder: here}
tables: {people: {path: p.csv, id: id}}
"""
HOLDER_FILE = """\
agent: {name: test, certificates: certs, folder: here}
tables: {people: {path: p.csv, id: id, label: y}}
policy: {peers: [north]}
"""


def test_paths_of_a_file_are_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(MEMBER)
    member = load_agent(path)
    assert isinstance(member, MemberAgent)
    assert member.agent.folder == tmp_path / "here"
    assert member.tables["people"].path == tmp_path / "p.csv"
    assert member.policy.approve == "by-hand"
    assert member.policy.covers == ["labels"]
    path.write_text(HOLDER_FILE)
    holder = load_agent(path)
    assert isinstance(holder, LabelHolderAgent)
    assert holder.tables["people"]["path"] == str(tmp_path / "p.csv")


def test_a_members_own_code_is_found_beside_its_file(tmp_path: Path) -> None:
    (tmp_path / "own.py").touch()
    path = tmp_path / "agent.yaml"
    path.write_text(MEMBER + "client: {model: {name: module, path: 'own.py:Net'}}")
    member = load_agent(path)
    assert isinstance(member, MemberAgent)
    assert member.client["model"]["path"] == f"{tmp_path / 'own.py'}:Net"


AGENTS = [
    ("epochs: 3", "has no section agent"),
    (MEMBER.replace("name: test,", ""), "agent.name is missing"),
    (MEMBER.replace("name: test", "name: a b"), "'a b' is no name"),
    (MEMBER.replace("folder: here", "folder: here, listen: 'a:1'"), "server, as a member's, and"),
    (MEMBER.replace("certificates: certs, ", ""), "agent.certificates is missing"),
    (MEMBER.replace("folder: here", "folder: here, paralel: 3"), "did you mean"),
    (MEMBER.replace("folder: here", "folder: here, parallel: 0"), "agent.parallel is 0"),
    (MEMBER.replace("bank:7443", "bank"), "'bank' is no address"),
    (MEMBER.replace("people", "'my people'"), "'my people' is no name of a table"),
    (MEMBER.replace("{path: p.csv, id: id}", "p.csv"), "tables.people is 'p.csv'"),
    (MEMBER.replace(", id: id", ""), "tables.people.id is missing"),
    (MEMBER.replace("path: p.csv, ", ""), "tables.people.path is missing"),
    (MEMBER + "policy: {approve: yes}", "policy.approve is True"),
    (MEMBER + "policy: {tell: 3}", "policy.tell is 3"),
    (MEMBER + "policy: {tables: [peple]}", "policy.tables names 'peple'"),
    (MEMBER + "policy: {kinds: [learn]}", "it must be 'align', 'train', 'predict' or 'score'"),
    (MEMBER + "policy: {epsilon: 0}", "policy.epsilon is 0"),
    (MEMBER + "policy: {covers: [all]}", "it must be 'labels' or 'features'"),
    (MEMBER + "policy: {methods: dpzv}", "policy.methods is 'dpzv'; it must be a list"),
    (MEMBER + "policy: {require: [epochs]}", "policy.require is ['epochs']"),
    (MEMBER + "policy: {peers: ['a b']}", "'a b' is no name"),
    (HOLDER_FILE.replace("policy: {peers: [north]}", ""), "policy is missing"),
    (HOLDER_FILE.replace("[north]", "[]"), "policy.peers is []; it must be a list of at least 1"),
    (HOLDER_FILE.replace("label: y", "lable: y"), "'tables.people.lable'; did you mean 'label'"),
    (HOLDER_FILE.replace("label: y", "label: y, test: x"), "tables.people.test is 'x'"),
    (MEMBER + "client: {model: {name: mpl}}", "client.model.name is 'mpl'; did you mean 'mlp'"),
    (HOLDER_FILE.replace("here", "here, ports: [9, 8]"), "agent.ports is [9, 8]"),
    (HOLDER_FILE.replace("here", "here, ports: [7443, 7444]"), "the port of agent.listen in it"),
    (HOLDER_FILE.replace("here", "here, deadline: 0"), "agent.deadline is 0"),
    (HOLDER_FILE.replace("here", "here, silence: -1"), "agent.silence is -1"),
    (HOLDER_FILE.replace("here", "here, listen: bank"), "'bank' is no address"),
]


JOB = "job: {kind: train, members: [north], table: people}\n"
JOBS = [
    ("epochs: 3", "has no section job"),
    ("job: {members: [a], table: t}", "job.kind is missing"),
    ("job: {kind: learn, members: [a], table: t}", "job.kind is 'learn'"),
    ("job: {kind: train, members: [], table: t}", "job.members is []"),
    ("job: {kind: train, members: [a, a], table: t}", "job.members has 'a' twice"),
    ("job: {kind: train, members: [a]}", "job.table is missing"),
    ("job: {kind: train, members: [a], table: t, name: My job}", "'My job' is no name of a job"),
    ("job: {kind: train, members: [a], table: t, tabel: t}", "unknown key 'job.tabel'"),
    ("job: {kind: predict, members: [a], table: t}", "needs job.model"),
    ("job: {kind: train, members: [a], table: t, model: m}", "job.model is set but job.kind"),
    ("job: {kind: train, members: [a], table: t, method: hashed}", "job.method is set but"),
    ("job: {kind: align, members: [a], table: t, alignment: b}", "job.alignment is set but"),
    ("job: {kind: align, members: [a], table: t, head: raw}", "job.head is set but"),
    ("job: {kind: align, members: [a], table: t}\nepochs: 3", "has epochs, which is for training"),
    ("job: {kind: score, members: [a], table: t}", "needs job.model"),
    ("job: {kind: score, members: [a], table: t, model: m}", "has no section scoring"),
    (
        "job: {kind: predict, members: [a], table: t, model: m}\nscoring: {}",
        "has scoring, which is for scoring, but job.kind is 'predict'",
    ),
    (JOB + "data: {path: p.csv}", "data.path is the agent's to say"),
    (JOB + "data: 3", "data is 3"),
    (JOB + "federation: {trial: true}", "federation.trial is the agent's to say"),
]


@each("load, cases", [(load_agent, AGENTS), (load_job, JOBS)])
def test_what_is_wrong_with_a_file_is_one_line(
    load: Callable[[Path], Any], cases: list[tuple[str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "party.yaml"
    for text, words in cases:
        path.write_text(text)
        with pytest.raises(ConfigError) as error:
            load(path)
        assert words in str(error.value), (text, str(error.value))
        assert str(error.value).startswith(str(path))
        assert "\n" not in str(error.value)


@pytest.fixture
def done(tmp_path: Path) -> Store:
    """A store with two finished jobs: ``aligned`` on people, and ``model``; ``lost`` expired."""
    store = Store(tmp_path / "done")
    store.create()
    for name, kind in {"aligned": "align", "model": "train"}.items():
        finished(store, offer(name, kind))
    store.add(offer("lost", "align"), "submitted")
    assert store.move("lost", "expired")
    return store


NOISED: dict[str, Any] = {
    "covers": ("features",),
    "settings": json.dumps(
        {
            "method": {"name": "vafl"},
            "privacy": {"mechanism": "embedding-noise", "clip": 1.0, "epsilon": 1.0, "delta": 0.4},
        }
    ),
}


POLICIES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"members": ("east",)}, "job.members are east, without 'north'"),
    ({"peers": ["west"]}, {}, "job.members has 'east', which policy.peers"),
    ({"kinds": ["align"]}, {}, "job.kind is 'train', which policy.kinds"),
    ({}, {"kind": "score", "model": "model"}, "job.kind is 'score', which policy.kinds"),
    ({"kinds": ["score"]}, {"kind": "score", "model": "aligned"}, "no job 'aligned' of kind train"),
    ({}, {"table": "persons"}, "there is no such table"),
    ({"tables": []}, {}, "which policy.tables does not allow"),
    ({"methods": ["vafl"]}, {}, "method.name is 'dpzv', which policy.methods"),
    ({"epsilon": 1.9}, {}, "the job's ε is 2; policy.epsilon allows 1.9"),
    ({"epsilon": 9}, {"epsilon": None}, "states no ε"),
    ({"epsilon": 9}, {"epsilon": math.nan}, "the job's ε is nan; policy.epsilon allows 9"),
    ({"epsilon": 9}, {"epsilon": -5.0}, "the job's ε is -5; policy.epsilon allows 9"),
    ({"epsilon": 9}, {"delta": 0.01}, "is at δ = 0.01; policy.delta allows 0.001"),
    ({"epsilon": 9}, {"delta": math.nan}, "is at δ = nan; policy.delta allows 0.001"),
    ({}, {"kind": "align", "method": "hashed"}, "job.method is 'hashed', which policy.hashed"),
    ({"covers": ["features"]}, NOISED, "privacy.delta is 0.4; policy.delta allows 0.001"),
    ({}, {"covers": ()}, "covers nothing; policy.covers wants labels"),
    ({"covers": ["features"]}, {}, "covers labels; policy.covers wants features"),
    # what a label holder says of features is not believed
    (
        {"covers": ["features"]},
        {"covers": ("features",)},
        "which privacy.mechanism embedding-noise",
    ),
    ({"require": {"epochs": 3}}, {}, "policy.require.epochs is 3 but the label holder wants"),
    ({}, {"alignment": "model"}, "no job 'model' of kind align"),
    ({}, {"alignment": "nowhere"}, "no job 'nowhere'"),
    ({}, {"alignment": "lost"}, "job.alignment is 'lost', which is expired"),
    ({}, {"kind": "predict", "model": "aligned"}, "no job 'aligned' of kind train"),
    (
        {},
        {"kind": "predict", "model": "model", "members": ("north",)},
        "job.model is 'model', which trained with north, east",
    ),
    ({}, {"settings": "[]"}, "no configuration"),
    ({}, {"settings": '{"seed": 1}'}, "none of a member's business"),
    (
        {},
        {"settings": '{"method": {"name": "dpzv"}, "client": {"model": {"path": "own.py:Net"}}}'},
        "may not name code or files",
    ),
    (
        {"methods": None},
        {"settings": '{"method": {"name": "evil:Method"}}'},
        "which is no part of vertizo",
    ),
]


def test_what_a_policy_does_not_allow_is_refused_by_its_key(tmp_path: Path, done: Store) -> None:
    for policy, keys, words in POLICIES:
        config = member_config(tmp_path, "north", policy)
        offered = msgspec.structs.replace(offer("one"), **keys)
        refused(words, RefusedError, check_member, offered, config, done, "north", match=words)


@each("policy", [{}, {"epsilon": 2.0, "methods": ["dpzv"], "peers": ["east"]}, {"covers": []}])
def test_what_a_policy_allows_is_not_refused(
    policy: dict[str, Any], tmp_path: Path, done: Store
) -> None:
    config = member_config(tmp_path, "north", policy)
    check_member(offer("one", alignment="aligned"), config, done, "north")
    check_member(offer("two", "predict", model="model"), config, done, "north")
    check_member(offer("three", "align"), config, done, "north")
    scores = member_config(tmp_path, "north", {**policy, "kinds": ["score"]})
    check_member(offer("four", "score", model="model"), scores, done, "north")


def test_a_label_holder_is_held_to_its_own_policy(tmp_path: Path, done: Store) -> None:
    check_label_holder(offer("one"), holder_config(tmp_path), done)
    for policy, words in (
        ({"peers": ["north"]}, "job.members has 'east', which policy.peers"),
        ({"epsilon": 1}, "the job's ε is 2"),
        ({"kinds": ["predict"]}, "policy.kinds"),
    ):
        config = holder_config(tmp_path, policy=policy)
        refused(words, RefusedError, check_label_holder, offer("one"), config, done, match=words)


def table(folder: Path, labels: str = "no,yes") -> None:
    kinds = labels.split(",")
    rows = [f"{n},{kinds[n % len(kinds)]},{n % 7}" for n in range(60)]
    (folder / "people.csv").write_text("id,label,own\n" + "\n".join(rows))


TRAIN = """\
job: {kind: train, members: [north, east], table: people}
batch_size: 16
epochs: 1
"""
ALIGN = "job: {kind: align, members: [north], table: people}"
EXACT = TRAIN + "privacy: {mechanism: gaussian, clip: 1, epsilon: 2}\nserver: {update: none}\n"


def holder(folder: Path, **policy: Any) -> tuple[LabelHolderAgent, Store]:
    config = holder_config(folder, policy=policy)
    whole = {"path": str(folder / "people.csv"), "id": "id", "label": "label"}
    tree = config.model_dump() | {"tables": {"people": whole | {"classes": ["no", "yes"]}}}
    store = Store(folder / HOLDER)
    store.create()
    return LabelHolderAgent.model_validate(tree), store


def sent(text: str, config: LabelHolderAgent, store: Store) -> Offer:
    """The job of a file with that text, submitted."""
    path = store.folder.parent / "job.yaml"
    path.write_text(text)
    return submit(path, config, store)


def test_a_submitted_job_states_what_it_guarantees(tmp_path: Path) -> None:
    table(tmp_path)
    config, store = holder(tmp_path)
    made = sent(EXACT, config, store)
    assert made.job == "train-1"
    assert made.covers == ("labels",)
    assert made.epsilon is not None
    assert 1.9 < made.epsilon <= 2.0
    assert [job.state for job in store.jobs()] == ["submitted"]
    assert [sent(ALIGN, config, store).job for _ in range(2)] == ["align-1", "align-2"]


def test_a_training_is_submitted_before_its_alignment_has_finished(tmp_path: Path) -> None:
    """It states the ε that it asks for; what follows from the number of records is left open."""
    table(tmp_path)
    config, store = holder(tmp_path)
    sent(ALIGN.replace("north", "north, east"), config, store)
    waits = EXACT.replace("people}", "people, alignment: align-1}")
    made = sent(waits, config, store)
    assert (made.job, made.covers, made.epsilon) == ("train-1", ("labels",), 2.0)
    job = store.job("train-1")
    assert job is not None
    assert store.unfinished(job) == [("align-1", "submitted")]
    check_member(made, member_config(tmp_path, "north"), store, "north")
    teacher = waits.replace("gaussian, clip: 1", "teacher")
    settings = json.loads(sent(teacher, config, store).settings)
    assert (settings["batch_size"], settings["privacy"]["epsilon"]) == (16, 2.0)
    assert "kept" not in settings["privacy"]["teacher"]  # which is of the number of records
    begins = teacher.replace(", alignment: align-1", "")
    settings = json.loads(sent(begins, config, store).settings)
    assert "kept" in settings["privacy"]["teacher"]
    made = sent(waits.replace(EXACT.splitlines()[-2], "method: {name: one-shot}"), config, store)
    assert (made.covers, made.epsilon) == (("labels",), 0.0)
    check_member(made, member_config(tmp_path, "north", {"epsilon": 0.5}), store, "north")
    rows = [
        (waits.replace("epsilon: 2", "noise_std: 9"), "privacy.epsilon is not set, and 'align-1'"),
        (waits.replace("epsilon: 2", "epsilon: 5"), "the job's ε is 5; policy.epsilon allows 4"),
        (waits.replace("align-1}", "align-1, after: nobody}"), "there is no job 'nobody'"),
        (waits.replace("epochs: 1", "epochs: x"), "epochs is 'x'"),
    ]
    config, store = holder(tmp_path, epsilon=4)
    for text, words in rows:
        refused(words, ConfigError, sent, text, config, store, match=words)
    assert store.move("align-1", "cancelled")
    words = "job.alignment is 'align-1', which is cancelled; it must have finished"
    refused(words, ConfigError, sent, waits, config, store, match=words)
    after = EXACT.replace("people}", "people, after: align-1}")
    words = "job.after is 'align-1', which is cancelled"
    refused(words, ConfigError, sent, after, config, store, match=words)


def test_new_records_without_a_label_can_be_aligned(tmp_path: Path) -> None:
    config, store = holder(tmp_path)
    tree = config.model_dump() | {"tables": {"people": {"path": "new.csv", "id": "id"}}}
    made = sent(ALIGN, LabelHolderAgent.model_validate(tree), store)
    load_serve(store.folder_of(made.job) / "party.yaml")


SUBMITTED = [
    (TRAIN, {}, "the job's guarantee covers nothing; policy.covers wants labels"),
    (EXACT, {"epsilon": 1}, "policy.epsilon allows 1 at most"),
    (EXACT, {"epsilon": 1, "kinds": ["train"]}, "policy.epsilon allows 1 at most"),
    (EXACT, {"kinds": ["align"]}, "job.kind is 'train', which policy.kinds does not allow"),
    (EXACT, {"methods": ["vafl"]}, "method.name is 'dpzv', which policy.methods"),
    (EXACT, {"peers": ["north"]}, "job.members has 'east', which policy.peers does not name"),
    (EXACT.replace("table: people", "table: persons"), {}, "there is no such table"),
    (EXACT.replace("epochs: 1", "epochs: x"), {}, "epochs is 'x'"),
    (EXACT + "seeed: 1\n", {}, "unknown key 'seeed'"),
    (EXACT.replace("people}", "people, name: taken}"), {}, "there is a job 'taken' already"),
]


def test_what_is_refused_when_submitted_leaves_nothing(tmp_path: Path) -> None:
    table(tmp_path)
    for text, policy, words in SUBMITTED:
        config, store = holder(tmp_path, **policy)
        if store.job("taken") is None:
            store.add(offer("taken"), "submitted")
        refused(words, (ConfigError, RunError), sent, text, config, store, match=words)
        assert [job.name for job in store.jobs()] == ["taken"], words
        assert not list((store.folder / "jobs").iterdir()), words


def test_a_wrong_table_is_told_when_submitted(tmp_path: Path) -> None:
    table(tmp_path, "no,yes,maybe")
    config, store = holder(tmp_path)
    refused("maybe", Exception, sent, EXACT, config, store, match="maybe")


def test_the_files_of_the_tutorial_are_agents_and_jobs_and_fit_each_other() -> None:
    folder = Path(tutorial.__file__).parent
    agents = {path.stem: load_agent(path) for path in folder.glob("*.agent.yaml")}
    assert len(agents) == 3
    jobs = [load_job(path)[0] for path in folder.glob("*.job.yaml")]
    assert sorted(job.kind for job in jobs) == ["align", "align", "predict", "train"]
    for job in jobs:
        assert all(job.table in agent.tables for agent in agents.values())
        for key in ("alignment", "model"):
            assert getattr(job, key) in (None, *(other.name for other in jobs))
    page = (Path(__file__).parents[3] / "docs" / "agent.md").read_text(encoding="utf-8")
    shown = page.split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(shown) == yaml.safe_load((folder / "lab.agent.yaml").read_text())


def test_a_job_that_scores_is_the_training_s_with_a_section_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "score.yaml"
    text = "job: {kind: score, members: [north, east], table: people, model: model, head: raw}\n"
    path.write_text(text + "scoring: {http: '127.0.0.1:8080', callers: callers.yaml}\n")
    job, tree = load_job(path, ["scoring.cache=5"])
    assert tree["scoring"]["callers"] == str(tmp_path / "callers.yaml")
    config = holder_config(tmp_path)
    store = Store(config.agent.folder)
    store.create()
    served = {"name": "test", "members": ["north", "east"], "certificates": "c", "folder": "f"}
    data = {"name": "table", "path": "p", "id": "old", "label": "label"}
    before = {"federation": served, "data": data}
    processes.write(store.folder_of("model"), before, [])
    offered = offer("online", "score", model="model")
    made, words = processes.as_label_holder(config, offered, tree, store, job.head)
    folder = store.folder_of("online")
    assert words == ["score", str(folder / "party.yaml"), "--data", "people.csv", "--head", "raw"]
    chosen = ServeConfig.model_validate(made)
    assert chosen.scoring is not None
    assert (chosen.scoring.cache, chosen.scoring.log) == (5, folder / "queries.jsonl")
    assert (chosen.data.id, chosen.federation.folder) == ("id", Path("f"))
    theirs = member_config(tmp_path, "north")
    own = Store(theirs.agent.folder)
    own.create()
    joined = {"name": "test", "server": "h:1", "certificates": "c", "folder": "f"}
    processes.write(own.folder_of("model"), {"federation": joined, "data": {"id": "id"}}, [])
    tree, words = processes.as_member(theirs, offered, own)
    file = str(own.folder_of("online") / "party.yaml")
    assert words == ["score", file, "--data", "people.csv"]
    JoinConfig.model_validate(tree)


def test_a_job_that_scores_for_nobody_is_refused_when_submitted(tmp_path: Path) -> None:
    table(tmp_path)
    config, store = holder(tmp_path, kinds=["score"])
    finished(store, offer("model"))
    served = {"name": "test", "members": ["north", "east"], "certificates": "c", "folder": "f"}
    data = {"name": "table", "path": "p", "id": "id", "label": "label"}
    processes.write(store.folder_of("model"), {"federation": served, "data": data}, [])
    text = "job: {kind: score, members: [north, east], table: people, model: model}\n"
    text += "scoring: {http: '127.0.0.1:8080', callers: callers.yaml}\n"
    words = "which is missing; `vertizo api-key NAME"
    refused(words, ConfigError, sent, text, config, store, match=words)
    assert [job.name for job in store.jobs()] == ["model"]
    callers.add(tmp_path / "callers.yaml", "crm", 1, 1)
    made = sent(text, config, store)
    found = load_serve(store.folder_of(made.job) / "party.yaml").scoring
    assert found is not None
    assert found.callers == tmp_path / "callers.yaml"


def test_schemas_take_the_files_of_the_tutorial_and_refuse_others() -> None:
    from vertizo.cli.schema import made

    folder = Path(tutorial.__file__).parent
    for kind in ("agent", "job"):
        checker = jsonschema.Draft202012Validator(made(kind))  # type: ignore[arg-type]
        for path in folder.glob(f"*.{kind}.yaml"):
            tree = yaml.safe_load(path.read_text())
            assert checker.is_valid(tree), path
            section = {**tree[kind], "surprise": 1}
            assert not checker.is_valid({**tree, kind: section}), path


def test_a_jobs_process_gets_no_settings_of_the_agents() -> None:
    own = {"VERTIZO_SET__METHOD__NAME": "split", "VERTIZO_LOG_FORMAT": "json", "VERTIZO_DATA": "/d"}
    assert environment(own) == {"VERTIZO_DATA": "/d"}


def test_damage_to_the_file_of_jobs_is_told(done: Store) -> None:
    def told() -> Any:
        store = Store(done.folder)
        store.create()
        found = store.jobs(), store.open_jobs(), store.unclosed(), store.standings("model")
        return found, [store.job(name) for name in ("aligned", "model", "lost")]

    done.stand("north", Standing("model", "running", 1, ""))
    (done.folder / "jobs" / "model").mkdir()
    whole, chance, refused = done.path.read_bytes(), random.Random(5), 0
    wanted = told()
    for kind in ("flip",) * 150 + ("cut",) * 20:
        done.path.write_bytes(whole)
        damage(done.path, kind, chance)
        try:
            assert told() == wanted
        except RunError:
            refused += 1
    assert refused > 20
    done.path.write_bytes(b"")
    with pytest.raises(RunError, match="is damaged: it is empty"):
        Store(done.folder).create()
