"""Defaults that depend on the data, by public facts: numbers of records, columns, parameters.

Nothing here reads a value of a feature or a label, so that no default costs any privacy. The
constants were found by sweeps on validation records of five data sets (docs/defaults.md).
"""

from __future__ import annotations

import math
from typing import Any

from vertizo.config.architectures import MlpConfig
from vertizo.config.method_defaults import is_narrow
from vertizo.config.schema import ExperimentConfig
from vertizo.core.names import PRIVATE, UpdateName
from vertizo.data.vertical import VerticalData
from vertizo.methods.base import Method
from vertizo.methods.directional_queries import AlongDirections
from vertizo.models.losses import Classification
from vertizo.privacy.accounting.gaussian import mu_of
from vertizo.privacy.mechanism_advice import TEACHER_NUMBERS
from vertizo.privacy.options import PrivacyConfig, TeacherConfig

FIRST_ORDER_RATE = 0.1
"""η / (1 − momentum) for computed gradients."""
ZEROTH_ORDER_RATE = 20.0
"""η / (1 − momentum) times the number of dimensions, for estimated gradients of clients."""
ESTIMATED_SERVER_RATE = 4.0
"""The same for the server, on whose steps those of every client depend."""
LARGEST_RATE = 0.3
"""The largest η / (1 − momentum) for estimated gradients, reached in few dimensions."""
PRIVATE_RATE = 5.0
"""The largest η / (1 − momentum) of a server under noise: its clipped gradients are short."""
PRIVATE_WANDERING = 0.7
"""Standard deviation of what noise alone may add to one of its parameters over a run."""

ROUNDS = 3000
"""Approximate number of batches of each client in a run without a guarantee."""
EPOCHS = (5, 120)
"""Least and most epochs."""
BATCH_SIZE = 64

TANGENT_CLIP = 0.5
"""C of tangent queries, whose rows have length 1 on average; slopes of a log-odds are below 1."""
TANGENTS = (8, 96)
"""Least and most directions of a tangent query."""
STATISTICS = (16, 96)
"""The same for a label statistic: no later query makes up for what it leaves out."""
TANGENTS_PER_SIGNAL = 0.003
"""Directions per μ n, of a guarantee μ and n records: each has to rise above the noise."""
TANGENTS_WIDE, STATISTICS_WIDE = 0.01, 0.03
"""The same for parties with many columns, up to a quarter of their number: there, what tells labels
apart is spread over more directions. Tangent queries, which divide the budget, see fewer."""

KEPT_PER_SIGNAL, LEAST_KEPT = 0.05, 16
"""Components per μ n that a teacher is fitted on, and their least number; noise drowns more."""

TYPICAL_COLUMNS = 10
"""Columns that are assumed of a client if nobody else knows their number."""
PRIVATE_EPOCHS = 5
"""Epochs under noise: each divides the budget of the replies further."""
NARROW_EPOCHS = 20
"""Epochs under noise if clients send few numbers, which they must learn: in 5 they hardly move."""
PRIVATE_BATCHES = 20
"""Batches in an epoch under noise, which is the same on a sum for every size of the batch."""
PRIVATE_BATCH_SIZES = (64, 2000)
"""Least and most records of a batch under noise."""


def client_rate(
    method: Method, parameters: int, embedding_dim: int, batch_size: int, momentum: float
) -> float:
    """η_m: the rate for a computed gradient, or a smaller one for an estimate, which is longer.

    A zeroth-order estimate of a gradient g in d dimensions has the expected squared norm d‖g‖²,
    so that the largest step that still descends is d times shorter. The method says in how many
    dimensions it estimates, from d_m, d_h and B; a step counts 1 / (1 − momentum) times.
    """
    dimensions = method.estimated_dimensions(parameters, embedding_dim, batch_size)
    rate = _rate(dimensions, ZEROTH_ORDER_RATE) if dimensions else FIRST_ORDER_RATE
    return rate * (1 - momentum)


def server_rate(
    update: UpdateName, parameters: int, momentum: float, noise: float = 0.0, steps: int = 1
) -> float:
    """η_0, chosen likewise for d_0 parameters; under noise, small enough for all T ``steps``.

    ``noise`` is the standard deviation that a private update adds to each parameter's gradient;
    over T steps it moves a parameter by at most `PRIVATE_WANDERING` (standard deviation).
    """
    rate = FIRST_ORDER_RATE
    if update in ("zeroth-order", "forward-difference", "private-zeroth-order"):
        rate = _rate(parameters, ESTIMATED_SERVER_RATE)
    elif update in PRIVATE:
        rate = min(PRIVATE_RATE, PRIVATE_WANDERING / (noise * math.sqrt(steps)))
    return rate * (1 - momentum)


def _rate(dimensions: float, rate: float) -> float:
    return min(LARGEST_RATE, rate / dimensions)


def _within(bounds: tuple[int, int], wanted: int) -> int:
    least, most = bounds
    return min(max(wanted, least), most)


def complete(config: ExperimentConfig, data: VerticalData) -> ExperimentConfig:
    """Fill in epochs, batch size, clip and the like for these records, where none is configured.

    A complete configuration is returned as it is. Of the data, only the numbers of records, columns
    and parties matter.
    """
    given, privacy = config.model_fields_set, config.privacy
    chosen: dict[str, Any] = {}
    private = privacy.mechanism == "gaussian"
    method = config.method
    if method.additive:
        chosen |= _additive(config, data)
    if method.whole_queries is not None:
        chosen |= {} if "batch_size" in given else {"batch_size": data.records}
        chosen |= {} if "epochs" in given else {"epochs": method.whole_queries}
        given = given | chosen.keys()
    if "batch_size" not in given:
        per_batch = _within(PRIVATE_BATCH_SIZES, data.records // PRIVATE_BATCHES)
        chosen["batch_size"] = max(1, min(per_batch if private else BATCH_SIZE, data.records))
    if "epochs" not in given:
        batch_size = chosen.get("batch_size", config.batch_size)
        per_epoch = max(1, math.ceil(data.records / batch_size))
        wanted = round(ROUNDS / per_epoch)
        if private:
            narrow = privacy.epsilon is not None and is_narrow(config.client)
            wanted = NARROW_EPOCHS if narrow else PRIVATE_EPOCHS
        chosen["epochs"] = _within(EPOCHS, wanted)
        if config.simulation.activation and config.rounds and privacy.mechanism == "none":
            chosen["epochs"] = math.ceil(config.rounds / per_epoch)  # as if one made all rounds
    if privacy.mechanism == "teacher":
        teacher = _teacher(privacy, data)
        chosen["privacy"] = privacy.model_copy(update={"teacher": teacher})
    if private and privacy.clip is None:
        clip = TANGENT_CLIP if isinstance(method, AlongDirections) else reply_clip(data)
        chosen["privacy"] = privacy.model_copy(update={"clip": clip})
    return config.model_copy(update=chosen) if chosen else config


def _teacher(privacy: PrivacyConfig, data: VerticalData) -> TeacherConfig:
    """The options of a teacher, by the shape and number of the records, and ε."""
    options = privacy.teacher
    features = options.features or ("filters" if data.are_images else "pca")
    chosen: dict[str, Any] = {"features": features}
    assert privacy.epsilon is not None, "checked"
    if options.kept is None:
        signal = mu_of(privacy.epsilon, privacy.delta) * data.records
        chosen["kept"] = max(LEAST_KEPT, round(KEPT_PER_SIGNAL * signal))
    if features != "filters" and "components" not in options.model_fields_set:
        chosen["components"] = max(1, round(TEACHER_NUMBERS / len(data.parties)))
    return options.model_copy(update=chosen)


def _additive(config: ExperimentConfig, data: VerticalData) -> dict[str, Any]:
    """Changes for additive methods: embeddings as long as predictions, and K of queries."""
    chosen: dict[str, Any] = {}
    client, method = config.client, config.method
    two = isinstance(data.task, Classification) and data.task.outputs == 2
    outputs = 1 if two else data.task.outputs

    def narrowed(model: Any) -> Any:
        if isinstance(model, MlpConfig) and "outputs" not in model.model_fields_set:
            return model.model_copy(update={"outputs": outputs})
        return model

    each = {party: narrowed(model) for party, model in client.models.items()}
    model = narrowed(client.model)
    if (model, each) != (client.model, client.models):
        chosen["client"] = client.model_copy(update={"model": model, "models": each})
    privacy, known = config.privacy, "num_directions" in method.model_fields_set
    if isinstance(method, AlongDirections) and not known and privacy.epsilon is not None:
        columns = max(map(math.prod, map(data.shape, range(len(data.features)))), default=0)
        once = method.name == "label-statistic"
        count = tangents(privacy.epsilon, privacy.delta, data.records, columns, once=once)
        chosen["method"] = method.model_copy(update={"num_directions": count})
    return chosen


def tangents(
    epsilon: float, delta: float, records: int, columns: int = 0, *, once: bool = False
) -> int:
    """K of a tangent query: as many directions as rise above the noise.

    ``columns`` is the number of columns of the widest party, 0 if unknown; ``once`` is for a label
    statistic, which is asked for once.
    """
    bounds, wide = (STATISTICS, STATISTICS_WIDE) if once else (TANGENTS, TANGENTS_WIDE)
    signal = mu_of(epsilon, delta) * records
    few = _within(bounds, round(TANGENTS_PER_SIGNAL * signal))
    return max(few, min(round(wide * signal), columns // 4))


def reply_clip(data: VerticalData) -> float:
    """The clip C of replies: the typical slope of the loss, for a linear client, before training.

    Along a random direction of a linear layer with F standardised inputs an embedding moves by
    about √(F + 1) in each output; a fresh server passes a third of the mean square on, spread over
    M parties, and the gradient of a cross-entropy by the logits is at most √2 long.
    """
    parties = len(data.parties)
    inputs = [math.prod(data.shape(party)) for party in range(len(data.features))]
    typical = sum(inputs) / len(inputs) if inputs else TYPICAL_COLUMNS
    steepness = math.sqrt(2 * (typical + 1) / (3 * parties))
    return float(f"{steepness:.2g}")
