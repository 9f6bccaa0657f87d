"""The command `synflow`; `pip install 'synflow[cli]'` installs its extra packages."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from ..errors import MissingExtraError, need
from ..support.early_interrupts import STOPPED, leave_at_once

__all__ = ["main"]

# Seconds until an interrupt that was lost in a destructor is raised again.
AGAIN = 0.05


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its exit code."""
    theirs = signal.getsignal(signal.SIGINT)
    hook = sys.unraisablehook
    ours = theirs in (signal.default_int_handler, leave_at_once)
    if ours:
        signal.signal(signal.SIGINT, _interrupted)
        sys.unraisablehook = _unraisable
    try:
        need("typer", extra="cli")
        need("rich", extra="cli")
        from .app import run

        code = run(sys.argv[1:] if argv is None else list(argv))
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        code = STOPPED
    finally:
        if ours:
            # With `argv` the calling program continues; without it the process ends, and there is nothing to stop.
            signal.signal(signal.SIGINT, leave_at_once if argv is None else theirs)
            sys.unraisablehook = hook
    sys.exit(code)


def _interrupted(_: int, frame: FrameType | None) -> None:
    """Ctrl-C: exit at once during imports, because libraries turn an interrupted import into errors of their own."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            leave_at_once()
        frame = frame.f_back
    raise KeyboardInterrupt


def _unraisable(found: Any) -> None:
    """Raise an interrupt in a destructor again; Python would print it and continue."""
    if issubclass(found.exc_type, KeyboardInterrupt):
        threading.Timer(AGAIN, _interrupt_main_thread).start()
    else:
        sys.__unraisablehook__(found)


def _interrupt_main_thread() -> None:
    """Send Ctrl-C to the main thread, so that it stops waiting; Windows cannot choose a thread."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)
