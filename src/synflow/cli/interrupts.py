"""Ctrl-C: a stopped command reports its progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import PruningInterrupt


class Milestones:
    """The progress of a command, in words."""

    last = ""


@contextmanager
def told_how_far(kept: str = "nothing was written") -> Iterator[Milestones]:
    """Add to an interrupt the last milestone, or the progress of pruning itself, and which files were kept."""
    milestones = Milestones()
    try:
        yield milestones
    except KeyboardInterrupt as stop:
        where = milestones.last or (
            f"after {stop.reached}" if isinstance(stop, PruningInterrupt) else str(stop).strip()
        )
        raise KeyboardInterrupt(f" {where}; {kept}" if where else f"; {kept}") from stop
