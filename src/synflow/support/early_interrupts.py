"""Ctrl-C while the command `synflow` starts and ends: one word and exit code 130, no traceback.

The package imports this module before any other, since Python's own handler would print a traceback of imports. In a
process that only uses the library no handler is installed.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys

STOPPED = 130


def leave_at_once(*_: object) -> None:
    """A handler: end the process here and now."""
    os.write(2, b"stopped\n")
    os._exit(STOPPED)


def _is_command() -> bool:
    """Whether Python was started as `synflow ...` or `python -m synflow ...`; its worker processes are not."""
    started, script = sys.orig_argv, sys.argv[0] if sys.argv else ""
    if script == "-m":
        return "synflow" in started[started.index("-m") + 1 :][:1]
    return script in started and os.path.basename(script) in ("synflow", "synflow.exe")


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, leave_at_once)
    # Registered first, so called last, when all work is done. Python then removes its handlers, and an interrupt would
    # kill the process; ignoring it preserves the exit code of the command.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
