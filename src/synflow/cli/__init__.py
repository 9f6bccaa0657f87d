"""The command `synflow`; what it needs beside the library comes with `pip install 'synflow[cli]'`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from ..errors import MissingExtraError, need

__all__ = ["main"]

STOPPED = 130
# Seconds until an interrupt that got lost in a destructor is raised once more.
AGAIN = 0.05


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    theirs = signal.getsignal(signal.SIGINT)
    hook = sys.unraisablehook
    if theirs is signal.default_int_handler:
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
        if theirs is signal.default_int_handler:
            signal.signal(signal.SIGINT, theirs)
            sys.unraisablehook = hook
    sys.exit(code)


def _interrupted(_: int, frame: FrameType | None) -> None:
    """Ctrl-C: end at once while modules are imported, for libraries turn an interrupt of that into errors of theirs."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            print("stopped", file=sys.stderr)
            sys.stderr.flush()
            os._exit(STOPPED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _unraisable(found: Any) -> None:
    """An interrupt that met a destructor is raised once more; Python would print it and go on."""
    if issubclass(found.exc_type, KeyboardInterrupt):
        threading.Timer(AGAIN, signal.raise_signal, [signal.SIGINT]).start()
    else:
        sys.__unraisablehook__(found)
