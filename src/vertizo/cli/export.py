"""``vertizo export``: a run's models as files that other programs load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from vertizo.cli.console import say
from vertizo.cli.options import argument, complete_runs, option
from vertizo.core.errors import ConfigError, Interrupted


def export(
    run: Annotated[Path, argument("Run folder of `vertizo train`.", complete=complete_runs)],
    format_: Annotated[
        Literal["torch", "onnx"],
        option("torch: each module's state_dict. onnx: a graph (extra onnx).", None, "--format"),
    ] = "torch",
    party: Annotated[
        list[str] | None,
        option("Of this party alone; server is the label holder's. Can be repeated.", "NAME"),
    ] = None,
    out: Annotated[
        Path | None, option("Folder of the files. Default: export in RUN.", "FOLDER")
    ] = None,
) -> None:
    """Write a run's trained models, a file for each party."""
    from vertizo.network.serving.client_folder import is_of_real_parties
    from vertizo.run.results import checkpoint
    from vertizo.run.trained.export import export as write
    from vertizo.run.trained.export import parts_of

    if is_of_real_parties(run):
        raise ConfigError(f"{run} is of real parties; export is for runs of `vertizo train`")
    folder = out or run / "export"
    try:
        parts = parts_of(run, party or ())
        with checkpoint.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for part in parts:
            path = write(part, folder, format_)
            say(f"{path}: takes records of shape {list(part.example.shape[1:])}")
    except KeyboardInterrupt:
        raise Interrupted("stopped; files may be incomplete") from None
