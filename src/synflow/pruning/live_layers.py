"""The guard of balanced scores: after each removal every layer has a weight on a live path.

Balanced scores of a layer sum to the flow R, so a removal whose scores sum to less than R takes no layer whole (the
paper's Theorem 3, on any graph). What it does not give is that the weights left in a branch are still fed: removing
weights of the trunk can cut off the units that the branch reads. So each removal is checked, and halved where a layer
would die. Where the count asked for leaves no other way, layers are given up one by one, lightest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from .engine import Engine, Removal, StepScores

# Where the lightest weight may not go, this many of the next ones are tried before a layer is given up.
CANDIDATES = 512


class LayerGuard:
    """Removes weights of one run so that no layer dies; `given_up` names the layers for which that was impossible."""

    def __init__(self, engine: Engine, size: int) -> None:
        self._engine, self._size = engine, size
        self.given_up: list[str] = []
        self.needed = self._engine.live_layers()
        self._limit = size
        self._weighed = 0.0

    def remove(self, going: Removal, scores: StepScores, number: int) -> tuple[float, bool]:
        """Remove the lightest weights, or as many as leave every layer alive; what they weigh, and whether all went."""
        if number == 0:
            return 0.0, True
        for exact in (False, True):
            if gone := self.shrink(going, scores, exact):
                return self._weighed, gone == number
        if lost := self.remove_single(scores):
            return lost.total, number == 1
        self._give_up(scores)
        return self.remove(self._engine.lightest(scores, number), scores, number)

    def shrink(self, going: Removal, scores: StepScores, exact: bool = False) -> int:
        """Remove as many of the lightest weights as leave every layer alive, by halving; how many went."""
        wanted = going.number
        if going.number > self._limit:
            going = self._engine.lightest(scores, self._limit)
        while going.number > 0:
            if self._removed(going, exact):
                self._limit = self._size if going.number == wanted else max(2 * going.number, 1)
                self._weighed = going.total
                return going.number
            going = self._engine.lightest(scores, going.number // 2)
        return 0

    def remove_single(self, scores: StepScores) -> Removal | None:
        """Remove the lightest weight without which every layer lives, if there is one among the first few."""
        return next((one for one in self._single(scores) if self._removed(one, exact=True)), None)

    def _removed(self, going: Removal, exact: bool) -> bool:
        """Remove weights if every layer stays alive."""
        undo = self._engine.remove(going)
        if self.needed <= self._engine.live_layers(exact):
            return True
        undo()
        return False

    def _single(self, scores: StepScores) -> Iterator[Removal]:
        """Removals of one weight each, lightest first."""
        masks, whole = self._engine.masks(), scores.whole()
        for name, position in _ascending(whole, masks, CANDIDATES):
            kept = {**masks, name: masks[name].clone()}
            kept[name].view(-1)[position] = False
            yield self._engine.removal(kept, scores)

    def _give_up(self, scores: StepScores) -> None:
        """Give up the layer with the least flow; the others that cannot live without it die with it, and are named."""
        flows = scores.layer_flows
        lightest = min(self.needed, key=lambda name: (flows.get(name, 0.0), name))
        self.given_up.append(lightest)
        self.needed = self.needed - {lightest}


def _ascending(scores: Mapping[str, Tensor], masks: Mapping[str, Tensor], most: int) -> list[tuple[str, int]]:
    """Kept weights by ascending score, as (name, flat position)."""
    entries: list[tuple[float, str, int]] = []
    for name, mask in masks.items():
        positions = torch.nonzero(mask.reshape(-1)).view(-1)
        values = scores[name].reshape(-1)[positions]
        order = torch.argsort(values)[:most]
        entries += [(float(values[i]), name, int(positions[i])) for i in order]
    entries.sort(key=lambda entry: entry[0])
    return [(name, position) for _, name, position in entries[:most]]
