"""Advice for a run that its best control beats: settings that may do better.

Without noise, and on tables whose references are fitted in seconds, the candidates of ``method:
auto`` are tried on the validation records. Under noise nothing is tried, since that reads labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch

from vertizo.config.auto import AUTO
from vertizo.config.choosing import Open
from vertizo.config.method_defaults import is_narrow
from vertizo.config.schema import ExperimentConfig
from vertizo.core.errors import ConfigError, RunError, UserError
from vertizo.data.vertical import VerticalData
from vertizo.run import auto, references
from vertizo.run.build.label_free import controls_of

MOST = 5000
"""Candidates are tried on at most so many training records: some ten seconds each."""
SETTING = "`method: {name: auto}` beside this `seed` and `data` alone"


def advised(
    config: ExperimentConfig,
    data: VerticalData,
    summary: Mapping[str, Any],
    tell: auto.Tell = auto.silent,
) -> dict[str, Any]:
    """Advise on a run: ``words``, and ``tried``, the validation figure of each candidate.

    ``tell`` is given a line for each trial.
    """
    is_noisy, tried = config.privacy.mechanism != "none", {}
    given = {"seed": config.seed, "data": config.data.model_dump(mode="json", exclude_unset=True)}
    about = summary.get("references") or (None if is_noisy else references.references(config, data))
    best = summary.get("best") or {}
    metric, validation = about["metric"] if about else "", (about or {}).get("validation") or {}
    raw = summary.get("raw_head", {})  # one that was chosen has figures of validation records
    chosen = raw.get("tried", {}).get(raw.get("kind"), {})
    own = chosen.get(metric, best.get(f"validation_{metric}"))
    sign = 1 if metric in ("auc", "accuracy") else -1
    name = auto.METRICS.get(f"test_{metric}")
    words: list[str] = []
    if is_noisy:
        words += _untried(config, data, given)
    elif "choice" in summary:
        words.append("`method: {name: auto}` tried others already, which validated no better")
    elif own is None or not validation or data.records > MOST:
        words.append(f"not tried: {SETTING}, which tries other methods on validation records")
    else:
        torch.set_num_threads(config.threads)
        try:
            choice = auto.chosen(Open(given | {"method": AUTO}), data, tell)
        except UserError as error:
            why = "every trial diverged" if isinstance(error, RunError) else str(error)
            words.append(f"{SETTING} is no help: {why}")
        else:
            tried = dict(choice.figures)
            best_first = sorted(tried, key=lambda each: -sign * tried[each])
            figures = ", ".join(f"{tried[each]:.4g} by {auto.NAMES[each]}" for each in best_first)
            if sign * tried[best_first[0]] > sign * own:
                leak = auto.GRADIENTS if choice.config.method.first_order_client else auto.RAW
                words.append(
                    f"{SETTING}: {name} of validation records {figures}, this run {own:.4g}. {leak}"
                )
            else:
                words.append(
                    f"none of {SETTING} is ahead of this run's {name} of validation records, "
                    f"{own:.4g}: {figures}"
                )
    if not is_noisy and best.get("round") == summary["rounds"]:
        words.append("more `epochs`: the best evaluation was the last")
    for whose, of in (("alone", "the label holder alone"), ("pooled", "all columns in one table")):
        reached = [sign * figure for figure in (validation.get(whose) or {}).values()]
        if own is not None and max(reached, default=sign * own) > sign * own:
            figure = f"{sign * max(reached):.4g} by {of}, this run {own:.4g}"
            words.append(f"no federation: {name} of validation records {figure}")
    return {"words": "; ".join(words), "tried": tried}


def _untried(
    config: ExperimentConfig, data: VerticalData, given: Mapping[str, Any]
) -> Iterator[str]:
    """Settings that may do better under noise, judged by public facts alone."""
    yield "nothing was tried, which would read labels"
    privacy, method = config.privacy, config.method
    if privacy.epsilon is not None:
        kept = {"epsilon": privacy.epsilon, "delta": privacy.delta}
        with suppress(ConfigError):  # what is advised is not for these data
            choice = auto.chosen(Open({**given, "method": AUTO, "privacy": kept}), data)
            other = choice.config.method.name, choice.config.privacy.mechanism
            if other != (method.name, privacy.mechanism):
                yield choice.words.removesuffix(auto.STAYS).rstrip(". ")
    if "label-free" in controls_of(config):
        yield "`method: {name: one-shot}`, one upload that depends on no label (ε = 0)"
    if not is_narrow(config.client):
        yield "fewer numbers of a record (`client.model.outputs` 1 or 2), which have to be learned"
    summed = privacy.mechanism == "gaussian" and not method.first_order_client
    if summed and method.whole_queries is None and config.batch_size < data.records:
        yield (
            f"a larger `batch_size` than {config.batch_size:,}: the noise on a reply's sum does "
            "not grow with the batch that divides it"
        )
