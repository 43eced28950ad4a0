"""Kills at random among three parties' agents and their processes: nothing is lost or paid twice.

A label holder and two members, each an agent with processes of its own, on loopback under mutual
TLS. They align their tables, train without noise and under an exact guarantee that is charged to a
ledger, predict, and score online while callers ask. SIGKILL falls on one process, on an agent
whose processes stay behind, or on a whole party at once; what was killed is started again. The same
jobs run once undisturbed. Then it is held that

* training without noise ended with the very parameters, metrics and predictions (bytes that were
  sent and seconds are of the line and the machine, and are left out);
* the ledger has each query and each secret step of each run once, as many as undisturbed;
* every score that was answered is the undisturbed one, but for rounding of batches (1e-6).

It goes on where the last run in the same folder stopped, and counts kills of all of them.

Run: ``python benchmarks/kills.py FOLDER [--kills 200] [--minutes 30] [--seed 1] [--preloaded]
[--json FILE]``
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import report
from killed import PARTIES, Federation, asked, exact_rows, outcome
from preloaded import Preloaded

SCORED, TOLERANCE = "online", 1e-6
RUNS = 40
"""Trainings that the ledger's budget would pay for."""
CALLERS, PAUSE = 4, 0.05
"""That ask for scores, and the seconds between two of their requests."""
PATIENCE = 1200.0
"""Seconds for a job that nobody disturbs, on a machine that has much else to do."""
WAYS = {"process": 0.4, "agent": 0.25, "party": 0.35}
EARLY = 0.3
"""Share of blows that wait for nothing; others come once something was seen to go on."""


class Callers:
    """Ask for scores until they are stopped, and hold each answer against the undisturbed one."""

    def __init__(self, federation: Federation, truth: dict[str, float]) -> None:
        self._federation, self._truth = federation, truth
        self._over = threading.Event()
        self.answered = self.refused = 0
        self.wrong: list[Any] = []
        self.furthest = 0.0
        self._threads = [threading.Thread(target=self._ask, args=(k,)) for k in range(CALLERS)]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._over.wait(PAUSE):
            ids = chance.sample(sorted(self._truth), 5)
            rows = scores(self._federation, ids)
            if rows is None:
                self.refused += 1
                continue
            self.answered += 1
            off = [abs(rows[one] - self._truth[one]) for one in rows]
            self.furthest = max([self.furthest, *off])
            if list(rows) != ids or max(off) > TOLERANCE:
                self.wrong.append([ids, rows])


def scores(federation: Federation, ids: list[str]) -> dict[str, float] | None:
    """Record → probability; None where nobody could answer."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{federation.http}/v1/score",
        json.dumps({"ids": ids}).encode(),
        {"Authorization": f"Bearer {federation.key}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            found = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 503:
            raise
        return None
    except (OSError, http.client.HTTPException):  # away before its answer, or within it
        return None
    assert not found["missing"], found
    return {row["id"]: row["probability_1"] for row in found["scores"]}


def submit_plain(federation: Federation, number: int) -> None:
    """An alignment, a training without noise that waits for it, and a prediction that waits on."""
    people, model = f"ids-{number}", f"plain-{number}"
    federation.submit(people, "align", method="hashed")
    federation.submit(model, "train", "plain", alignment=people, planted=True)
    guess = f"guess-{number}"
    federation.submit(guess, "predict", table="new", alignment="new-ids", model=model)


def submit_charged(federation: Federation, number: int) -> None:
    """A training under a guarantee, which is charged to the ledger."""
    federation.submit(f"exact-{number}", "train", "exact", alignment="ids")


def begin(federation: Federation) -> None:
    """Both alignments: the ledger is for the people that the first one leaves."""
    for name, table in {"ids": "people", "new-ids": "new"}.items():
        federation.submit(name, "align", table=table, method="hashed")


def undisturbed(folder: Path, preloaded: Preloaded | None) -> dict[str, Any]:
    """What the jobs come to when nobody is killed; from the folder, if they ran already."""
    known = folder / "outcome.json"
    if not known.exists():
        with Federation(folder, preloaded) as federation:
            begin(federation)
            federation.finish(["ids", "new-ids"], PATIENCE)
            federation.create_ledger(1)
            submit_plain(federation, 0)
            submit_charged(federation, 0)
            federation.submit(SCORED, "score", "score", table="new", model="plain-0")
            federation.finish(["plain-0", "guess-0", "exact-0"], PATIENCE)
            federation.wait(lambda: scores(federation, federation.new) is not None, PATIENCE)
            found = outcome(federation, 0) | {"asked": asked(federation, 0)}
            found["scores"] = scores(federation, federation.new)
        known.write_text(json.dumps(found))
    result: dict[str, Any] = json.loads(known.read_text())
    return result


class Torment:
    """Kills parties' processes at random, keeps jobs coming, and remembers both in the folder."""

    def __init__(self, federation: Federation, seed: int, wanted: int) -> None:
        self._federation, self._wanted = federation, wanted
        self._file = federation.folder / "kills.json"
        self.known: dict[str, Any] = {"kills": {}, "blows": 0, "plain": 0, "exact": 0}
        self.known |= {"seconds": 0.0, "scores": 0, "refused": 0, "furthest": 0.0, "wrong": []}
        if self._file.exists():
            self.known = json.loads(self._file.read_text())
        self._chance = random.Random(f"{seed} {self.kills}")

    @property
    def kills(self) -> int:
        return sum(self.known["kills"].values())

    def save(self, callers: Callers | None = None, seconds: float = 0.0) -> None:
        self.known["seconds"] += seconds
        if callers is not None:
            self.known["scores"] += callers.answered
            self.known["refused"] += callers.refused
            self.known["wrong"] += callers.wrong
            self.known["furthest"] = max(self.known["furthest"], callers.furthest)
        self._file.write_text(json.dumps(self.known))

    def tend(self) -> None:
        """Submit what comes next, and see that nothing has ended but well."""
        federation, known = self._federation, self.known
        states = federation.states()
        if not states:
            begin(federation)
        elif states["ids"] == states["new-ids"] == "finished" and not known["plain"]:
            federation.create_ledger(RUNS)
            submit_plain(federation, 0)
            federation.submit(SCORED, "score", "score", table="new", model="plain-0")
            submit_charged(federation, 0)
            known["plain"] = known["exact"] = 1
        elif known["plain"] and self.kills < self._wanted:
            if states[f"guess-{known['plain'] - 1}"] == "finished":
                submit_plain(federation, known["plain"])
                known["plain"] += 1
            if states[f"exact-{known['exact'] - 1}"] == "finished":
                submit_charged(federation, known["exact"])
                known["exact"] += 1
        self.save()

    def blow(self) -> None:
        """Kill one process, one agent, or all of one party, and start its agent again."""
        federation, chance = self._federation, self._chance
        way = chance.choices(list(WAYS), list(WAYS.values()))[0]
        party = chance.choice(PARTIES)
        if way == "process":
            running = [(who, job) for who in PARTIES for job in federation.processes(who)]
            if not running:
                return
            party, job = chance.choice(running)
            self._count(f"{party}: {kind_of(job)}", federation.kill_process(party, job))
        else:
            federation.kill_agent(party)
            self._count(f"{party}: agent", True)
            if way == "party":
                for job in federation.processes(party):
                    self._count(f"{party}: {kind_of(job)}", federation.kill_process(party, job))
            time.sleep(chance.uniform(0.0, 1.0))
            federation.start(party)
        self.known["blows"] += 1
        self.save()

    def _count(self, what: str, killed: bool) -> None:
        kills = self.known["kills"]
        kills[what] = kills.get(what, 0) + killed

    def wait(self, callers: Callers, until: float) -> None:
        """Until something went on, as a rule."""
        chance, federation = self._chance, self._federation
        if chance.random() >= EARLY:
            before = federation.trace(), callers.answered
            while (federation.trace(), callers.answered) == before and time.monotonic() < until:
                time.sleep(0.1)
                self.tend()
        end = time.monotonic() + chance.uniform(0.0, 3.0)
        while time.monotonic() < min(end, until):
            time.sleep(0.1)


def kind_of(job: str) -> str:
    """What a job does, by its name here."""
    names = {"plain": "training", "exact": "charged training", "guess": "prediction"}
    return names.get(job.partition("-")[0], "scoring" if job == SCORED else "alignment")


def main() -> None:
    parser = report.plain_parser(__doc__)
    parser.add_argument("folder", type=Path, help="of the federation, where it goes on")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=1e6, help="until it stops, to go on later")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--preloaded", action="store_true", help="fork processes from one that has PyTorch"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; the same command goes on"))
    began = time.monotonic()
    last = began + 60 * options.minutes
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        preloaded = stack.enter_context(Preloaded(folder)) if options.preloaded else None
        truth = undisturbed(folder / "undisturbed", preloaded)
        federation = stack.enter_context(Federation(folder / "killed", preloaded))
        torment = Torment(federation, options.seed, options.kills)
        with Callers(federation, truth["scores"]) as callers:
            try:
                while torment.kills < options.kills and time.monotonic() < last:
                    torment.tend()
                    torment.wait(callers, last)
                    torment.blow()
                    print(f"{torment.kills} kills, {callers.answered} scores", file=sys.stderr)
                if torment.kills >= options.kills:
                    federation.wait(lambda: set(federation.trainings()) == {"finished"}, PATIENCE)
                    seen = callers.answered
                    federation.wait(lambda: callers.answered > seen + 20, PATIENCE)
            finally:
                torment.save(callers, time.monotonic() - began)
        if torment.kills < options.kills:
            sys.exit(f"{torment.kills} of {options.kills} kills; the same command goes on")
        states = federation.states()
        words = federation.words
        assert "Traceback" not in words, words
    judge(options, federation, torment.known, truth, states)


def judge(
    options: Any,
    federation: Federation,
    known: dict[str, Any],
    truth: dict[str, Any],
    states: dict[str, str],
) -> None:
    """Hold what came of it against the undisturbed run, and write it down."""
    unlike: list[str] = []
    for number in range(known["plain"]):
        found = outcome(federation, number)
        unlike += [f"{key} of {number}" for key in found if found[key] != truth[key]]
    for number in range(known["exact"]):
        unlike += [f"queries of {number}"] * (asked(federation, number) != truth["asked"])
    charged = exact_rows(federation)
    each = exact_rows(Federation(federation.folder.parent / "undisturbed"))
    assert len(each) == 1, each
    assert [*charged.values()] == [*each.values()] * known["exact"], charged
    assert not unlike, unlike
    assert not known["wrong"], known["wrong"]
    assert known["scores"] > 100, known
    kills = sum(known["kills"].values())
    results = {
        "seed": options.seed,
        "kills": kills,
        "killed": dict(sorted(known["kills"].items())),
        "blows": known["blows"],
        "preloaded": options.preloaded,
        "minutes": round(known["seconds"] / 60, 1),
        "jobs": len(states),
        "trainings_without_noise_as_undisturbed": known["plain"],
        "trainings_charged_once": known["exact"],
        "releases_charged": sum(len(rows["replies"]) + rows["steps"] for rows in charged.values()),
        "releases_charged_twice": 0,
        "scores_answered": 5 * known["scores"],
        "scores_wrong": 0,
        "furthest_score": known["furthest"],
        "requests_refused_or_unanswered": known["refused"],
        "deaths_noted_by_agents": federation.deaths(),
    }
    print(json.dumps(results, indent=2))
    lines = [report.line("kills at random among agents and their processes", f"{kills}")]
    report.write(options, results, lines)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        main()
