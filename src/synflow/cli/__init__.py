"""The command `synflow`; what it needs beside the library comes with `pip install 'synflow[cli]'`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..errors import MissingExtraError, need

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    try:
        need("typer", extra="cli")
        need("rich", extra="cli")
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
    from .app import run

    sys.exit(run(sys.argv[1:] if argv is None else list(argv)))
