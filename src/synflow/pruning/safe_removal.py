"""Removing weights so that a path provably survives: the union bound, and exact tests where it says nothing.

Removing a set of weights loses at most the sum of their scores. As long as that sum is below the flow, some path
from an input to an output is left. Scores and flow are those of the terms that start at an input: a bias alone is no
path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..flow.measure import Measurement
from ..flow.paths import connected, repeats
from ..network.private_copy import Network
from ..support.chunked import count, lightest, total_score
from ..support.ranking import keep_best

# Scores are sums of many rounded terms: a bound met by less than this share is not relied on.
ROUNDING = 1e-5
# Where the bound would cut a step into more parts than this, the step is tried whole, then halved until a path is left.
BOLD = 8


class StuckError(Exception):
    """Every weight that could still go lies on every path that is left."""

    def __init__(self, kept: int) -> None:
        super().__init__(f"{kept} weights are left and each lies on every path")
        self.kept = kept


@dataclass(frozen=True)
class Removed:
    """Masks after a removal, and the share of the flow that went with it."""

    masks: dict[str, Tensor]
    pruned_fraction: float
    complete: bool


def remove_safely(
    network: Network,
    masks: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    flow: Measurement,
    *,
    margin: float,
    always: bool,
    allocate: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
    anywhere: bool = False,
    rescue: Callable[[], Iterator[dict[str, Tensor]]] | None = None,
) -> Removed:
    """Go from `masks` towards `wanted` as far as the bound allows: all the way, or the lightest part of it.

    With `always`, the removed scores stay below `margin` times the flow; otherwise the whole step is taken as long as
    they stay below the flow itself. `allocate` gives the masks to aim at by other scores, for when they do not; with
    `anywhere`, weights of `wanted` may go in place of others; `rescue` yields other masks of the wanted size. Where the
    measurement is loose, a path is looked for after each removal.
    """
    going = {name: masks[name] & ~wanted[name] for name in masks}
    lost = total_score(flow.scores, going)
    limit = flow.value * (margin if always else 1.0 - ROUNDING)
    if lost >= limit and allocate is not None:
        # Where shifts add to the scores, weights fed by biases alone may rank above the last input path; ranked by the
        # flow from inputs they go first.
        wanted = allocate(flow.scores)
        going = {name: masks[name] & ~wanted[name] for name in masks}
        lost = total_score(flow.scores, going)
    number = everything = count(going)
    proved = not flow.loose
    if lost >= limit:
        number = lightest(flow.scores, going, flow.value * margin)
        if not always and (number < everything // BOLD or repeats(network)):
            # Weights that a term meets many times (gates, repeated layers, deep chains) make the bound timid. A path
            # that is found is as good a proof as one that is promised.
            number, proved = everything, False
            found = None if rescue is None or connected(network, wanted) else _rescued(network, masks, rescue(), flow)
            if found is not None:
                return found
    while number > 0:
        staying = keep_best(flow.scores, going, everything - number)
        gone = {name: going[name] & ~staying[name] for name in going}
        kept = {name: masks[name] & ~gone[name] for name in masks}
        if proved or connected(network, kept):
            return Removed(kept, _fraction(total_score(flow.scores, gone), flow), complete=number == everything)
        number //= 2
    if everything == 0:
        return Removed(dict(masks), 0.0, complete=True)
    return _single(network, masks, going, flow, anywhere)


def _rescued(
    network: Network, masks: Mapping[str, Tensor], others: Iterator[dict[str, Tensor]], flow: Measurement
) -> Removed | None:
    """The first of other masks that have a path."""
    for around in others:
        if connected(network, around):
            lost = total_score(flow.scores, {name: masks[name] & ~around[name] for name in masks})
            return Removed(around, _fraction(lost, flow), complete=True)
    return None


def _single(
    network: Network, masks: Mapping[str, Tensor], going: Mapping[str, Tensor], flow: Measurement, anywhere: bool
) -> Removed:
    """Remove one weight: the lightest if the bound allows it, else the lightest whose removal leaves a path.

    With `anywhere`, one that was to stay may go: where all that rank lowest are on the last path from an input,
    something above them is not.
    """
    staying = {name: masks[name] & ~going[name] for name in masks} if anywhere else {}
    for candidates in (going, staying):
        for name, index, score in _ascending(flow.scores, candidates):
            trial = dict(masks)
            trial[name] = masks[name].clone()
            trial[name].view(-1)[index] = False
            # A score of the whole flow means that the weight is on every path, unless it is used several times on one.
            bound = not flow.loose and score < flow.value * (1.0 - ROUNDING)
            if bound or connected(network, trial):
                return Removed(trial, _fraction(score, flow), complete=candidates is going and count(going) == 1)
    raise StuckError(count(masks))


def _ascending(scores: Mapping[str, Tensor], going: Mapping[str, Tensor]) -> list[tuple[str, int, float]]:
    entries = []
    for name, mask in going.items():
        flat = scores[name].flatten()
        entries += [(float(flat[i]), name, int(i)) for i in torch.nonzero(mask.flatten()).flatten()]
    entries.sort(key=lambda entry: entry[0])
    return [(name, index, score) for score, name, index in entries]


def _fraction(lost: float, flow: Measurement) -> float:
    return lost / flow.value if flow.value > 0 else float("nan")
