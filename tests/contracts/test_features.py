"""Where a statement covers features against the other clients, a record's features move what is
released to them by its sensitivity at most: every method, every update of the server, clients that
are lines and that bend.

Two runs differ in one record's features at client 0. Everything released is made the same in both,
so that what still differs in the sums behind it was carried there without noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from tests import federations as fed
from tests.rows import each, pairs
from torch import Tensor

from vertizo.methods.choice import METHODS, asking
from vertizo.privacy.noise.mechanisms import SeededNoise
from vertizo.run.build.coverage import FEATURES

RECORDS, RECORD = 80, 7
LINE, BENT = {"name": "mlp", "outputs": fed.DIM}, {"name": "mlp", "hidden": [16]}
GIVEN = {**fed.GAUSSIAN, "epochs": 3, "batch_size": 20}
GIVEN["evaluate_every"] = 10**6  # what the choice of a model shows is another test's
SERVER_CLIP = 0.25
PRIVATE = {"server.clip": SERVER_CLIP, "privacy.noise_std": None}
PRIVATE |= {"privacy.epsilon": 3.0, "privacy.delta": 1e-3}
UPDATES = ("none", "private-sgd", "poisson-dp-sgd", "private-zeroth-order")
CARRIES = {"czofo", "vafl", "split", "compressed-vfl", "fedbcd", "flex-vfl"}
"""Methods whose clients train on gradients of their own."""


def sums(method: str, model: dict[str, Any], more: dict[str, Any], scale: float) -> Any:
    """Whether features are covered, and every sum to the others before noise."""
    data = fed.data(RECORDS)
    data.features[0]["train"][RECORD] *= scale
    whole = {"server.model": {"name": "sum"}} if METHODS[method].additive else {}
    outputs = {"outputs": fed.CLASSES} if whole else {"outputs": fed.DIM}
    changes = {**GIVEN, **whole, "client.model": {**model, **outputs}, **more}
    if whole:
        changes["batch_size"] = RECORDS
    federation = fed.build(method, None, changes, of=data)
    asked: list[int] = []
    replied: list[int] = []
    found: list[tuple[int | None, Tensor]] = []
    side = federation.server.side
    answer = side.answer

    def answered(queries: Any, round_: int) -> Any:
        asked[:] = [query.client for query in queries]
        return answer(queries, round_)

    def onto(self: SeededNoise, release: int, total: Tensor) -> Tensor:
        if self is getattr(side.update, "noise", None):
            found.append((None, total.clone()))
        elif len(asked) == 1:
            found.append((asked[0], total.clone()))
        else:  # one release for each client, in turn
            found.append((len(replied) % len(asked), total.clone()))
            replied.append(release)
        numbers = self._stream.generator(release).standard_normal(tuple(total.shape))
        return 5 * torch.from_numpy(numbers)

    side.answer = answered  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SeededNoise, "onto", onto)
        federation.start(upload_table=False)
        fed.go_on(federation)
    return FEATURES in federation.statement().covers, found


def cases() -> Iterator[str]:
    """Every method under every update that protects labels, as ``METHOD / UPDATE``."""
    for name in asking():
        method = METHODS[name]
        bare = method.additive  # its server has no parameters
        for update in UPDATES[:1] if bare else UPDATES:
            if update in method.server_updates:
                yield f"{name} / {update}"
    yield "tangent orthonormal / none"


MODELS = {"line": LINE, "bent": BENT}


@each("case, model", [*product(cases(), MODELS)], gate=pairs(cases(), MODELS)[::3])
def test_what_is_covered_is_not_carried(case: str, model: str) -> None:
    whole, _, update = case.partition(" / ")
    method, _, directions = whole.partition(" ")
    client = MODELS[model]
    more = {"server.update": update, **(PRIVATE if update != "none" else {})}
    if directions:
        more["method.directions"] = directions
    covered, before = sums(method, client, more, 1.0)
    again, after = sums(method, client, more, 1000.0)
    assert again is covered
    assert [one for one, _ in before] == [one for one, _ in after]
    trained = [one for one, _ in before if one is None]
    assert bool(trained) is (update != "none")
    clips = {None: SERVER_CLIP}
    furthest = max(
        float((one - other).norm()) / (2 * clips.get(to, fed.GAUSSIAN["privacy.clip"]))
        for (to, one), (_, other) in zip(before, after, strict=True)
        if to != 0
    )
    if covered:
        assert furthest <= 1 + 1e-6
    else:
        assert furthest > 0.1, "nothing is carried, and could be covered"
    carries = method in CARRIES or (method == "tangent" and (not directions or model == "bent"))
    assert covered is not carries
