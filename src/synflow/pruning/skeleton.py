"""A skeleton: few weights that keep every layer alive. Protected, it guards any score, and bounds the fewest weights.

A layer is alive if one of its weights lies on a path from an input to an output. More weights never kill a layer, so
masks that contain a skeleton keep all its layers alive, whatever else they keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..errors import SynflowError
from ..flow.measure import absolute, measure
from ..flow.passes import WITHOUT_SHIFTS, PassOptions
from ..flow.paths import connected, cuts, fewest_weights, reach, repeats, shortest_path
from ..masks.checks import full_masks
from ..network.private_copy import Network
from ..support.chunked import count, count_true
from ..support.ranking import best_of_each, keep_best
from .engine import EngineSettings, StepScores, engine_named
from .levels import levelled
from .scopes import difference, with_shield

# Weights are ranked by the flow from inputs alone, as paths are. Gates share it, so that no layer counts twice. Norms
# normalise it, so that no branch has so little that its scores underflow.
FROM_INPUTS = PassOptions(shifts=False, shared=True, norms=True)
# A skeleton to be protected is small enough once less than this share of it can be removed at a time.
ROUGH = 1 / 8
# Gates in series meet the weights before them 2, 4, 8, ... times: paths with more weights per layer are not followed.
LONGEST = 4
# After this many failed removals something else than the lightest weights is tried: levelling layers, joining paths.
PATIENCE = 10
# Shares of each layer that are tried for a path, the smaller first.
SHARES = (0.1, 0.4, 0.8)
# A layer is scaled up until this share of the flow passes it: by this many bits more than it lacked, at most by 2^100.
NEARLY_ALL, CLEARLY, MOST_SCALED = 0.99, 12, 100
# How many of the lightest layers are compared for the number of other layers that would die with them.
CANDIDATES = 16


class Skeleton:
    """Weights under which the layers in `needed` live; `given_up` names the layers for which there was no room."""

    def __init__(self, network: Network, masks: Mapping[str, Tensor]) -> None:
        self._network = self._own = network
        self._path = {name: torch.zeros_like(mask) for name, mask in masks.items()}
        self._go_on_with(masks)
        self.layers = self.needed = self._engine.live_layers()
        # Layers that need a weight whether they are alive or not: the last weight of one is not tried.
        self.filled: frozenset[str] = frozenset()
        self.given_up: list[str] = []
        if self._dying() is None:
            raise SynflowError("no path leads from an input to an output, so there is no layer to keep alive")

    def _go_on_with(self, masks: Mapping[str, Tensor]) -> None:
        settings = EngineSettings(balanced=True, cuts=cuts(self._network))
        self._engine = engine_named("fast")(self._network, masks, settings)
        self._scores: StepScores | None = None
        # Weights that cannot be removed, and how many are tried at a time, from one call of `thin_out` to the next.
        self._blocked, self._number = dict(self._path), count(masks)

    @property
    def size(self) -> int:
        """How many weights it has."""
        return self._engine.count

    def masks(self) -> dict[str, Tensor]:
        """The masks of its weights."""
        return self._engine.masks()

    def thin_out(self, target: int = 0, rough: bool = False, failures: float = math.inf) -> bool:
        """Remove the lightest weights while every needed layer lives, down to the target.

        A weight that cannot be removed alone cannot be removed later either, when even fewer are left: it is blocked.
        If all weights are blocked, each is needed. With `rough`, go on beyond the target as long as many can be removed
        at a time. False after this many failures.
        """
        while failures > 0:
            if self._number == 1:
                self._block_last_of_layers()
            free = self.size - count(self._blocked)
            room = min(free, self.size - (0 if rough else target))
            if room < 1:
                return True
            number = max(min(self._number, room, free // 2), 1)
            kept = None if number > 1 and free == self.size else self._without_lightest(number)
            if self._removed(number, kept):
                self._number = number * 2
                continue
            failures -= 1
            if rough and self.size <= target and number < ROUGH * free:
                return True
            if kept is not None and number == 1:
                self._block(difference(self.masks(), kept))
            self._number = max(number // 2, 1)
        return False

    def _without_lightest(self, number: int) -> dict[str, Tensor]:
        """The masks without the lightest weights that are not blocked."""
        return keep_best(with_shield(self._measured().whole(), self._blocked), self.masks(), self.size - number)

    def _removed(self, number: int, kept: Mapping[str, Tensor] | None) -> bool:
        """Remove the lightest weights, or all but those that masks keep, if every needed layer stays alive.

        What it holds while it tries (the removal, its undo) is freed before the next measurement.
        """
        scores = self._measured()
        going = self._engine.lightest(scores, number) if kept is None else self._engine.removal(kept, scores)
        undo = self._engine.remove(going)
        if self._dying() == frozenset():
            self._scores = None
            return True
        undo()  # the scores are still those of the weights
        return False

    def _measured(self) -> StepScores:
        if self._scores is None:
            self._scores = self._engine.measure(FROM_INPUTS)
        return self._scores

    def level(self) -> None:
        """Rank weights from now on as if about as much flow passed every layer: no branch is the lightest part."""
        self._network = levelled(self._own, self.masks(), FROM_INPUTS)
        self._go_on_with(self.masks())

    def build_anew(self) -> None:
        """Join a path through each needed layer: for networks in which the weights that feed a layer rank lowest."""
        masks = {name: magnitude > 0 for name, magnitude in absolute(self._network, self.masks()).items()}
        joined = {name: torch.zeros_like(mask) for name, mask in masks.items()}
        while missing := self.needed - reach(self._network, joined).live_layers:
            path = _path_through(self._network, masks, min(missing))
            joined = {name: mask | path[name] for name, mask in joined.items()}
        self._go_on_with(joined)

    def shrink_to(self, most: int) -> bool:
        """Leave at most this many weights. Where that is impossible, layers are given up one by one, lightest first.

        False where every weight that is left lies on every path that is left.
        """
        self.thin_out(most)
        while self.size > most:
            if not self._give_up():
                return False
            self.thin_out(most)
        return True

    def hold_a_short_path(self, masks: Mapping[str, Tensor]) -> None:
        """Protect a path of few weights, so that giving up layers can lead down to it.

        It is searched for among the weights of the skeleton and among all that the masks keep.
        """
        own = self.masks()
        self._path = min((short_path(self._network, inside) for inside in (own, masks)), key=count)
        joined = {name: mask | self._path[name] for name, mask in own.items()}
        if count(joined) > self.size:
            self._go_on_with(joined)
        self._block(self._path)
        self.thin_out()

    def _block(self, weights: Mapping[str, Tensor]) -> None:
        self._blocked |= {name: self._blocked[name] | mask for name, mask in weights.items()}

    def _block_last_of_layers(self) -> None:
        """Block weights that are the last of a layer that has to have one."""
        full = self.needed | self.filled
        self._block({name: mask for name, mask in self.masks().items() if name in full and count_true(mask) == 1})

    def _dying(self) -> frozenset[str] | None:
        """The needed layers that are dead now; None if no path is left."""
        live = self._engine.live_layers() if self.needed else frozenset()
        return self.needed - live if live or connected(self._network, self.masks()) else None

    def _give_up(self) -> bool:
        """Give up a light layer, with those that die with it; False where that would leave no path.

        Of the lightest layers it is the one with which the fewest others die.
        """
        flows = self._engine.measure().layer_flows
        off_path = [name for name in self.needed if not bool(self._path[name].any())]
        found: list[tuple[frozenset[str], str]] = []
        for name in sorted(off_path, key=lambda name: (flows.get(name, 0.0), name)):
            undo = self._empty(name)
            dying = self._dying()
            undo()
            if dying is not None:
                found.append((dying, name))
                if len(dying) == 1 or len(found) == CANDIDATES:
                    break
        if not found:
            return False
        dying, name = min(found, key=lambda each: len(each[0]))
        self._empty(name)
        self._scores, self._blocked = None, dict(self._path)
        self.needed -= dying
        self.given_up += sorted(dying)
        return True

    def _empty(self, name: str) -> Callable[[], None]:
        """Remove all weights of a layer; returns a function that puts them back."""
        kept = self.masks()
        kept[name] = torch.zeros_like(kept[name])
        return self._engine.remove(self._engine.removal(kept, self._engine.measure()))


def _path_through(network: Network, masks: Mapping[str, Tensor], layer: str) -> dict[str, Tensor]:
    """Few of the kept weights under which a layer is alive: the best of each layer by the flow through that layer.

    The layer's weights are scaled up until almost all flow passes it, so that scores are shares of the flow through it.
    """
    current, scale = dict(masks), 0
    while True:
        magnitudes = absolute(network, current)
        magnitudes[layer] = magnitudes[layer] * 2.0**scale
        flow = measure(network, magnitudes=magnitudes, options=WITHOUT_SHIFTS)
        own = float(flow.scores[layer].sum(dtype=torch.float64))
        if own < NEARLY_ALL * flow.value and scale < MOST_SCALED:
            scale = min(MOST_SCALED, scale + (CLEARLY + round(math.log2(flow.value / own)) if own > 0 else MOST_SCALED))
            continue
        for share in SHARES:
            kept = best_of_each(flow.scores, current, share)
            if count(kept) < count(current) and layer in reach(network, kept).live_layers:
                current = kept
                break
        else:
            on_path = reach(network, current).on_path
            return {name: mask & on_path[name] for name, mask in current.items()}


def find_skeleton(network: Network, masks: Mapping[str, Tensor], most: float = math.inf) -> Skeleton:
    """A small set of the kept weights under which every layer lives that is alive under the masks.

    If it has more than `most` weights, each of them is needed, and it holds a path of few weights.
    """
    skeleton = Skeleton(network, masks)
    target = int(min(most, skeleton.size))
    thin, size = skeleton.thin_out(target, rough=True, failures=PATIENCE), math.inf
    while not thin and skeleton.size < size / 2:
        # Removals change the flow of the other weights, so they are levelled again while that halves the skeleton.
        size = skeleton.size
        skeleton.level()
        thin = skeleton.thin_out(target, rough=True, failures=PATIENCE)
    if not thin and skeleton.size > target:
        thinned = skeleton.masks()
        skeleton.build_anew()
        skeleton.thin_out(target, rough=True)
        if skeleton.size > most:  # without a limit on failures, as in `limits`
            patient = Skeleton(network, thinned)
            patient.thin_out()
            skeleton = min(skeleton, patient, key=lambda found: found.size)
    if skeleton.size > most:
        skeleton.hold_a_short_path(masks)
    return skeleton


def short_path(network: Network, masks: Mapping[str, Tensor] | None = None, enough: int = 0) -> dict[str, Tensor]:
    """Few of the kept weights that leave a path, each of them needed for it; or at most `enough` that leave one.

    In a network in which a term meets each weight once it is a shortest path. Elsewhere the weights of a shortest path
    are counted once per use, and where a constant enters beside the input (a class token) the shortest path may start
    there and leave the input out. So layers are emptied one by one as long as a path stays, then the others thinned
    out, and the smaller of the two sets is taken.
    """
    key, whole = "short path", masks is None or count(masks) == network.size
    if not whole or key not in network.constants:
        best = _short_path(network, full_masks(masks, network.weights), enough)
        if not whole or count(best) <= enough:
            return best
        network.constants[key] = best
    return dict(network.constants[key])


def _short_path(network: Network, masks: dict[str, Tensor], enough: int) -> dict[str, Tensor]:
    found = []
    if (fewest_weights(network, masks) or 0) <= LONGEST * len(masks):
        found = [path for path in [shortest_path(network, masks)] if connected(network, path)]
        if found and (count(found[0]) <= max(enough, 1) or not repeats(network)):
            return found[0]
    for name in masks:
        without = masks | {name: torch.zeros_like(masks[name])}
        masks = without if connected(network, without) else masks
    skeleton = Skeleton(network, masks)
    skeleton.needed, skeleton.filled = frozenset(), frozenset(name for name, mask in masks.items() if bool(mask.any()))
    skeleton.thin_out(enough)
    return min([*found, skeleton.masks()], key=count)
