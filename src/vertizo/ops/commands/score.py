"""``vertizo score`` and ``vertizo api-key``: scores online, and who may ask for them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vertizo.cli import log
from vertizo.cli.console import say
from vertizo.cli.options import HEAD, PartyConfig, Settings, argument, option
from vertizo.cli.parties import TICK, connect, identity, listening, stop_requests, terminable
from vertizo.core.errors import ConfigError, Interrupted
from vertizo.core.names import Head
from vertizo.core.plugins.wings import watched

if TYPE_CHECKING:
    from vertizo.data.own_tables.keyed import KeyedTable
    from vertizo.network.serving.options import JoinConfig, ServeConfig

STOPPED = "stopped; the same command serves scores again"


def score(
    config: PartyConfig,
    data: Annotated[
        Path | None,
        option(
            "This party's table of records, CSV, Excel, Parquet or SQLite. Needed by members, and "
            "by a label holder with columns of its own.",
            "FILE",
        ),
    ] = None,
    table: Annotated[
        str | None, option("Table of an SQLite database. Default: its only one.", "NAME")
    ] = None,
    head: Annotated[Head | None, HEAD] = None,
    settings: Settings = None,
    log_format: log.LogFormat = "text",
) -> None:
    """Score records online with a finished job's model, until it is stopped."""
    try:
        from vertizo.network.serving.options import is_label_holder, load_join, load_serve

        if is_label_holder(config):
            served = load_serve(config, settings or [])
            _as_label_holder(config, served, data, table, head)
        else:
            if head is not None:
                raise ConfigError("--head is the label holder's; a feature holder gets no scores")
            _as_member(load_join(config, settings or []), data, table)
    except KeyboardInterrupt:
        raise Interrupted(STOPPED) from None


def api_key(
    name: Annotated[str, argument("Who is to ask for scores: a program, or a person.")],
    file: Annotated[Path, argument("File of callers; made if it is missing.")],
    requests: Annotated[int, option("Most requests in a second.", min=1)] = 100,
    records: Annotated[int, option("Most records in a second.", min=1)] = 10_000,
    replace: Annotated[bool, option("Give a caller that is there a new key.")] = False,
) -> None:
    """Let somebody ask for scores: print a new key, and add its digest to the file of callers."""
    from vertizo.ops.scoring.callers import add

    key = add(file, name, requests, records, replace=replace)
    say(f"{name} may ask now; this is the key, which is nowhere else:", log.errors())
    print(key)


def _as_label_holder(
    path: Path, config: ServeConfig, data: Path | None, table: str | None, head: Head | None
) -> None:
    served, scoring = config.federation, config.scoring
    if scoring is None:
        raise ConfigError(
            f"{path} has no section scoring; it needs scoring.http or scoring.grpc, and "
            "scoring.callers"
        )
    credentials, errors = identity(served), log.errors()
    _check_extra()
    import torch

    from vertizo.core.memory import keep_freed_memory
    from vertizo.network.serving.trained_model import LabelHolderModel
    from vertizo.ops.figures import scoring_figures
    from vertizo.ops.scoring.http import http_at
    from vertizo.ops.scoring.rpc import grpc_at
    from vertizo.ops.scoring.scorer import Scorer
    from vertizo.ops.scoring.service import ScoringService
    from vertizo.run.trained.prediction import coverage_of

    notice = partial(say, console=errors)
    torch.set_num_threads(config.threads)
    keep_freed_memory()
    model = LabelHolderModel(config, head)
    if data is not None and model.own is None:
        notice(f"note: {data} is not read, since the job had no columns of the label holder's")
    own = None if model.own is None else _keyed(config, data, table, notice)
    service = ScoringService(config, model, own, notice)
    names = served.name, credentials.name
    with (
        stop_requests() as stopped,
        closing(Scorer(service, scoring, served.folder, notice)) as scorer,
        watched("health", served.health, lambda: service.is_ready),
        listening(errors, f"scores by {model.job}", served, credentials, service, model.job) as net,
        http_at(scoring, scorer) as http,
        grpc_at(scoring, scorer) as grpc,
        watched("figures", served.metrics, partial(scoring_figures, service, scorer, net, *names)),
    ):
        for name, place, port in (("HTTP", scoring.http, http), ("gRPC", scoring.grpc, grpc)):
            if place is not None:
                notice(f"callers ask by {name} at {place.rpartition(':')[0]}:{port}")
        notice(f"privacy: {coverage_of(model.privacy, model.head)}")
        were_ready = False
        while not stopped.wait(TICK):
            service.tick()
            if were_ready is not (were_ready := service.is_ready):
                away = ", ".join(service.missing())
                notice("all members are connected" if were_ready else f"not connected: {away}")
    raise Interrupted(STOPPED)


def _as_member(config: JoinConfig, data: Path | None, table: str | None) -> None:
    from vertizo.core.memory import keep_freed_memory
    from vertizo.network.serving.frames import understood
    from vertizo.ops.figures import lookup_figures
    from vertizo.ops.scoring.member import ScoringMember

    errors, options = log.errors(), config.federation
    notice = partial(say, console=errors)
    keep_freed_memory()
    with (
        closing(connect(options, errors)) as channel,
        terminable(),
        watched("health", options.health, lambda: channel.is_connected),
        understood(),
    ):
        own = _keyed(config, data, table, notice)
        member = ScoringMember(config, own, channel, notice)
        notice(f"embeds records of {data} for scores of the label holder at {options.server}")
        figures = partial(lookup_figures, member, channel, options.name, channel.credentials.name)
        with watched("figures", options.metrics, figures):
            member.run()


def _keyed(
    config: ServeConfig | JoinConfig,
    data: Path | None,
    table: str | None,
    notice: Callable[[str], None],
) -> KeyedTable:
    """Open the table in which a party's rows are found."""
    from vertizo.data.own_tables.keyed import keyed_table
    from vertizo.data.tabular.csv_lines import CsvFormat

    if config.data.id is None:
        raise ConfigError("data.id is not set; name the column of keys")
    if data is None:
        raise ConfigError("--data is missing; name the table that this party's rows are found in")
    return keyed_table(data, config.data.id, CsvFormat.of(config.data), table, notice)


def _check_extra() -> None:
    """Raise ConfigError if a package that only scores need is missing."""
    for module in ("cachetools", "fastapi", "google.protobuf", "limits", "uvicorn"):
        try:
            import_module(module)
        except ImportError:
            raise ConfigError(f"scores need {module}: pip install 'vertizo[scoring]'") from None
