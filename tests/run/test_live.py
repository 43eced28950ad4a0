"""What is shown while a run goes on: a bar on a terminal, HTML in a notebook, lines in a log."""

from __future__ import annotations

import io
import sys
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console
from tests.rows import each

from vertizo.run import live
from vertizo.run.experiment import Progress

HERE = Progress(
    round=30, total=120, seconds=2.0, megabytes=1.25, loss=0.5, metric="acc 75.0 %", epsilon=None
)


def test_a_log_gets_a_line_a_minute() -> None:
    """What was done before the first call, by a resumed run, is not timed."""
    out, now = io.StringIO(), [0.0]
    with live.bar("dpzv", Console(file=out, get_time=lambda: now[0])) as show:
        for now[0], rounds in ((1, 20), (59, 25), (61, 30), (62, 31), (120, 70), (121, 120)):
            show(Progress(**{**vars(HERE), "round": rounds}))
    first, second = out.getvalue().splitlines()
    assert first.startswith("dpzv: 30 of 120 rounds · 15/s · loss 0.500 · acc 75.0 % · ")
    assert first.endswith(" · 25% · about 0:09:00 left")
    assert second.endswith(" · 100% · about 0:00:00 left")


def test_a_terminal_sees_a_bar_and_a_line() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, _environ={})
    with live.bar("dpzv", console) as show:
        show(HERE)
    assert "30 of 120 rounds" in out.getvalue()
    assert "acc 75.0 %" in out.getvalue()


def test_a_notebook_sees_html_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, html: str) -> None:
            shown.append(html)

    def display(html: str, display_id: bool) -> Handle:
        assert display_id
        shown.append(html)
        return Handle()

    module: Any = ModuleType("IPython.display")
    module.HTML, module.display = str, display
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    with live.bar("<dpzv>", Console(force_jupyter=True)) as show:
        show(HERE)
    assert len(shown) == 2
    assert all("&lt;dpzv&gt;" in html and "<progress" in html for html in shown)
    assert 'value="30" max="120"' in shown[1]
    assert "30 of 120 rounds" in shown[1]


@each("epsilon, words", [(None, "no ε"), (0.5, "ε 0.5")])
def test_the_line_of_figures(epsilon: float | None, words: str) -> None:
    here = Progress(**{**vars(HERE), "epsilon": epsilon})
    known = "30 of 120 rounds · 15/s · loss 0.500 · acc 75.0 % · 1.2 MB"
    assert live.figures(here) == f"{known} · {words}"
    on_a_card = Progress(**{**vars(here), "card": (3.21, 139.8)})
    assert live.figures(on_a_card) == f"{known} · {words} · card 3.2 of 140 GiB"
