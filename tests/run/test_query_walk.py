"""How long the walk of one query is: calls of this package, and the files they are in."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

from tests import federations

import vertizo

PACKAGE = str(Path(vertizo.__file__).parent)


def test_a_query_takes_at_most_94_calls_over_18_files() -> None:
    """A DPZV query from a client's ask to its tell and next ask, when everything is warm."""
    federation = federations.build("dpzv", of=federations.data(400))  # 50 batches an epoch
    federation.start(upload_table=False)
    federations.go_on(federation, 30)
    calls: list[tuple[str, str]] = []

    def noted(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            calls.append((code.co_filename.removeprefix(PACKAGE), code.co_name))

    sys.setprofile(noted)
    federation.simulator.step()
    sys.setprofile(None)
    files = {file for file, _ in calls}
    assert {"/party/client.py", "/party/server.py", "/methods/dpzv.py"} <= files
    assert [name for _, name in calls].count("ask") == 2  # the party's and the method's, once each
    assert len(calls) <= 94, calls
    assert len(files) <= 18, files
