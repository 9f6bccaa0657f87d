"""Light weights are looked for while the sensitivities of other layers are still being made.

The edge is guessed as soon as the flow is known. From then on one thread goes on with the measurement, and another
looks through each tensor whose sensitivity is there; what is left of that in the end, both do.
"""

from __future__ import annotations

from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from .candidate_passes import Found, Piece, found_in
from .factored_gradient import Sensitivity
from .replay import Tell
from .select_lightest import Scored


class Early:
    """A search that begins with the flow; `scored` is what sensitivities are told to, as they come."""

    def __init__(self, scored: Scored, share: float) -> None:
        self._scored, self._share = scored, share
        self._names: SimpleQueue[str | None] = SimpleQueue()
        self._pieces: list[Piece] = []
        self._other: Future[Any] | None = None
        self._high = 0.0

    def begin(self, flow: float) -> Tell | None:
        """Guess the edge by the flow, and wait for tensors; None where no guess can be made."""
        guess = self._scored.trend.next(self._share, flow)
        if guess is None:
            return None
        self._high = guess
        self._other = self._scored.compiled.pool().submit(self._work)
        return self._tell

    def finish(self) -> Found | None:
        """What was found, when all tensors were told; None where no search was begun."""
        if self._other is None:
            return None
        try:
            self._names.put(None)
            self._names.put(None)
            self._work()
        finally:
            other, self._other = self._other, None
            other.result()
        return Found(0, 0.0, self._pieces)

    def stop(self) -> None:
        """Give up, if a search is under way."""
        if self._other is not None:
            self._names.put(None)
            other, self._other = self._other, None
            other.result()

    def _tell(self, name: str, sensitivity: Sensitivity) -> None:
        self._scored.sensitivities[name] = sensitivity
        self._names.put(name)

    def _work(self) -> None:
        for name in iter(self._names.get, None):
            self._pieces += found_in(self._scored, name, self._high, self._share)
