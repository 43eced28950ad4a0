"""A party's part of a job as a configuration and a command line of ``vertizo``.

Both are written into the job's folder once, so that a job goes on as it began even if the agent's
file changes. Only the address and the attempt may change from start to start.

=================  ==============================================================================
party.yaml         the configuration of ``vertizo serve`` or ``vertizo join``
command.json       the command, without its address and attempt
run/               the run folder of training
aligned.*          the aligned table
predictions.csv    at the label holder
queries.jsonl      at the label holder: who asked for which scores
output, log        what the processes wrote
process            the lock, and the number of the process that holds it
=================  ==============================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from vertizo.config.error_lines import read_yaml, write_yaml
from vertizo.core.errors import RunError
from vertizo.core.names import Head
from vertizo.network.serving.terms import SECTIONS, TOLD
from vertizo.ops.agent.children import SCORED
from vertizo.ops.agent.jobs.messages import Offer
from vertizo.ops.agent.jobs.store import Job, Store
from vertizo.ops.agent.options import LabelHolderAgent, MemberAgent
from vertizo.ops.agent.policy import settings_of
from vertizo.run.results import checkpoint

CONFIG, COMMAND = "party.yaml", "command.json"
PATIENCE = 30 * 86400.0
"""Seconds that a member's process tries to reach the label holder; agents end it sooner."""
UNSAID = ("rows", "digest")
"""Keys of terms that are not required, since they follow from the data."""
FOLLOWING = frozenset({"batch_size", "epochs"})
"""Those that an offer leaves out where its records are still to be aligned, and nobody set them."""
Tree = dict[str, Any]


def write(folder: Path, tree: Tree, words: Sequence[str]) -> None:
    """Write the configuration and the command of a job's processes, the command last."""
    with checkpoint.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    checkpoint.keep(folder / CONFIG, write_yaml(tree).encode(), 0o600)
    checkpoint.keep(folder / COMMAND, json.dumps(list(words)).encode(), 0o600)


def words_of(folder: Path) -> list[str] | None:
    """Read the command of a job's folder; None if it is not written yet."""
    if not (folder / COMMAND).exists():
        return None
    checkpoint.kept(folder / CONFIG)  # which the command reads
    try:
        found: list[str] = json.loads(checkpoint.kept(folder / COMMAND))
    except ValueError as error:
        raise RunError(f"{folder / COMMAND} cannot be read: {error}") from None
    return found


def started_as(words: Sequence[str], key: str, address: str, job: Job) -> list[str]:
    """Add to a command what may change from start to start: the address and the attempt."""
    said = {key: address, "job": json.dumps(job.name), "attempt": job.attempt}
    sets = (("--set", f"federation.{name}={value}") for name, value in said.items())
    return [*words, *chain.from_iterable(sets)]


def aligned(store: Store, path: Path, job: str) -> Path:
    """The file that an alignment's job writes a table's common rows to; of no job, the table's."""
    suffix = ".parquet" if path.suffix == ".parquet" else ".csv"
    return store.folder_of(job) / f"aligned{suffix}" if job else path


def as_label_holder(
    config: LabelHolderAgent, offer: Offer, tree: Tree, store: Store, head: Head | None
) -> tuple[Tree, list[str]]:
    """Make the label holder's configuration and command; ``tree`` is the submitted file's."""
    agent, table = config.agent, config.tables[offer.table]
    folder, path = store.folder_of(offer.job), Path(table["path"])
    served = {
        **tree.get("federation", {}),
        "name": agent.name,
        "members": list(offer.members),
        "listen": agent.listen,
        "certificates": str(agent.certificates),
        "folder": str(folder / "run"),
    }
    file = str(folder / CONFIG)
    if offer.kind == "align":
        out = str(aligned(store, path, offer.job))
        # A configuration has a label, which an alignment does not read: new records have none.
        data = {"label": f"not {table['id']}", **table, "name": "table", "path": out}
        data.pop("test_path", None)
        return {"federation": served, "data": data}, _align(file, path, out, offer.method)
    if offer.kind in ("predict", "score"):
        there = _trained(store, offer, table)
        there["federation"] = {**there["federation"], "listen": agent.listen}
        words = [offer.kind, file, "--data", str(aligned(store, path, offer.alignment))]
        if offer.kind == "score":
            there["scoring"] = {"log": str(folder / SCORED), **tree["scoring"]}
        else:
            words += ["--out", str(folder / "predictions.csv")]
        return there, [*words, *(() if head is None else ("--head", head))]
    data = {**table, **tree.get("data", {}), "name": "table"}
    data["path"] = str(aligned(store, path, offer.alignment))
    return {**tree, "federation": served, "data": data}, ["serve", file, "--json"]


def as_member(config: MemberAgent, offer: Offer, store: Store) -> tuple[Tree, list[str]]:
    """Make a member's configuration and command."""
    agent, own = config.agent, config.tables[offer.table]
    folder, path = store.folder_of(offer.job), own.path
    assert path is not None, "an agent's tables have paths"
    table = own.model_dump(mode="json", exclude_unset=True)
    joined = {
        "name": agent.name,
        "server": agent.server,
        "certificates": str(agent.certificates),
        "folder": str(folder / "run"),
        "patience": PATIENCE,
    }
    if agent.server_name is not None:
        joined["server_name"] = agent.server_name
    file = str(folder / CONFIG)
    if offer.kind == "align":
        out = str(aligned(store, path, offer.job))
        data = {"path": out, "id": own.id, "delimiter": own.delimiter, "encoding": own.encoding}
        return {"federation": joined, "data": data}, _align(file, path, out, offer.method)
    used = str(aligned(store, path, offer.alignment))
    if offer.kind in ("predict", "score"):
        return _trained(store, offer, table), [offer.kind, file, "--data", used]
    # What the policy allowed is what the process must be asked for, and nothing else.
    settings = {k: value for k, value in settings_of(offer).items() if k not in UNSAID}
    left = FOLLOWING if offer.alignment else frozenset()
    absent = dict.fromkeys(SECTIONS - TOLD - left - settings.keys())
    joined["require"] = {**config.policy.require, **absent, **settings}
    tree = {"federation": joined, "data": {**table, "path": used}}
    return {**tree, "client": config.client}, ["join", file]


def _align(file: str, path: Path, out: str, method: str) -> list[str]:
    words = ["align", file, "--table", str(path), "--out", out]
    return [*words, "--method", method, "--overwrite"]


def _trained(store: Store, offer: Offer, table: Mapping[str, Any]) -> Tree:
    """Read the configuration of the job that trained, changed for a table of new records."""
    checkpoint.kept(store.folder_of(offer.model) / CONFIG)
    tree = read_yaml(store.folder_of(offer.model) / CONFIG)
    for key in ("id", "delimiter", "encoding"):
        tree["data"].pop(key, None)
        if key in table:
            tree["data"][key] = table[key]
    return tree
