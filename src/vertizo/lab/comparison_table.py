"""The tables of a comparison: a brief one, one of all figures, and the verdict in words."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

from vertizo.core.names import CONTROLS
from vertizo.core.text.messages import counted
from vertizo.lab.comparison import Row, mean_and_spread
from vertizo.lab.findings import Dot, Picture
from vertizo.privacy.accounting import label_advantage
from vertizo.privacy.epsilon_text import bound_text, is_bounded
from vertizo.run.results.summary_figures import NOT_PAID, beside_controls, privacy_text, size_text

QUALITY: tuple[tuple[str, str, float], ...] = (
    ("test_auc", "test AUC", 1.0),
    ("test_accuracy", "test accuracy %", 100.0),
    ("test_pinball", "test pinball loss", 1.0),
    ("test_huber", "test Huber loss", 1.0),
    ("test_average_precision", "avg. precision", 1.0),
    ("test_loss", "test loss", 1.0),
    ("test_rmse", "test RMSE", 1.0),
    ("test_r2", "R²", 1.0),
)
SIZES: tuple[tuple[str, tuple[str, ...], Callable[[float], str]], ...] = (
    ("bytes up", ("bytes_up", "bytes_table"), size_text),
    ("bytes down", ("bytes_down",), size_text),
    ("rounds", ("rounds",), "{:,.0f}".format),
    ("seconds", ("seconds",), "{:,.1f}".format),
    ("peak MiB", ("peak_memory_mib",), "{:,.0f}".format),
)
"""Lines of the table on cost: name, the figures whose means are added, and their format."""
RISING = ("_auc", "_accuracy", "_average_precision", "_r2")
"""Endings of figures that are better when they are larger."""
VALIDATION = tuple(
    (f"best.{key.replace('test', 'validation')}", name.replace("test", "validation"), scale)
    for key, name, scale in QUALITY
)
"""Figures that replace `QUALITY` where no run has test records."""


def title(found: Sequence[Row]) -> str:
    """Write the title of a comparison: data, clients, seeds."""
    first, seeds = found[0].first, len(found[0].figures("seed"))
    return f"{first['dataset']}, {counted(first['clients'], 'client')}, {counted(seeds, 'seed')}"


def notes(found: Sequence[Row]) -> list[str]:
    """Write sentences that explain the figures."""
    several = len(found[0].figures("seed")) > 1
    return [
        "± is the standard deviation over seeds."
        if several
        else "One seed: no spread; --seeds 3 shows it.",
        "numbers: of the embedding of a record, from all clients together.",
        "ε: what holds for labels; a simulated one holds for the same run with secret noise. Each "
        "run's summary.json says it in words.",
    ]


def picture(found: Sequence[Row]) -> Picture:
    """Build the picture: the first figure of quality of each method and control, ± its spread."""
    key, name, scale = next(iter(_measures(found)), ("", "", 1.0))
    dots = []
    for row, (place, control) in itertools.product(found, enumerate(("none", *CONTROLS))):
        if figures := row.figures(key, control):
            mean, spread = mean_and_spread(figures)
            ends = scale * (mean - (spread or 0.0)), scale * (mean + (spread or 0.0))
            called = row.label if control == "none" else f"{row.label}, {CONTROLS[control]}"
            dots.append(Dot(called, scale * mean, ends, place))
    return Picture(name, dots)


def _measures(found: Sequence[Row]) -> list[tuple[str, str, float]]:
    """List the figures of quality that some row has; first the one that most rows have."""
    for measures in (QUALITY, VALIDATION):
        if held := [m for m in measures if any(row.figures(m[0]) for row in found)]:
            first = max(held, key=lambda m: sum(bool(row.figures(m[0])) for row in found))
            return [first, *(m for m in held if m is not first)]
    return []


def _worth(row: Row, key: str, control: str = "none") -> float:
    """Return a figure's mean, with its sign changed if smaller is better."""
    return statistics.fmean(row.figures(key, control)) * (1 if key.endswith(RISING) else -1)


def _rival(row: Row, key: str) -> str | None:
    """Return the control that comes out best beside its method; None without controls."""
    sign = 1 if key.endswith(RISING) else -1

    def ahead(control: str) -> float:
        own = sign * statistics.fmean(_beside(row, key, control))
        return _worth(row, key, control) - own

    held = [control for control in CONTROLS if row.figures(key, control)]
    return max(held, key=ahead, default=None)


def _beside(row: Row, key: str, control: str) -> list[float]:
    """Return a method's figures to hold beside a control's: of its raw head beside a raw head."""
    raw = row.figures(f"raw_head.{key}") if control == "label-free" else []
    return raw or row.figures(key)


def paid(row: Row) -> str | None:
    """Write whether a method is shown to be ahead of its best control; None without controls.

    A single seed is compared by the interval of its test records; several are counted.
    """
    key, name, scale = next(iter(_measures([row])), QUALITY[0])
    if key.startswith("best.") or (control := _rival(row, key)) is None:
        return None
    own, other = _beside(row, key, control), row.figures(key, control)
    if len(own) == 1:
        firsts = [each[0] for kind, each in row.summaries.items() if kind != "none" and each]
        return beside_controls(row.first, firsts)
    sign = 1 if key.endswith(RISING) else -1
    pairs = list(zip(own, other, strict=False))
    ahead = sum(sign * a > sign * b for a, b in pairs)
    words = f"the best is {CONTROLS[control]}: {_told(name, _figure(row, key, scale, control))}"
    if not ahead:
        return f"{words}, better in every seed; {NOT_PAID}"
    seeds = f"{row.label} is better in {ahead} of {len(pairs)} seeds"
    shown = "" if ahead == len(pairs) else "; that training the clients pays is not shown"
    return f"{words}; {seeds}{shown}"


def verdict(found: Sequence[Row]) -> tuple[Row, list[str]]:
    """Return the best method, and sentences on it: whether training its clients is seen to pay."""
    for key, name, scale in _measures(found)[:1]:
        best = max((r for r in found if r.figures(key)), key=lambda row: _worth(row, key))
        order = ("highest " if key.endswith(RISING) else "lowest ") * (len(found) > 1)
        words = paid(best)
        said = f"{best.label}: {order}{_told(name, _figure(best, key, scale))}"
        return best, [said, *([] if words is None else [f"its controls: {words}"])]
    return found[0], ["no verdict: there are neither test nor validation records"]


def brief(found: Sequence[Row]) -> list[list[str]]:
    """Build the brief table: headings, and a line for each method; least needed columns last."""
    key, name, scale = next(iter(_measures(found)), QUALITY[0])
    statements = [row.first["privacy"] for row in found]
    kinds = {each["guarantee"] for each in statements if is_bounded(each)}
    of = f"{min(kinds)} ε" if len(kinds) == 1 else "ε"
    table = [["method", name, "best control", of, "numbers", "bytes", "seconds"]]
    for row, privacy in zip(found, statements, strict=True):
        epsilon = str(privacy["guarantee"])
        if is_bounded(privacy):
            bound = bound_text(privacy["epsilon"], 3)
            epsilon = bound if len(kinds) == 1 else f"{epsilon} {bound}"
        control = _rival(row, key)
        rival = "-" if control is None else _figure(row, key, scale, control).split(" ±")[0]
        sent = size_text(_sum(row, "bytes_up", "bytes_table", "bytes_down"))
        seconds = f"{_sum(row, 'seconds'):,.1f}"
        figure, numbers = _figure(row, key, scale), sum(row.first.get("numbers", ()))
        given = f"{numbers:,}" if numbers else "-"
        table.append([row.label, figure, rival, epsilon, given, sent, seconds])
    held = any(line[2] != "-" for line in table[1:])
    return table if held else [[*line[:2], *line[3:]] for line in table]


def _sum(row: Row, *keys: str) -> float:
    return sum(statistics.fmean(row.figures(key)) for key in keys)


def lines(found: Sequence[Row]) -> list[list[str]]:
    """Build the table of all figures: each figure's name, then its text for every method."""
    figures = [(name, (key, scale, "none")) for key, name, scale in _measures(found)]
    held = [c for c in CONTROLS if any(c in row.summaries for row in found)]
    for _, (key, scale, _) in figures[:1]:
        figures[1:1] = [(CONTROLS[control], (key, scale, control)) for control in held]
    for each, name, size in QUALITY:  # of a model that stays with the label holder
        raw = f"raw_head.{each}"
        if any(row.figures(raw) for row in found):
            figures.append((f"raw head: {name}", (raw, size, "none")))
            figures += [(f"raw, {CONTROLS[control]}", (raw, size, control)) for control in held]
    table = [[name, *(_figure(row, *at) for row in found)] for name, at in figures]
    for target in found[0].bytes_to if found[0].figures("test_accuracy") else ():
        reached = (_reached(row.bytes_to[target]) for row in found)
        table.append([f"bytes to {100 * target:g} %", *reached])
    for name, keys, text in SIZES:
        sums = (text(_sum(row, *keys)) if row.figures(keys[0]) else "-" for row in found)
        table.append([name, *sums])
    statements = [row.first["privacy"] for row in found]
    table.append(["privacy", *map(privacy_text, statements)])
    advantages = [label_advantage.text(label_advantage.of(each)) for each in statements]
    return [*table, ["label advantage", *advantages]] if {*advantages} != {"-"} else table


def _figure(row: Row, key: str, scale: float, control: str = "none") -> str:
    figures = row.figures(key, control)
    if not figures:
        return "-"
    digits = 2 if scale == 100 else 4
    mean, spread = mean_and_spread(figures)
    text = f"{scale * mean:.{digits}f}"
    return text if spread is None else f"{text} ± {scale * spread:.{digits}f}"


def _told(name: str, figure: str) -> str:
    bare = name.removesuffix(" %")
    return f"{bare} {figure}" if bare == name else f"{bare} {figure} %"


def _reached(each: Sequence[int | None]) -> str:
    """Format the mean bytes of seeds that reached a target, and how many did if not all."""
    got = [count for count in each if count is not None]
    if not got:
        return "-"
    text = size_text(sum(got) / len(got))
    return text if len(got) == len(each) else f"{text} ({len(got)} of {len(each)})"
