"""Values that are nearly one that is known: what was meant is offered, as for keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import ValidationError

from vertizo.config import schema
from vertizo.config.error_lines import explain, read_yaml
from vertizo.config.tree import merge
from vertizo.core.errors import ConfigError
from vertizo.core.options import TAGS, Options, members
from vertizo.network.serving.options import JoinConfig, ServeConfig
from vertizo.ops.agent.options import LabelHolderAgent, MemberAgent

TUTORIAL = Path(__file__).parents[2] / "src/vertizo/data/tutorial"
Tree = dict[str, Any]


def words(annotation: Any) -> Iterator[str]:
    """The texts that a type is a choice of."""
    if get_origin(annotation) is Literal:
        yield from (value for value in get_args(annotation) if isinstance(value, str))
        return
    for part in get_args(annotation):
        yield from words(part)


def near_misses(
    option: Any, above: tuple[tuple[str, Tree], ...] = ()
) -> Iterator[tuple[Tree, str]]:
    """Trees of one value each, of a letter too much, and the value that was meant."""

    def tree(*keys: str, **own: Any) -> Tree:
        for key in reversed(keys):
            own = {key: own}
        for key, beside in reversed(above):
            own = {key: {**beside, **own}}
        return own

    for name, info in option.model_fields.items():
        if name in TAGS:
            continue
        choices = members(info.annotation)
        for choice in choices:
            for tag in TAGS:
                value = getattr(choice.model_fields.get(tag), "default", None)
                if isinstance(value, str) and value:
                    yield tree(name, **{tag: f"{value}q"}), value
                    yield from near_misses(choice, (*above, (name, {tag: value})))
        if hasattr(info.annotation, "model_fields"):
            yield from near_misses(info.annotation, (*above, (name, {})))
        if not choices:
            parts = (info.annotation, *get_args(info.annotation))
            listed = any(get_origin(part) in (tuple, list) for part in parts)
            for value in words(info.annotation):
                yield tree(**{name: [f"{value}q"] if listed else f"{value}q"}), value


FILES: tuple[tuple[type[Options], str | None, set[str]], ...] = (
    (schema.ExperimentConfig, None, {"dpzv", "rows", "top-k", "mlp", "poisson-dp-sgd"}),
    (ServeConfig, "hospital.yaml", {"dpzv", "mlp", "poisson-dp-sgd", "secure"}),
    (JoinConfig, "lab.yaml", {"utf-8"}),
    (LabelHolderAgent, "hospital.agent.yaml", {"align", "labels"}),
    (MemberAgent, "lab.agent.yaml", {"align", "labels", "by-hand"}),
)
"""What is chosen in each kind of file, in one of the tutorial's, and some of its values."""


@pytest.mark.full
@pytest.mark.parametrize(("kind", "name", "some"), FILES)
def test_every_value_of_a_choice_is_offered_for_a_near_miss(
    kind: type[Options], name: str | None, some: set[str]
) -> None:
    base = {} if name is None else read_yaml(TUTORIAL / name)
    kind.model_validate(base)
    found = list(near_misses(kind))
    assert some <= {meant for _, meant in found}
    for tree, meant in found:
        with pytest.raises(ValidationError) as caught:
            kind.model_validate(merge(base, tree))
        line = explain(caught.value, kind)
        offered = line.partition("; did you mean ")[2].partition("?")[0]
        assert repr(meant) in offered, f"{tree}: {line}"


def test_what_people_write() -> None:
    for tree, line in (
        ({"method": "dpvz"}, "such as method.name=dpzv"),
        ({"method": "autoo"}, "such as method.name=auto"),
        ({"method": {"name": "atuo"}}, "did you mean 'auto'?"),
        ({"method": "auto"}, "which is for `vertizo train`"),
        ({"method": "nothing like it"}, "such as method.name=nothing like it"),
        ({"method": {"name": "dpvz"}}, "did you mean 'dpzv'?"),
        ({"server": {"update": "sdg"}}, "did you mean 'sgd'?"),
        ({"data": {"split": "row"}}, "did you mean 'rows'?"),
        ({"simulation": {"timing": "asynchronus"}}, "did you mean 'asynchronous'"),
        ({"data": {"class_weights": "balancd"}}, "did you mean 'balanced'?"),
    ):
        with pytest.raises(ConfigError) as caught:
            schema.parse(tree)
        assert line in str(caught.value), tree
