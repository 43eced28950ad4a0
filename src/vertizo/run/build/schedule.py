"""The length of a run: rounds of the server, answers to each client, sizes of batches."""

from __future__ import annotations

import math

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError
from vertizo.data.vertical import VerticalData
from vertizo.privacy.accounting import guarantee


def planned_rounds(config: ExperimentConfig, data: VerticalData) -> int:
    """Server steps of the whole run."""
    per_client = steps_of_client(config, data.records)
    synchronous = config.simulation.timing == "synchronous"
    rounds = per_client if synchronous else per_client * len(data.parties)
    return min(rounds, config.rounds or rounds)


def rounds_per_epoch(config: ExperimentConfig, data: VerticalData) -> int:
    """Server steps in which every client passes over its records once."""
    per_query = 1 if config.simulation.timing == "synchronous" else len(data.parties)
    return max(1, steps_of_client(config, data.records) // config.epochs * per_query)


def chooses_best(config: ExperimentConfig, data: VerticalData) -> bool:
    """Whether validation records choose the best of several models, and clients learn which it is.

    The first parameters are never chosen.
    """
    every = config.evaluate_every or rounds_per_epoch(config, data)
    return len(data.labels["validation"]) > 0 and every < planned_rounds(config, data)


def steps_of_client(config: ExperimentConfig, records: int) -> int:
    """Answers that one client trains on in the whole run; 0 for clients that use no label."""
    if config.is_label_free:
        return 0
    return config.epochs * math.ceil(records / config.batch_size)


def answers_expected(config: ExperimentConfig, records: int, clients: int) -> list[int]:
    """Answers that each client is expected to train on, over which a learning rate may fall to 0.

    Without ``rounds``, and in synchronous rounds, they are known. Where ``rounds`` ends
    asynchronous training, chance decides: rounds are divided by pace, so that stragglers get fewer,
    and none gets more than `steps_of_client`.
    """
    most = steps_of_client(config, records)
    rounds = most if config.rounds is None else config.rounds
    if config.rounds is None or config.simulation.timing == "synchronous":
        return [min(most, rounds)] * clients
    if (shares := config.simulation.activation) is not None:
        return [max(1, min(most, math.ceil(share * rounds))) for share in shares]
    paces = {client: 1 / config.simulation.stragglers.get(client, 1.0) for client in range(clients)}
    answers, left = [most] * clients, rounds
    while paces and left < most * len(paces):
        fast = [c for c, pace in paces.items() if left * pace / sum(paces.values()) >= most]
        if not fast:
            for client, pace in paces.items():
                answers[client] = max(1, math.ceil(left * pace / sum(paces.values())))
            break
        for client in fast:
            del paces[client]
        left -= most * len(fast)
    return answers


def batch_sizes(config: ExperimentConfig, records: int, clients: int) -> tuple[int, ...]:
    """The numbers of rows that the server model is evaluated on at once, sorted.

    They are those of a full batch and of an epoch's last, at the table's embeddings and at all
    points of the queries that are answered together, and those of a secret sample.
    """
    together = clients if config.simulation.timing == "synchronous" else 1
    others = max(1, config.method.evaluations_per_query * together)
    batches = {min(config.batch_size, records), records % config.batch_size} - {0}
    sizes = {rows * points for rows in batches for points in (1, others)}
    if config.server.update == "poisson-dp-sgd":
        sizes.add(guarantee.capacity(records, config.server.secret.sampling))
    return tuple(sorted(sizes))


def check_sizes(config: ExperimentConfig, records: int) -> None:
    """Raise ConfigError for a batch larger than the training set, or for no training record."""
    if not records:
        raise ConfigError(
            f"data.validation is {config.data.validation}, which leaves no record to train on"
        )
    if config.batch_size > records:
        raise ConfigError(
            f"batch_size is {config.batch_size} but there are {records} training records; "
            f"use at most {records}"
        )
