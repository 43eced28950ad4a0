"""``vertizo serve``: the label holder's process, until the job is over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from vertizo.cli.console import live_bar, say
from vertizo.cli.options import AsJson, PartyConfig, Settings
from vertizo.cli.parties import STOPPED, TICK, listening, stop_requests
from vertizo.core.errors import ConfigError, Interrupted, RunError

if TYPE_CHECKING:
    from vertizo.network.options import ServeConfig


def serve(config: PartyConfig, settings: Settings = None, as_json: AsJson = False) -> None:
    """Serve a job as the label holder, or continue it."""
    try:
        _serve(_load(config, settings or []), as_json)
    except KeyboardInterrupt:
        raise Interrupted(STOPPED) from None


def _load(path: Path, settings: list[str]) -> ServeConfig:
    """The configuration; another party's is recognised as such."""
    from vertizo.network.options import is_label_holder, load_serve

    try:
        return load_serve(path, settings)
    except ConfigError:
        if is_label_holder(path):
            raise
    raise ConfigError(
        f"{path} has no federation.members, as a label holder's has; "
        "a feature holder's is for `vertizo join`"
    )


def _serve(config: ServeConfig, as_json: bool) -> None:
    """Serve one job to its end, new or where its folder says it was."""
    from vertizo.network.certificates import Credentials

    served = config.federation
    credentials = Credentials.load(served.certificates)
    import torch

    from vertizo.core.memory import keep_freed_memory
    from vertizo.network.serving import FederationService
    from vertizo.run.folder import RunFolder

    errors = Console(stderr=True)
    torch.set_num_threads(config.threads)
    keep_freed_memory()
    service = FederationService(config, lambda line: say(line, errors))
    with service, stop_requests() as stopped:
        with (
            listening(errors, f"serves {served.name}", served, credentials, service),
            live_bar(errors, served.name) as show,
        ):
            stage, noted = "", False
            while not service.finished.wait(TICK):
                service.tick()
                if not noted and service.state is not None:
                    noted = True
                    say((f"note: {n}" for n in service.state.job.party.side.notes), errors)
                if show is not None:
                    show(*service.progress())
                elif stage != (stage := service.stage()):
                    say(stage, errors)
                if stopped.is_set():
                    raise Interrupted(STOPPED)
        service.tick()
    summary = RunFolder(served.folder).summary()
    if summary is None:
        raise RunError(f"{served.folder} has no summary, though the job is over")
    if as_json:
        print(json.dumps(summary))
    else:
        _show(summary, served.folder)


def _show(summary: dict[str, Any], folder: Path) -> None:
    from vertizo.run.summary_figures import size_text

    table = Table(title=f"{summary['method']} on {summary['dataset']}", title_style="bold")
    table.add_column("")
    table.add_column("job", justify="right")
    if summary.get("test_accuracy") is not None:
        table.add_row("test accuracy", f"{100 * summary['test_accuracy']:.2f} %")
    if summary.get("test_auc") is not None:
        table.add_row("test AUC", f"{summary['test_auc']:.4f}")
    if summary.get("test_rmse") is not None:
        table.add_row("test RMSE", f"{summary['test_rmse']:.4g}")
    if summary.get("test_loss") is None:
        table.add_row("test figures", "none: a member was silent")
    table.add_row("model", summary["model"])
    table.add_row("members", ", ".join(summary["parties"]))
    table.add_row("rounds", f"{summary['rounds']:,}")
    table.add_row("bytes up", size_text(summary["bytes_up"] + summary["bytes_table"]))
    table.add_row("bytes down", size_text(summary["bytes_down"]))
    table.add_row("staleness", "mean {mean:.0f}, max {max}".format(**summary["staleness"]))
    Console().print(table)
    say([f"privacy: {summary['privacy']['words']}", f"run folder: {folder}"])
