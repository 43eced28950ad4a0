"""The dossier: a party's signed statement on a run, what was sent and what is covered or not.

`of_run` is for the folder of a run or of a label holder's job, `of_member` for a feature holder's.
Both state only what is in the folder, so that anybody with the folder can check it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import RunError
from vertizo.core.version import VERSION
from vertizo.lab.report import page
from vertizo.methods.base import Method
from vertizo.network.serving.client_folder import ClientFolder
from vertizo.network.transport import signing
from vertizo.network.transport.certificates import Credentials
from vertizo.network.transport.signing import Signed
from vertizo.privacy.accounting import label_advantage
from vertizo.privacy.epsilon_text import bound_text
from vertizo.privacy.labels import label_file
from vertizo.privacy.ledger.base import date_text
from vertizo.privacy.ledger.durable import DurableLedger
from vertizo.privacy.options import ON_LABELS
from vertizo.run.loop.ledger_session import charged_beside, file_of
from vertizo.run.results import checkpoint, provenance
from vertizo.run.results.folder import RunFolder
from vertizo.run.results.summary_figures import size_text
from vertizo.run.trained.explanation import explain

Pairs = tuple[tuple[str, str], ...]
SIGNATURE, CERTIFICATE = ".sig", ".pem"
"""Endings added to a dossier's name for the signature and the certificate beside it."""
MADE = re.compile(rb'<meta name="date" content="([0-9T:+-]+)">')


@dataclass(frozen=True)
class Dossier:
    """One party's statement about one run, in the order of the page."""

    title: str
    role: str
    facts: Pairs
    """Names and values that say who did what, and when."""
    guarantee: str
    badge: str
    """The guarantee with what it covers, in a few words."""
    promise: tuple[str, ...]
    rates: tuple[tuple[str, str, str, str], ...]
    """For one record or person: who, ε, δ, and how often a guess is right at most."""
    sent: tuple[str, ...]
    learned: tuple[str, ...]
    protected: tuple[str, ...]
    not_protected: tuple[str, ...]
    how: tuple[str, ...]
    ledger: tuple[str, ...]
    """Lines on the state of the ledger, or of the file of private labels."""
    charges: tuple[tuple[str, str, str], ...]
    """Runs on the ledger: name, first and last entry."""
    digests: Pairs
    """Files and their SHA-256; those of tables as `vertizo.run.results.provenance.sealed`."""
    versions: Pairs


def of_folder(path: Path, operator: str | None = None) -> Dossier:
    """Make the dossier of a run's folder, or of a member's; RunError if the run is not over."""
    is_members = (path / "job").is_file()
    return (of_member if is_members else of_run)(path, operator)


def of_run(path: Path, operator: str | None = None) -> Dossier:
    """Make the dossier of a label holder, or of a simulation; RunError if the run is not over."""
    folder = RunFolder(path)
    config, summary = folder.config(), folder.summary()
    if summary is None:
        raise RunError(f"{path} holds an unfinished run; its dossier is written when it is over")
    privacy = summary["privacy"]
    words = explain(config, privacy)
    agreed = path / "federation.json"
    is_served = agreed.is_file()
    about: Pairs = ()
    if is_served:
        federation = json.loads(checkpoint.kept(agreed))
        about = (
            ("federation", str(federation["name"])),
            ("feature holders", ", ".join(federation["members"])),
        )
    charged, charges = _charged(path, config)
    own = folder.provenance() or UNDATED
    names = ("config.yaml", "preparation.json", f"checkpoints/{summary['model']}.safetensors")
    return Dossier(
        title=f"{summary['method']} on {summary['dataset']}",
        role="the label holder" if is_served else "a simulation of all parties in one process",
        facts=(
            *about,
            *_facts(config, own, summary.get("finished"), operator),
            ("mechanism", MECHANISMS.get(config.privacy.mechanism, config.privacy.mechanism)),
            ("server's training", config.server.update),
            ("training records", f"{summary['records']:,}"),
            ("rounds", f"{summary['rounds']:,}"),
        ),
        guarantee=words.guarantee,
        badge=f"guarantee for labels: {words.guarantee}",
        promise=(words.promise, words.summary),
        rates=tuple(_rates(privacy)),
        sent=(
            *(() if is_served else (SIMULATED,)),
            f"To the clients: {size_text(summary['bytes_down'])} of replies. "
            f"{_reply(config.method)}{_source(config)}.",
        ),
        learned=(
            "From the clients: "
            f"{size_text(summary['bytes_up'] + summary['bytes_table'])}. {_query(config.method)}",
            *_uploads(config),
        ),
        protected=words.protected,
        not_protected=words.not_protected,
        how=words.how,
        ledger=charged,
        charges=charges,
        digests=_digests(path, names, own),
        versions=tuple(own["versions"].items()),
    )


def of_member(path: Path, operator: str | None = None) -> Dossier:
    """Make the dossier of a feature holder; it cites the label holder's guarantee, unchecked.

    RunError if the job is not over.
    """
    folder = ClientFolder(path)
    found = folder.finished()
    if found is None:
        raise RunError(f"{path}: the job is not over; `vertizo join` continues it")
    config, terms = folder.settings(), folder.terms()
    own = RunFolder(path).provenance() or UNDATED
    is_noised = config.privacy.mechanism == "embedding-noise" and not terms.trial
    return Dossier(
        title=f"{config.method.name} at {terms.members[terms.index]}",
        role="a feature holder",
        facts=(
            ("this party", terms.members[terms.index]),
            ("feature holders", ", ".join(terms.members)),
            *_facts(config, own, found.get("finished"), operator),
            ("queries", f"{found['queries']:,}"),
        ),
        guarantee="none",  # what noise on embeddings comes to is in the member's own words
        badge=f"own features against the label holder: {'noised' if is_noised else 'none'}",
        promise=(f"What this party sent: {found['own_words']}",),
        rates=(),
        sent=(
            f"To the label holder: {size_text(found['sent'])}. {_query(config.method)}",
            *_uploads(config),
            "No column as it is and no parameter of this party's model left it. From what did, the "
            "label holder may work features out, of few columns most easily.",
        ),
        learned=(
            f"From the label holder: {size_text(found['received'])}. {_reply(config.method)}; how "
            "it is protected, the label holder's own dossier says.",
        ),
        protected=(f"As the label holder says, which nobody here can check: {found['words']}",),
        not_protected=(
            "This party's features against the label holder, who reads all embeddings, beyond what "
            "is said of what this party sent.",
            "What embeddings of new records say, each time that one is predicted together.",
        ),
        how=(),
        ledger=(),
        charges=(),
        digests=_digests(path, ("settings.yaml", "preparation.json", "model.safetensors"), own),
        versions=tuple(own["versions"].items()),
    )


SIMULATED = (
    "This was a simulation: nobody sent anything to anybody. What follows is what the same run of "
    "real parties sends."
)
ELSEWHERE = "further ledgers for these records, if any, are known only where they were made"
UNKNOWN = "not recorded by the version that made it"
SEALED = "its HMAC-SHA256 by the key in provenance.json"
MECHANISMS = {"none": "no noise and no private labels", "gaussian": "Gaussian noise on replies"}
UNDATED: Mapping[str, Any] = {"started": None, "versions": {}, "files": {}}
"""The provenance where an older version made the folder."""


def _facts(
    config: ExperimentConfig, own: Mapping[str, Any], finished: Any, operator: str | None
) -> Pairs:
    method = config.method
    return (
        ("operator", operator or "not named"),
        ("began", _date(own["started"])),
        ("ended", _date(finished)),
        ("method", f"{method.name}: {method.paper}" if method.paper else method.name),
    )


def _date(text: Any) -> str:
    """Format a date and time for people."""
    if not isinstance(text, str):
        return UNKNOWN
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S} UTC"


def _rates(privacy: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield ε and the rate of right guesses for one record, and for a person with several."""
    advantage = label_advantage.of(privacy)
    if advantage is None:
        return
    delta = f"{privacy['delta']:g}"
    success = label_advantage.success_text(advantage)
    yield "one record", bound_text(privacy["epsilon"]), delta, success
    if (most := privacy.get("records_per_person") or 1) > 1:
        success = label_advantage.success_text(privacy["label_advantage_per_person"])
        bound = bound_text(privacy["epsilon_per_person"])
        yield f"a person of up to {most:,} records", bound, delta, success


def _query(method: Method) -> str:
    """Write what clients send of a record."""
    if not method.asks:
        return "There are no queries."
    if method.sends_tangents:
        what = f"its embedding and {method.points - 1} derivatives of it along directions"
    elif method.points > 1:
        what = f"{method.points} embeddings, under parameters that were moved a little"
    else:
        what = "one embedding"
    return f"Each query names records, and brings of each {what}."


def _uploads(config: ExperimentConfig) -> Iterator[str]:
    """Yield sentences on what clients send besides queries."""
    if config.privacy.mechanism == "teacher":
        yield (
            f"Once, of each training record, {config.privacy.teacher.components} numbers made of "
            "its features alone, which the private labels are made with."
        )
    wants = {
        "for the table before training": config.simulation.table == "upload",
        "for the raw head in the end": config.server.final_head != "private",
    }
    if config.is_label_free:
        yield "Once, the embedding of each training record."
    elif times := [words for words, wanted in wants.items() if wanted]:
        yield f"The embedding of each training record, {' and '.join(times)}."
    kinds = "validation or test" if config.data.validation > 0 else "test"
    yield f"For each evaluation, the embeddings of the {kinds} records that it is of."


def _reply(method: Method) -> str:
    """Write what a reply tells clients."""
    if not method.asks:
        return "There are none: nothing that depends on a label is sent"
    if method.reply_is_gradient:
        what = "a gradient for each record's embedding"
    elif method.reply_is_per_record:
        what = "numbers for each record"
    else:
        count = method.reply_shape(1, 1)[0]
        what = "one number" if count == 1 else f"{count} numbers"
        what += " for all its records together"
    return f"Each reply holds {what}"


def _source(config: ExperimentConfig) -> str:
    """Write how replies depend on labels, after a comma; nothing where there are no replies."""
    if config.is_label_free:
        return ""
    if config.privacy.mechanism == "gaussian":
        return ", computed from labels, clipped for each record, and noised"
    if config.privacy.mechanism in ON_LABELS:
        return ", computed from private labels alone"
    return ", computed from the labels as they are"


def _charged(
    path: Path, config: ExperimentConfig
) -> tuple[tuple[str, ...], tuple[tuple[str, str, str], ...]]:
    """Return lines on the ledger or the file of labels, and the runs on it."""
    file = file_of(path, config)
    if file is None:
        return (), ()
    beside = (*charged_beside(file), ELSEWHERE)
    if label_file.has_labels(file):
        return (*label_file.told(file).splitlines(), *beside), ()
    tally = DurableLedger.inspect(file)
    lines = (line for line in str(tally).splitlines() if not line.startswith("runs: "))
    charges = []
    for name, sequence in tally.runs.items():
        first, last = (date_text(time) or "not recorded" for time in tally.times[sequence])
        charges.append((name, first, last))
    return (*lines, *beside), tuple(charges)


def _digests(path: Path, names: Sequence[str], own: Mapping[str, Any]) -> Pairs:
    key, there = own.get("key"), ((name, path / name) for name in names)
    found = tuple((name, provenance.sha256_of(file)) for name, file in there if file.is_file())
    tables = (
        (f"{name}, as the run began ({SEALED})", provenance.sealed(text, key) if key else UNKNOWN)
        for name, text in own["files"].items()
    )
    return (*tables, *found)


def render(dossier: Dossier, made: str, signer: str | None) -> str:
    """Render the dossier as HTML, in one file that needs nothing else."""
    style = page.source("page.css")
    return (
        page.environment()
        .get_template("dossier.html")
        .render(
            d=dossier,
            made=made,
            date=_date(made),
            signer=signer,
            style=style,
            policy=page.policy(style),
            version=VERSION,
        )
    )


def write(dossier: Dossier, out: Path, by: Credentials | None) -> list[Path]:
    """Write the page and, with credentials, its signature and certificate beside it.

    Raises:
        ConfigError: the name does not end in .html or .htm, or the key is of an unknown kind.
        RunError: a file cannot be written.
    """
    page.check_name(out)
    content = render(dossier, provenance.now(), None if by is None else by.name).encode()
    files = {out: content}
    if by is not None:
        files[out.with_name(out.name + SIGNATURE)] = signing.sign(content, by)
        files[out.with_name(out.name + CERTIFICATE)] = by.certificate
    for file, text in files.items():
        checkpoint.write_atomically(file, text)
    return list(files)


def verify(path: Path, authority: Path) -> tuple[Signed, str]:
    """Verify a dossier's signature; return who signed it, and when it says that it was made.

    Raises:
        ConfigError: a certificate cannot be used, or was not valid then.
        RunError: a file or the date is missing, or the signature is not of this content.
    """
    contents = []
    for file in (path, path.with_name(path.name + SIGNATURE)):
        with checkpoint.reading(file):
            contents.append(file.read_bytes())
    content, signature = contents
    found = MADE.search(content)
    if found is None:
        raise RunError(f"{path} is no dossier: it does not say when it was made")
    made = found[1].decode()
    certificate = path.with_name(path.name + CERTIFICATE)
    signed = signing.verify(
        content, signature, certificate, authority, datetime.fromisoformat(made)
    )
    return signed, _date(made)
