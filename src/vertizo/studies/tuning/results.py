"""What a search found: its best configuration, tested once, and what everything cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vertizo.core.errors import RunError
from vertizo.core.version import VERSION
from vertizo.run.folder import RunFolder
from vertizo.run.prediction import Predictor
from vertizo.studies.tuning.plan import Plan
from vertizo.studies.tuning.privacy import Cost, cost_of
from vertizo.studies.tuning.study import Record, Study

BEST, RESULTS = "best.yaml", "results.json"


@dataclass(frozen=True)
class Results:
    """A search that came to an end."""

    dataset: str
    method: str
    objective: str
    validation: int
    """Records that trials were compared by."""
    planned: int
    records: tuple[Record, ...]
    """All trials that were begun; the first is as configured."""
    ranked: tuple[Record, ...]
    """Those that ran to their ends, the best first."""
    configured: Mapping[str, str]
    """What the first trial has in place of each key that was searched."""
    importances: Mapping[str, float]
    test: Mapping[str, float]
    """Figures of the best on the test records."""
    privacy: Cost

    @property
    def best(self) -> Record:
        """The best trial."""
        return self.ranked[0]

    def as_dict(self) -> dict[str, Any]:
        """For ``results.json``."""
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
            "privacy": self.privacy.as_dict(),
            "trials": [record.as_dict() for record in self.records],
        }


def conclude(plan: Plan, study: Study, trials: int, write: Callable[[str, str], None]) -> Results:
    """Sum a search of planned trials up, and test the best, whose summary then has test figures.

    ``write`` takes the name and the text of a file of the search's folder.

    Raises:
        RunError: no trial ran to its end.
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
        configured={key: str(plan.configured_value(key)) for key in plan.space},
        importances=study.importances(),
        test=_tested(RunFolder(study.folder_of(best.number))),
        privacy=cost_of(plan, max(trials, len(records)), best.number),
    )
    write(RESULTS, json.dumps(results.as_dict(), indent=2, ensure_ascii=False))
    return results


def _tested(folder: RunFolder) -> dict[str, float]:
    """The test figures of a trial's model, which is looked at by test records now or was before."""
    summary = folder.summary() or {}
    if "test_loss" not in summary:
        scores = Predictor.load(folder.path).test().scores or {}
        summary = {**summary, **{f"test_{name}": value for name, value in scores.items()}}
        folder.write_summary(summary)
    return {k.removeprefix("test_"): v for k, v in summary.items() if k.startswith("test_")}
