"""A skeleton: few weights that keep every layer alive. Protected, it guards any score, and bounds the fewest weights.

Found by pruning with balanced scores, as long as every layer keeps a weight on a live path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..flow.paths import cuts
from ..network.private_copy import Network
from ..support.chunked import count
from .engine import Engine, EngineSettings, engine_named
from .live_layers import LayerGuard

# Steps in which the skeleton is approached: enough to follow the flow, few beside the run that it guards.
STEPS = 30
# A skeleton of at most this many weights per layer is thinned out one weight at a time where a tight bound is wanted.
FEW = 8


@dataclass(frozen=True)
class Skeleton:
    """Masks of few weights under which the named layers live; `given_up` are those for which there was no room."""

    masks: dict[str, Tensor]
    layers: frozenset[str]
    given_up: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many weights it has."""
        return count(self.masks)


def find_skeleton(
    network: Network, masks: Mapping[str, Tensor], most: int | None = None, tight: bool = False
) -> Skeleton:
    """A small set of kept weights under which every layer lives.

    With `most`, layers are given up until no more weights are left. `tight` goes on until each weight is needed.
    """
    settings = EngineSettings(balanced=True, cuts=cuts(network), steps=STEPS)
    engine: Engine = engine_named("fast")(network, masks, settings)
    guard = LayerGuard(engine, network.size)
    layers, begin = guard.needed, engine.count
    least = max(len(layers), 1)
    for step in range(1, STEPS + 1):
        number = engine.count - round(begin * (least / begin) ** (step / STEPS))
        scores = engine.measure(ahead=STEPS - step + 1)
        # Where a quarter of a step would kill a layer, the skeleton is small enough to be protected.
        if number > 0 and 4 * guard.shrink(engine.lightest(scores, number), scores) < number:
            break
    if tight:
        while engine.count > least and engine.count <= FEW * least and guard.remove_single(engine.measure()):
            pass
    while most is not None and engine.count > most:
        scores, number = engine.measure(), engine.count - most
        guard.remove(engine.lightest(scores, number), scores, number)
    return Skeleton(engine.masks(), layers - set(guard.given_up), tuple(guard.given_up))
