"""Flex-VFL against loops written out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.rows import each

from vertizo.core.errors import ConfigError
from vertizo.methods.flex_vfl import FlexVfl


@each("momentum", [0.0, 0.5])
@each(
    "given, steps, server_steps",
    [([1, 2, 4], [1, 2, 4], 3), ([4, 1, 1], [4, 1, 1], 1), ([3], [3, 3, 3], 2)],
)
def test_rounds_by_hand(
    federations: SimpleNamespace,
    given: list[int],
    steps: list[int],
    server_steps: int,
    momentum: float,
) -> None:
    """Client m makes Q_m steps, the server Q_0; one number stands for every client."""
    changes = {
        "method.local_steps": given,
        "method.server_local_steps": server_steps,
        "client.optimizer.momentum": momentum,
        "server.optimizer.momentum": momentum,
    }
    federation = federations.build("flex-vfl", changes=changes)
    copies = federations.twins(federation, momentum)
    for _ in range(6):
        ids = federations.query(federations.ask(federation, 0)).ids
        copies.round(ids, steps, server_steps)
        federations.converse(federation, [0, 1, 2])
        assert federations.agree(federation, copies, atol=1e-5)


def test_equal_numbers_are_fedbcd(federations: SimpleNamespace) -> None:
    """The same frames and the same weights, bit by bit."""
    changes = {"method.local_steps": [3, 3, 3], "method.server_local_steps": 3}
    flex, tape = federations.ran("flex-vfl", changes=changes)
    fedbcd, other = federations.ran("fedbcd", changes={"method.local_steps": 3})
    assert tape.seen == other.seen
    assert not federations.differences(flex.parameters(), fedbcd.parameters())


@each("numbers", [[1, 2], [1, 2, 3, 4]])
def test_a_wrong_count_is_refused(federations: SimpleNamespace, numbers: list[int]) -> None:
    said = f"method.local_steps has {len(numbers)} numbers for 3 clients; give one for each"
    with pytest.raises(ConfigError, match=said):
        federations.build("flex-vfl", changes={"method.local_steps": numbers})


@each("numbers", [[], [0, 1, 1], [2, -1, 2]])
def test_every_client_makes_a_step(federations: SimpleNamespace, numbers: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"method\.local_steps"):
        federations.config("flex-vfl", changes={"method.local_steps": numbers})


def test_as_many_numbers_as_clients_fit() -> None:
    FlexVfl(local_steps=(1, 2, 3)).check(3)
    FlexVfl(local_steps=(2,)).check(7)
    with pytest.raises(ConfigError):
        FlexVfl(local_steps=(1, 2, 3)).check(1)
