"""Configurations: defaults, files, overrides, and one line for every mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from vertizo.config import schema
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.methods.base import PRIVATE
from vertizo.methods.choice import METHODS
from vertizo.protocol.codecs.none import NoCompression
from vertizo.protocol.codecs.uniform import Uniform

JARGON = (
    "Input should",
    "input should",
    "Value error",
    "after validation",
    "dictionary",
    "instance of",
    "uple",
    "[key]",
    "<class",
    "pydantic",
    "Keys should",
    "unable to",
    "None is None",
    "NoneType",
    "object at 0x",
)
"""Words of the machinery; a person reads none of them."""

Load = Callable[..., ExperimentConfig]

FIRST_ORDER = ["czofo", "vafl", "split", "compressed-vfl", "fedbcd", "flex-vfl"]
IN_STEP = ["syn-zoo-vfl", "split", "compressed-vfl", "fedbcd", "flex-vfl"]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Configuration of a YAML text (None: no file), with overrides."""

    def call(text: str | bytes | None = None, *overrides: str) -> ExperimentConfig:
        if text is None:
            return schema.load(None, overrides)
        path = tmp_path / "run.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return schema.load(path, overrides)

    return call


@pytest.fixture
def refusal(load: Load, tmp_path: Path) -> Callable[..., str]:
    """The one line that a wrong configuration gets, without the file's name."""

    def call(text: str | bytes | None = None, *overrides: str) -> str:
        with pytest.raises(ConfigError) as caught:
            load(text, *overrides)
        line = str(caught.value)
        assert "\n" not in line
        source = "--set" if text is None else str(tmp_path / "run.yaml")
        assert line.startswith((source, "--set"))
        line = line.removeprefix(source)
        for word in JARGON:
            assert word not in line
        return line

    return call


def says(line: str, *words: str) -> None:
    missing = [word for word in words if word not in line]
    assert not missing, line


class TestDefaults:
    def test_they_are_valid_and_complete(self) -> None:
        tree = yaml.safe_load(ExperimentConfig().to_yaml())
        assert set(tree) == set(ExperimentConfig.model_fields)
        assert tree["method"]["name"] == "dpzv"
        assert tree["data"]["name"] == "digits"
        assert tree["privacy"]["mechanism"] == "none"

    def test_a_configuration_cannot_be_changed(self) -> None:
        settings = ExperimentConfig()
        with pytest.raises(ValidationError):
            settings.epochs = 3
        with pytest.raises(ValidationError):
            settings.data.limit = 3

    def test_no_file_an_empty_file_and_no_keys_are_the_defaults(self, load: Load) -> None:
        for text in (None, "", "# only a comment\n", "{}", "---\n"):
            assert load(text) == ExperimentConfig()

    @pytest.mark.parametrize(
        "key", ["data", "client", "server", "privacy", "codecs", "simulation", "method"]
    )
    def test_an_empty_part_is_the_default_part(self, key: str, load: Load) -> None:
        assert load(f"{key}: {{}}") == ExperimentConfig()


def _methods() -> st.SearchStrategy[dict[str, Any]]:
    smoothing = st.floats(1e-9, 1e3)
    laws = st.sampled_from(["sphere", "scaled-sphere", "gaussian", "rademacher", "coordinate"])
    shifted = st.fixed_dictionaries({}, optional={"smoothing": smoothing, "directions": laws})
    steps = st.integers(1, 9)
    several = st.fixed_dictionaries(
        {},
        optional={
            "smoothing": smoothing,
            "num_directions": st.integers(1, 99),
            "clipping": st.sampled_from(["each", "jointly"]),
        },
    )
    return st.one_of(
        shifted,
        several.map(lambda tree: {"name": "dpzv", **tree}),
        *(
            shifted.map(lambda tree, name=name: {"name": name, **tree})
            for name in ("cascaded", "zoo-vfl", "syn-zoo-vfl", "czofo")
        ),
        st.sampled_from(["vafl", "split"]).map(lambda name: {"name": name}),
        steps.map(lambda count: {"name": "compressed-vfl", "local_steps": count}),
        steps.map(lambda count: {"name": "fedbcd", "local_steps": count}),
        st.lists(steps, min_size=1).map(lambda each: {"name": "flex-vfl", "local_steps": each}),
    )


def _models() -> st.SearchStrategy[dict[str, Any]]:
    widths = st.lists(st.integers(1, 99), max_size=3)
    texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=5)
    values = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), texts)
    return st.one_of(
        st.fixed_dictionaries({"hidden": widths, "final_relu": st.booleans()}),
        st.fixed_dictionaries(
            {"name": st.just("cnn"), "channels": st.lists(st.integers(1, 9), min_size=1)}
        ),
        st.fixed_dictionaries(
            {
                "name": st.just("module"),
                "path": st.just("file.py:Net"),
                "arguments": st.dictionaries(st.text("abc", min_size=1), values, max_size=3),
            }
        ),
    )


def _arguments(*values: Any) -> dict[str, Any]:
    """A tree in which these values are arguments of a user's own model."""
    arguments = {f"a{number}": value for number, value in enumerate(values)}
    return {"client": {"model": {"name": "module", "path": "a:b", "arguments": arguments}}}


def _delays() -> st.SearchStrategy[dict[str, Any]]:
    seconds = st.floats(1e-6, 1e6)
    return st.one_of(
        st.fixed_dictionaries({"mean": seconds}),
        st.fixed_dictionaries({"distribution": st.just("constant"), "mean": seconds}),
        st.fixed_dictionaries({"distribution": st.just("log-normal"), "sigma": seconds}),
        st.fixed_dictionaries(
            {"distribution": st.just("trace"), "seconds": st.lists(seconds, min_size=1)}
        ),
    )


def _trees() -> st.SearchStrategy[dict[str, Any]]:
    data = {
        "root": st.sampled_from([None, "/data", "/some/where else/ä"]),
        "parties": st.none() | st.integers(1, 9),
        "split": st.sampled_from([None, "rows", "columns"]),
        "columns": st.none() | st.dictionaries(st.text("ab: #", min_size=1), st.just(["x", "y"])),
        "validation": st.floats(0, 0.999),
        "limit": st.none() | st.integers(2, 10**9),
    }
    privacy = st.sampled_from(
        [
            {},
            {"mechanism": "gaussian", "clip": 5.0, "noise_std": 1e-3},
            {"mechanism": "gaussian", "clip": 1e-12, "noise_std": 3, "delta": 1e-9},
            {"mechanism": "embedding-noise", "clip": 1.5, "epsilon": 3, "accounting": "published"},
        ]
    )
    return st.fixed_dictionaries(
        {},
        optional={
            "seed": st.integers(0, 2**70),
            "epochs": st.integers(1, 10**6),
            "rounds": st.none() | st.integers(1, 10**6),
            "data": st.fixed_dictionaries({}, optional=data),
            "method": _methods(),
            "client": st.fixed_dictionaries({"model": _models()}),
            "privacy": privacy,
            "simulation": st.fixed_dictionaries(
                {
                    "delay": _delays(),
                    "stragglers": st.dictionaries(st.integers(0, 9), st.floats(1e-3, 1e3)),
                }
            ),
            "control": st.sampled_from(["none", "frozen", "random"]),
            "checkpoint_seconds": st.floats(0, 1e6),
        },
    ).map(_with_what_clips)


def _with_what_clips(tree: dict[str, Any]) -> dict[str, Any]:
    """How slopes are clipped is said where they are."""
    mechanism = tree.get("privacy", {}).get("mechanism")
    if tree.get("method", {}).get("clipping") == "jointly" and mechanism != "gaussian":
        return {**tree, "privacy": {"mechanism": "gaussian", "clip": 5.0, "noise_std": 1e-3}}
    return tree


class TestRoundTrip:
    @settings(max_examples=60, deadline=None)
    @given(tree=_trees())
    @example(
        tree=_arguments("1e3", "-1E5", ".5e1", "1_0e2", "+inf", "12:30", "0x1", "on", "~", "=")
    )
    @example(tree={"data": {"columns": {"1e3": ["2e5", "no", "1.0", "<<", "null"]}}})
    def test_written_out_and_read_again_it_is_the_same(
        self, tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        before = schema.parse(tree)
        path = tmp_path_factory.mktemp("config") / "config.yaml"
        path.write_text(before.to_yaml(), encoding="utf-8")
        after = schema.load(path)
        assert after == before
        assert after.to_yaml() == before.to_yaml()

    def test_everything_that_was_given_is_kept(self, load: Load) -> None:
        settings = load(
            "seed: 3\nmethod: {name: cascaded, smoothing: 1e-3}\n"
            "client: {model: {name: cnn, channels: [4]}, optimizer: {learning_rate: 0.5}}\n"
            "simulation: {delay: {distribution: trace, seconds: [1, 2]}, stragglers: {1: 8}}\n"
        )
        assert settings.seed == 3
        assert settings.method.name == "cascaded"
        assert settings.method.smoothing == 1e-3
        assert settings.client.model.name == "cnn"
        assert settings.client.model.channels == (4,)
        assert settings.client.optimizer.learning_rate == 0.5
        assert settings.client.optimizer.momentum == ExperimentConfig().client.optimizer.momentum
        assert settings.simulation.delay.seconds == (1, 2)
        assert settings.simulation.stragglers == {1: 8}


UNKNOWN = [
    ("epoch: 3", "'epoch'", "'epochs'"),
    ("zzz: 3", "'zzz'", "seed, epochs"),
    ("data: {nmae: mnist}", "'data.nmae'", "'name'"),
    ("data: {qq: 1}", "'data.qq'", "root"),
    ("method: {name: dpzv, smothing: 1}", "'method.smothing'", "'smoothing'"),
    ("method: {smothing: 1}", "'method.smothing'", "'smoothing'"),
    ("method: {name: cascaded, smothing: 1}", "'method.smothing'", "'smoothing'"),
    ("client: {modle: {}}", "'client.modle'", "'model'"),
    ("client: {model: {hiden: [3]}}", "'client.model.hiden'", "'hidden'"),
    ("client: {model: {name: cnn, chanels: [3]}}", "'client.model.chanels'", "'channels'"),
    (
        "client: {optimizer: {lerning_rate: 1}}",
        "'client.optimizer.lerning_rate'",
        "'learning_rate'",
    ),
    ("server: {jion: sum}", "'server.jion'", "'join'"),
    ("server: {model: {hiden: [3]}}", "'server.model.hiden'", "'hidden'"),
    ("server: {optimizer: {momentun: 0}}", "'server.optimizer.momentun'", "'momentum'"),
    ("privacy: {epsilonn: 1}", "'privacy.epsilonn'", "'epsilon'"),
    ("codecs: {upp: {}}", "'codecs.upp'", "'up'"),
    ("codecs: {up: {dtyp: float16}}", "'codecs.up.dtyp'", "'dtype'"),
    ("simulation: {timming: 1}", "'simulation.timming'", "'timing'"),
    ("simulation: {delay: {maen: 1}}", "'simulation.delay.maen'", "'mean'"),
    (
        "simulation: {delay: {distribution: log-normal, sigmma: 1}}",
        "'simulation.delay.sigmma'",
        "'sigma'",
    ),
]


class TestUnknownKeys:
    @pytest.mark.parametrize(("text", "key", "hint"), UNKNOWN)
    def test_the_key_is_named_in_full_and_a_near_one_offered(
        self, text: str, key: str, hint: str, refusal: Callable[..., str]
    ) -> None:
        says(refusal(text), "unknown key", key, hint)

    def test_a_key_of_another_method_is_not_offered_back(self, refusal: Callable[..., str]) -> None:
        line = refusal("method: {name: vafl, smoothing: 0.1}")
        says(line, "unknown key 'method.smoothing'")
        assert "did you mean" not in line

    def test_a_server_has_no_outputs_of_its_own(self, refusal: Callable[..., str]) -> None:
        says(refusal("server: {model: {name: mlp, outputs: 3}}"), "server.model.outputs")

    def test_several_mistakes_are_counted(self, refusal: Callable[..., str]) -> None:
        says(refusal("epoch: 3\nsede: 1"), "'epoch'", "1 more")


VALUES = [
    ("epochs: 0", "epochs is 0", "greater than 0"),
    ("epochs: -3", "epochs is -3", "greater than 0"),
    ("epochs: many", "epochs is 'many'", "integer"),
    ("epochs: 1.5", "epochs is 1.5", "integer"),
    ("epochs: [1]", "epochs is [1]", "integer"),
    ("epochs: {a: 1}", "epochs is {'a': 1}", "integer"),
    ("epochs: .inf", "epochs is inf", "number"),
    ("seed: -1", "seed is -1", "0"),
    ("batch_size: 0", "batch_size is 0", "greater than 0"),
    ("rounds: 0", "rounds is 0", "greater than 0"),
    ("evaluate_every: 0", "evaluate_every is 0", "greater than 0"),
    ("checkpoint_seconds: -1", "checkpoint_seconds is -1", "0"),
    ("threads: 0", "threads is 0", "greater than 0"),
    ("control: off", "control is False", "'none', 'frozen' or 'random'"),
    ("data: {validation: 1}", "data.validation is 1", "less than 1"),
    ("data: {validation: -0.1}", "data.validation is -0.1", "0"),
    ("data: {limit: 1}", "data.limit is 1", "2"),
    ("data: {parties: 0}", "data.parties is 0", "greater than 0"),
    ("data: {split: row}", "data.split is 'row'", "'rows'"),
    ("data: {name: 3}", "data.name is 3", "string"),
    ("data: {root: [a]}", "data.root is ['a']", "path"),
    ("data: {columns: {a: x}}", "data.columns.a is 'x'", "list"),
    ("data: {columns: [a]}", "data.columns is ['a']", "keys and values"),
    ("data: {columns: {a: [1]}}", "data.columns.a.0 is 1", "string"),
    ("data: {columns: {1: [x]}}", "data.columns", "1", "string"),
    ("method: {smoothing: 0}", "method.smoothing is 0", "greater than 0"),
    ("method: {name: dpzv, smoothing: .nan}", "method.smoothing is nan", "finite"),
    ("method: {directions: ball}", "method.directions is 'ball'", "'sphere'"),
    ("client: {model: {hidden: [8, 0]}}", "client.model.hidden.1 is 0", "greater than 0"),
    ("client: {model: {hidden: 8}}", "client.model.hidden is 8", "list"),
    ("client: {model: {name: cnn, channels: []}}", "client.model.channels is []", "1"),
    ("client: {model: {outputs: 0}}", "client.model.outputs is 0", "greater than 0"),
    ("client: {model: {final_relu: maybe}}", "client.model.final_relu is 'maybe'", "boolean"),
    ("client: {optimizer: {learning_rate: 0}}", "client.optimizer.learning_rate is 0", "0"),
    ("client: {optimizer: {learning_rate: fast}}", "learning_rate is 'fast'", "number"),
    ("client: {optimizer: {momentum: 1}}", "client.optimizer.momentum is 1", "less than 1"),
    (
        "server: {update: adam}",
        "server.update is 'adam'",
        "'private-zeroth-order', 'secret-sgd' or 'none'",
    ),
    ("server: {join: max}", "server.join is 'max'", "'concat', 'sum' or 'mean'"),
    ("server: {embedding_bound: 0}", "server.embedding_bound is 0", "greater than 0"),
    (
        "privacy: {mechanism: laplace}",
        "privacy.mechanism is 'laplace'",
        "'none', 'gaussian' or 'embedding-noise'",
    ),
    ("privacy: {accounting: rdp}", "privacy.accounting is 'rdp'", "'exact' or 'published'"),
    ("method: {num_directions: 0}", "method.num_directions is 0", "greater than 0"),
    ("method: {clipping: all}", "method.clipping is 'all'", "'each' or 'jointly'"),
    ("method: {name: czofo, num_directions: 0}", "method.num_directions is 0", "greater than 0"),
    ("method: {name: czofo, scalars: all}", "method.scalars is 'all'", "'batch' or 'record'"),
    ("method: {name: zoo-vfl, reply: loss}", "method.reply is 'loss'", "'losses' or 'difference'"),
    ("method: {name: fedbcd, local_steps: 0}", "method.local_steps is 0", "greater than 0"),
    (
        "method: {name: flex-vfl, local_steps: [2, 0]}",
        "method.local_steps.1 is 0",
        "greater than 0",
    ),
    ("method: {name: flex-vfl, local_steps: 2}", "method.local_steps is 2", "list"),
    ("codecs: {feedback: yes}", "codecs.feedback is True", "'none', 'up', 'down' or 'both'"),
    ("privacy: {delta: 1}", "privacy.delta is 1", "less than 1"),
    ("privacy: {clip: -5}", "privacy.clip is -5", "greater than 0"),
    ("codecs: {up: {dtype: int8}}", "codecs.up.dtype is 'int8'", "'float32'"),
    ("codecs: {down: {name: top_k}}", "codecs.down.name is 'top_k'", "'none'"),
    ("simulation: {timing: async}", "simulation.timing is 'async'", "'asynchronous'"),
    ("simulation: {table: ones}", "simulation.table is 'ones'", "'zeros' or 'upload'"),
    ("simulation: {drop: 1}", "simulation.drop is 1", "less than 1"),
    ("simulation: {bandwidth: 0}", "simulation.bandwidth is 0", "greater than 0"),
    ("simulation: {timeout: 0}", "simulation.timeout is 0", "greater than 0"),
    ("simulation: {delay: {mean: 0}}", "simulation.delay.mean is 0", "greater than 0"),
    ("simulation: {delay: {distribution: trace, seconds: []}}", "simulation.delay.seconds", "1"),
    (
        "simulation: {delay: {distribution: trace, seconds: [2, -1]}}",
        "simulation.delay.seconds.1 is -1",
        "greater than 0",
    ),
    ("simulation: {stragglers: {0: 0}}", "simulation.stragglers.0 is 0", "greater than 0"),
    ("simulation: {stragglers: {bank: 2}}", "simulation.stragglers", "'bank'", "integer"),
    ("simulation: {stragglers: [3]}", "simulation.stragglers is [3]", "keys and values"),
]


class TestValues:
    @pytest.mark.parametrize(("text", "key", "words"), [(t, k, w) for t, k, *w in VALUES])
    def test_the_key_its_value_and_what_would_be_right(
        self, text: str, key: str, words: list[str], refusal: Callable[..., str]
    ) -> None:
        says(refusal(text), key, *words)

    @pytest.mark.parametrize(
        "text",
        ["epochs: true", "seed: false", "client: {optimizer: {learning_rate: true}}"],
    )
    def test_true_and_false_are_no_numbers(self, text: str, refusal: Callable[..., str]) -> None:
        key, value = text.replace("{", "").replace("}", "").split(": ")[-2:]
        says(refusal(text), key, f"is {value.title()}")

    def test_more_threads_than_any_machine_has(self, refusal: Callable[..., str]) -> None:
        """PyTorch takes such a number and ends the process with a segmentation fault."""
        says(refusal("threads: 1000000"), "threads is 1000000")

    @pytest.mark.parametrize(
        ("text", "key", "known"),
        [
            ("method: {name: dpvz}", "method.name is 'dpvz'", ["dpzv", "cascaded", "vafl"]),
            ("method: {name: true}", "method.name is True", ["dpzv"]),
            ("client: {model: {name: resnet}}", "client.model.name is 'resnet'", ["mlp", "cnn"]),
            ("server: {model: {name: cnn}}", "server.model.name is 'cnn'", ["mlp", "module"]),
            (
                "simulation: {delay: {distribution: weibull}}",
                "simulation.delay.distribution is 'weibull'",
                ["constant", "exponential", "log-normal", "trace"],
            ),
        ],
    )
    def test_unknown_names_list_the_known_ones(
        self, text: str, key: str, known: list[str], refusal: Callable[..., str]
    ) -> None:
        says(refusal(text), key, *known)

    @pytest.mark.parametrize("value", ["null", "''", "[dpzv]", "{a: 1}"])
    def test_a_name_that_is_no_name(self, value: str, refusal: Callable[..., str]) -> None:
        says(refusal(f"method: {{name: {value}}}"), "method.name is", "'dpzv'")

    @pytest.mark.parametrize(
        ("text", "key"),
        [
            ("client: {model: {name: module}}", "client.model.path is missing"),
            ("client: {model: {name: function}}", "client.model.path is missing"),
            (
                "client: {model: {name: function, path: 'a:b'}}",
                "client.model.num_parameters is missing",
            ),
            ("server: {model: {name: module}}", "server.model.path is missing"),
            (
                "simulation: {delay: {distribution: trace}}",
                "simulation.delay.seconds is missing",
            ),
        ],
    )
    def test_what_is_missing_is_said_to_be_missing(
        self, text: str, key: str, refusal: Callable[..., str]
    ) -> None:
        says(refusal(text), key)

    @pytest.mark.parametrize("value", ["dpzv", "3", "null", "[a]"])
    @pytest.mark.parametrize(
        "key",
        [
            "data",
            "method",
            "client",
            "client.model",
            "server.model",
            "codecs.up",
            "simulation.delay",
        ],
    )
    def test_a_value_where_keys_belong(
        self, key: str, value: str, refusal: Callable[..., str]
    ) -> None:
        *outer, last = key.split(".")
        text = "".join(f"{name}: {{" for name in outer) + f"{last}: {value}" + "}" * len(outer)
        says(refusal(text), f"{key} is", "keys and values")


class TestFiles:
    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("epochs: 1\n  data: 2\n", ["not YAML", "line 2"]),
            ("epochs: [1\n", ["not YAML", "line"]),
            ("\tepochs: 1\n", ["not YAML", "line 1"]),
            ("seed: 1\nepochs: *x\n", ["not YAML", "line 2"]),
            ("a: 1\n---\nb: 2\n", ["not YAML", "line 2"]),
            ("epochs: !!python/object:os.system 1\n", ["not YAML", "line 1"]),
            ("- epochs: 1\n", ["list", "keys and values"]),
            ("epochs\n", ["keys and values"]),
            ("3\n", ["keys and values"]),
            (b"\xff\xfe\x00\x01", ["not a text file"]),
            (b"epochs: 1\x00\n", ["not"]),
            ("1: 2\n", ["1"]),
            ("null: 2\n", ["unknown key"]),
            ("seed: 2024-13-45\n", ["2024-13-45"]),
            ("epochs: 2\nseed: 1\nepochs: 3\n", ["epochs", "line 3"]),
            ("data: {limit: 9, name: digits, limit: 8}\n", ["limit", "line 1"]),
            ("seed: 1\nepochs: {{ epochs }}\n", ["line 2"]),
            ("data:\n  ? [a, b]\n  : 3\n", ["line 2"]),
            ("data: {1: 2}\n", ["data", "1"]),
            ("client: &c {model: *c}\n", ["not YAML", "line 1"]),
        ],
        ids=[
            "indentation",
            "open bracket",
            "tab",
            "alias",
            "two documents",
            "python object",
            "list",
            "word",
            "number",
            "binary",
            "zero byte",
            "number as key",
            "null as key",
            "no such date",
            "key twice",
            "key twice inside",
            "a template",
            "a list as key",
            "number as key inside",
            "itself inside",
        ],
    )
    def test_what_is_no_configuration(
        self, content: str | bytes, words: list[str], refusal: Callable[..., str]
    ) -> None:
        says(refusal(content), *words)

    def test_a_missing_file_and_a_folder_are_named(self, tmp_path: Path) -> None:
        for path in (tmp_path / "absent.yaml", tmp_path, tmp_path / "a" / "b.yaml"):
            with pytest.raises(ConfigError) as caught:
                schema.load(path)
            assert str(caught.value).startswith(f"{path}: ")
            assert "\n" not in str(caught.value)


class TestOverrides:
    @pytest.mark.parametrize(
        ("text", "value"),
        [("1e-3", 1e-3), ("0.001", 1e-3), ("1E-3", 1e-3), ("1", 1.0), ("5.e-1", 0.5)],
    )
    def test_numbers(self, text: str, value: float, load: Load) -> None:
        settings = load(None, f"client.optimizer.learning_rate={text}")
        assert settings.client.optimizer.learning_rate == value

    def test_whole_numbers_lists_texts_and_nothing(self, load: Load) -> None:
        settings = load(
            None,
            "epochs=1e1",
            "client.model.hidden=[8, 4]",
            "data.split=sides",
            "data.limit=null",
            "data.parties=",
            "simulation.stragglers={1: 8}",
            "simulation.delay.distribution=trace",
            "simulation.delay.seconds=[1e-3, 2]",
        )
        assert settings.epochs == 10
        assert settings.client.model.hidden == (8, 4)
        assert settings.data.split == "sides"
        assert settings.data.limit is None
        assert settings.data.parties is None
        assert settings.simulation.stragglers == {1: 8}
        assert settings.simulation.delay.seconds == (1e-3, 2)

    def test_a_value_may_hold_an_equals_sign(self, load: Load) -> None:
        assert load(None, "data.name=a=b").data.name == "a=b"

    def test_numbers_in_a_users_own_arguments(self, load: Load) -> None:
        path = ("client.model.name=module", "client.model.path=a:b")
        for more in (
            ("client.model.arguments.scale=1e-3",),
            ("client.model.arguments={scale: 1e-3}",),
        ):
            assert load(None, *path, *more).client.model.arguments == {"scale": 1e-3}
        text = "client: {model: {name: module, path: 'a:b', arguments: {scale: 1e-3}}}"
        assert load(text).client.model.arguments == {"scale": 1e-3}

    def test_one_key_leaves_its_neighbours_alone(self, load: Load) -> None:
        settings = load(
            "client: {optimizer: {learning_rate: 0.5, momentum: 0.25}}\nmethod: {smoothing: 0.5}",
            "client.optimizer.momentum=0",
            "method.directions=gaussian",
            "data.limit=9",
        )
        assert settings.client.optimizer.learning_rate == 0.5
        assert settings.client.optimizer.momentum == 0
        assert settings.method.model_dump() == {
            "name": "dpzv",
            "smoothing": 0.5,
            "directions": "gaussian",
            "num_directions": 1,
            "clipping": "each",
        }
        assert settings.data.limit == 9

    def test_they_go_before_the_file_and_the_last_one_wins(self, load: Load) -> None:
        assert load("epochs: 3", "epochs=4", "epochs=5").epochs == 5

    @pytest.mark.parametrize("value", ["digits", "'1e3'", '"1e3"'])
    def test_quoted_numbers_are_texts(self, value: str, load: Load) -> None:
        assert load(f"data: {{name: {value}}}").data.name == value.strip("'\"")
        assert load(None, f"data.name={value}").data.name == value.strip("'\"")

    @pytest.mark.parametrize(
        ("override", "smoothing"), [("vafl", None), ("cascaded", 1e-3), ("dpzv", 0.25)]
    )
    def test_another_method_on_top_of_a_file(
        self, override: str, smoothing: float | None, load: Load
    ) -> None:
        """The other method's keys go with it; the same method's stay."""
        method = load("method: {name: dpzv, smoothing: 0.25}", f"method.name={override}").method
        assert method.name == override
        assert getattr(method, "smoothing", None) == smoothing

    @pytest.mark.parametrize(
        ("text", "override", "key", "value"),
        [
            ("method: {smoothing: 0.25}", "method.name=dpzv", "method.smoothing", 0.25),
            ("codecs: {up: {dtype: float16}}", "codecs.up.name=none", "codecs.up.dtype", "float16"),
            ("client: {model: {outputs: 9}}", "client.model.name=mlp", "client.model.outputs", 9),
            (
                "simulation: {delay: {mean: 2}}",
                "simulation.delay.distribution=exponential",
                "simulation.delay.mean",
                2,
            ),
        ],
    )
    def test_saying_what_holds_anyway_takes_nothing_away(
        self, text: str, override: str, key: str, value: Any, load: Load
    ) -> None:
        found: Any = load(text, override)
        for part in key.split("."):
            found = getattr(found, part)
        assert found == value

    @pytest.mark.parametrize("name", ["name", "distribution"])
    def test_a_users_own_names_are_not_choices(self, name: str, load: Load) -> None:
        text = (
            "client: {model: {name: module, path: 'a:b', arguments: {width: 3}}}\n"
            "data: {columns: {bank: [x]}}"
        )
        settings = load(text, f"client.model.arguments.{name}=deep", f"data.columns.{name}=[y]")
        assert settings.client.model.arguments == {"width": 3, name: "deep"}
        assert settings.data.columns == {"bank": ["x"], name: ["y"]}

    def test_the_order_of_a_choice_and_its_keys_does_not_matter(self, load: Load) -> None:
        overrides = ("client.model.channels=[3]", "client.model.name=cnn")
        assert load(None, *overrides) == load(None, *reversed(overrides))

    @pytest.mark.parametrize(
        "override", ["epochs", "=3", "epochs:3", "", ".=3", "data..name=x", "data.=3", ".epochs=3"]
    )
    def test_malformed_ones_are_shown_the_form(
        self, override: str, refusal: Callable[..., str]
    ) -> None:
        says(refusal(None, override), override, "key=value")

    @pytest.mark.parametrize("value", ["[1", "{a", "'x", "a: b: c"])
    def test_a_value_that_is_no_yaml(self, value: str, refusal: Callable[..., str]) -> None:
        says(refusal(None, f"seed={value}"), f"seed={value}")

    @pytest.mark.parametrize(
        ("override", "words"),
        [
            ("epoch=3", ["'epoch'", "'epochs'"]),
            ("data.name.first=3", ["data.name"]),
            ("method=vafl", ["method is 'vafl'", "keys and values"]),
            ("epochs=", ["epochs is None", "integer"]),
            ("method.name=", ["method.name is", "'dpzv'"]),
            ("client.model.name=module", ["client.model.path is missing"]),
            ("seed=2024-13-45", ["seed", "2024-13-45"]),
            ("simulation.delay.name=constant", ["simulation.delay.name"]),
            ("method.distribution=constant", ["method.distribution"]),
            ("client.name=3", ["client.name"]),
            ("epochs={{ epochs }}", ["epochs={{ epochs }}"]),
        ],
    )
    def test_wrong_keys_and_values(
        self, override: str, words: list[str], refusal: Callable[..., str]
    ) -> None:
        says(refusal(None, override), *words)

    def test_a_wrong_override_of_a_right_file_names_the_key(
        self, refusal: Callable[..., str]
    ) -> None:
        says(refusal("epochs: 3", "seed=-1"), "seed is -1")


class TestCrossChecks:
    @pytest.mark.parametrize(
        "keys", ["clip: 1", "mechanism: none, noise_std: 1", "mechanism: none, epsilon: 1"]
    )
    def test_a_mechanism_is_needed(self, keys: str, refusal: Callable[..., str]) -> None:
        key = keys.split(", ")[-1][:-3]
        says(refusal(f"privacy: {{{keys}}}"), f"privacy.{key}", "privacy.mechanism", "'gaussian'")

    def test_noise_on_embeddings_needs_a_clip(self, refusal: Callable[..., str]) -> None:
        line = refusal("privacy: {mechanism: embedding-noise, noise_std: 1}")
        says(line, "privacy.mechanism 'embedding-noise'", "privacy.clip")

    @pytest.mark.parametrize("mechanism", ["gaussian", "embedding-noise"])
    @pytest.mark.parametrize("keys", ["", ", noise_std: 1, epsilon: 1"])
    def test_noise_is_given_in_one_way(
        self, keys: str, mechanism: str, refusal: Callable[..., str]
    ) -> None:
        line = refusal(f"privacy: {{mechanism: {mechanism}, clip: 1{keys}}}")
        says(line, f"{mechanism!r}", "exactly one", "privacy.noise_std", "privacy.epsilon")

    @pytest.mark.parametrize("update", ["sgd", "zeroth-order", "forward-difference"])
    def test_no_epsilon_beside_a_server_that_trains_on_raw_labels(
        self, update: str, refusal: Callable[..., str]
    ) -> None:
        name = "zoo-vfl" if update == "forward-difference" else "dpzv"
        line = refusal(
            f"method: {{name: {name}}}\nserver: {{update: {update}}}\n"
            "privacy: {mechanism: gaussian, clip: 1, epsilon: 2}"
        )
        says(
            line,
            "privacy.epsilon is 2.0",
            f"server.update {update!r}",
            "raw labels",
            "privacy.noise_std",
            "server.update to",
            *map(repr, (*PRIVATE, "none")),
        )

    @pytest.mark.parametrize("update", ["sgd", "none"])
    def test_noise_on_embeddings_may_be_given_by_epsilon_under_any_server(
        self, update: str, load: Load
    ) -> None:
        """It is about features; labels are not protected either way, and the run says so."""
        settings = load(
            f"privacy: {{mechanism: embedding-noise, clip: 1, epsilon: 2}}\n"
            f"server: {{update: {update}}}"
        )
        assert settings.privacy.epsilon == 2

    def test_the_published_accounting_needs_noise(self, refusal: Callable[..., str]) -> None:
        line = refusal("privacy: {accounting: published}")
        says(line, "privacy.accounting is 'published'", "privacy.mechanism is 'none'", "'gaussian'")

    @pytest.mark.parametrize("mechanism", ["gaussian", "embedding-noise"])
    def test_the_published_accounting_needs_an_epsilon(
        self, mechanism: str, refusal: Callable[..., str]
    ) -> None:
        line = refusal(
            f"privacy: {{mechanism: {mechanism}, clip: 1, noise_std: 1, accounting: published}}"
        )
        says(line, "privacy.accounting is 'published'", "needs privacy.epsilon")

    @pytest.mark.parametrize("update", PRIVATE)
    def test_the_published_accounting_knows_no_private_server(
        self, update: str, refusal: Callable[..., str]
    ) -> None:
        line = refusal(
            "privacy: {mechanism: gaussian, clip: 1, epsilon: 1, accounting: published}\n"
            f"server: {{update: {update}}}"
        )
        says(line, "privacy.accounting is 'published'", f"server.update {update!r}", "'sgd'")

    @pytest.mark.parametrize("mechanism", ["none", "embedding-noise"])
    @pytest.mark.parametrize("update", PRIVATE)
    def test_a_private_server_needs_noise_on_replies(
        self, update: str, mechanism: str, refusal: Callable[..., str]
    ) -> None:
        more = ", clip: 1, noise_std: 1" if mechanism != "none" else ""
        line = refusal(f"privacy: {{mechanism: {mechanism}{more}}}\nserver: {{update: {update}}}")
        says(line, f"server.update is {update!r}", f"privacy.mechanism is {mechanism!r}")

    @pytest.mark.parametrize("key", ["server_share: 0.5", "server_noise_std: 1"])
    def test_noise_of_a_server_that_carries_none(
        self, key: str, refusal: Callable[..., str]
    ) -> None:
        line = refusal(
            f"privacy: {{mechanism: gaussian, clip: 1, noise_std: 1, {key}}}\n"
            "server: {update: sgd}"
        )
        says(line, f"privacy.{key.split(':')[0]}", "server.update 'sgd'", "'private-sgd'")

    def test_epsilon_or_the_servers_noise(self, refusal: Callable[..., str]) -> None:
        line = refusal(
            "privacy: {mechanism: gaussian, clip: 1, epsilon: 1, server_noise_std: 1}\n"
            "server: {update: private-sgd}"
        )
        says(line, "privacy.epsilon", "privacy.server_noise_std", "both set")

    @pytest.mark.parametrize("more", ["", ", server_noise_std: 1, server_share: 0.5"])
    def test_given_noise_is_given_for_the_server_too(
        self, more: str, refusal: Callable[..., str]
    ) -> None:
        line = refusal(
            f"privacy: {{mechanism: gaussian, clip: 1, noise_std: 1{more}}}\n"
            "server: {update: private-sgd}"
        )
        says(line, "privacy.server_noise_std", "privacy.server_share")

    @pytest.mark.parametrize("mechanism", ["none", "embedding-noise"])
    def test_secure_noise_is_for_replies(self, mechanism: str, refusal: Callable[..., str]) -> None:
        more = ", clip: 1, noise_std: 1" if mechanism != "none" else ""
        line = refusal(f"privacy: {{mechanism: {mechanism}, noise: secure{more}}}")
        says(line, "privacy.noise is 'secure'", f"privacy.mechanism is {mechanism!r}")

    def test_an_epsilon_where_the_server_is_private(self, load: Load) -> None:
        settings = load(
            "privacy: {mechanism: gaussian, clip: 1, epsilon: 2}\nserver: {update: none}"
        )
        assert settings.privacy.epsilon == 2

    @pytest.mark.parametrize("method", FIRST_ORDER)
    def test_a_plain_function_has_no_gradient(
        self, method: str, refusal: Callable[..., str]
    ) -> None:
        line = refusal(
            f"method: {{name: {method}}}\n"
            "client: {model: {name: function, path: 'rules.py:apply', num_parameters: 3}}"
        )
        says(line, f"{method!r}", "client.model", "rules.py:apply")
        says(line, "'dpzv'", "'cascaded'", "'zoo-vfl'")

    @pytest.mark.parametrize("method", [name for name in METHODS if name not in FIRST_ORDER])
    def test_a_plain_function_trains_by_zeroth_order(self, method: str, load: Load) -> None:
        model = {"name": "function", "path": "rules.py:apply", "num_parameters": 3}
        tree = yaml.safe_dump({"method": {"name": method}, "client": {"model": model}})
        assert load(tree).client.model.name == "function"

    @pytest.mark.parametrize("method", IN_STEP)
    def test_a_timing_that_a_method_does_not_have(
        self, method: str, refusal: Callable[..., str]
    ) -> None:
        line = refusal(f"method: {{name: {method}}}\nsimulation: {{timing: asynchronous}}")
        says(
            line,
            "simulation.timing is 'asynchronous'",
            f"method {method!r} is synchronous",
            "leave simulation.timing out",
        )

    @pytest.mark.parametrize("method", ["zoo-vfl", "syn-zoo-vfl"])
    def test_a_server_update_that_a_method_does_not_have(
        self, method: str, refusal: Callable[..., str]
    ) -> None:
        """Theirs is what sets them apart: by gradients it would be VFL-Cascaded."""
        line = refusal(f"method: {{name: {method}}}\nserver: {{update: sgd}}")
        says(
            line,
            "server.update is 'sgd'",
            f"method {method!r} trains its server by forward-difference or zeroth-order or "
            "private-zeroth-order or none",
            "leave server.update out",
            "'cascaded'",
        )

    @pytest.mark.parametrize("method", METHODS)
    def test_every_update_that_a_method_has_fits(self, method: str, load: Load) -> None:
        for update in METHODS[method].server_updates:
            noise = "{mechanism: gaussian, clip: 1, noise_std: 1, server_noise_std: 1}"
            settings = load(
                f"method: {{name: {method}}}\nserver: {{update: {update}}}\n"
                f"privacy: {noise if update in PRIVATE else '{}'}"
            )
            assert settings.server.update == update


ONE_POINT = ["czofo", "vafl", "split", "compressed-vfl", "fedbcd", "flex-vfl"]
PAIRS = ["dpzv", "cascaded", "zoo-vfl", "syn-zoo-vfl"]
LOSSES = ["cascaded", "zoo-vfl"]
SWALLOWING = ["{name: uniform}", "{name: top-k}", "{name: sign}"]


class TestCodecsFit:
    def test_the_lists_are_complete(self) -> None:
        assert {name for name, method in METHODS.items() if method().points == 1} == {*ONE_POINT}
        assert {*ONE_POINT} | {*PAIRS} == {*METHODS}
        assert {name for name, method in METHODS.items() if method().reply_is_losses} == {*LOSSES}

    @pytest.mark.parametrize("method", ONE_POINT)
    def test_one_embedding_has_no_pair(
        self, method: str, load: Load, refusal: Callable[..., str]
    ) -> None:
        line = refusal(f"method: {{name: {method}}}\ncodecs: {{up: {{name: paired}}}}")
        says(line, "codecs.up is 'paired'", f"method {method!r}", "one embedding", "'uniform'")
        for codec in SWALLOWING:
            load(f"method: {{name: {method}}}\ncodecs: {{up: {codec}}}")

    @pytest.mark.parametrize("method", PAIRS)
    @pytest.mark.parametrize("codec", SWALLOWING)
    def test_rounding_swallows_a_small_difference(
        self, method: str, codec: str, load: Load, refusal: Callable[..., str]
    ) -> None:
        name = codec.strip("{}").removeprefix("name: ")
        line = refusal(f"method: {{name: {method}}}\ncodecs: {{up: {codec}}}")
        says(
            line,
            f"codecs.up is {name!r}",
            f"method {method!r}",
            "method.smoothing",
            "'paired'",
        )
        assert load(f"method: {{name: {method}}}\ncodecs: {{up: {{name: paired}}}}")

    def test_a_part_of_a_pair_is_uniform_unless_another_is_named(
        self, load: Load, refusal: Callable[..., str]
    ) -> None:
        up: Any = load("codecs: {up: {name: paired, midpoint: {bits: 4}}}").codecs.up
        assert (up.midpoint, up.difference) == (Uniform(bits=4), Uniform())
        up = load(None, "codecs.up.name=paired", "codecs.up.difference.bits=2").codecs.up
        assert (up.midpoint, up.difference) == (Uniform(), Uniform(bits=2))
        up = load("codecs: {up: {name: paired, midpoint: {name: none}}}").codecs.up
        assert up.midpoint == NoCompression()
        line = refusal("codecs: {up: {name: paired, midpoint: {bist: 4}}}")
        says(line, "'codecs.up.midpoint.bist'", "'bits'")

    @pytest.mark.parametrize("method", METHODS)
    def test_no_reply_is_a_pair(self, method: str, refusal: Callable[..., str]) -> None:
        line = refusal(f"method: {{name: {method}}}\ncodecs: {{down: {{name: paired}}}}")
        says(line, "codecs.down is 'paired'", f"replies of method {method!r}", "'uniform'")

    @pytest.mark.parametrize("method", LOSSES)
    @pytest.mark.parametrize("name", ["top-k", "sign"])
    def test_two_losses_must_arrive_as_they_are(
        self, method: str, name: str, load: Load, refusal: Callable[..., str]
    ) -> None:
        down = f"codecs: {{down: {{name: {name}}}}}"
        line = refusal(f"method: {{name: {method}}}\n{down}")
        says(
            line,
            f"codecs.down is {name!r}",
            f"method {method!r}",
            "two losses",
            "method.reply to 'difference'",
            "'none' with float32, or 'uniform'",
        )
        assert load(f"method: {{name: {method}, reply: difference}}\n{down}")
        assert load(f"method: {{name: {method}}}\ncodecs: {{down: {{name: uniform}}}}")

    @pytest.mark.parametrize("method", LOSSES)
    def test_the_number_format_is_named_where_it_is_to_blame(
        self, method: str, refusal: Callable[..., str]
    ) -> None:
        line = refusal(f"method: {{name: {method}}}\ncodecs: {{down: {{dtype: float16}}}}")
        says(line, "codecs.down is 'none' with float16", "'none' with float32")

    def test_a_methods_own_codec_takes_other_settings(self, load: Load) -> None:
        own = load("method: {name: compressed-vfl}\ncodecs: {up: {bits: 4}}").codecs.up
        assert own.model_dump() == {"name": "uniform", "bits": 4, "scale": "array"}
        assert load("method: {name: compressed-vfl}\ncodecs: {up: {}}").codecs.up.bits == 8

    @pytest.mark.parametrize("method", LOSSES)
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_nor_are_they_rounded_to_halves(
        self, method: str, dtype: str, refusal: Callable[..., str]
    ) -> None:
        line = refusal(f"method: {{name: {method}}}\ncodecs: {{down: {{dtype: {dtype}}}}}")
        says(line, "codecs.down is", f"method {method!r}", "two losses")

    @pytest.mark.parametrize("feedback", ["down", "both"])
    @pytest.mark.parametrize("method", [*PAIRS, "czofo"])
    def test_feedback_needs_numbers_of_each_record(
        self, method: str, feedback: str, load: Load, refusal: Callable[..., str]
    ) -> None:
        line = refusal(f"method: {{name: {method}}}\ncodecs: {{feedback: {feedback}}}")
        says(line, f"codecs.feedback is {feedback!r}", f"method {method!r}", "'up' or 'none'")
        assert load(f"method: {{name: {method}}}\ncodecs: {{feedback: up}}")

    def test_what_may_stand_in_a_chain(self, refusal: Callable[..., str]) -> None:
        line = refusal("codecs: {up: {name: chain, codecs: [{name: paired}, {name: uniform}]}}")
        says(line, "'paired'", "known are", "'top-k'", "'uniform'")

    def test_feedback_needs_a_codec_that_settles(self, refusal: Callable[..., str]) -> None:
        line = refusal("method: {name: vafl}\ncodecs: {feedback: up, up: {name: uniform, bits: 1}}")
        says(line, "codecs.feedback is 'up'", "codecs.up 'uniform'", "%", "'sign'")

    @pytest.mark.parametrize("feedback", ["up", "down", "both"])
    @pytest.mark.parametrize("method", sorted(set(ONE_POINT) - {"czofo"}))
    def test_feedback_where_each_record_is_answered_with_a_gradient(
        self, method: str, feedback: str, load: Load
    ) -> None:
        text = f"method: {{name: {method}}}\ncodecs: {{feedback: {feedback}}}"
        assert load(text).codecs.feedback == feedback

    def test_slopes_of_each_record_are_no_steps_that_add_up(
        self, refusal: Callable[..., str]
    ) -> None:
        """They belong to other directions in each query."""
        text = "method: {name: czofo, scalars: record}\ncodecs: {feedback: down}"
        says(refusal(text), "codecs.feedback is 'down'", "method 'czofo'", "'up' or 'none'")

    @pytest.mark.parametrize(
        ("text", "word"),
        [
            ("method: {name: czofo}", "'czofo' perturbs"),
            ("method: {name: vafl}\ncodecs: {up: {name: uniform}}", "'uniform' rounds"),
            (
                "privacy: {mechanism: embedding-noise, clip: 1, noise_std: 1}",
                "'embedding-noise' changes",
            ),
        ],
    )
    def test_zeros_that_end_a_text_must_arrive_as_zeros(
        self, text: str, word: str, load: Load, refusal: Callable[..., str]
    ) -> None:
        client = "client: {model: {name: text-embeddings}}"
        says(refusal(f"{client}\n{text}"), "'text-embeddings'", word, "use client.model 'text'")
        assert load(f"{client}\nmethod: {{name: vafl}}")
        assert load(text)


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
}


def own_of(settings: ExperimentConfig) -> tuple[str, str, str]:
    return settings.simulation.timing, settings.server.update, settings.codecs.up.name


class TestWhatTheMethodDecides:
    """Timing, the server's update and the codec of queries, where they are left out."""

    def test_every_method_is_here(self) -> None:
        assert list(OWN) == list(METHODS)

    @pytest.mark.parametrize("method", OWN)
    def test_from_a_file_an_override_and_python(self, method: str, load: Load) -> None:
        found = [
            load(f"method: {{name: {method}}}"),
            load(None, f"method.name={method}"),
            ExperimentConfig.model_validate({"method": {"name": method}}),
            ExperimentConfig(method=METHODS[method]()),
        ]
        assert [own_of(settings) for settings in found] == [OWN[method]] * 4
        assert found[0] == found[1] == found[2] == found[3]

    @pytest.mark.parametrize("method", OWN)
    def test_written_out_and_read_again(self, method: str, load: Load) -> None:
        """The file says what was decided, so that a later default cannot change the run."""
        before = load(f"method: {{name: {method}}}")
        tree = yaml.safe_load(before.to_yaml())
        timing, update, codec = OWN[method]
        assert tree["simulation"]["timing"] == timing
        assert tree["server"]["update"] == update
        assert tree["codecs"]["up"]["name"] == codec
        assert load(before.to_yaml()) == before

    @pytest.mark.parametrize("method", OWN)
    def test_other_keys_of_a_section_leave_it_to_the_method(self, method: str, load: Load) -> None:
        settings = load(
            f"method: {{name: {method}}}\n"
            "simulation: {drop: 0.1}\nserver: {join: sum}\ncodecs: {feedback: up}"
        )
        assert own_of(settings) == OWN[method]
        assert settings.simulation.drop == 0.1
        assert settings.server.join == "sum"
        assert settings.codecs.feedback == "up"

    def test_what_is_said_is_kept(self, load: Load) -> None:
        text = (
            "method: {name: compressed-vfl}\nserver: {update: none}\n"
            "codecs: {up: {name: none, dtype: float16}}"
        )
        settings = load(text)
        assert own_of(settings) == ("synchronous", "none", "none")
        assert settings.codecs.up.dtype == "float16"
        settings = load("method: {name: zoo-vfl}\nsimulation: {timing: synchronous}")
        assert own_of(settings) == ("synchronous", "forward-difference", "none")
        settings = load("method: {name: dpzv}", "server.update=zeroth-order")
        assert own_of(settings) == ("asynchronous", "zeroth-order", "none")

    def test_compressed_vfl_has_eight_bits(self, load: Load) -> None:
        assert load("method: {name: compressed-vfl}").codecs.up == Uniform(bits=8)

    def test_another_method_on_top_of_a_file_decides_anew(self, load: Load) -> None:
        assert own_of(load("method: {name: zoo-vfl}", "method.name=split")) == OWN["split"]

    def test_a_method_that_is_none_is_left_to_the_checks_that_follow(
        self, refusal: Callable[..., str]
    ) -> None:
        for value in ("{name: nobody}", "{name: [split]}", "{name: {a: b}}", "3"):
            says(refusal(f"method: {value}"), "method")

    @pytest.mark.parametrize("section", ["simulation", "server", "codecs"])
    def test_a_section_that_is_none_is_refused_by_its_name(
        self, section: str, refusal: Callable[..., str]
    ) -> None:
        says(refusal(f"method: {{name: split}}\n{section}: 3"), f"{section} is 3")


class TestSources:
    def test_parsing_a_mapping_names_its_source(self) -> None:
        with pytest.raises(ConfigError, match=r"^here: epochs is 0"):
            schema.parse({"epochs": 0}, "here")
