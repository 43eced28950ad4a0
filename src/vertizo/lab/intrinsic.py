"""VFL-CZOFO's intrinsic figures, measured on a finished run.

Defined in docs/mathematics.md, VFL-CZOFO's intrinsic figures.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vertizo.core.errors import RunError
from vertizo.core.randomness import Stream
from vertizo.data.prepare import prepare
from vertizo.methods.czofo import Czofo
from vertizo.models.base import Points
from vertizo.privacy.intrinsic import Frozen, Intrinsic, measure
from vertizo.privacy.options import PrivacyConfig
from vertizo.run.build.data_defaults import complete
from vertizo.run.build.privacy import record_choice
from vertizo.run.build.schedule import planned_rounds
from vertizo.run.loop.federation import Federation, build
from vertizo.run.results.folder import RunFolder

AT_ONCE = 4096
"""Records that are embedded at a time."""


def intrinsic(folder: RunFolder, *, repeats: int = 100) -> Intrinsic:
    """Repeat each client's estimate on a czofo run's models, and put the spread into Theorem 4.1.

    The run's checkpoints are the frozen models: the last, and the best if one was kept; one batch
    of each client is used. RunError if the folder holds no run of that method, or no checkpoint.
    """
    config = folder.config()
    if not isinstance(config.method, Czofo):
        raise RunError(
            f"{folder.path} holds a run of method {config.method.name!r}; the intrinsic figures "
            "are those of 'czofo'"
        )
    data = prepare(config.data, record_choice(config))
    federation = build(config.model_copy(update={"privacy": PrivacyConfig()}), data)
    stream = Stream.from_seed(config.seed).child("intrinsic")
    measured: list[Frozen] = []
    for name in ("last", "best"):
        if folder.has(name):
            state = folder.load(name)
            federation.load_parameters(state.get("parameters", state))
            measured += _at(federation, config.method, stream.child(name), repeats)
    if not measured:
        raise RunError(f"{folder.path} holds no checkpoint; finish the run with --resume")
    steps = planned_rounds(complete(config, data), data)
    return Intrinsic.of(measured, steps=steps, records=data.records)


def _at(federation: Federation, method: Czofo, stream: Stream, repeats: int) -> Iterator[Frozen]:
    """One measurement for each client, all tables filled with what the models now yield."""
    side = federation.server.side
    for m, model in enumerate(federation.models):
        features = federation.data.features[m]["train"]
        for start in range(0, len(features), AT_ONCE):
            embeddings = model(features[start : start + AT_ONCE])
            ids = torch.arange(start, start + len(embeddings))
            side.table.store(m, ids, embeddings, 0)
    for m, client in enumerate(federation.clients):
        ids = client.batches.ids(0)
        labels, weights = side.labels[ids], side.weights_of(ids)
        start = sum(side.table.dims[:m])
        embeddings = side.table.values[ids].narrow(1, start, side.table.dims[m])

        def losses(
            points: Tensor,
            m: int = m,
            ids: Tensor = ids,
            labels: Tensor = labels,
            weights: Tensor | None = weights,
        ) -> Tensor:
            given = side.table.points(ids, [(m, points)])
            return side.model.evaluate(given, labels, weights=weights).losses[:-1]

        joined = Points(side.table.points(ids).rows)
        rows = side.model.evaluate(joined, labels, weights=weights).input_gradient(1.0)
        yield measure(
            losses,
            embeddings,
            side.table.part(m, rows),
            directions=method.directions,
            num_directions=method.num_directions,
            smoothing=method.smoothing,
            per_record=method.scalars == "record",
            stream=stream.child(m),
            repeats=repeats,
        )
