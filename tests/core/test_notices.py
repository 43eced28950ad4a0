"""Lines that others cause cannot fill a disk."""

from __future__ import annotations

from vertizo.core.text.messages import Throttle


def test_lines_of_a_kind_are_left_out_and_counted() -> None:
    now = [0.0]
    throttle = Throttle(3, lambda: now[0])
    shown = [throttle("lab", f"lab {n}") for n in range(1000)]
    assert shown[:4] == ["lab 0", "lab 1", "lab 2 (more like it are left out for a minute)", None]
    assert set(shown[3:]) == {None}
    assert throttle("clinic", "clinic 0") == "clinic 0"
    now[0] = 60.0
    assert throttle("lab", "again") == "again (997 lines like it were left out before)"
    assert throttle("lab", "and again") == "and again"


def test_kinds_without_end_take_no_memory_and_no_lines() -> None:
    now = [0.0]
    throttle = Throttle(3, lambda: now[0])
    for minute in range(3):
        now[0] = 60.0 * minute
        shown = [one for n in range(5000) if (one := throttle(f"{n}", "line")) is not None]
        assert len(shown) <= 1003
    assert len(throttle._shown) <= 1001
    assert len(throttle._left_out) <= 1001
