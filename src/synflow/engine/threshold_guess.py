"""Where the edge of the next step will be, by where it was in the steps before.

Steps of a schedule take about the same share of what is left each time, and the edge, as a part of the flow, moves
evenly. A guess is only where to look: what is found there is counted, and too few are looked for again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# Shares that differ by more are not compared.
SAME = 0.05
# A guess lies above what is expected by this factor, and by so many times what the last one would have been wrong.
ABOVE = 1.02
SAFETY = 2.0
# Edges that jump by more are not guessed.
JUMP = 0.25


@dataclass
class Trend:
    """The last edges, as parts of the flow, and the shares of the weights below them."""

    _last: list[tuple[float, float]] = field(default_factory=list)

    def add(self, share: float, edge: float, flow: float) -> None:
        """Note an edge."""
        even = edge > 0 and flow > 0 and all(abs(share / other - 1) <= SAME for other, _ in self._last)
        if not even:
            self._last = []
        if edge > 0 and flow > 0:
            self._last = [*self._last[-2:], (share, math.log(edge / flow))]

    def next(self, share: float, flow: float) -> float | None:
        """An edge that is likely to be no less than the next one, and hardly more; None where nothing is known."""
        if len(self._last) < 3 or not flow > 0 or any(abs(share / other - 1) > SAME for other, _ in self._last):
            return None
        first, second, third = (edge for _, edge in self._last)
        change = third - second
        wrong = abs(change - (second - first))
        if wrong > JUMP:
            return None
        return math.exp(third + change + SAFETY * wrong) * ABOVE * flow
