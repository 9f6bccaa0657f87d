"""The guard of every layer: after each removal every layer has a weight on a live path.

Balanced scores of a layer sum to the flow R, so a removal whose scores sum to less than R empties no layer (the paper's
Theorem 3, on any graph). The theorem does not say that the weights left in a branch are still fed: removing weights of
the trunk can cut off the units that the branch reads. So each removal is checked, and halved where a layer would die.
Where halving does not help, a skeleton of the weights that are left is protected from then on. Where fewer weights are
to stay than the skeleton has, layers are given up one by one, lightest first.
"""

from __future__ import annotations

import math
from typing import Any

from ..errors import warn
from ..masks.checks import some
from ..support.chunked import lightest
from .engine import Engine, Removal, StepScores
from .safe_removal import StuckError, after_lightest, flow_from_inputs
from .scopes import difference
from .settings import PruningRun
from .skeleton import FROM_INPUTS, Skeleton, find_skeleton

# How many removals of one step may fail before a skeleton is protected: each costs a measurement.
FAILURES_BEFORE_SKELETON = 8


class LayerGuard:
    """Removes the weights of one run so that every layer that was alive at first stays alive."""

    def __init__(self, run: PruningRun, engine: Engine, needed: frozenset[str]) -> None:
        self._run, self._engine, self._needed = run, engine, needed
        self.skeleton = run.skeleton
        self._limit = run.network.size
        self._failures = 0

    def remove(self, scores: StepScores, keep: int) -> tuple[float, bool]:
        """Go on towards a count: the share of the flow that was removed, and whether the count is reached."""
        lost = self._remove(scores, keep, math.inf)
        return lost / scores.flow.value, self._engine.count == keep

    def remove_by_margin(self, scores: StepScores) -> float:
        """A certified step: remove weights whose scores sum to less than the margin; the share that was removed."""
        bound, weighed = flow_from_inputs(self._engine, scores)
        lost = self._remove(weighed, self._run.keep, self._run.margin * bound)
        return lost / bound if bound > 0 else math.nan

    def _remove(self, scores: StepScores, keep: int, budget: float) -> float:
        """Remove weights whose scores sum to less than the budget, but at least one; the sum of their scores."""
        if self._engine.count == keep:
            return 0.0
        if self.skeleton is None:
            lost = self._checked(self._wanted(scores, keep, budget), scores, budget)
            if lost is not None:
                if self._engine.count == keep:
                    self._failures = 0
                return lost
            self.skeleton = find_skeleton(self._run.network, self._engine.masks(), self._run.keep)
        aim = keep if budget == math.inf else max(keep, min(self.skeleton.size, self._engine.count - 1))
        if not self.skeleton.shrink_to(aim):
            raise StuckError(self.skeleton.size)
        # The skeleton proves that its layers stay alive.
        going = self._allocated(scores, aim, budget, self.skeleton)
        self._engine.remove(going)
        return going.total

    def _wanted(self, scores: StepScores, keep: int, budget: float) -> Removal:
        """What the scope would remove."""
        if not self._run.is_global:
            return self._allocated(scores, keep, budget, None)
        going = self._engine.lightest(scores, self._engine.count - keep, budget)
        return going if going.number else self._engine.lightest(scores, 1)

    def _allocated(self, scores: StepScores, keep: int, budget: float, skeleton: Skeleton | None) -> Removal:
        """What the scope would remove beside a skeleton: all down to the count, or the lightest within the budget."""
        masks, whole = self._engine.masks(), scores.whole()
        kept = self._run.allocate(whole, masks, keep, None if skeleton is None else skeleton.masks())
        if budget < math.inf:
            number = max(lightest(whole, difference(masks, kept), budget), 1)
            kept = after_lightest(whole, masks, kept, number)
        return self._engine.removal(kept, scores)

    def _checked(self, going: Removal, scores: StepScores, budget: float) -> float | None:
        """Remove weights if every layer stays alive, else fewer of the lightest; their total, None where none went."""
        wanted = going.number
        if wanted > self._limit and self._run.is_global:
            going = self._engine.lightest(scores, self._limit)
        while self._failures < FAILURES_BEFORE_SKELETON:
            if self._removed(going):
                self._limit = self._run.network.size if going.number == wanted else 2 * going.number
                return going.total
            self._failures += 1
            if going.number == 1 or not self._run.is_global:
                break
            if going.number == wanted and budget == math.inf:
                # A branch beside a trunk that carries far more may have scores that underflow; norms prevent that.
                other = self._engine.lightest(self._engine.measure(FROM_INPUTS), wanted)
                lost = self._engine.weigh(other, scores)
                if self._removed(other):
                    return lost
            going = self._engine.lightest(scores, going.number // 2)
        return None

    def _removed(self, going: Removal) -> bool:
        """Remove weights if every layer stays alive."""
        undo = self._engine.remove(going)
        if self._needed <= self._engine.live_layers():
            return True
        undo()
        return False


def tell_given_up(
    about: dict[str, Any], skeleton: Skeleton | None, promised: frozenset[str], live: frozenset[str]
) -> None:
    """Say in `about` how many layers the guard promised to keep, and name those that died; warn if there are any."""
    about["layers"] = len(promised)
    order = {} if skeleton is None else {name: place for place, name in enumerate(skeleton.given_up)}
    dead = sorted(promised - live, key=lambda name: (order.get(name, len(order)), name))
    if not dead:
        return
    about["given_up"] = ", ".join(dead)
    warn(
        f"{about['kept']} weights are too few to keep all {len(promised)} layers alive (synflow.limits tells how many "
        f"are needed): {len(dead)} were given up, lightest first: {some(dead)} (masks.about['given_up'] names all)"
    )
