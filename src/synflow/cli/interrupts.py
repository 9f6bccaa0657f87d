"""Ctrl-C: a command that stops says how far it came."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import PruningInterrupt

__all__ = ["Milestones", "told_how_far"]


class Milestones:
    """How far a command came, in words."""

    last = ""


@contextmanager
def told_how_far(kept: str = "nothing was written") -> Iterator[Milestones]:
    """Give an interrupt the last milestone as its message, or how far pruning itself came; and what is kept."""
    milestones = Milestones()
    try:
        yield milestones
    except KeyboardInterrupt as stop:
        where = milestones.last or (
            f"after {stop.reached}" if isinstance(stop, PruningInterrupt) else str(stop).strip()
        )
        raise KeyboardInterrupt(f" {where}; {kept}" if where else f"; {kept}") from stop
