"""The results of a search: the best configuration, its test figures, the cost, and the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vertizo.core.errors import RunError
from vertizo.core.text import strict_json
from vertizo.core.version import VERSION
from vertizo.lab.tuning.privacy import Cost, Plan, cost_of
from vertizo.lab.tuning.space import value_at
from vertizo.lab.tuning.study import Record, Study
from vertizo.run.results.folder import RunFolder
from vertizo.run.trained.prediction import Predictor

BEST, RESULTS = "best.yaml", "results.json"


@dataclass(frozen=True)
class Results:
    """The results of a finished search."""

    dataset: str
    method: str
    objective: str
    validation: int
    """Number of validation records, by which trials were compared."""
    planned: int
    records: tuple[Record, ...]
    """All trials that were begun; the first is as configured."""
    ranked: tuple[Record, ...]
    configured: Mapping[str, str]
    """Searched key → its configured value, which the first trial has."""
    importances: Mapping[str, float]
    test: Mapping[str, float]
    privacy: Cost

    @property
    def best(self) -> Record:
        """The best trial."""
        return self.ranked[0]

    def as_dict(self) -> dict[str, Any]:
        """Return the content of ``results.json``."""
        return {
            "version": VERSION,
            "dataset": self.dataset,
            "method": self.method,
            "objective": self.objective,
            "validation_records": self.validation,
            "planned": self.planned,
            "best": self.best.as_dict(),
            "configured": dict(self.configured),
            "test": dict(self.test),
            "importances": dict(self.importances),
            "privacy": asdict(self.privacy),
            "trials": [record.as_dict() for record in self.records],
        }


def conclude(plan: Plan, study: Study, trials: int, write: Callable[[str, str], None]) -> Results:
    """Rank the trials, test the best one, and write the search's results.

    The best trial's summary then has test figures. ``write`` takes the name and the text of a file
    of the search's folder. RunError if no trial ran to its end.
    """
    records, ranked = study.records(), study.ranked()
    if not ranked:
        why = (f": trial {r.number} {r.outcome}, {r.reason}" for r in records if r.reason)
        raise RunError(
            f"none of {len(records)} trials ran to its end{next(why, '')}; search lower learning "
            "rates, or allow more time"
        )
    best = ranked[0]
    config = plan.settings(best.number, best.values)
    write(BEST, config.to_yaml())
    results = Results(
        dataset=plan.data.name,
        method=config.method.name,
        objective=study.objective.name,
        validation=plan.data.labels["validation"].shape[0],
        planned=trials,
        records=tuple(records),
        ranked=tuple(ranked),
        configured={key: str(value_at(plan.config, key)) for key in plan.space},
        importances=study.importances(),
        test=_tested(RunFolder(study.folder_of(best.number))),
        privacy=cost_of(plan, max(trials, len(records)), best.number),
    )
    write(RESULTS, strict_json.text(results.as_dict(), indent=2))
    return results


def _tested(folder: RunFolder) -> dict[str, float]:
    """Return the test figures of a trial's model; compute and store them if they are missing."""
    summary = folder.summary() or {}
    if "test_loss" not in summary:
        scores = Predictor.load(folder.path).test().scores or {}
        summary = {**summary, **{f"test_{name}": value for name, value in scores.items()}}
        folder.write_summary(summary)
    return {k.removeprefix("test_"): v for k, v in summary.items() if k.startswith("test_")}


def lines(found: Results, columns: Sequence[Record]) -> list[list[str]]:
    """Tabulate these trials and the configured one: two figures, every key, and its importance."""
    first, weighted = found.records[0], bool(found.importances)
    shown, rest = [*columns, first], [""] if weighted else []
    table = [
        ["", *(f"trial {record.number}" for record in columns), "configured"],
        [f"validation {found.objective}", *(_figure(each, "value") for each in shown), *rest],
        ["validation loss", *(_figure(each, "loss") for each in shown), *rest],
    ]
    if weighted:
        table[0].append("weight")
    for key in [*found.importances, *(k for k in found.configured if k not in found.importances)]:
        cells = [_short(record.values.get(key, "")) for record in columns]
        share = found.importances.get(key)
        weight = ["" if share is None else f"{100 * share:.0f} %"] if weighted else []
        table.append([key, *cells, _short(found.configured[key]), *weight])
    return table


def _figure(record: Record, name: Literal["value", "loss"]) -> str:
    """Format a validation figure of a trial, or how the trial ended if it has none."""
    if record.outcome != "finished" or record.score is None:
        return record.outcome if name == "value" else ""
    return f"{getattr(record.score, name):.4f}"


def _short(text: str) -> str:
    """Format a number to three digits; return other texts as they are."""
    if text == "None":
        return "automatic"
    try:
        return f"{float(text):.3g}"
    except ValueError:
        return text


def notes(found: Results) -> list[str]:
    """Write how many trials ended in which way, the best one's gain, test figures and the cost."""
    outcomes = [record.outcome for record in found.records]
    ended = ", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes))
    test = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in found.test.items())
    return [
        f"trials: {len(outcomes)} of {found.planned} ({ended})",
        _gain(found),
        f"test, of trial {found.best.number}: {test}",
        *(f"privacy: {words}" for words in found.privacy.words),
    ]


def _gain(found: Results) -> str:
    """Write what the best trial gained over the configured one, on validation records."""
    best, first = found.best, found.records[0]
    if best.number == first.number:
        return f"no trial was better on {found.validation:,} validation records than as configured"
    if first.outcome != "finished" or first.score is None or best.score is None:
        return f"the configuration as it is: {first.outcome}"
    was, now, name = first.score.value, best.score.value, found.objective
    if was == now:
        was, now, name = first.score.loss, best.score.loss, f"{name} is the same; loss"
    records = f"{found.validation:,} validation records"
    return f"validation {name}: {now:.4f}, as configured {was:.4f}; by {records}"
