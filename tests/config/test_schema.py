"""Configurations that are taken: defaults, files, overrides, and what a method decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.rows import examples

from vertizo.config import former_names, schema
from vertizo.config.architectures import CLIENT_MODELS, SERVER_MODELS, TextConfig, TextRestConfig
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.core.names import PRIVATE
from vertizo.methods.choice import METHODS
from vertizo.models.architectures.text import Spec
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.uniform import Uniform

Load = Callable[..., ExperimentConfig]

FIRST_ORDER = ["czofo", "vafl", "split", "compressed-vfl", "fedbcd", "flex-vfl"]
IN_STEP = ["syn-zoo-vfl", "split", "compressed-vfl", "fedbcd", "flex-vfl"]
ONE_POINT = ["czofo", "vafl", "split", "compressed-vfl", "fedbcd", "flex-vfl", "one-shot"]
TANGENTS = ["tangent", "label-statistic"]
PAIRS = ["dpzv", "cascaded", "zoo-vfl", "syn-zoo-vfl"]
LOSSES = ["cascaded", "zoo-vfl"]
RANDOM = {"name": "text", "checkpoint": "random", "family": "distilbert", "layers": 1}


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Configuration of a YAML text (None: no file), with overrides."""

    def call(text: str | None = None, *overrides: str) -> ExperimentConfig:
        path = None if text is None else tmp_path / "run.yaml"
        if path is not None:
            path.write_text(text or "")
        return schema.load(path, overrides)

    return call


def test_the_lists_are_complete() -> None:
    made = {name: method() for name, method in METHODS.items()}
    assert {name for name, method in made.items() if method.points == 1} == {*ONE_POINT}
    assert {*ONE_POINT} | {*PAIRS} | {*TANGENTS} == {*METHODS}
    assert {name for name, method in made.items() if method.reply_is_losses} == {*LOSSES}
    assert list(OWN) == list(METHODS)


def test_the_defaults_are_valid_complete_and_cannot_be_changed() -> None:
    settings = ExperimentConfig()
    tree = yaml.safe_load(settings.to_yaml())
    assert set(tree) == set(ExperimentConfig.model_fields)
    chosen = (tree["method"]["name"], tree["data"]["name"], tree["privacy"]["mechanism"])
    assert chosen == ("dpzv", "digits", "none")
    with pytest.raises(ValidationError):
        settings.epochs = 3
    with pytest.raises(ValidationError):
        settings.data.limit = 3


def test_what_is_empty_is_the_default(load: Load) -> None:
    parts = ("data", "client", "server", "privacy", "codecs", "simulation", "method")
    texts = (None, "", "# only a comment\n", "{}", "---\n", *(f"{key}: {{}}" for key in parts))
    for text in texts:
        assert load(text) == ExperimentConfig(), text


def some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these keys."""
    return st.fixed_dictionaries({}, optional=keys)


def chosen(name: str, **keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"name": st.just(name)}, optional=keys)


LAWS = ["sphere", "scaled-sphere", "gaussian", "rademacher", "coordinate"]
SHIFT = {"smoothing": st.floats(1e-9, 1e3), "directions": st.sampled_from(LAWS)}
STEPS, SECONDS = st.integers(1, 9), st.floats(1e-6, 1e6)
SEVERAL = {"num_directions": st.integers(1, 99), "clipping": st.sampled_from(["each", "jointly"])}
TEXTS = st.text(st.characters(blacklist_categories=["Cs"]), max_size=5)
VALUES = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), TEXTS)
METHODS_OF_ALL_KINDS = st.one_of(
    some(**SHIFT),
    chosen("dpzv", **SHIFT, **SEVERAL),
    *(chosen(name, **SHIFT) for name in ("cascaded", "zoo-vfl", "syn-zoo-vfl", "czofo")),
    *(chosen(name) for name in ("vafl", "split", "one-shot")),
    *(chosen(name, local_steps=STEPS) for name in ("compressed-vfl", "fedbcd")),
    chosen("tangent", num_directions=STEPS, sweeps=STEPS),
    chosen("label-statistic", num_directions=STEPS, spread=st.floats(0.1, 9)),
    chosen("flex-vfl", local_steps=st.lists(STEPS, min_size=1)),
)
MODELS = st.one_of(
    some(hidden=st.lists(st.integers(1, 99), max_size=3), final_relu=st.booleans()),
    chosen("cnn", channels=st.lists(st.integers(1, 9), min_size=1)),
    st.dictionaries(st.text("abc", min_size=1), VALUES, max_size=3).map(
        lambda arguments: {"name": "module", "path": "file.py:Net", "arguments": arguments}
    ),
)
DELAYS = st.one_of(
    some(mean=SECONDS),
    SECONDS.map(lambda mean: {"distribution": "constant", "mean": mean}),
    SECONDS.map(lambda sigma: {"distribution": "log-normal", "sigma": sigma}),
    st.lists(SECONDS, min_size=1).map(lambda each: {"distribution": "trace", "seconds": each}),
)
PRIVACY = (
    {"mechanism": "gaussian", "clip": 5.0, "noise_std": 1e-3},
    {"mechanism": "gaussian", "clip": 1e-12, "noise_std": 3, "delta": 1e-9},
    {"mechanism": "embedding-noise", "clip": 1.5, "epsilon": 3, "accounting": "published"},
    {},
)
TREES = some(
    seed=st.integers(0, 2**70),
    epochs=st.integers(1, 10**6),
    rounds=st.none() | st.integers(1, 10**6),
    data=some(
        root=st.sampled_from([None, "/data", "/some/where else/ä"]),
        parties=st.none() | st.integers(1, 9),
        split=st.sampled_from([None, "rows", "columns"]),
        columns=st.none() | st.dictionaries(st.text("ab: #", min_size=1), st.just(["x", "y"])),
        validation=st.floats(0, 0.999),
        limit=st.none() | st.integers(2, 10**9),
    ),
    method=METHODS_OF_ALL_KINDS,
    client=st.fixed_dictionaries({"model": MODELS}),
    privacy=st.sampled_from(PRIVACY),
    simulation=some(
        delay=DELAYS, stragglers=st.dictionaries(st.integers(0, 9), st.floats(1e-3, 1e3))
    ),
    control=st.sampled_from(["none", "frozen", "random"]),
    checkpoint_seconds=st.floats(0, 1e6),
)


def _arguments(*values: Any) -> dict[str, Any]:
    """A tree in which these values are arguments of a user's own model."""
    arguments = {f"a{number}": value for number, value in enumerate(values)}
    return {"client": {"model": {"name": "module", "path": "a:b", "arguments": arguments}}}


@pytest.mark.full
@settings(max_examples=examples(60), deadline=None)
@given(tree=TREES)
@example(tree=_arguments("1e3", "-1E5", ".5e1", "1_0e2", "+inf", "12:30", "0x1", "on", "~", "="))
@example(tree=_arguments("\x85", "a\x85b", "\u2028", "x\u2029"))
@example(tree={"data": {"columns": {"1e3": ["2e5", "no", "1.0", "<<", "null"]}}})
@example(tree={"client": {"model": {"name": "resnet18", "width": 8}}})
@example(tree={"client": {"model": RANDOM}})
@example(
    tree={
        "data": {"split": "rows"},
        "server": {"model": {"name": "resnet18-rest", "assemble": "height"}},
    }
)
@example(tree={"server": {"model": {"name": "text-rest", "hidden": [8]}}})
def test_written_out_and_read_again_it_is_the_same(
    tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if (
        tree.get("method", {}).get("clipping") == "jointly"
    ):  # which is said where slopes are clipped
        tree = {**tree, "privacy": PRIVACY[0]}
    if tree.get("method", {}).get("name") == "one-shot":  # which has nothing to replace or cover
        tree = {key: value for key, value in tree.items() if key not in ("control", "privacy")}
    before = schema.parse(tree)
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(before.to_yaml(), encoding="utf-8")
    after = schema.load(path)
    assert after == before
    assert after.to_yaml() == before.to_yaml()


def _at(found: Any, key: str) -> Any:
    for part in key.split("."):
        found = getattr(found, part)
    return found


def test_everything_that_was_given_is_kept(load: Load) -> None:
    settings = load(
        "seed: 3\nmethod: {name: cascaded, smoothing: 1e-3}\n"
        "client: {model: {name: cnn, channels: [4]}, optimizer: {learning_rate: 0.5}}\n"
        "simulation: {delay: {distribution: trace, seconds: [1, 2]}, stragglers: {1: 8}}\n"
    )
    for key, value in {
        "seed": 3,
        "method.name": "cascaded",
        "method.smoothing": 1e-3,
        "client.model.name": "cnn",
        "client.model.channels": (4,),
        "client.optimizer.learning_rate": 0.5,
        "client.optimizer.momentum": ExperimentConfig().client.optimizer.momentum,
        "simulation.delay.seconds": (1, 2),
        "simulation.stragglers": {1: 8},
    }.items():
        assert _at(settings, key) == value, key


def test_overrides_are_read_as_yaml_and_go_before_the_file(load: Load) -> None:
    assert load(None, "epochs=010").epochs == 10  # octal to YAML 1.1
    with pytest.raises(ConfigError, match="epochs is '1:30'"):  # base 60
        load(None, "epochs=1:30")
    table = ("data.name=table", "data.path=t.csv", "data.label=y", "data.classes=[010, 020]")
    assert load(None, *table).data.classes == ["010", "020"]
    for text in ("1e-3", "0.001", "1E-3", "10.e-4"):
        settings = load(None, f"client.optimizer.learning_rate={text}")
        assert settings.client.optimizer.learning_rate == 1e-3, text
    for override, key, value in (
        ("epochs=1e1", "epochs", 10),
        ("client.model.hidden=[8, 4]", "client.model.hidden", (8, 4)),
        ("data.split=sides", "data.split", "sides"),
        ("data.limit=null", "data.limit", None),
        ("data.parties=", "data.parties", None),
        ("data.name=a=b", "data.name", "a=b"),
        ("simulation.stragglers={1: 8}", "simulation.stragglers", {1: 8}),
    ):
        assert _at(load(None, override), key) == value, override
    trace = ("simulation.delay.distribution=trace", "simulation.delay.seconds=[1e-3, 2]")
    assert load(None, *trace).simulation.delay.seconds == (1e-3, 2)
    assert load("epochs: 3", "epochs=4", "epochs=5").epochs == 5
    for value in ("digits", "'1e3'", '"1e3"'):
        found = load(f"data: {{name: {value}}}"), load(None, f"data.name={value}")
        assert [each.data.name for each in found] == [value.strip("'\"")] * 2
    channels = ("client.model.channels=[3]", "client.model.name=cnn")
    assert load(None, *channels) == load(None, *reversed(channels))


def test_a_users_own_arguments_are_numbers_and_no_choices(load: Load) -> None:
    path = ("client.model.name=module", "client.model.path=a:b")
    scale = ("client.model.arguments.scale=1e-3",), ("client.model.arguments={scale: 1e-3}",)
    text = "client: {model: {name: module, path: 'a:b', arguments: {scale: 1e-3}}}"
    for found in (load(None, *path, *scale[0]), load(None, *path, *scale[1]), load(text)):
        assert found.client.model.arguments == {"scale": 1e-3}
    for name in ("name", "distribution"):
        settings = load(
            f"{text}\ndata: {{columns: {{bank: [x]}}}}",
            f"client.model.arguments.{name}=deep",
            f"data.columns.{name}=[y]",
        )
        assert settings.client.model.arguments == {"scale": 1e-3, name: "deep"}
        assert settings.data.columns == {"bank": ["x"], name: ["y"]}


def test_one_key_leaves_its_neighbours_alone(load: Load) -> None:
    settings = load(
        "client: {optimizer: {learning_rate: 0.5, momentum: 0.25}}\nmethod: {smoothing: 0.5}",
        "client.optimizer.momentum=0",
        "method.directions=gaussian",
        "data.limit=9",
    )
    assert settings.client.optimizer.learning_rate == 0.5
    assert settings.client.optimizer.momentum == 0
    changed = {"smoothing": 0.5, "directions": "gaussian"}
    assert settings.method.model_dump() == METHODS["dpzv"]().model_dump() | changed
    assert settings.data.limit == 9


def test_another_choice_takes_the_first_ones_keys_away_and_the_same_none(load: Load) -> None:
    for override, smoothing in (("vafl", None), ("cascaded", 1e-3), ("dpzv", 0.25)):
        method = load("method: {name: dpzv, smoothing: 0.25}", f"method.name={override}").method
        assert method.name == override
        assert getattr(method, "smoothing", None) == smoothing
    for text, override, key, value in (
        ("method: {smoothing: 0.25}", "method.name=dpzv", "method.smoothing", 0.25),
        ("codecs: {up: {dtype: float16}}", "codecs.up.name=none", "codecs.up.dtype", "float16"),
        ("client: {model: {outputs: 9}}", "client.model.name=mlp", "client.model.outputs", 9),
        (
            "simulation: {delay: {mean: 2}}",
            *("simulation.delay.distribution=exponential", "simulation.delay.mean", 2),
        ),
    ):
        assert _at(load(text, override), str(key)) == value, override


def test_options_of_models_say_what_they_are() -> None:
    for option in [*CLIENT_MODELS.values(), *SERVER_MODELS.values()]:
        assert len((option.__doc__ or "").splitlines()[0]) > 20, option


def test_sizes_of_a_random_encoder() -> None:
    assert TextConfig(checkpoint="random").spec() == Spec("random")
    given = TextConfig(checkpoint="random", family="distilbert", vector=32, vocabulary=99)
    assert given.spec() == Spec("random", "distilbert", 32, vocabulary=99)
    assert TextRestConfig().spec() == Spec("minilm")


def test_an_epsilon_where_it_can_hold(load: Load) -> None:
    replies = "privacy: {mechanism: gaussian, clip: 1, epsilon: 2}"
    # Noise on embeddings is about features: labels are not protected, and the run says so.
    embeddings = "privacy: {mechanism: embedding-noise, clip: 1, epsilon: 2}"
    for privacy, update in ((replies, "none"), (embeddings, "sgd"), (embeddings, "none")):
        assert load(f"{privacy}\nserver: {{update: {update}}}").privacy.epsilon == 2


def test_every_update_and_every_kind_of_model_that_a_method_has_fits(load: Load) -> None:
    for name, method in METHODS.items():
        for update in method.server_updates:
            noise = "{mechanism: gaussian, clip: 1, noise_std: 1, server_noise_std: 1}"
            text = f"method: {{name: {name}}}\nserver: {{update: {update}}}\n"
            settings = load(f"{text}privacy: {noise if update in PRIVATE else '{}'}")
            assert settings.server.update == update
        if name not in FIRST_ORDER:
            model = "{name: function, path: 'rules.py:apply', num_parameters: 3}"
            settings = load(f"method: {{name: {name}}}\nclient: {{model: {model}}}")
            assert settings.client.model.name == "function"


def test_codecs_that_fit_a_method(load: Load) -> None:
    for method in METHODS.keys() - {*TANGENTS}:
        feedback = ["up"] if method in (*PAIRS, "czofo", "one-shot") else ["up", "down", "both"]
        codecs = [f"feedback: {way}" for way in feedback]
        ways = ("uniform", "top-k", "sign") if method in ONE_POINT else ("paired",)
        codecs += [f"up: {{name: {name}}}" for name in ways]
        codecs += ["down: {name: uniform}"] if method in LOSSES else []
        for text in codecs:
            assert load(f"method: {{name: {method}}}\ncodecs: {{{text}}}")
        for name in ("top-k", "sign") if method in LOSSES else ():
            text = f"method: {{name: {method}, reply: difference}}\n"
            assert load(f"{text}codecs: {{down: {{name: {name}}}}}")
    for text in ("", "method: {name: czofo}", "codecs: {up: {name: none}}"):
        assert load(f"client: {{model: {{name: mlp}}}}\n{text}")
    assert load("client: {model: {name: text-embeddings}}\nmethod: {name: vafl}")


def test_a_part_of_a_pair_is_uniform_unless_another_is_named(load: Load) -> None:
    for text, *parts in (
        ("midpoint: {bits: 4}", Uniform(bits=4), Uniform()),
        ("difference: {bits: 2}", Uniform(), Uniform(bits=2)),
        ("midpoint: {name: none}", NoCompression(), Uniform()),
    ):
        up: Any = load(f"codecs: {{up: {{name: paired, {text}}}}}").codecs.up
        assert [up.midpoint, up.difference] == parts
    up = load(None, "codecs.up.name=paired", "codecs.up.difference.bits=2").codecs.up
    assert up.difference == Uniform(bits=2)


OWN = {
    "dpzv": ("asynchronous", "sgd", "none"),
    "czofo": ("asynchronous", "sgd", "none"),
    "cascaded": ("asynchronous", "sgd", "none"),
    "zoo-vfl": ("asynchronous", "forward-difference", "none"),
    "syn-zoo-vfl": ("synchronous", "forward-difference", "none"),
    "vafl": ("asynchronous", "sgd", "none"),
    "split": ("synchronous", "sgd", "none"),
    "compressed-vfl": ("synchronous", "sgd", "uniform"),
    "fedbcd": ("synchronous", "sgd", "none"),
    "flex-vfl": ("synchronous", "sgd", "none"),
    "tangent": ("asynchronous", "sgd", "none"),
    "label-statistic": ("asynchronous", "sgd", "none"),
    "one-shot": ("asynchronous", "none", "none"),
}
"""Timing, the server's update and the codec of queries, where they are left out."""


def own_of(settings: ExperimentConfig) -> tuple[str, str, str]:
    return settings.simulation.timing, settings.server.update, settings.codecs.up.name


@pytest.mark.full
def test_what_is_left_out_a_method_decides_wherever_it_was_named(load: Load) -> None:
    for method, own in OWN.items():
        found = [
            load(f"method: {{name: {method}}}"),
            load(None, f"method.name={method}"),
            ExperimentConfig.model_validate({"method": {"name": method}}),
            ExperimentConfig(method=METHODS[method]()),
        ]
        assert [own_of(settings) for settings in found] == [own] * 4
        assert found[0] == found[1] == found[2] == found[3]
        # The file says what was decided, so that a later default cannot change the run.
        tree = yaml.safe_load(found[0].to_yaml())
        sections = tree["simulation"]["timing"], tree["server"]["update"], tree["codecs"]["up"]
        assert (*sections[:2], sections[2]["name"]) == own
        assert load(found[0].to_yaml()) == found[0]
        way = "none" if method in TANGENTS else "up"
        more = f"simulation: {{drop: 0.1}}\nserver: {{join: sum}}\ncodecs: {{feedback: {way}}}"
        settings = load(f"method: {{name: {method}}}\n{more}")
        assert own_of(settings) == own
        kept = settings.simulation.drop, settings.server.join, settings.codecs.feedback
        assert kept == (0.1, "sum", way)
    assert own_of(load("method: {name: zoo-vfl}", "method.name=split")) == OWN["split"]


def test_what_is_said_is_kept(load: Load) -> None:
    own: Any = load("method: {name: compressed-vfl}\ncodecs: {up: {bits: 4}}").codecs.up
    assert own.model_dump() == {"name": "uniform", "bits": 4, "scale": "array"}
    for text in ("", "codecs: {up: {}}"):
        assert load(f"method: {{name: compressed-vfl}}\n{text}").codecs.up == Uniform(bits=8)
    settings = load(
        "method: {name: compressed-vfl}\nserver: {update: none}\n"
        "codecs: {up: {name: none, dtype: float16}}"
    )
    assert own_of(settings) == ("synchronous", "none", "none")
    assert settings.codecs.up.dtype == "float16"
    settings = load("method: {name: zoo-vfl}\nsimulation: {timing: synchronous}")
    assert own_of(settings) == ("synchronous", "forward-difference", "none")
    settings = load("method: {name: dpzv}", "server.update=zeroth-order")
    assert own_of(settings) == ("asynchronous", "zeroth-order", "none")


@pytest.mark.parametrize(
    ("former", "now", "words"),
    [
        (
            "server.update=secret-sgd",
            "server.update=poisson-dp-sgd",
            "server.update 'secret-sgd' is called 'poisson-dp-sgd' now",
        ),
        ("codecs.ids=known", "codecs.ids=implicit", "codecs.ids 'known' is called 'implicit' now"),
        (
            "data.without=[client 1]",
            "data.exclude_parties=[client 1]",
            "data.without is called data.exclude_parties now",
        ),
    ],
)
def test_a_former_name_is_read_with_a_note(
    load: Load, capsys: pytest.CaptureFixture[str], former: str, now: str, words: str
) -> None:
    former_names._note.cache_clear()
    settings = load("privacy: {epsilon: 1}", former)
    assert settings == load("privacy: {epsilon: 1}", now)
    load(None, "privacy.epsilon=1", former)
    (line,) = capsys.readouterr().err.splitlines()  # once
    assert line == f"note: {words}; the next version reads the new name alone"


def test_a_former_key_beside_todays_is_refused_and_an_empty_one_is_not_noted(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load("data: {without: []}") == load("")
    assert not capsys.readouterr().err
    with pytest.raises(ConfigError, match="without"):
        load("data: {without: [a], exclude_parties: [b]}")
