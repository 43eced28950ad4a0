"""Which seeded faults the tests find: one change of the source at a time, and pytest on it.

A *mutant* is the source with one small, realistic mistake. It is killed where a test fails, and
survives where all pass: then nothing in the selection says what the mistake breaks. Each mutant
names the tests that are nearest to it, which are tried first.

    python tests/mutants.py                        each mutant, on its own tests
    python tests/mutants.py --whole                what survives these, on the whole selection
    python tests/mutants.py --only stale-pullback  one of them
    python tests/mutants.py --json judged.json     keep the verdicts, and go on from them

The source is copied; the checkout stays as it is. Not a test itself: the whole table takes minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
SELECTION = '-m "not full and not fresh"'
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.M)
PASSED, NONE_COLLECTED, MISUSED = 0, 5, 4
"""Exit codes of pytest."""
OWN, WHOLE = "its tests", "the whole selection"


@dataclass(frozen=True)
class Mutant:
    """One mistake: a text that is in its file exactly once, and what takes its place.

    ``path`` is below ``src/vertizo``, ``tests`` are files or folders below ``tests`` that are most
    likely to see it; ``wrong`` says what the mistake does.
    """

    name: str
    path: str
    old: str
    new: str
    wrong: str
    tests: tuple[str, ...]


TABLE = r'''
# stale-pullback: a later local step reuses the first back-propagation
@ methods/first_order.py methods/test_first_order.py contracts/test_methods.py
             model.settle()
-            pullback = None

# ascent: DPZV's slopes have the wrong sign, so that clients climb
@ methods/dpzv.py methods/test_dpzv.py contracts/test_methods.py
-two_point(plus, minus, self.smoothing).t()
+two_point(minus, plus, self.smoothing).t()

# directions-of-every-query-alike: VFL-CZOFO perturbs every query along the directions of the first
@ methods/czofo.py methods/test_czofo.py contracts/test_transcripts.py
-shared.seed(number)
+shared.seed()

# shifted-point-stored: the table keeps the perturbed embedding of a forward difference
@ methods/forward_difference.py methods/test_forward_difference.py contracts/test_methods.py
 """``c``."""
-        return embeddings[0]
+        return embeddings[1]

# middle-not-stored: the table keeps h+ of a two-point query in place of the middle
@ methods/base.py methods/test_dpzv.py contracts/test_methods.py
-if points == 1:
+if points <= 2:
             return embeddings[0]

# copy-moved-backwards: the server moves its copy of embeddings away from the client's
@ methods/tangent.py methods/test_tangent.py party/test_held_tangents.py
-moved = embedded - torch.einsum("knd,k->nd", along, step)
+moved = embedded + torch.einsum("knd,k->nd", along, step)

# half-a-log-odds: of a log-odds the slope of a label statistic is twice as long
@ methods/label_statistic.py methods/test_label_statistic.py contracts/test_sensitivity.py
-slopes = (slopes[:, 1:] - slopes[:, :1]) / 2
+slopes = slopes[:, 1:] - slopes[:, :1]

# tangents-left-out: a later query about other records leaves out tangents that the server never had
@ methods/directional_queries.py methods/test_tangent.py party/test_held_tangents.py
-if number and _is_whole(features):
+if number:

# two-point-not-halved: the two-point slope lacks its factor 1/2, as in DPZV's eq. 7
@ zeroth_order/estimators.py zeroth_order/test_estimators.py methods/test_dpzv.py
-            return torch.from_numpy((plus.numpy() - minus.numpy()) / (2 * smoothing))
-    return (plus - minus) / (2 * smoothing)
+            return torch.from_numpy((plus.numpy() - minus.numpy()) / smoothing)
+    return (plus - minus) / smoothing

# step-at-the-stale-embedding: the server trains at the embedding that the client sent the last time
@ party/server_model.py contracts/test_methods.py
-        for query in queries:
-            self.table.store(query.client, ids, method.stored(query.embeddings), stamp)
         evaluated, moved = [], []
         for query in queries:
             new = method.evaluated(query, self.shared[query.client])
             evaluated.append(0 if new is None else new.shape[0])
             if new is not None:
                 moved.append((query.client, new))
         points = self.table.points(ids, moved)
+        for query in queries:
+            self.table.store(query.client, ids, method.stored(query.embeddings), stamp)

# server-steps-at-old-weights: all local steps of the server follow the gradient of the first
@ party/server_model.py methods/test_first_order.py contracts/test_methods.py
-            if step:
+            if step > self._steps:
                 evaluation = model.evaluate(

# short-batch-weighs-more: a short last batch is divided by its own size, not by the nominal B
@ party/server_model.py party/test_updates.py party/test_server_model.py
-gradient = evaluation.gradient(1.0 / self.batch_size)
+gradient = evaluation.gradient(1.0 / evaluation.losses.shape[1])

# own-entry-counts-as-stale: the mean staleness counts the fresh entry of the client that asks
@ party/table.py party/test_table.py run/test_simulator.py
-return now * count * clients - total, count * (clients - 1), now - least
+return now * count * clients - total, count * clients, now - least

# other-query-gets-the-reply: another query under an answered number gets the reply to the first
@ party/checks.py party/test_party.py network/test_delivery.py
-            if not same:
+            if not same and self.query is None:

# first-of-a-round-charged: of a synchronous round the reply to the first client alone is charged
@ party/server.py party/test_party.py
-side.plan.commit(answers)
+side.plan.commit(answers[:1])

# answered-twice-after-a-restart: what was charged just before a crash is answered anew
@ party/server.py party/test_party.py network/test_budgets.py
-if stored is not None and stored.number >= peer.next_number:
+if stored is not None and stored.number > peer.next_number:

# nothing-owed: error feedback of replies never notes what coding lost
@ party/server.py protocol/codecs/test_feedback.py party/test_party.py
-        feedback.absorb(ids, wanted, wire.decode(frame, self.down, Reply).values)

# open-query-made-anew: a resumed client makes its pending query again and learns it twice
@ party/client.py party/test_party.py protocol/codecs/test_feedback.py run/test_checkpoint.py
-self._open = OpenQuery(batch, frame=kept["frame"])
+self._open = OpenQuery(batch)

# upload-without-noise: the embeddings that fill the table leave without their noise
@ party/client.py privacy/test_embedding_noise.py party/test_party.py
-embeddings = self.noise.release_upload(start, embeddings)
+embeddings = self.noise.clipped(embeddings)

# wrong-class-is-positive: of a positive first class, the area under the curve is inverted
@ party/metrics.py party/test_metrics.py party/test_closing_scores.py
-return (labels == positive).numpy(), margin.numpy()
+return (labels == 1).numpy(), margin.numpy()

# largest-loss-chosen: among equals, as of a regression, the model of the largest loss is best
@ party/metrics.py party/test_metrics.py run/test_stopping.py run/test_experiment.py
-return first, -row[f"{of}loss"]
+return first, row[f"{of}loss"]

# padding-counts: the rows that fill a secret sample up count as records, the first many times
@ party/private_updates.py party/test_updates.py contracts/test_sensitivity.py
-self._descend(model, evaluation, step, self.sampling * records, count)
+self._descend(model, evaluation, step, self.sampling * records)

# one-sided-clip: scalars are clipped from above alone, as by DPZV's min(δ, C)
@ privacy/clipping.py privacy/test_clipping.py contracts/test_sensitivity.py
-0.0).clamp_(-clip_norm, clip_norm)
+0.0).clamp_(max=clip_norm)

# nan-passes-the-clip: NaN passes the clip of scalars
@ privacy/clipping.py privacy/test_clipping.py contracts/test_sensitivity.py
-torch.where(values.isfinite(), values, 0.0).clamp_(
+values.clamp(

# clip-by-the-batch: rows are shrunk by the norm of the batch, so that one record moves all others
@ privacy/clipping.py privacy/test_clipping.py contracts/test_sensitivity.py
-norm = torch.linalg.vector_norm(finite / largest, dim=1, keepdim=True) * largest
+norm = torch.linalg.vector_norm(finite).reshape(1, 1)

# noise-repeated-after-a-resume: a resumed run adds the noise of its first replies once more
@ privacy/plan.py privacy/test_plan.py run/test_experiment.py
-STATE = ("_made", "_clip", "_ledger")
+STATE = ("_clip", "_ledger")

# sensitivity-of-removal: a replaced record counts as moving a sum by C, not 2C
@ privacy/clipping.py privacy/test_clipping.py privacy/test_events.py contracts/test_sensitivity.py
-REPLACED = 2.0
+REPLACED = 1.0

# sensitivity-of-its-own: a release has a sensitivity that the clip does not tell
@ privacy/accounting/events.py privacy/test_clipping.py privacy/test_events.py
-return moved(self.clip_norm) + self.slack
+return self.clip_norm + self.slack

# step-for-nothing: of a reply and the server's step on its batch, only the larger is counted
@ privacy/accounting/events.py privacy/test_events.py privacy/test_guarantee.py
-return math.hypot(self.reply_mu, step)
+return max(self.reply_mu, step)

# delta-taken-twice: ε is stated at twice the δ that is named
@ privacy/accounting/gaussian.py privacy/test_accounting.py privacy/test_guarantee.py
-return float(brentq(lambda x: delta_of(mu, x) - delta, 0.0,
+return float(brentq(lambda x: delta_of(mu, x) - 2 * delta, 0.0,

# exchanged-for-itself: randomised response keeps more labels than it says
@ privacy/labels/private_labels.py privacy/test_private_labels.py contracts/test_private_labels.py
-step = 1 + (words[1] % np.uint64(self.classes - 1)).astype(np.int64)
+step = (words[1] % np.uint64(self.classes)).astype(np.int64)

# fitted-scale-not-refused: an ε is stated though the scale of the labels was read off them
@ run/build/labels.py run/test_build_privacy.py run/test_own_features.py
-    if not data.fitted_labels:
+    if not data.fitted_labels or data.class_names is None:

# raw-training-not-refused: an ε is stated though the server trains on raw labels by losses
@ config/schema.py config/test_refusals.py run/test_build_privacy.py
-if update not in (*PRIVATE, "none"):
+if update not in (*PRIVATE, "none", "forward-difference"):

# last-reply-refused: the budget's last reply is refused
@ privacy/ledger/base.py privacy/test_ledger.py privacy/test_durable_ledger.py
-charged[client].take(rows) + price > share)
+charged[client].take(rows) + price >= share)

# some-may-overspend: a batch passes as long as one of its records has something left
@ privacy/ledger/base.py privacy/test_ledger.py privacy/test_durable_ledger.py
-            if over:
+            if over == rows.size:

# not-forced-to-the-disk: a charge may be lost with the power after its reply has left
@ privacy/ledger/file.py privacy/test_durable_ledger.py privacy/test_ledger_witness.py
-        run("PRAGMA synchronous = FULL")
+        run("PRAGMA synchronous = OFF")

# witness-behind: the witness is an entry behind, and takes a copy that is one entry older
@ privacy/ledger/durable.py privacy/test_ledger_witness.py privacy/test_durable_ledger.py
+        self._witness.write(self._file.head)
         self._file.append(rows, frames)
-        self._witness.write(self._file.head)

# register-not-asked: records of one ledger get a second one unnoticed
@ privacy/ledger/durable.py privacy/test_ledger_register.py run/test_ledger_session.py
-            if not further:
-                register.check_free(names)

# repeated-step-for-nothing: a secret step repeated with fresh noise is not charged
@ privacy/ledger/durable.py privacy/test_durable_ledger.py run/test_ledger_session.py
-if self._replays and 0 <= number < self.steps:
+if 0 <= number < self.steps:

# levels-cut-off: levels are cut off, not rounded, so that what arrives is too low
@ protocol/codecs/uniform.py protocol/codecs/test_each.py contracts/test_codecs.py
-((numbers - low) * steps).round_()
+((numbers - low) * steps).floor_()

# difference-not-halved: the two points of a pair arrive twice as far apart
@ protocol/codecs/paired.py protocol/codecs/test_paired.py contracts/test_codecs.py
-halves = first / 2 - second / 2
+halves = first - second

# record-256-is-0: record 256 is written in one byte, as record 0
@ protocol/wire.py protocol/test_wire.py
-return 1 if most < 2**8 else 2
+return 1 if most <= 2**8 else 2

# bytes-may-follow: bytes after the end of a message are read as part of it
@ protocol/wire.py protocol/test_wire.py network/test_hostile.py
-    if present > length:
+    if present > max_body:

# velocity-lost: a resumed run begins with no momentum
@ models/optimizers.py models/test_optimizers.py run/test_experiment.py
-STATE = ("_velocity",)
+STATE = ()

# exchange-not-in-the-slope: the slope of a loss for exchanged labels is that of raw ones
@ models/losses.py privacy/test_private_labels.py models/test_losses.py
-return self._plain.slopes(rows, self._weights[rows] * weights)
+return self._plain.slopes(rows, weights)

# decay-of-another-client: a straggler's learning rate falls as fast as that of the first client
@ run/build/client.py run/test_lengths.py run/test_build_optimizers.py
-answers_expected(config, records, clients)[index]
+answers_expected(config, records, clients)[0]

# reply-takes-no-time: replies take no time on a line of limited bandwidth
@ run/loop/simulator.py run/test_simulator.py run/test_links.py contracts/test_transcripts.py
-after=len(reply) / bandwidth if bandwidth else 0.0
+after=0.0

# losses-drawn-again: a resumed run loses other messages than one that was not stopped
@ run/loop/simulator.py run/test_simulator.py run/test_experiment.py
-STATE = ("now", "traffic", "activations", "_transmissions", "_events", "_sequence")
+STATE = ("now", "traffic", "activations", "_events", "_sequence")

# one-evaluation-more: training ends an evaluation later than patience says
@ run/loop/job_state.py run/test_stopping.py
-self.waited >= patience)
+self.waited > patience)

# journal-after-the-answer: a query is computed and charged before it is in the journal
@ network/serving/serving.py network/test_faults.py network/test_disk_faults.py
+            query = state.take(query)
             self._archive.append(QUERY, frame)
             self._progressed(client)
-            query = state.take(query)

# noise-of-the-old-key: after a checkpoint, noise is used that a restarted server would not draw
@ network/serving/archive.py network/test_faults.py network/test_budgets.py
         self._bytes.rekey(key)
-        state.job.party.renew()

# own-order-shown: the order of a feature holder's points tells the order of its table
@ network/alignment/member.py network/test_alignment.py
-order = sorted(range(count), key=points.__getitem__)
+order = list(range(count))

# other-rows-aligned: a feature holder takes other records for the common ones
@ network/alignment/member.py network/test_alignment.py
-common = in_order(keys[order[place]] for place in _places(outcome, count))
+common = in_order(keys[place] for place in _places(outcome, count))

# keys-of-another-form: a key is not found where another party writes its accents otherwise
@ data/alignment.py data/test_alignment.py data/test_keyed.py
-return [None if key is None else unicodedata.normalize("NFC", key) for key in texts]
+return texts

# scaled-by-the-test-part: columns are scaled by statistics of validation and test records as well
@ data/vertical.py data/test_vertical.py data/tabular/test_preprocessing.py
-Preprocessing(values["train"].numpy(), columns,
+Preprocessing(torch.cat([*values.values()]).numpy(), columns,

# classes-in-another-order: probabilities are in the order of texts, where 10 precedes 9
@ run/estimators/vertical.py run/estimators/test_estimator.py
-return probabilities[:, [names.index(text) for text in _texts(self.classes_)]]
+return probabilities
'''
"""For each: its name and what is wrong, the file and the tests, and the change as of a diff, of
lines or of parts of lines."""


def mutant_of(entry: str) -> Mutant:
    """One entry of the table."""
    lines = {sign: [] for sign in "#@"}
    old, new = [], []
    for line in entry.splitlines():
        sign, text = line[0], line[1:]
        if sign in lines:
            lines[sign] += text.split()
        old += [text] * (sign in " -")
        new += [text] * (sign in " +")
    (name, *wrong), (path, *tests) = lines["#"], lines["@"]
    said = name.rstrip(":"), path, "\n".join(old), "\n".join(new)
    return Mutant(*said, " ".join(wrong), tuple(tests))


MUTANTS = tuple(mutant_of(entry) for entry in TABLE.strip("\n").split("\n\n"))


@dataclass(frozen=True)
class Outcome:
    """One run of pytest; ``by`` is the first test that failed, or how it ended where none did."""

    killed: bool
    by: str | None
    seconds: float


class Laboratory:
    """A copy of the source that tests run on in place of the one that is installed.

    Args:
        tree: the checkout, whose tests are run where they are.
        folder: for the copy.
        selection: arguments of pytest that choose among the tests.
    """

    def __init__(self, tree: Path, folder: Path, selection: str) -> None:
        self._tree, self._selection = tree, shlex.split(selection)
        source, self._output = folder / "src", folder / "output"
        self.package = source / "vertizo"
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(tree / "src", source, ignore=ignored)
        # Before what is installed, and for all processes that tests start, wherever they are.
        paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._where = {"cwd": tree, "env": environment, "stdin": subprocess.DEVNULL}
        self._stamps = itertools.count(int(time.time()))

    def imported(self) -> Path:
        """The package that a process in the checkout imports."""
        command = [sys.executable, "-c", "import vertizo; print(vertizo.__file__)"]
        done = subprocess.run(command, **self._where, capture_output=True, text=True)
        return Path(done.stdout.strip() or "nothing").parent

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """The copy with that mistake in it."""
        path = self.package / mutant.path
        right = path.read_text(encoding="utf-8")
        self._put(path, right.replace(mutant.old, mutant.new))
        try:
            yield
        finally:
            self._put(path, right)

    def _put(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Bytecode is known by whole seconds and the size: no two versions may share both.
        stamp = next(self._stamps)
        os.utime(path, (stamp, stamp))

    def here(self, tests: Sequence[str]) -> list[str]:
        """Those that the checkout has, as pytest names them."""
        return [f"tests/{name}" for name in tests if (self._tree / "tests" / name).exists()]

    def run(self, tests: Sequence[str], seconds: float) -> Outcome:
        """pytest on the copy, up to the first failure; SystemExit if it was called wrongly."""
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-q"]
        command += ["--tb=line", "-rfE", *self._selection, *tests]
        started, code = time.monotonic(), None
        with self._output.open("wb") as output:
            told = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
            process = subprocess.Popen(command, **self._where, **told)
            try:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(seconds)
            finally:  # what tests started may still run, and hold what the next ones need
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        spent = time.monotonic() - started
        if code is None:
            return Outcome(True, "hung", spent)
        text = self._output.read_text(encoding="utf-8", errors="replace")
        if code == MISUSED:
            raise SystemExit(stop(f"pytest does not take these arguments:\n{text[-2000:]}"))
        if code in (PASSED, NONE_COLLECTED):
            return Outcome(False, None, spent)
        found = FAILED.search(text)
        return Outcome(True, found[1] if found else f"pytest ended with {code}", spent)


class Verdicts:
    """What was found so far, kept in a file after each mutant where one is named."""

    def __init__(self, path: Path | None, commit: str, selection: str) -> None:
        self._path, self._of = path, {"commit": commit, "selection": selection}
        there = path is not None and path.exists()
        self._found: dict[str, Any] = json.loads(path.read_text()) if path and there else {}

    def of(self, mutant: Mutant) -> Mapping[str, Any] | None:
        """What is known of a mutant on this commit; of a survivor, by the tests it has today."""
        known = self._found.get(mutant.name, {"killed": True})
        asked = {**self._of, "new": mutant.new}
        if not known["killed"]:
            asked["tests"] = list(mutant.tests)
        return known if asked.items() <= known.items() else None

    def add(self, mutant: Mutant, outcome: Outcome, tried: str) -> None:
        """Keep a verdict."""
        self._found[mutant.name] = {
            "killed": outcome.killed,
            "by": outcome.by,
            "tried": tried,
            "seconds": round(outcome.seconds, 1),
            "new": mutant.new,
            "tests": list(mutant.tests),
            **self._of,
            "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        }
        if self._path is not None:
            temporary = self._path.with_name(self._path.name + ".partial")
            temporary.write_text(json.dumps(self._found, indent=1, ensure_ascii=False) + "\n")
            os.replace(temporary, self._path)


def commit_of(tree: Path) -> str:
    """The commit that is checked out, with ``-dirty`` where files differ; or nothing."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True).stdout.strip()


def unfit(tree: Path, mutants: Sequence[Mutant]) -> list[str]:
    """A line for each mutant whose text is not in its file exactly once."""

    def times(mutant: Mutant) -> int:
        path = tree / "src" / "vertizo" / mutant.path
        return path.read_text(encoding="utf-8").count(mutant.old) if path.is_file() else 0

    found = {mutant: times(mutant) for mutant in mutants}
    return [f"{m.name}: {n} times in {m.path}, not once" for m, n in found.items() if n != 1]


def stop(words: str) -> int:
    """Say why nothing goes on; the exit code."""
    print(words, file=sys.stderr)
    return 2


def judge(
    lab: Laboratory, mutant: Mutant, known: Mapping[str, Any] | None, options: argparse.Namespace
) -> tuple[Outcome, str]:
    """Whether a mutant is killed, and by which tests that was tried."""
    tests, seconds, tried = lab.here(mutant.tests), 0.0, OWN
    with lab.mutated(mutant):
        if known is not None:  # it survives its own tests
            seconds = float(known["seconds"])
        elif not tests:
            tried = "no test, as its own are not there"
        else:
            own = lab.run(tests, options.timeout)
            if own.killed or not options.whole:
                return own, OWN
            seconds = own.seconds
        if not options.whole:
            return Outcome(False, None, seconds), tried
        whole = lab.run([], options.whole_timeout)
        return Outcome(whole.killed, whole.by, seconds + whole.seconds), WHOLE


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, default = parser.add_argument, "default: %(default)s"
    add("--list", action="store_true", help="say what the mutants are, and end")
    add("--only", nargs="+", metavar="NAME", help="these mutants alone")
    add("--select", default=SELECTION, metavar="ARGUMENTS", help=f"pytest's selection; {default}")
    add("--whole", action="store_true", help="run survivors of their own tests on all tests")
    add("--tree", type=Path, default=HERE, metavar="FOLDER", help="the checkout; default: this one")
    add("--json", type=Path, metavar="FILE", help="keep verdicts there, and skip those it has")
    add("--again", action="store_true", help="judge also those that the file has")
    add("--no-control", action="store_true", help="do not run the tests without a mutant first")
    add("--timeout", type=float, default=600.0, metavar="SECONDS", help=f"of its tests; {default}")
    add("--whole-timeout", type=float, default=3600.0, metavar="SECONDS", help=f"of all; {default}")
    options = parser.parse_args()
    unknown = set(options.only or ()) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}; see --list")
    return options


def main() -> int:
    """Judge the mutants; the exit code, which survivors do not change."""
    options = parsed()
    # A shell's background ignores Ctrl-C, as would all that tests start, and interrupt in vain.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    mutants = [one for one in MUTANTS if options.only is None or one.name in options.only]
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:34} {mutant.path}: {mutant.wrong}")
        return 0
    tree = options.tree.resolve()
    if lines := unfit(tree, mutants):
        return stop("\n".join(lines))
    verdicts = Verdicts(options.json, commit_of(tree), options.select)
    before = {one.name: None if options.again else verdicts.of(one) for one in mutants}
    enough = (WHOLE,) if options.whole else (WHOLE, OWN)
    done = {
        name for name, one in before.items() if one and (one["killed"] or one["tried"] in enough)
    }
    left = [mutant for mutant in mutants if mutant.name not in done]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        lab = Laboratory(tree, Path(folder).resolve(), options.select)
        if left and (found := lab.imported()) != lab.package:
            return stop(f"the tests would import {found}, not the copy {lab.package}")
        tests = sorted({test for mutant in left for test in lab.here(mutant.tests)})
        if tests and not options.no_control:
            control = lab.run(tests, len(left) * options.timeout)
            if control.killed:
                return stop(f"without any mutant it fails: {control.by}")
            print(f"control   {len(tests)} paths pass, {control.seconds:.0f} s", flush=True)
        for mutant in left:
            outcome, tried = judge(lab, mutant, before[mutant.name], options)
            verdicts.add(mutant, outcome, tried)
            word = "killed  " if outcome.killed else "SURVIVES"
            by = outcome.by if outcome.killed else f"{tried}: {mutant.wrong}"
            print(f"{word}  {mutant.name:34} {outcome.seconds:5.0f} s  {by}", flush=True)
    found = {mutant.name: verdicts.of(mutant) for mutant in mutants}
    survive = [name for name, one in found.items() if one and not one["killed"]]
    print(f"{len(mutants) - len(survive)} of {len(mutants)} killed", *survive, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
