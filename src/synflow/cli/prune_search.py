"""From `--flops 0.25` or `--speedup 3` to a compression: prune, measure, prune further or step back.

A search costs about as much as one pruning run: each trial starts from the masks of the last trial that was not small
enough. It uses logarithms: x of the compression, y of the compact network's cost as a share of the dense one's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ..benchmarking.results import Benchmark
from ..certificates.limits import max_compression
from ..compaction import compact
from ..errors import SynflowError, choose
from ..masks.results import Masks
from ..network.flops import flops
from ..pruning.loop import prune as prune_model
from ..pruning.scores import SCORE_FORM, SCORES, traits_of
from .prune_speedup import Speed

# A search prunes and measures at most this often; most end after three or four trials.
TRIALS = 10
# A result within this relative distance of the target ends the search: another trial would gain little.
CLOSE = 0.03
# No search goes beyond 100,000x compression, where networks have a handful of weights left.
FARTHEST = math.log(1e5)
# The size of one pruning step, in logarithms: that of 100 steps to 100x, the paper's setting.
STRIDE = math.log(100) / 100
# The first guess assumes that costs fall as exp(-BEND * x**2); in most networks they fall more slowly.
BEND = 0.12
# A collapsed network may cost nothing at all, which has no logarithm: its cost counts as this share.
LEAST_COST = 1e-9

Tell = Callable[[str], None]
Walk = Callable[[float, float, Masks | None], Masks]


@dataclass(frozen=True)
class Reached:
    """The figure that masks reach, with its quartiles; a count has no spread."""

    value: float
    low: float
    high: float
    benchmark: Benchmark | None = None


@dataclass(frozen=True)
class Found:
    """The resulting masks of a search, the figure that they reach, and if it misses the target, the reason."""

    masks: Masks
    compression: float
    reached: Reached
    met: bool
    problem: str = ""


@dataclass(frozen=True)
class _Point:
    x: float
    y: float
    masks: Masks | None = None
    reached: Reached | None = None


def find_flops(target: float, model: nn.Module, example: Any, walk: Walk, tell: Tell) -> Found:
    """The lowest compression whose compact network needs at most this share of the dense one's operations."""
    dense = flops(model, example)

    def measure(masks: Masks) -> Reached:
        share = flops(compact(model, example, masks), example) / dense
        return Reached(share, share, share)

    def said(reached: Reached) -> str:
        return f"{100 * reached.value:.3g}% of the operations"

    return search(target, lambda share: share, measure, walk, said, _farthest(model, example), tell)


def find_speedup(
    target: float, model: nn.Module, example: Any, walk: Walk, tell: Tell,
    *, task: str = "inference", batch: int = 64,
) -> Found:  # fmt: skip
    """The lowest compression whose compact network is this many times faster than the dense one, on this machine."""
    speed = Speed(model, example, task, batch)

    def measure(masks: Masks) -> Reached:
        return Reached(*speed.times_faster(compact(model, example, masks), masks, target))

    def said(reached: Reached) -> str:
        return f"{reached.value:.2f} times faster ({reached.low:.2f} to {reached.high:.2f})"

    found = search(target, lambda faster: 1 / faster, measure, walk, said, _farthest(model, example), tell)
    if found.reached.benchmark is not None:
        return found
    reached = Reached(*speed.benchmark(compact(model, example, found.masks), found.masks))
    return replace(
        found, reached=reached, met=reached.value >= target, problem=found.problem or "a benchmark found less"
    )


def walk(model: nn.Module, example: Any, settings: dict[str, Any], progress: bool) -> Walk:
    """A function that prunes from one compression to another: from the given masks, or by a new pruning run.

    It continues from masks only with a score of many default steps, and if the user set neither steps nor schedule.
    """
    steps, schedule, score = settings["steps"], settings["schedule"], settings["score"]
    function = choose("score", score, SCORES, SCORE_FORM)
    many = traits_of(function).steps > 1 and steps is None and schedule == "exponential"

    def follow(start: float, end: float, masks: Masks | None) -> Masks:
        options = {**settings, "steps": max(1, math.ceil((end - start) / STRIDE))}
        made = prune_model(model, example, density=math.exp(-end), masks=masks, progress=progress, **options)
        before = masks.steps if masks is not None else ()
        steps = (*before, *(replace(step, index=len(before) + step.index) for step in made.steps))
        return Masks(made, {**made.about, "steps": len(steps)}, steps)

    def afresh(_start: float, end: float, _masks: Masks | None) -> Masks:
        return prune_model(model, example, density=math.exp(-end), progress=progress, **settings)

    return follow if many else afresh


def search(
    target: float, cost: Callable[[float], float], measure: Callable[[Masks], Reached], walk: Walk,
    said: Callable[[Reached], str], farthest: float, tell: Tell,
) -> Found:  # fmt: skip
    """Masks whose cost is at most the target's, as close as a few trials reach; else the masks with the least cost."""
    goal = math.log(cost(target))
    low, high = _Point(0.0, 0.0), None
    tried: list[_Point] = []
    problem = "higher compression did not help"
    for trial in range(1, TRIALS + 1):
        x = _next(low, high, goal, farthest)
        try:
            masks = walk(low.x, x, low.masks)
            reached = measure(masks)
        except SynflowError as cause:
            # The network of this compression cannot be measured; that of a lower one may be.
            problem, farthest = f"at {math.exp(x):.4g}x: {cause}", (low.x + x) / 2
            tell(f"trial {trial}: {problem}")
            if trial == TRIALS and not tried:
                raise
            continue
        point = _Point(x, math.log(max(cost(reached.value), LEAST_COST)), masks, reached)
        tried.append(point)
        tell(f"trial {trial}: at {math.exp(x):.4g}x compression the compact network is at {said(reached)}")
        if point.y <= goal:
            high = point
        else:
            low = point
        if high is not None and (_as_close_as_can_be(high, goal, target) or high.x - low.x <= STRIDE / 2):
            break
        if high is None and x >= farthest:
            break
    best = high or min(tried, key=lambda point: point.y)
    assert best.masks is not None
    assert best.reached is not None
    return Found(best.masks, math.exp(best.x), best.reached, high is not None, "" if high else problem)


def _as_close_as_can_be(point: _Point, goal: float, target: float) -> bool:
    """Whether the result is close enough to the target, or within the scatter of the measurement."""
    assert point.reached is not None
    return goal - point.y <= CLOSE or point.reached.low <= target <= point.reached.high


def _farthest(model: nn.Module, example: Any) -> float:
    return min(FARTHEST, math.log(max_compression(model, example)))


def _next(low: _Point, high: _Point | None, goal: float, farthest: float) -> float:
    """The next compression to try: slightly beyond the point where a curve through known results meets the goal."""
    aim = goal - CLOSE / 2
    if high is not None:
        share = (aim - low.y) / (high.y - low.y) if high.y < low.y else 0.5
        return low.x + min(0.9, max(0.1, share)) * (high.x - low.x)
    if low.x == 0:
        return min(farthest, max(STRIDE, math.sqrt(-aim / BEND)))
    # Costs fall increasingly fast: y = -a * x**2 through the last point. If they hardly fell, go twice as far.
    factor = math.sqrt(aim / low.y) if low.y < 0 else 2.0
    return min(farthest, low.x * min(2.0, max(1.05, factor)))
