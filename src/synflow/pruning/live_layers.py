"""The guard of balanced scores: after each removal every layer has a weight on a live path.

Balanced scores of a layer sum to the flow R, so a removal whose scores sum to less than R takes no layer whole (the
paper's Theorem 3, on any graph). The theorem does not say that the weights left in a branch are still fed: removing
weights of the trunk can cut off the units that the branch reads. So each removal is checked, and halved where a layer
would die. Where halving does not help, a skeleton of the weights that are left is protected from then on. Where the
count asked for is smaller than the skeleton, layers are given up one by one, lightest first.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from torch import Tensor

from ..masks.checks import some
from ..support.chunked import count, lightest
from ..support.ranking import keep_best
from .allocation import allocate
from .engine import Engine, Removal, StepScores
from .safe_removal import StuckError
from .settings import PruningRun
from .skeleton import FROM_INPUTS, Skeleton, find_skeleton

# So many removals of one step may fail before a skeleton is protected: each costs a measurement.
PATIENCE = 8


class LayerGuard:
    """Removes the weights of one run so that every layer that was alive at first stays alive."""

    def __init__(self, run: PruningRun, engine: Engine) -> None:
        self._run, self._engine = run, engine
        self.needed = engine.live_layers()
        self.skeleton = run.skeleton
        self._limit = run.network.size
        self._failures = 0

    def remove(self, scores: StepScores, keep: int, budget: float = math.inf) -> tuple[float, bool]:
        """Go on towards a count; what the removed weights weigh, and whether the count is reached.

        With a budget, weights go whose scores sum to less than it, but at least one.
        """
        if self._engine.count == keep:
            return 0.0, True
        if self.skeleton is None:
            lost = self._checked(self._wanted(scores, keep, budget), scores, budget)
            if lost is not None:
                complete = self._engine.count == keep
                self._failures = 0 if complete else self._failures
                return lost, complete
            self.skeleton = find_skeleton(self._run.network, self._engine.masks(), self._run.keep)
        return self._around_skeleton(scores, keep, budget)

    def _wanted(self, scores: StepScores, keep: int, budget: float) -> Removal:
        """What the scope would remove."""
        run, engine = self._run, self._engine
        if run.is_global:
            going: Removal = engine.lightest(scores, engine.count - keep, budget)
            return going if going.number else engine.lightest(scores, 1)
        masks, whole = engine.masks(), scores.whole()
        kept = allocate(run.network, run.scope, whole, masks, keep)
        return engine.removal(_affordable(whole, masks, kept, budget), scores)

    def _checked(self, going: Removal, scores: StepScores, budget: float) -> float | None:
        """Remove weights if every layer stays alive, else fewer of the lightest; what they weigh, None for nothing."""
        wanted = going.number
        if wanted > self._limit and self._run.is_global:
            going = self._engine.lightest(scores, self._limit)
        while self._failures < PATIENCE:
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
        if self.needed <= self._engine.live_layers():
            return True
        undo()
        return False

    def _around_skeleton(self, scores: StepScores, keep: int, budget: float) -> tuple[float, bool]:
        """Remove the lightest weights outside of the skeleton, which proves that its layers stay alive."""
        assert self.skeleton is not None
        run, masks, whole = self._run, self._engine.masks(), scores.whole()
        aim = keep
        if budget < math.inf:
            aim = max(keep, min(self.skeleton.size, self._engine.count - 1))
        if not self.skeleton.shrink_to(aim):
            raise StuckError(self.skeleton.size)
        kept = allocate(run.network, run.scope, whole, masks, aim, self.skeleton.masks())
        going = self._engine.removal(_affordable(whole, masks, kept, budget), scores)
        self._engine.remove(going)
        return going.total, self._engine.count == keep


def _affordable(
    scores: dict[str, Tensor], masks: dict[str, Tensor], kept: dict[str, Tensor], budget: float
) -> dict[str, Tensor]:
    """The masks after a part of a removal: its lightest weights, within the budget, but at least one."""
    if budget == math.inf:
        return kept
    going = {name: mask & ~kept[name] for name, mask in masks.items()}
    number = max(lightest(scores, going, budget), 1)
    staying = keep_best(scores, going, max(count(going) - number, 0))
    return {name: mask | staying[name] for name, mask in kept.items()}


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
    warnings.warn(
        f"{about['kept']} weights are too few to keep all {len(promised)} layers alive (synflow.limits tells how many "
        f"are needed): {len(dead)} were given up, lightest first: {some(dead)} (masks.about['given_up'] names all)",
        stacklevel=2,
    )
