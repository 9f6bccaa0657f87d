"""The guard of a path: every removal leaves a path from an input to an output.

Removing a set of weights loses at most the sum of their scores (the union bound). As long as that sum is below the
flow, a path is left. Scores and flow are those of the terms that start at an input: a bias alone is no path. Where
the bound proves nothing, a path is searched for after the removal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..flow.measure import Measurement, measure
from ..flow.passes import SHARED, WITHOUT_SHIFTS
from ..flow.paths import connected, fewest_weights, repeats, shortest_path
from ..network.private_copy import Network
from ..support.chunked import count, lightest, total_score
from ..support.ranking import keep_best
from .engine import Engine, Removal, StepScores
from .scopes import difference, global_scope, with_shield
from .settings import PruningRun
from .skeleton import LONGEST

# Scores are sums of many rounded terms, so the bound counts as met only by more than this share of the flow.
ROUNDING = 1e-5
# Where the bound would split a step into more parts than this, the whole step is tried, then half of it, and so on.
BOLD = 8


class StuckError(Exception):
    """Every weight that may be removed lies on every path."""

    def __init__(self, kept: int) -> None:
        super().__init__(f"{kept} weights are left and each lies on every path")
        self.kept = kept


@dataclass(frozen=True)
class Removed:
    """Masks after a removal, the share of the flow that it removed, and whether it was all that was asked for."""

    masks: dict[str, Tensor]
    pruned_fraction: float
    complete: bool


class PathGuard:
    """Removes the weights of one run; where the run is guarded, a path stays."""

    def __init__(self, run: PruningRun, engine: Engine) -> None:
        self._run, self._engine = run, engine
        self._path: dict[str, Tensor] = {}

    def remove(self, scores: StepScores, keep: int) -> tuple[float, bool]:
        """Go on towards a count: the share of the flow that was removed, and whether the count is reached."""
        run, engine, flow = self._run, self._engine, scores.flow
        if run.is_global and flow.value > 0:
            going = engine.lightest(scores, engine.count - keep)
            proved = not (flow.had_shifts or flow.loose) and going.total < flow.value * (1.0 - ROUNDING)
            if proved or not run.guard:
                engine.remove(going)
                return going.total / flow.value, True
            share = self._tried(scores, going) if flow.loose or repeats(run.network) else self._bounded(scores, going)
            if share is not None:
                return share, engine.count == keep
        removed = self._careful(scores, keep, always=False)
        return removed.pruned_fraction, removed.complete

    def remove_by_margin(self, scores: StepScores) -> float:
        """A certified step: remove weights whose scores sum to less than the margin; the share that was removed."""
        run, engine = self._run, self._engine
        bound, weighed = flow_from_inputs(engine, scores)
        if run.is_global and bound > 0 and not scores.flow.loose:
            number = engine.count - run.keep
            going = engine.lightest(weighed, number, run.margin * bound)
            if going.number or not number:
                engine.remove(going)
                return going.total / bound
        return self._careful(scores, run.keep, always=True).pruned_fraction

    def _bounded(self, scores: StepScores, going: Removal) -> float | None:
        """Remove weights as far as the flow from the inputs alone allows it; None where that is too little."""
        bound, weighed = flow_from_inputs(self._engine, scores)
        if not bound > 0:
            return None  # weights that are zero leave no flow from the inputs, so that the bound proves nothing
        if self._engine.weigh(going, weighed) < bound * (1.0 - ROUNDING):
            self._engine.remove(going)
            return going.total / scores.flow.value
        part = self._engine.lightest(weighed, going.number, self._run.margin * bound)
        if not part.number >= going.number // BOLD > 0:
            return None
        self._engine.remove(part)
        return part.total / bound

    def _tried(self, scores: StepScores, going: Removal) -> float | None:
        """Remove the lightest weights if a path is found afterwards, else as many by a flow that gates share.

        For flows of which the bound says little or nothing: a path that is found is as good a proof. None where
        neither leaves a path.
        """
        if self._engine.leaves_a_path(going):
            self._engine.remove(going)
            return going.total / scores.flow.value
        other = self._engine.lightest(self._engine.measure(SHARED), going.number)
        if not self._engine.leaves_a_path(other):
            return None
        lost = self._engine.weigh(other, scores)
        self._engine.remove(other)
        return lost / scores.flow.value

    def _careful(self, scores: StepScores, keep: int, always: bool) -> Removed:
        """A step on whole masks and scores: for other scopes, with a shield, or where the bound allows too little."""
        run, engine = self._run, self._engine
        masks, flow = engine.masks(), replace(scores.flow, scores=scores.whole())
        wanted = run.allocate(flow.scores, masks, keep)
        if not run.guard and not always:
            removed = Removed(wanted, _share(flow, masks, wanted), complete=True)
        else:
            if flow.had_shifts:
                bare = engine.measure(WITHOUT_SHIFTS)
                flow = replace(bare.flow, scores=bare.whole())
                if total_score(flow.scores, difference(masks, wanted)) >= _limit(flow, run.margin, always):
                    # Where shifts add to the scores, weights fed by biases alone may rank above the last path from an
                    # input; ranked by the flow from inputs they are the first to be removed.
                    wanted = run.allocate(flow.scores, masks, keep)
            anywhere = run.scope is global_scope
            others = self._others(masks, keep) if anywhere and not always else ()
            removed = remove_safely(run.network, masks, wanted, flow, run.margin, always, anywhere, others)
        engine.keep_only(removed.masks)
        return removed

    def _others(self, masks: Mapping[str, Tensor], keep: int) -> Iterator[dict[str, Tensor]]:
        """Other masks of the wanted size, for when the lightest weights hold the last path.

        Weights that a term meets once rank below those that it meets many times (before gates, in attention). So rank
        by a flow that the sides of a gate share, in which every layer counts once; or else keep one path in any case.
        That path is searched for again only once it has been cut.
        """
        run, path = self._run, self._path
        shared = measure(run.network, masks, power=run.traits.flow_power or 1, options=SHARED).scores
        yield run.allocate(shared, masks, keep)
        if (fewest_weights(run.network, masks) or 0) > LONGEST * len(masks):
            return
        if not path or any(bool((path[name] & ~masks[name]).any()) for name in path):
            path.update(shortest_path(run.network, masks, heavy=True))
        if count(path) <= keep:
            yield run.allocate(with_shield(shared, path), masks, keep)


def flow_from_inputs(engine: Engine, scores: StepScores) -> tuple[float, StepScores]:
    """The flow from the inputs alone, and scores: a path stays while the scores of a removal sum to less than it.

    What biases add to the flow starts at no input. They raise scores as well, which is safe: a removal then weighs more
    than it does. Where a maximum or a divisor follows a bias, scores may be lower, so they are measured without biases.
    """
    flow = scores.flow
    if not flow.had_shifts:
        return flow.value, scores
    bare = engine.measure(WITHOUT_SHIFTS, gradients=flow.bent)
    if flow.bent:
        return bare.flow.value, bare
    return math.ldexp(bare.flow.value, bare.flow.exponent - flow.exponent), scores


def remove_safely(
    network: Network,
    masks: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    flow: Measurement,
    margin: float,
    always: bool,
    anywhere: bool = False,
    others: Iterable[dict[str, Tensor]] = (),
) -> Removed:
    """Go from `masks` towards `wanted` as far as the bound allows: all the way, or the lightest part of it.

    With `always`, the removed scores stay below `margin` times the flow; otherwise the whole step is taken as long as
    they stay below the flow itself. Otherwise `others` are more masks of the wanted size to try. With `anywhere`, a
    weight of `wanted` may be removed in place of another. Where the measurement is loose, a path is searched for after
    each removal.
    """
    going = difference(masks, wanted)
    number = everything = count(going)
    proved = not flow.loose
    if total_score(flow.scores, going) >= _limit(flow, margin, always):
        number = lightest(flow.scores, going, flow.value * margin)
        if not always and (number < everything // BOLD or repeats(network)):
            # Weights that a term meets many times (gates, repeated layers, deep chains) make the bound far too
            # cautious. A path that is found is as good a proof.
            number, proved = everything, False
            for other in others if others and not connected(network, wanted) else ():
                if connected(network, other):
                    return Removed(other, _share(flow, masks, other), complete=True)
    while number > 0:
        kept = after_lightest(flow.scores, masks, wanted, number)
        if proved or connected(network, kept):
            return Removed(kept, _share(flow, masks, kept), complete=number == everything)
        number //= 2
    if everything == 0:
        return Removed(dict(masks), 0.0, complete=True)
    return _single(network, masks, going, flow, anywhere)


def _limit(flow: Measurement, margin: float, always: bool) -> float:
    """What the scores of a removal have to stay below, so that it may be taken whole."""
    return flow.value * (margin if always else 1.0 - ROUNDING)


def _single(
    network: Network, masks: Mapping[str, Tensor], going: Mapping[str, Tensor], flow: Measurement, anywhere: bool
) -> Removed:
    """Remove one weight: the lightest if the bound allows it, else the lightest whose removal leaves a path.

    With `anywhere`, one that was to stay may go: where the last path from an input has all the weights that rank
    lowest, some weight above them is not on it.
    """
    staying = difference(masks, going) if anywhere else {}
    for candidates in (going, staying):
        for score, name, index in _ascending(flow.scores, candidates):
            trial = {**masks, name: masks[name].clone()}
            trial[name].view(-1)[index] = False
            # A score of the whole flow means that the weight is on every path, unless it is used several times on one.
            bound = not flow.loose and score < flow.value * (1.0 - ROUNDING)
            if bound or connected(network, trial):
                return Removed(trial, _share(flow, masks, trial), complete=candidates is going and count(going) == 1)
    raise StuckError(count(masks))


def _ascending(scores: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> list[tuple[float, str, int]]:
    """The score, layer and position of each weight, lightest first."""
    entries = []
    for name, mask in masks.items():
        flat = scores[name].flatten()
        entries += [(float(flat[at]), name, int(at)) for at in torch.nonzero(mask.flatten()).flatten()]
    return sorted(entries, key=lambda entry: entry[0])


def after_lightest(
    scores: Mapping[str, Tensor], masks: Mapping[str, Tensor], wanted: Mapping[str, Tensor], number: int
) -> dict[str, Tensor]:
    """The masks on the way to `wanted` after its `number` lightest removals."""
    going = difference(masks, wanted)
    staying = keep_best(scores, going, max(count(going) - number, 0))
    return {name: (mask & wanted[name]) | staying[name] for name, mask in masks.items()}


def _share(flow: Measurement, masks: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> float:
    """The share of the flow that a removal takes at most; not a number where there is no flow."""
    lost = total_score(flow.scores, difference(masks, kept))
    return lost / flow.value if flow.value > 0 else math.nan
