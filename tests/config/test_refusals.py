"""Configurations that are refused: one line for every mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from string import Template

import pytest
from tests.config.test_schema import FIRST_ORDER, IN_STEP, LOSSES, ONE_POINT, PAIRS

from vertizo.config import schema
from vertizo.core.errors import ConfigError
from vertizo.core.names import PRIVATE
from vertizo.methods.choice import METHODS

JARGON = """Input should|input should|Value error|after validation|dictionary|instance of|uple|[key]
<class|pydantic|Keys should|unable to|None is None|NoneType|object at 0x"""
"""Words of the machinery; a person reads none of them."""

Row = tuple[str | bytes | tuple[str, ...], *tuple[str, ...]]
Refuses = Callable[[Iterable[Row]], None]


@pytest.fixture
def refuses(tmp_path: Path) -> Refuses:
    """Holds what is refused against the words that its one line must have.

    A row is a YAML text (or bytes, or overrides without a file), then words.
    """
    path = tmp_path / "run.yaml"

    def call(rows: Iterable[Row]) -> None:
        for given, *words in rows:
            source, overrides = "--set", given if isinstance(given, tuple) else ()
            if not isinstance(given, tuple):
                source = str(path)
                path.write_bytes(given if isinstance(given, bytes) else given.encode())
            try:
                schema.load(None if isinstance(given, tuple) else path, overrides)
            except ConfigError as error:
                line = str(error)
            else:
                pytest.fail(f"not refused: {given!r}")
            assert "\n" not in line, given
            assert line.startswith((source, "--set")), line
            line = line.removeprefix(source)
            assert not [word for word in JARGON.replace("\n", "|").split("|") if word in line], line
            missing = [word for word in words if word not in line]
            assert not missing, f"{given!r}: {line}"

    return call


GAUSSIAN, EMBEDDING = "mechanism: gaussian, clip: 1", "mechanism: embedding-noise, clip: 1"


def _rows(table: str) -> Iterator[Row]:
    """Rows of ``YAML | words | words``; $G and $E are mechanisms with what they need."""
    for line in Template(table).substitute(G=GAUSSIAN, E=EMBEDDING).splitlines():
        text, *words = line.split(" | ")
        yield text.replace("\\n", "\n"), *words


UNKNOWN = """\
epoch: 3\\nsede: 1 | 'epoch' | 1 more
server: {model: {name: mlp, outputs: 3}} | server.model.outputs
epoch: 3 | 'epoch' | 'epochs'
zzz: 3 | 'zzz' | seed, epochs
data: {nmae: mnist} | 'data.nmae' | 'name'
data: {qq: 1} | 'data.qq' | root
method: {name: dpzv, smothing: 1} | 'method.smothing' | 'smoothing'
method: {smothing: 1} | 'method.smothing' | 'smoothing'
method: {name: cascaded, smothing: 1} | 'method.smothing' | 'smoothing'
client: {modle: {}} | 'client.modle' | 'model'
client: {model: {hiden: [3]}} | 'client.model.hiden' | 'hidden'
client: {model: {name: cnn, chanels: [3]}} | 'client.model.chanels' | 'channels'
client: {optimizer: {lerning_rate: 1}} | 'client.optimizer.lerning_rate' | 'learning_rate'
server: {jion: sum} | 'server.jion' | 'join'
server: {model: {hiden: [3]}} | 'server.model.hiden' | 'hidden'
server: {optimizer: {momentun: 0}} | 'server.optimizer.momentun' | 'momentum'
privacy: {epsilonn: 1} | 'privacy.epsilonn' | 'epsilon'
codecs: {upp: {}} | 'codecs.upp' | 'up'
codecs: {up: {dtyp: float16}} | 'codecs.up.dtyp' | 'dtype'
simulation: {timming: 1} | 'simulation.timming' | 'timing'
simulation: {delay: {maen: 1}} | 'simulation.delay.maen' | 'mean'
simulation: {delay: {distribution: log-normal, sigmma: 1}} | 'simulation.delay.sigmma' | 'sigma'
"""


BEYOND = """\
{epsilon: 1, clip: 5.0e-324} | privacy.clip is 5e-324; it must be between 1e-30 and 1e+30
{mechanism: none, clip: 1.0e+31} | privacy.clip is 1e+31; it must be between 1e-30 and 1e+30
{epsilon: 5.0e-324} | privacy.epsilon is 5e-324; it must be between 1e-09 and 1e+06
{epsilon: 1.0e+9} | privacy.epsilon is 1000000000.0; it must be between 1e-09 and 1e+06
{epsilon: 1, delta: 5.0e-324} | privacy.delta is 5e-324; it must be between 1e-100 and 0.5
{epsilon: 1, delta: 0.9999999999999999} | privacy.delta is 0.9999999999999999 | 1e-100 and 0.5
{epsilon: 1, server_share: 1.0e-300} | privacy.server_share is 1e-300 | between 1e-09 and 0.999
{noise_std: 1.0e-310} | privacy.noise_std is 1e-310; it must be between 1e-30 and 1e+30
{noise_std: 1, server_noise_std: 1.0e+308} | server_noise_std is 1e+308 | between 1e-30 and 1e+30
{epsilon: 1, teacher: {spread: 1.0e-300}} | privacy.teacher.spread is 1e-300 | between 1e-30
"""


def test_numbers_of_privacy_beyond_what_arithmetic_holds(refuses: Refuses) -> None:
    refuses((f"privacy: {text}", *words) for text, *words in _rows(BEYOND))
    refuses([("server: {clip: 5.0e-324}", "server.clip is 5e-324; it must be between 1e-30")])
    refuses([("server: {secret: {sampling: 1.0e-40}}", "sampling is 1e-40", "between 1e-05")])


def test_unknown_keys_are_named_in_full_and_a_near_one_is_offered(refuses: Refuses) -> None:
    refuses((text, "unknown key", *words) for text, *words in _rows(UNKNOWN))
    with pytest.raises(ConfigError, match=r"unknown key 'method.smoothing'") as caught:
        schema.parse({"method": {"name": "vafl", "smoothing": 0.1}})
    assert "did you mean" not in str(caught.value)  # it is of another method


VALUES = """\
data: {class_weights: fair} | class_weights is 'fair' | 'balanced', or map classes to weights
data: {class_weights: {"0": x}} | data.class_weights.0 is 'x' | number
data: {class_weights: {"0": -1}} | data.class_weights.0 is -1 | 0 or above
data: {class_weights: {"0": .inf}} | data.class_weights.0 is inf | finite number
data: {class_weights: {"0": 0}} | data.class_weights is | some class must weigh more than 0
data: {class_shares: {"0": 1}} | data.class_shares is set but data.class_weights is not 'balanced'
data: {class_weights: {"0": 2}, class_shares: {"0": 1}} | class_shares is set | keep one of them
data: {class_weights: balanced, class_shares: {"0": 0.5}} | 1 together, not 0.5
data: {class_weights: balanced, class_shares: {"0": 0, "1": 1}} | above 0 and 1 together
data: {class_weights: balanced}\\nprivacy: {epsilon: 1} | would tell of them | data.class_shares
data: {class_weights: balanced}\\nprivacy: {$G, noise_std: 1} | would tell of them
data: {name: table, path: a, label: y, task: regression, class_weights: balanced} | is a regression
data: {name: table, path: a, label: y, weight: y} | data.weight names 'y', which is data.label
data: {name: table, path: a, label: y, weight: w, drop: [w]} | data.weight and data.drop both | 'w'
data: {name: table, path: a, label: y, person: p, columns: {a: [p]}} | data.person and data.columns
data: {name: table, path: a, label: y, weight: p, person: p} | data.weight and data.person both
data: {name: table, path: a, label: y, weight: w}\\nprivacy: {epsilon: 1, mechanism: teacher} | 'w'
data: {weight: w} | data.weight is set but data.name is 'digits'
data: {person: p} | data.person is set but data.name is 'digits'
data: {records_per_person: 0} | data.records_per_person is 0 | greater than 0
epochs: 0 | epochs is 0 | greater than 0
epochs: -3 | epochs is -3 | greater than 0
epochs: many | epochs is 'many' | integer
epochs: 1.5 | epochs is 1.5 | integer
epochs: [1] | epochs is [1] | integer
epochs: {a: 1} | epochs is {'a': 1} | integer
epochs: .inf | epochs is inf | number
seed: -1 | seed is -1 | 0
batch_size: 0 | batch_size is 0 | greater than 0
rounds: 0 | rounds is 0 | greater than 0
early_stopping: 3 | early_stopping is 3 | keys and values
early_stopping: {patience: 0} | early_stopping.patience is 0 | greater than 0
early_stopping: {min_delta: -1} | early_stopping.min_delta is -1 | 0
early_stopping: {min_delta: 0.1} | min_delta is 0.1 | early_stopping.patience is not set
early_stopping: {patience: 2}\\ndata: {validation: 0} | patience is 2 | data.validation is 0
early_stopping: {accuracy: 90} | early_stopping.accuracy is 90 | 1
early_stopping: {accuracy: 0.9}\\ndata: {validation: 0} | accuracy is 0.9 | data.validation is 0
early_stopping: {accuracy: 0.9}\\nprivacy: {epsilon: 1} | 'gaussian' | every client sees | raw
early_stopping: {patience: 2}\\nprivacy: {epsilon: 1} | 'gaussian' | every client sees | raw
early_stopping: {patience: 2}\\nprivacy: {$G, noise_std: 1} | patience is 2 | 'gaussian' | raw
early_stopping: {patience: 2}\\nmethod: {name: vafl}\\nprivacy: {epsilon: 1} | 'teacher' | raw
evaluate_every: 0 | evaluate_every is 0 | greater than 0
checkpoint_seconds: -1 | checkpoint_seconds is -1 | 0
threads: 0 | threads is 0 | greater than 0
control: off | control is False | 'none', 'frozen', 'random' or 'label-free'
data: {validation: 1} | data.validation is 1 | less than 1
data: {validation: -0.1} | data.validation is -0.1 | 0
data: {limit: 1} | data.limit is 1 | 2
data: {parties: 0} | data.parties is 0 | greater than 0
data: {sizes: 5} | data.sizes is 5 | list
data: {sizes: []} | data.sizes is [] | 1
data: {sizes: [3, 0]} | data.sizes.1 is 0 | greater than 0
data: {sizes: [3, 4], parties: 3} | data.parties is 3 | data.sizes has 2
data: {sizes: [3, 5]}\\nserver: {model: {name: resnet18-rest}} | data.sizes is [3, 5] | equal parts
data: {split: row} | data.split is 'row' | 'rows'
data: {name: 3} | data.name is 3 | string
data: {root: [a]} | data.root is ['a'] | path
data: {columns: {a: x}} | data.columns.a is 'x' | list
data: {columns: [a]} | data.columns is ['a'] | keys and values
data: {columns: {a: [1]}} | data.columns.a.0 is 1 | string
data: {columns: {1: [x]}} | data.columns | 1 | string
method: {smoothing: 0} | method.smoothing is 0 | greater than 0
method: {name: dpzv, smoothing: .nan} | method.smoothing is nan | finite
method: {directions: ball} | method.directions is 'ball' | 'sphere'
client: {model: {hidden: [8, 0]}} | client.model.hidden.1 is 0 | greater than 0
client: {model: {hidden: 8}} | client.model.hidden is 8 | list
client: {model: {name: cnn, channels: []}} | client.model.channels is [] | 1
client: {models: 3} | client.models is 3 | keys and values
client: {models: {bank: 3}} | client.models.bank is 3 | keys and values
client: {models: {bank: {outputs: 0}}} | client.models.bank.outputs is 0 | greater than 0
client: {models: {bank: {hiden: [3]}}} | 'client.models.bank.hiden' | 'hidden'
client: {models: {bank: {name: resnet}}} | client.models.bank.name is 'resnet' | mlp | cnn
client: {model: {outputs: 0}} | client.model.outputs is 0 | greater than 0
client: {model: {final_relu: maybe}} | client.model.final_relu is 'maybe' | boolean
client: {optimizer: {learning_rate: 0}} | client.optimizer.learning_rate is 0 | 0
client: {optimizer: {learning_rate: fast}} | learning_rate is 'fast' | number
client: {optimizer: {algorithm: lion}} | client.optimizer.algorithm is 'lion' | 'sgd' or 'adam'
client: {optimizer: {beta2: 0.9}} | client.optimizer.beta2 is 0.9 | algorithm is 'sgd' | 'adam'
client: {optimizer: {algorithm: adam, beta2: 1}} | client.optimizer.beta2 is 1 | less than 1
server: {optimizer: {weight_decay: -1}} | server.optimizer.weight_decay is -1 | 0
server: {optimizer: {factor: 0.5}} | server.optimizer.factor is 0.5 | decay is 'linear' | 'step'
server: {optimizer: {decay: step, milestones: [1, 0.5]}} | milestones.0 is 1 | less than 1
server: {optimizer: {decay: step, milestones: [0.7, 0.5]}} | milestones is [0.7, 0.5] | [0.5, 0.75]
server: {optimizer: {decay: drop}} | 'linear', 'cosine' or 'step'
method: {name: tangent}\\nclient: {optimizer: {algorithm: adam}} | 'adam' | are steps | 'sgd'
client: {optimizer: {momentum: 1}} | client.optimizer.momentum is 1 | less than 1
server: {update: adam} | server.update is 'adam' | 'poisson-dp-sgd' or 'none'
server: {join: max} | server.join is 'max' | 'concat', 'sum' or 'mean'
server: {embedding_bound: 0} | server.embedding_bound is 0 | greater than 0
privacy: {mechanism: laplace} | 'laplace' | 'embedding-noise', 'randomised-response' or 'teacher'
privacy: {accounting: rdp} | privacy.accounting is 'rdp' | 'exact' or 'published'
method: {num_directions: 0} | method.num_directions is 0 | greater than 0
method: {clipping: all} | method.clipping is 'all' | 'each' or 'jointly'
method: {name: czofo, num_directions: 0} | method.num_directions is 0 | greater than 0
method: {name: czofo, scalars: all} | method.scalars is 'all' | 'batch' or 'record'
method: {name: zoo-vfl, reply: loss} | method.reply is 'loss' | 'losses' or 'difference'
method: {name: tangent}\\nclient: {crop: 2} | client.crop | 'tangent' | leave it out
method: {name: label-statistic}\\nclient: {flip: true} | client.flip | 'label-statistic'
client: {crop: -1} | client.crop is -1 | greater than or equal to 0
method: {name: tangent, sweeps: 0} | method.sweeps is 0 | greater than 0
method: {name: tangent, damping: 0} | method.damping is 0 | greater than 0
method: {name: tangent, spread: -1} | method.spread is -1 | greater than 0
method: {name: tangent, num_directions: 0} | method.num_directions is 0 | greater than 0
method: {name: label-statistic, whitening: 2} | method.whitening is 2 | 1
method: {name: label-statistic, spread: 0} | method.spread is 0 | greater than 0
method: {name: tangent, directions: random} | method.directions is 'random' | 'principal'
server: {final_head: forest} | server.final_head is 'forest' | 'boosting'
client: {pretrain: ica} | client.pretrain is 'ica' | 'kmeans'
client: {components: 0} | client.components is 0 | greater than 0
method: {name: fedbcd, local_steps: 0} | method.local_steps is 0 | greater than 0
method: {name: flex-vfl, local_steps: [2, 0]} | method.local_steps.1 is 0 | greater than 0
method: {name: flex-vfl, local_steps: 2} | method.local_steps is 2 | list
codecs: {feedback: yes} | codecs.feedback is True | 'none', 'up', 'down' or 'both'
privacy: {delta: 1} | privacy.delta is 1 | less than 1
privacy: {clip: -5} | privacy.clip is -5 | greater than 0
codecs: {up: {dtype: int8}} | codecs.up.dtype is 'int8' | 'float32'
codecs: {down: {name: top_k}} | codecs.down.name is 'top_k' | 'none'
simulation: {timing: async} | simulation.timing is 'async' | 'asynchronous'
simulation: {table: ones} | simulation.table is 'ones' | 'zeros' or 'upload'
simulation: {activation: 0.5} | simulation.activation is 0.5 | list
simulation: {activation: [1.5]} | simulation.activation.0 is 1.5 | 1
simulation: {activation: [0.5, 0.4]} | activation is [0.5, 0.4] | adds up to 0.9 | 1
simulation: {activation: [0.5, 0.5]} | simulation.activation is [0.5, 0.5] | rounds is not set
simulation: {activation: [1], drop: 0.1}\\nrounds: 9 | simulation.drop is 0.1 | leave
simulation: {activation: [1], stragglers: {0: 2}}\\nrounds: 9 | stragglers is {0: 2.0} | leave
simulation: {activation: [1], timing: synchronous}\\nrounds: 9 | 'synchronous' | 'asynchronous'
simulation: {drop: 1} | simulation.drop is 1 | less than 1
simulation: {bandwidth: 0} | simulation.bandwidth is 0 | greater than 0
simulation: {timeout: 0} | simulation.timeout is 0 | greater than 0
simulation: {delay: {mean: 0}} | simulation.delay.mean is 0 | greater than 0
simulation: {delay: {distribution: trace, seconds: []}} | simulation.delay.seconds | 1
simulation: {delay: {distribution: trace, seconds: [2, -1]}} | seconds.1 is -1 | greater than 0
simulation: {stragglers: {0: 0}} | simulation.stragglers.0 is 0 | greater than 0
simulation: {stragglers: {bank: 2}} | simulation.stragglers | 'bank' | integer
simulation: {stragglers: [3]} | simulation.stragglers is [3] | keys and values
epochs: true | epochs is True
seed: false | seed is False
client: {optimizer: {learning_rate: true}} | learning_rate is True
threads: 1000000 | threads is 1000000
method: {name: dpvz} | method.name is 'dpvz' | did you mean 'dpzv' | cascaded | vafl
method: {name: true} | method.name is True | dpzv
client: {model: {name: resnet}} | client.model.name is 'resnet' | mlp | cnn
server: {model: {name: cnn}} | server.model.name is 'cnn' | mlp | module
simulation: {delay: {distribution: weibull}} | is 'weibull' | constant | log-normal | trace
method: {name: null} | method.name is | 'dpzv'
method: {name: ''} | method.name is | 'dpzv'
method: {name: [dpzv]} | method.name is | 'dpzv'
method: {name: {a: 1}} | method.name is | 'dpzv'
client: {model: {name: module}} | client.model.path is missing
client: {model: {name: function}} | client.model.path is missing
client: {model: {name: function, path: 'a:b'}} | client.model.num_parameters is missing
server: {model: {name: module}} | server.model.path is missing
simulation: {delay: {distribution: trace}} | simulation.delay.seconds is missing
client: {model: {name: text, layers: 3}} | model.layers is set | checkpoint 'minilm' has its own
server: {model: {name: text-rest, checkpoint: ./mine, family: bert}} | model.family | only 'random'
client: {model: {name: text, rank: 4}} | client.model.rank is 4 | trainable is 'all' | 'lora'
server: {model: {name: text-rest, trainable: head, last_blocks: 1}} | server.model.last_blocks is 1
client: {model: {name: text, trainable: head}} | client.model.outputs is unset | 'bias' or 'lora'
client: {model: {name: text-embeddings, trainable: lora}} | 'all' or 'bias'
client: {model: {name: bag, vocabulary: 1}} | model.vocabulary is 1 | greater than or equal to 2
server: {model: {name: resnet18-rest, assemble: depth}} | 'width', 'height' or 'channels'
data: {split: halves}\\nserver: {model: {name: resnet18-rest}} | data.split is 'halves' | 'sides'
data: {split: sides}\\nserver: {model: {name: resnet18-rest, assemble: height}} | 'halves' or 'rows'
data: {split: patches}\\nserver: {model: {name: resnet18-rest}} | is 'patches' | the width
server: {model: {name: resnet18-rest}} | data.split is not set | 'sides'
client: {model: {name: resnet18, norm: layer}} | client.model.norm is 'layer' | 'group' or 'batch'
server: {model: {name: resnet18}} | did you mean 'resnet18-rest'? known are 'mlp', 'sum' | 'module'
"""
SECTIONS = "data method client client.model server.model codecs.up simulation.delay simulation "
SECTIONS += "server codecs"


def test_values_are_shown_with_what_would_be_right(refuses: Refuses) -> None:
    refuses(_rows(VALUES))
    for key in SECTIONS.split():  # a value where keys belong
        *outer, last = key.split(".")
        before = "".join(f"{name}: {{" for name in outer)
        for value in ("dpzv", "3", "null", "[a]"):
            text = f"{before}{last}: {value}" + "}" * len(outer)
            refuses([(text, f"{key} is", "keys and values")])
    refuses((f"method: {value}", "method") for value in ("{name: nobody}", "{name: [split]}"))


FILES: list[Row] = [
    ("epochs: 1\n  data: 2\n", "not YAML", "line 2"),
    ("epochs: [1\n", "not YAML", "line"),
    ("\tepochs: 1\n", "not YAML", "line 1"),
    ("seed: 1\nepochs: *x\n", "not YAML", "line 2"),
    ("a: 1\n---\nb: 2\n", "not YAML", "line 2"),
    ("epochs: !!python/object:os.system 1\n", "not YAML", "line 1"),
    ("- epochs: 1\n", "list", "keys and values"),
    ("epochs\n", "keys and values"),
    ("3\n", "keys and values"),
    (b"\xff\xfe\x00\x01", "not a text file"),
    (b"epochs: 1\x00\n", "not"),
    ("1: 2\n", "1"),
    ("null: 2\n", "unknown key"),
    ("seed: 2024-13-45\n", "2024-13-45"),
    ("epochs: 2\nseed: 1\nepochs: 3\n", "epochs", "line 3"),
    ("data: {limit: 9, name: digits, limit: 8}\n", "limit", "line 1"),
    ("seed: 1\nepochs: {{ epochs }}\n", "line 2"),
    ("data:\n  ? [a, b]\n  : 3\n", "line 2"),
    ("data: {1: 2}\n", "data", "1"),
    ("client: &c {model: *c}\n", "not YAML", "line 1"),
]


def test_what_is_no_configuration(refuses: Refuses, tmp_path: Path) -> None:
    refuses(FILES)
    for path in (tmp_path / "absent.yaml", tmp_path, tmp_path / "a" / "b.yaml"):
        with pytest.raises(ConfigError) as caught:
            schema.load(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


OVERRIDES: list[Row] = [
    (("epoch=3",), "'epoch'", "'epochs'"),
    (("data.name.first=3",), "data.name"),
    (("method=vafl",), "method is 'vafl'", "keys and values", "such as method.name=vafl"),
    (("client.optimizer.lr=1",), "did you mean 'learning_rate'?"),
    (("server.lr=1",), "did you mean 'server.optimizer.learning_rate'?"),
    (("privacy.eps=1",), "did you mean 'epsilon'?"),
    (("epochs=",), "epochs is None", "integer"),
    (("method.name=",), "method.name is", "'dpzv'"),
    (("client.model.name=module",), "client.model.path is missing"),
    (("seed=2024-13-45",), "seed", "2024-13-45"),
    (("simulation.delay.name=constant",), "simulation.delay.name"),
    (("method.distribution=constant",), "method.distribution"),
    (("client.name=3",), "client.name"),
    (("epochs={{ epochs }}",), "epochs={{ epochs }}"),
]


def test_overrides(refuses: Refuses, tmp_path: Path) -> None:
    malformed = ["epochs", "=3", "epochs:3", "", ".=3", "data..name=x", "data.=3", ".epochs=3"]
    refuses(((override,), override, "key=value") for override in malformed)
    no_yaml = [f"seed={value}" for value in ("[1", "{a", "'x", "a: b: c")]
    refuses(((override,), override) for override in no_yaml)
    refuses(OVERRIDES)
    (path := tmp_path / "right.yaml").write_text("epochs: 3")
    with pytest.raises(ConfigError, match="seed is -1"):
        schema.load(path, ["seed=-1"])
    with pytest.raises(ConfigError, match=r"^here: epochs is 0"):
        schema.parse({"epochs": 0}, "here")


PRIVACY = """\
privacy: {clip: 1, server_share: 0.5} | privacy.server_share | privacy.mechanism | 'gaussian'
privacy: {clip: 0} | privacy.clip is 0 | greater than 0
privacy: {clip: 1, ledger: a.db} | privacy.ledger | 'none' | 'gaussian'
privacy: {clip: 1, noise: secure} | privacy.noise is 'secure' | 'none' | 'gaussian'
privacy: {clip: 1}\\nserver: {update: private-sgd} | 'private-sgd' | privacy.mechanism is 'none'
privacy: {mechanism: none, noise_std: 1} | privacy.noise_std | privacy.mechanism | 'gaussian'
privacy: {mechanism: none, epsilon: 1} | privacy.epsilon | privacy.mechanism | 'gaussian'
privacy: {mechanism: embedding-noise, noise_std: 1} | 'embedding-noise' | privacy.clip
privacy: {accounting: published} | 'published' | is 'none' | 'gaussian'
privacy: {mechanism: none, noise: secure} | privacy.noise is 'secure' | 'none'
privacy: {$E, noise_std: 1, noise: secure} | noise is 'secure' | mechanism is 'embedding-noise'
privacy: {$G} | 'gaussian' | exactly one | privacy.noise_std | privacy.epsilon
privacy: {$E} | 'embedding-noise' | exactly one | privacy.noise_std | privacy.epsilon
privacy: {$G, noise_std: 1, epsilon: 1} | 'gaussian' | exactly one | noise_std | privacy.epsilon
privacy: {$E, noise_std: 1, epsilon: 1} | 'embedding-noise' | exactly one | privacy.epsilon
privacy: {$G, noise_std: 1, accounting: published} | is 'published' | needs privacy.epsilon
privacy: {$E, noise_std: 1, accounting: published} | is 'published' | needs privacy.epsilon
"""


def _private(keys: str, update: str, method: str = "dpzv") -> str:
    return f"method: {{name: {method}}}\nprivacy: {{{keys}}}\nserver: {{update: {update}}}"


def test_privacy_that_does_not_fit_together(refuses: Refuses) -> None:
    refuses(_rows(PRIVACY))
    noised = f"{GAUSSIAN}, noise_std: 1"
    for keys, update, *words in (
        (f"{noised}, server_share: 0.5", "sgd", "privacy.server_share", "'sgd'", "'private-sgd'"),
        (f"{noised}, server_noise_std: 1", "sgd", "server_noise_std", "'sgd'", "'private-sgd'"),
        (noised, "private-sgd", "privacy.server_noise_std", "privacy.server_share"),
        (f"{noised}, server_noise_std: 1, server_share: 0.5", "private-sgd", "server_share"),
        (f"{GAUSSIAN}, epsilon: 1, server_noise_std: 1", "private-sgd", "both set", "epsilon"),
    ):
        refuses([(_private(keys, update), *words)])
    for update in ("sgd", "zeroth-order", "forward-difference"):
        method = "zoo-vfl" if update == "forward-difference" else "dpzv"
        text = _private(f"{GAUSSIAN}, epsilon: 2", update, method)
        words = ("privacy.epsilon is 2.0", f"server.update {update!r}", "raw labels")
        own = METHODS[method].server_updates
        ways = ", ".join(repr(way) for way in PRIVATE if way in own)
        choice = f"server.update to {ways} or 'none', or give privacy.noise_std"
        refuses([(text, *words, choice)])
    for update in PRIVATE:
        text = _private(f"{GAUSSIAN}, epsilon: 1, accounting: published", update)
        words = ("privacy.accounting is 'published'", f"server.update {update!r}", "'sgd'")
        refuses([(text, *words)])
        for mechanism, keys in (("none", "mechanism: none"), ("embedding-noise", EMBEDDING)):
            more = ", noise_std: 1" if mechanism != "none" else ""
            is_so = f"privacy.mechanism is {mechanism!r}"
            refuses([(_private(keys + more, update), f"server.update is {update!r}", is_so)])


def test_what_a_method_cannot(refuses: Refuses) -> None:
    own = "{models: {bank: {name: function, path: 'a:b', num_parameters: 3}}}"
    refuses([(f"method: {{name: vafl}}\nclient: {own}", "'a:b' is a plain function")])
    for method in FIRST_ORDER:
        text = f"method: {{name: {method}}}\nclient: {{model: {{name: function, path: "
        others = ("'dpzv'", "'cascaded'", "'zoo-vfl'")
        text += "'rules.py:apply', num_parameters: 3}}"
        refuses([(text, f"{method!r}", "client.model", "rules.py:apply", *others)])
    for method in IN_STEP:
        text = f"method: {{name: {method}}}\nsimulation: {{timing: asynchronous}}"
        words = ("simulation.timing is 'asynchronous'", "leave simulation.timing out")
        refuses([(text, *words, f"method {method!r} is synchronous")])
    for method in ("zoo-vfl", "syn-zoo-vfl"):  # by gradients they would be VFL-Cascaded
        text = f"method: {{name: {method}}}\nserver: {{update: sgd}}"
        ways = "forward-difference or zeroth-order or private-zeroth-order or none"
        words = ("server.update is 'sgd'", "leave server.update out", "'cascaded'")
        refuses([(text, *words, f"method {method!r} trains its server by {ways}")])


def test_the_published_server_needs_its_own_update(refuses: Refuses) -> None:
    method = "method: {name: syn-zoo-vfl, server_embeddings: published}"
    is_so = "method.server_embeddings is 'published'"
    for update in ("zeroth-order", "none", "private-zeroth-order"):
        privacy = f"privacy: {{{GAUSSIAN}, epsilon: 1}}" if "private" in update else ""
        text = f"{method}\nserver: {{update: {update}}}\n{privacy}"
        refuses([(text, is_so, f"server.update is {update!r}", "'forward-difference'")])
    default = f"{method}\nprivacy: {{{GAUSSIAN}, epsilon: 1}}"
    refuses([(default, is_so, "'private-zeroth-order'", "'forward-difference'")])
    given = f"{default}\nserver: {{update: forward-difference}}"
    refuses([(given, "privacy.epsilon is 1.0", "raw labels", "'private-zeroth-order' or 'none'")])


def _coded(method: str, codecs: str) -> str:
    return f"method: {{name: {method}}}\ncodecs: {{{codecs}}}"


def test_who_trains_may_not_follow_from_private_labels(refuses: Refuses) -> None:
    why = ("data.stratify is true", "clients see who does", "leave data.stratify out")
    for privacy in (
        *("{epsilon: 1}", f"{{{GAUSSIAN}, noise_std: 1}}"),
        *("{mechanism: teacher, epsilon: 1}", "{mechanism: randomised-response, epsilon: 1}"),
    ):
        server = "server: {update: none}"
        refuses([(f"data: {{stratify: true}}\n{server}\nprivacy: {privacy}", *why)])


def test_noise_on_embeddings_leaves_no_upload_for_a_raw_head(refuses: Refuses) -> None:
    noise = "privacy: {mechanism: embedding-noise, clip: 1, noise_std: 1}"
    words = ("server.final_head is 'boosting'", "'embedding-noise'", "use 'private'")
    refuses([(f"server: {{final_head: boosting}}\n{noise}", *words)])


def test_codecs_that_do_not_fit_the_method(refuses: Refuses) -> None:
    for text, key in (
        ("up: {name: uniform}", "codecs.up is 'uniform'"),
        ("up: {name: paired}", "codecs.up is 'paired'"),
        ("feedback: both", "codecs.feedback is 'both'"),
    ):
        refuses([(_coded("tangent", text), key, "method 'tangent'", "derivatives", "'none'")])
    for method in METHODS:
        whose, down = f"method {method!r}", _coded(method, "down: {name: paired}")
        refuses([(down, "codecs.down is 'paired'", f"replies of {whose}", "'uniform'")])
        up = _coded(method, "up: {name: paired}")
        if method in ONE_POINT:
            refuses([(up, "codecs.up is 'paired'", whose, "one embedding", "'uniform'")])
        for name in ("uniform", "top-k", "sign") if method in PAIRS else ():
            words = (f"codecs.up is {name!r}", whose, "method.smoothing", "'paired'")
            refuses([(_coded(method, f"up: {{name: {name}}}"), *words)])
        for feedback in ("down", "both") if method in (*PAIRS, "czofo", "one-shot") else ():
            words = (f"codecs.feedback is {feedback!r}", whose, "'up' or 'none'")
            refuses([(_coded(method, f"feedback: {feedback}"), *words)])
        for name in ("top-k", "sign") if method in LOSSES else ():
            ways = ("method.reply to 'difference'", "'none' with float32, or 'uniform'")
            text = _coded(method, f"down: {{name: {name}}}")
            refuses([(text, f"codecs.down is {name!r}", whose, "two losses", *ways)])
        for dtype in ("float16", "bfloat16") if method in LOSSES else ():
            text = _coded(method, f"down: {{dtype: {dtype}}}")
            words = (f"codecs.down is 'none' with {dtype}", "'none' with float32")
            refuses([(text, *words, whose, "two losses")])
    refuses(
        [
            (
                "codecs: {up: {name: chain, codecs: [{name: paired}, {name: uniform}]}}",
                *("'paired'", "known are", "'top-k'", "'uniform'"),
            ),
            (
                "codecs: {up: {name: paired, midpoint: {bist: 4}}}",
                *("'codecs.up.midpoint.bist'", "'bits'"),
            ),
            (
                _coded("vafl", "feedback: up, up: {name: uniform, bits: 1}"),
                *("codecs.feedback is 'up'", "codecs.up 'uniform'", "%", "'sign'"),
            ),
            # Slopes of each record belong to other directions in each query, and do not add up.
            (
                "method: {name: czofo, scalars: record}\ncodecs: {feedback: down}",
                *("codecs.feedback is 'down'", "method 'czofo'", "'up' or 'none'"),
            ),
        ]
    )


def test_zeros_that_end_a_text_must_arrive_as_zeros(refuses: Refuses) -> None:
    for text, word in (
        ("method: {name: czofo}", "'czofo' perturbs"),
        (_coded("vafl", "up: {name: uniform}"), "'uniform' rounds"),
        (f"privacy: {{{EMBEDDING}, noise_std: 1}}", "'embedding-noise' changes"),
    ):
        whole = f"client: {{model: {{name: text-embeddings}}}}\n{text}"
        refuses([(whole, "'text-embeddings'", word, "use client.model 'text'")])


EXACT = ("privacy.epsilon=1",)
NOISED = (
    *("privacy.mechanism=embedding-noise", "privacy.clip=1", "privacy.noise_std=1"),
    "method.name=vafl",
)
NONE = ("privacy.noise_std=1", "server.update=none")
SAME_BATCH = (*EXACT, "server.update=private-sgd")
ZEROTH = (*EXACT, "server.update=private-zeroth-order")
RAW = ("privacy.noise_std=1", "server.update=sgd")
DIGITS: tuple[str, ...] = ()
IDLE: dict[str, tuple[tuple[str, ...], ...]] = {
    "server.clip=2": (DIGITS, NOISED, NONE, RAW, ("method.name=zoo-vfl",)),
    "server.secret.every=2": (DIGITS, NOISED, NONE, RAW, SAME_BATCH, ZEROTH),
    "server.secret.warm_up=1": (DIGITS, SAME_BATCH),
    "server.secret.sampling=0.1": (DIGITS, SAME_BATCH),
    "server.smoothing=0.01": (DIGITS, NONE, EXACT, SAME_BATCH, ("method.name=vafl",)),
    "server.directions=gaussian": (DIGITS, NONE, EXACT, SAME_BATCH),
    "method.clipping=jointly": (DIGITS,),
    "privacy.delta=0.001": (DIGITS,),
    "privacy.noise=secure": (DIGITS, NOISED),
    "privacy.noise=seeded": (DIGITS, NOISED),
    "privacy.server_share=0.3": (DIGITS, NOISED, RAW),
    "privacy.server_noise_std=3": (DIGITS, NOISED, RAW),
    "privacy.accounting=published": (DIGITS,),
    "privacy.ledger=x.sqlite": (DIGITS, NOISED),
    "simulation.timeout=3": (DIGITS, EXACT),
    "client.components=9": (DIGITS, EXACT),
    "data.delimiter=;": (DIGITS,),
    "data.encoding=gb18030": (DIGITS,),
    "data.tokenizer=minilm": (DIGITS,),
    "data.length=9": (DIGITS,),
    "data.vocabulary=99": (DIGITS,),
    "data.classes=[a, b]": (DIGITS,),
    "data.huber_delta=2": (DIGITS, ("data.loss=quantile",)),
    "data.quantile=0.9": (DIGITS, ("data.loss=huber",)),
    "server.final_head=logistic": (("data.loss=huber",), ("data.loss=quantile",)),
    "server.final_head=boosting": (("data.loss=huber",),),
    "data.label=x": (DIGITS,),
    "data.id=x": (DIGITS,),
    "data.path=x.csv": (DIGITS,),
}


def test_a_key_that_does_nothing_is_refused(refuses: Refuses) -> None:
    for key, many in IDLE.items():
        refuses(((*settings, key), key.split("=")[0]) for settings in many)


USED = (
    (*EXACT, "server.clip=3", "server.secret={every: 2, warm_up: 1, sampling: 0.1}"),
    (*SAME_BATCH, "server.clip=3", "server.optimizer.momentum=0.1", "privacy.server_share=0.3"),
    (*ZEROTH, "server.clip=3", "server.smoothing=0.01", "server.directions=gaussian"),
    ("method.name=zoo-vfl", "server.smoothing=0.01", "server.directions=gaussian"),
    (*EXACT, "method.clipping=jointly", "privacy.delta=0.001", "privacy.noise=seeded"),
    (*NOISED, "privacy.delta=0.001"),
    ("simulation.timeout=3", "simulation.drop=0.1"),
    ("client.components=9", "client.pretrain=pca"),
)


def test_where_it_has_an_effect_it_is_taken_and_what_a_run_leaves_behind_is_read() -> None:
    for settings in (*USED, DIGITS, EXACT, NOISED, NONE, SAME_BATCH, ZEROTH, RAW):
        made = schema.load(None, settings)
        assert schema.parse(made.model_dump(mode="json")) == made, settings
