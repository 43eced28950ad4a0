"""``python -m vertizo.ops.agent.launch FILE COMMAND …``: becomes a job's process, or ends.

It locks FILE, writes its process ID into it and becomes ``vertizo COMMAND …``, which keeps the lock
for as long as it lives. So no folder ever has two processes, and an agent that was killed finds the
processes that it left behind.
"""

from __future__ import annotations

import os
import sys

from vertizo.core import system

TAKEN = 75
"""Exit code if another process has the folder."""


def main() -> None:
    """Lock the file, then become the command."""
    path, *command = sys.argv[1:]
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        system.lock(handle, wait=False)
    except BlockingIOError:
        sys.exit(TAKEN)
    os.ftruncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())
    os.set_inheritable(handle, True)
    system.end_first()  # sooner than the agent: a job goes on where it was
    os.execv(sys.executable, [sys.executable, "-P", "-m", "vertizo", *command])


if __name__ == "__main__":
    main()
