"""The clients' timelines: when each client's queries were answered, and how many."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from vertizo.lab.report.plot import Tick, fitting, ticks
from vertizo.lab.report.reading import Run, number

MOST_CLIENTS = 40
"""Most clients that are shown; the others are in the run's own files."""
MOST_BARS = 120
ROOM = 18
"""Most characters of the numbers below a strip, for which a telephone has room."""


def timeline(run: Run) -> dict[str, Any] | None:
    """Build the timeline of a run's clients; None where its rows do not count answers by client.

    The ``bars`` of a client are (left, width, height) of each stretch of time, in thousandths. The
    height is the rate of answers; the busiest stretch of any client has 1000.
    """
    clock = "seconds" if run.served else "virtual_seconds"
    rows = [
        (time, [int(count) for count in row["queries"]])
        for row in run.rows
        if _counts(row.get("queries")) and (time := number(row, clock)) is not None
    ]
    if len(rows) < 2 or rows[-1][0] <= 0 or len({len(counts) for _, counts in rows}) > 1:
        return None
    rows = _merged(rows)
    end, last = rows[-1]
    stretches = [
        (
            start,
            stop - start,
            [(m - n) / max(stop - start, 1e-12) for n, m in zip(a, b, strict=True)],
        )
        for (start, a), (stop, b) in pairwise(rows)
    ]
    highest = max(max(rates) for _, _, rates in stretches) or 1.0
    slow = run.config.simulation.stragglers if not run.served else {}
    clients = [
        {
            "name": name,
            "answered": last[client],
            "share": last[client] / (sum(last) or 1),
            "bars": [
                (
                    round(1000 * start / end, 1),
                    round(1000 * length / end, 1),
                    round(1000 * rates[client] / highest, 1),
                )
                for start, length, rates in stretches
            ],
            "note": f"straggler, {slow[client]:g} times slower" if client in slow else "",
        }
        for client, name in enumerate(_names(run, len(last))[:MOST_CLIENTS])
    ]
    return {
        "run": run,
        "clock": "seconds" if run.served else "seconds of the virtual clock",
        "end": end,
        "across": fitting(
            [Tick(100 * tick / end, f"{tick:,g}") for tick, _ in ticks(0.0, end, 4)], ROOM
        ),
        "clients": clients,
        "hidden": len(last) - len(clients),
    }


def _counts(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(count, int) and count >= 0 for count in value)
    )


def _merged(rows: list[tuple[float, list[int]]]) -> list[tuple[float, list[int]]]:
    """Drop rows of equal time, and thin the rest to about `MOST_BARS`."""
    apart = [row for place, row in enumerate(rows) if not place or row[0] > rows[place - 1][0]]
    if apart[0][0] > 0:
        apart = [(0.0, [0] * len(apart[0][1])), *apart]
    step = -(-(len(apart) - 1) // MOST_BARS)
    return [*apart[:-1:step], apart[-1]] if step > 1 else apart


def _names(run: Run, clients: int) -> list[str]:
    """Return the clients' names by index."""
    parties = (run.summary or {}).get("parties")
    if isinstance(parties, list) and len(parties) == clients:
        return [str(name) for name in parties]
    return [f"client {index}" for index in range(clients)]
