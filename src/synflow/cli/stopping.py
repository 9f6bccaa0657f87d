"""Ctrl-C: how far a command got is told with the word that it stopped."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..schedules import Schedule

__all__ = ["Milestones", "told_how_far"]


class Milestones:
    """The last thing that was reached."""

    last = ""

    def noting(self, schedule: Schedule) -> Schedule:
        """The same schedule, which is asked once per step, and so knows how many there were."""

        @functools.wraps(schedule)
        def noted(step: int, steps: int, density: float) -> float:
            self.last = f"before step {step} of {steps}"
            return schedule(step, steps, density)

        return noted


@contextmanager
def told_how_far() -> Iterator[Milestones]:
    """An interrupt leaves with the last milestone and the time as its message."""
    milestones, start = Milestones(), time.monotonic()
    try:
        yield milestones
    except KeyboardInterrupt as stop:
        where = f" {milestones.last}" if milestones.last else ""
        raise KeyboardInterrupt(f"{where}, after {time.monotonic() - start:.0f} s; nothing was written") from stop
