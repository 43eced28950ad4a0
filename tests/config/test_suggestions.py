"""Values that are nearly one that is known: what was meant is offered, as for keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest

from vertizo.config import schema
from vertizo.core.errors import ConfigError
from vertizo.core.options import TAGS, members

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

    def tree(*keys: str, **own: str) -> Tree:
        for key in reversed(keys):
            own = {key: own}  # type: ignore[dict-item]
        for key, beside in reversed(above):
            own = {key: {**beside, **own}}  # type: ignore[dict-item]
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
            yield from ((tree(**{name: f"{value}q"}), value) for value in words(info.annotation))


@pytest.mark.full
def test_every_value_of_a_choice_is_offered_for_a_near_miss() -> None:
    found = list(near_misses(schema.ExperimentConfig))
    assert {"dpzv", "sgd", "rows", "asynchronous", "top-k", "mlp", "poisson-dp-sgd"} <= {
        meant for _, meant in found
    }
    for tree, meant in found:
        with pytest.raises(ConfigError) as caught:
            schema.parse(tree)
        _, _, offered = str(caught.value).partition("; did you mean ")
        assert repr(meant) in offered.partition("?")[0], f"{tree}: {caught.value}"


def test_what_people_write() -> None:
    for tree, line in (
        ({"method": "dpvz"}, "such as method.name=dpzv"),
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
