"""What of FLARE's insides the adapter stands on: a new FLARE that lacks any of it is named.

Whoever raises `cells.VERSION` runs this first: each line says what is gone and what needs it.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import pytest

pytestmark = [pytest.mark.full, pytest.mark.needs("nvflare")]

CELLNET = "nvflare.fuel.f3.cellnet"
NEEDED = {
    f"{CELLNET}.cell:Cell": ("sets core_cell", "cells.CellChannel, cells.CellService"),
    f"{CELLNET}.core_cell:CoreCell.send_request": (
        "takes channel topic target request timeout optional",
        "cells.CellChannel.ask",
    ),
    f"{CELLNET}.core_cell:CoreCell.send_reply": (
        "takes reply to_cell for_req_ids optional",
        "cells.CellService, late answers",
    ),
    f"{CELLNET}.core_cell:CoreCell.register_request_cb": (
        "takes channel topic cb",
        "cells.CellService",
    ),
    f"{CELLNET}.utils:make_reply": ("takes rc error", "cells.CellService, refusals"),
    "nvflare.fuel.f3.message:Message": ("takes headers payload", "cells, every frame"),
    f"{CELLNET}.defs:MessageHeaderKey": (
        "has CHANNEL TOPIC RETURN_CODE ERROR ORIGIN REQ_ID",
        "cells, every frame",
    ),
    f"{CELLNET}.defs:ReturnCode": (
        "has OK INVALID_REQUEST UNAUTHENTICATED MSG_TOO_BIG",
        "cells, every frame",
    ),
    "nvflare.collab:CollabRecipe": ("takes job_name server client min_clients", "job.recipe"),
    "nvflare.collab.recipe:CollabRecipe._user_source_entries": (
        "takes objs",
        "job.recipe with installed_only",
    ),
    "nvflare.collab:CollabRecipe.set_per_site_config": (
        "takes config",
        "job.recipe, paths of members",
    ),
    "nvflare.job_config.api:FedJob.set_app_packages": ("takes app_packages", "job.recipe"),
    "nvflare.collab.runtime.cell_dispatcher:CellDispatcher": (
        "sets target_fqcn",
        "sites.Member.work, the server's cell",
    ),
    "nvflare.collab.api.context:Context": ("has is_aborted", "sites, the end of a job"),
    "nvflare.collab.api.group_call_context:ResultQueue": (
        "sets failures",
        "sites.LabelHolder, a member that fails",
    ),
    "nvflare.collab:collab": (
        "has main publish context fl_ctx workspace clients server get_app_prop",
        "sites.LabelHolder, sites.Member",
    ),
}
"""Of each place: the parameters it takes, the attributes it has or sets, and what needs them."""


def gaps(needed: dict[str, tuple[str, str]]) -> list[str]:
    """A line for each place of FLARE's that is not as the adapter needs it."""
    found = []
    for path, (what, user) in needed.items():
        module, _, name = path.partition(":")
        try:
            thing: Any = import_module(module)
            for part in name.split("."):
                thing = getattr(thing, part)
        except (ImportError, AttributeError):
            found.append(f"FLARE has no {path}; {user} needs it")
            continue
        wanted = set(what.split()[1:])
        if what.startswith("sets "):
            there = set(re.findall(r"self\.(\w+) =", inspect.getsource(thing)))
        elif what.startswith("has "):
            there = set(dir(thing)) | set(dir(type(thing)))
        else:
            there = set(inspect.signature(thing).parameters)
        found += [f"{path} has no {name}; {user} needs it" for name in sorted(wanted - there)]
    return found


def test_flare_has_what_the_adapter_stands_on() -> None:
    assert gaps(NEEDED) == []


def test_what_is_gone_is_a_line() -> None:
    """As if FLARE had moved a class, dropped a function and renamed a parameter."""
    changed = {
        "nvflare.gone:Cell": ("takes name", "cells"),
        f"{CELLNET}.utils:make_no_reply": ("takes rc", "cells"),
        f"{CELLNET}.utils:make_reply": ("takes rc fault", "cells"),
        f"{CELLNET}.defs:ReturnCode": ("has OK LATE", "cells"),
        f"{CELLNET}.cell:Cell": ("sets other_cell", "cells"),
    }
    assert gaps(changed) == [
        "FLARE has no nvflare.gone:Cell; cells needs it",
        f"FLARE has no {CELLNET}.utils:make_no_reply; cells needs it",
        f"{CELLNET}.utils:make_reply has no fault; cells needs it",
        f"{CELLNET}.defs:ReturnCode has no LATE; cells needs it",
        f"{CELLNET}.cell:Cell has no other_cell; cells needs it",
    ]
