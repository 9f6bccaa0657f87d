"""Ctrl-C: how far a command got is told with the word that it stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import PruningInterrupt

__all__ = ["Milestones", "told_how_far"]


class Milestones:
    """The last thing that was reached, in words."""

    last = ""


@contextmanager
def told_how_far() -> Iterator[Milestones]:
    """An interrupt leaves with the last milestone as its message, or else with how far pruning itself says it came."""
    milestones = Milestones()
    try:
        yield milestones
    except KeyboardInterrupt as stop:
        where = milestones.last or (f"after {stop.reached}" if isinstance(stop, PruningInterrupt) else "")
        raise KeyboardInterrupt(f" {where}; nothing was written" if where else "; nothing was written") from stop
