"""``python -m vertizo``, and the command ``vertizo``."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> None:
    """Run the command line, with Ctrl-C one line at most from the first import on."""
    try:
        heed_ctrl_c()
        from vertizo.cli.main import main as command_line

        command_line()
    except KeyboardInterrupt:  # before the command line has begun, or after it has ended
        _stop()


def heed_ctrl_c() -> None:
    """End in one line from now on, where nobody else has seen to it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(_: int, frame: FrameType | None) -> NoReturn:
    """Raise KeyboardInterrupt as Python does, but for an import: end the process at once there.

    An import that is left in its midst has half a module behind it, from which other errors follow
    (NumPy's is an ImportError), and those who catch them may try again and go on.
    """
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            _stop()
        frame = frame.f_back
    raise KeyboardInterrupt


def _stop() -> NoReturn:
    os.write(2, b"vertizo: stopped\n")
    os._exit(130)


if __name__ == "__main__":
    main()
