"""A run as a job of NVIDIA FLARE, which provisions, authenticates, submits and monitors.

Labels and the server model stay in the job's process at FLARE's server; each member is one of its
clients, and works in its own loop. Their bytes go through FLARE's authenticated cells (`cells`).
Nothing else in Vertizo knows of FLARE::

    from nvflare.recipe import ProdEnv
    from vertizo.ops import flare

    job = flare.recipe("/data/bank.yaml", {"shop": "/data/shop.yaml", "post": "/data/post.yaml"})
    run = job.execute(ProdEnv("/kits/lead@bank.example", username="lead@bank.example"))
    run.get_result()
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from vertizo.core.errors import ConfigError
from vertizo.ops.flare.cells import require_flare

if TYPE_CHECKING:
    from vertizo.ops.flare.sites import LabelHolder, Member


def recipe(
    config: str,
    members: Mapping[str, str],
    *,
    name: str = "vertizo",
    patience: float = 120.0,
    installed_only: bool = False,
    label_holder: type[LabelHolder] | None = None,
    member: type[Member] | None = None,
) -> Any:
    """Make a `CollabRecipe` of a run, for any environment in which FLARE executes recipes.

    Every site runs the Vertizo that it has installed; the job brings none.

    Args:
        config: path of the label holder's configuration, on the machine of FLARE's server.
        members: path of each member's configuration on its own machine, by the name of its client.
        name: of the job.
        patience: seconds without any sign of the server until a member gives up.
        installed_only: whether the job is one without code of its own, which a site accepts if its
            policy lists `vertizo.ops.flare.sites` and `nvflare.collab`. Otherwise it counts
            as one that brings code, which a site accepts if its policy allows any such job.
        label_holder: a class of one's own in place of `LabelHolder`, which the job then brings.
        member: likewise, in place of `Member`.

    Raises:
        ConfigError: no members, a path that is not absolute, or a class that is not installed.
        RunError: FLARE is missing, or of another version.
    """
    require_flare()
    if not members:
        raise ConfigError("members is empty; write {name of a client: path of its configuration}")
    for key, path in {"config": config, **{f"members.{m}": p for m, p in members.items()}}.items():
        if not (PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()):
            raise ConfigError(f"{key} is {path!r}; write an absolute path, on the site's machine")
    if installed_only and (label_holder or member):
        raise ConfigError("installed_only is True; leave label_holder and member out")
    from nvflare.collab import CollabRecipe

    from vertizo.ops.flare.sites import LabelHolder, Member

    made = CollabRecipe(
        job_name=name,
        server=(label_holder or LabelHolder)(config),
        client=(member or Member)(patience),
        min_clients=len(members),
    )
    made.set_per_site_config({site: {"config": path} for site, path in members.items()})
    if installed_only:
        made._user_source_entries = lambda objects: []  # what FLARE would copy into the job
    made.finalize().set_app_packages(["vertizo"])  # whose modules FLARE would copy else
    return made
